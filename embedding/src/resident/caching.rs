//! A cache of rows on a device whose memory does not hold all of them. The tables of the host hold
//! every row.
//!
//! The rows of later batches are on their way before the steps that need them (`ahead.rs`). A step
//! that begins fetches what is still missing, and counts as one that waited.

use std::collections::VecDeque;

use zillion_feature::LookupPlan;

use crate::error::{Error, Result};
use crate::resident::ResidentTables;
use crate::resident::cache::{ShardCache, Taken};
use crate::resident::copies::gather;
use crate::resident::moves::{Moves, TableMove};
use crate::resident::phase::ShardRecord;
use crate::resident::table::ResidentTable;
use crate::set::TableSet;
use crate::table::record::Record;
use crate::table::slabs::Gone;

/// The work of a cache of rows on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFigures {
    /// The number of rows for which the device has memory.
    pub slots: u64,
    /// The number of rows that batches wanted.
    pub wanted: u64,
    /// The number of these rows that were on the device when their batch was first seen.
    pub found: u64,
    /// The number of rows that were copied to the device.
    pub rows_in: u64,
    /// The number of changed rows that were copied to the host to make room.
    pub rows_out: u64,
    /// The number of steps that began before their rows or slots were there. Each of them waited
    /// for the host, or on the device.
    pub waited_steps: u64,
}

/// The state of a cache.
#[derive(Debug)]
pub(super) struct CacheState {
    /// The reason for which the device does not hold all rows.
    pub(super) reason: String,
    /// The memory of moves; `None` before the first step.
    pub(super) moves: Option<Moves>,
    /// The number of the newest batch that has begun.
    pub(super) begun: u32,
    /// The number of the newest batch of the window.
    pub(super) looked: u32,
    /// Whether the host has waited since the last step began.
    pub(super) has_waited: bool,
    pub(super) figures: CacheFigures,
    pub(super) work: Vec<TableMove>,
    /// The plans whose rows are being read from disk, if tables spill.
    pub(super) reading: VecDeque<LookupPlan>,
    /// The largest number of plans of the window beyond the present batch.
    pub(super) window: u32,
    /// Whether a plan was announced since the last step began.
    pub(super) was_told: bool,
    /// Whether the newest batch of the window has rows without slots.
    pub(super) is_short: bool,
}

impl ResidentTables {
    /// Returns the reason for which the device has a cache of rows; `None` if it holds all rows.
    pub fn cache_reason(&self) -> Option<&str> {
        self.cache.as_ref().map(|cache| cache.reason.as_str())
    }

    /// Returns the work of the cache; `None` if the device holds all rows.
    pub fn cache_figures(&self) -> Option<CacheFigures> {
        let slots = self.tables.iter().flat_map(|table| &table.places);
        let slots = slots.filter_map(|places| places.cached_slots()).sum::<usize>();
        self.cache.as_ref().map(|cache| CacheFigures { slots: slots as u64, ..cache.figures })
    }

    /// Gives slots to the rows of the step that have none, and enqueues the copies of those that
    /// are on the host. The step then waits on the device for all of its rows.
    pub(super) fn fetch_late(&mut self, tables: &mut TableSet) -> Result<()> {
        let Some(cache) = &mut self.cache else { return Ok(()) };
        cache.fetch_late(tables, &mut self.tables, &mut self.records)?;
        let newest = self.records.iter().map(|record| record.moved).max().unwrap_or(0);
        match &cache.moves {
            Some(moves) => Ok(moves.let_wait(self.options.stream, newest)?),
            None => Ok(()),
        }
    }

    /// Takes the slots of the rows that the host has freed since the last step, and follows those
    /// that have other numbers. A caller that removes rows calls it before the set gets other rows.
    pub fn follow_host(&mut self, tables: &mut TableSet) {
        if self.cache.is_none() {
            return;
        }
        for (index, table) in self.tables.iter_mut().enumerate() {
            for (shard, places) in tables.shards.iter_mut().zip(&mut table.places) {
                let Some(cache) = places.cache() else { continue };
                for gone in shard.tables[index].slabs.take_gone() {
                    match gone {
                        Gone::Freed(row) => cache.free(row),
                        Gone::Moved { from, to } => cache.rename(from, to),
                    }
                }
            }
        }
    }

    /// Writes the rows of all moves to the host.
    pub(super) fn land_moves(&mut self, tables: &mut TableSet) -> Result<()> {
        match self.cache.as_mut().and_then(|cache| cache.moves.as_mut()) {
            Some(moves) => moves.land_all(tables, &mut self.tables),
            None => Ok(()),
        }
    }

    /// Drops the rows of the device, with the moves that are on their way.
    pub(super) fn drop_rows(&mut self, tables: &mut TableSet) {
        if let Some(cache) = &mut self.cache {
            cache.moves = None;
            let parts = tables.shards.iter_mut().flat_map(|shard| &mut shard.tables);
            parts.for_each(|part| part.slabs.forget_rows());
        }
        self.tables.clear();
    }
}

impl CacheState {
    /// Makes a cache without memory, for the given reason.
    pub(super) fn new(reason: String) -> Self {
        Self {
            reason,
            moves: None,
            begun: 0,
            looked: 0,
            has_waited: false,
            figures: CacheFigures::default(),
            work: Vec::new(),
            reading: VecDeque::new(),
            window: 0,
            was_told: false,
            is_short: false,
        }
    }

    /// Begins the next batch on the device's stream of steps. Returns its number.
    pub(super) fn begin(&mut self, steps: zillion_device::gpu::Stream) -> Result<u32> {
        self.begun += 1;
        if let Some(moves) = &self.moves {
            moves.begin_step(steps)?;
        }
        Ok(self.begun)
    }

    /// Enqueues the collected move. Returns its number and whether the host has waited.
    pub(super) fn send(
        &mut self,
        tables: &mut TableSet,
        resident: &mut [ResidentTable],
    ) -> Result<(u32, bool)> {
        let Some(moves) = &mut self.moves else { return Ok((0, false)) };
        for work in &self.work {
            self.figures.rows_in += work.places.len() as u64;
            self.figures.rows_out += work.cleaned.len() as u64;
        }
        let sent = moves.send(tables, resident, &self.work)?;
        self.work.iter_mut().for_each(TableMove::clear);
        Ok(sent)
    }

    fn fetch_late(
        &mut self,
        tables: &mut TableSet,
        resident: &mut [ResidentTable],
        records: &mut [ShardRecord],
    ) -> Result<()> {
        let was_looked_at = self.begun <= self.looked;
        self.looked = self.looked.max(self.begun);
        self.work.clear();
        self.work.resize_with(resident.len(), TableMove::default);
        let mut fetched = 0;
        for (shard, ShardRecord { tables: of_tables, late, entered, .. }) in
            records.iter_mut().enumerate()
        {
            let mut old = 0;
            for (index, (record, late)) in of_tables.iter_mut().zip(late).enumerate() {
                let changes = !resident[index].is_frozen;
                for (done, &at) in late.iter().enumerate() {
                    let row = record.rows[at as usize];
                    let is_new = record.new.binary_search(&at).is_ok();
                    let (of, left) = ((shard, index), late.len() - done);
                    let slot = self.take_any(tables, resident, of, left)?;
                    let number = self.moves.as_ref().map_or(0, Moves::next_number);
                    let ResidentTable { form, places, .. } = &mut resident[index];
                    let Some(cache) = places[shard].cache() else { continue };
                    cache.give(slot, row, (self.begun, if is_new { 0 } else { number }));
                    cache.enter(row, self.begun, changes);
                    record.rows[at as usize] = cache.place(slot);
                    if !is_new {
                        old += 1;
                        let work = &mut self.work[index];
                        work.places.push(cache.place(slot));
                        let slabs = &tables.shards[shard].tables[index].slabs;
                        gather(slabs, row, form, &mut work.words);
                    }
                }
            }
            if !was_looked_at {
                self.figures.wanted += *entered + old;
                self.figures.found += *entered;
            }
            fetched += old;
        }
        if fetched > 0 {
            let (number, _) = self.send(tables, resident)?;
            records.iter_mut().take(1).for_each(|record| record.moved = record.moved.max(number));
        }
        let waited = std::mem::take(&mut self.has_waited) || fetched > 0;
        self.figures.waited_steps += u64::from(waited);
        Ok(())
    }

    /// Takes a slot for a row of the present step. If there is none, waits for moves, or cleans
    /// rows that the step does not use.
    fn take_any(
        &mut self,
        tables: &mut TableSet,
        resident: &mut [ResidentTable],
        (shard, index): (usize, usize),
        count: usize,
    ) -> Result<u32> {
        let present = self.begun;
        for _ in 0..MOST_TRIES {
            let Some(moves) = &mut self.moves else { break };
            let number = moves.next_number();
            let Some(cache) = resident[index].places[shard].cache() else { break };
            match cache.take_any(present, moves.landed) {
                Taken::Slot(slot) => return Ok(slot),
                Taken::After(number) => {
                    // A move that is still being collected has not been sent.
                    if number >= moves.next_number() {
                        self.send(tables, resident)?;
                    }
                    let Some(moves) = &mut self.moves else { break };
                    self.has_waited |= moves.land(tables, resident, Some(number))?;
                }
                Taken::Nothing => {
                    let mut cleaned = Vec::new();
                    cache.clean_any(count, (present, number), &mut cleaned);
                    let places = cleaned.into_iter().map(|row| (shard, cache.place(row.slot), row));
                    self.work[index].cleaned.extend(places);
                    let (number, _) = self.send(tables, resident)?;
                    let Some(moves) = &mut self.moves else { break };
                    self.has_waited |= moves.land(tables, resident, Some(number))?;
                }
            }
        }
        let reason = "no slot of the cache can be taken for a row of the step; report this mistake";
        Err(Error::misuse(reason))
    }
}

/// The largest number of waits for a slot. Each wait makes the rows clean that a step does not use,
/// so two are enough.
const MOST_TRIES: usize = 64;

/// Gives the rows of a step in one shard their places, and lists the positions of those that have
/// no slot yet. Returns the number of rows with a slot and the newest of their moves.
pub(super) fn enter_rows(
    cache: &mut ShardCache,
    record: &mut Record,
    late: &mut Vec<u32>,
    (batch, changes): (u32, bool),
) -> (u64, u32) {
    late.clear();
    let (mut entered, mut newest) = (0, 0);
    for (at, row) in record.rows.iter_mut().enumerate() {
        if *row == Record::NO_ROW {
            continue;
        }
        match cache.enter(*row, batch, changes) {
            Some((place, moved)) => {
                *row = place;
                entered += 1;
                newest = newest.max(moved);
            }
            None => late.push(at as u32),
        }
    }
    (entered, newest)
}
