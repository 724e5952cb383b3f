//! A cache of rows on a device whose memory does not hold all of them. The tables of the host hold
//! every row.
//!
//! The caller tells the keys of later batches ([`ResidentTables::look_ahead`]), so that their rows
//! are on the way before the steps that need them. A step that begins fetches what is still
//! missing, and counts as one that waited.

use std::collections::VecDeque;
use std::ops::Range;

use zillion_device::Workers;
use zillion_feature::LookupPlan;

use crate::error::{Error, Result};
use crate::eviction::clock::Moment;
use crate::resident::cache::{Cleaned, ShardCache, Taken};
use crate::resident::copies::gather;
use crate::resident::moves::{Moves, TableMove};
use crate::resident::phase::ShardRecord;
use crate::resident::table::ResidentTable;
use crate::resident::{ResidentTables, check_plan};
use crate::set::{TableSet, each};
use crate::shard::Shard;
use crate::table::record::Record;
use crate::table::slabs::Gone;

/// The number of keys between the prefetch of a key's place in the index and its lookup.
const AHEAD: usize = 16;

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
    begun: u32,
    /// The number of the newest batch of the window.
    looked: u32,
    /// Whether the host has waited since the last step began.
    has_waited: bool,
    figures: CacheFigures,
    work: Vec<TableMove>,
    /// The plans whose rows are being read from disk, if tables spill.
    reading: VecDeque<LookupPlan>,
    /// The largest number of plans of the window beyond the present batch.
    window: u32,
    /// Whether a plan was announced since the last step began.
    was_told: bool,
}

/// The work of one shard on a batch of the window.
struct Job<'a> {
    shard: &'a Shard,
    caches: Vec<Option<&'a mut ShardCache>>,
    ranges: Vec<Range<usize>>,
    moves: Vec<ShardMove>,
    wanted: u64,
    found: u64,
}

/// The rows of one table in one shard that a move takes.
#[derive(Default)]
struct ShardMove {
    places: Vec<u32>,
    words: Vec<u32>,
    cleaned: Vec<Cleaned>,
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

    /// Learns the plan of the batch behind the last one that was learned, or behind the present
    /// one. Begins to copy its rows to the device, as far as there are slots that no nearer batch
    /// wants. Does nothing if the device holds all rows. The call changes no result.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] if the plan does not name all tables in their order, or an error
    /// of the device.
    pub fn look_ahead(
        &mut self,
        tables: &mut TableSet,
        workers: &Workers,
        plan: &LookupPlan,
    ) -> Result<()> {
        check_plan(tables, plan)?;
        if self.cache.is_none() || self.tables.is_empty() {
            return Ok(());
        }
        self.follow_host(tables);
        match &mut self.cache {
            Some(cache) if tables.spills() => {
                tables.look_ahead(workers, &[plan])?;
                cache.reading.push_back(plan.clone());
                cache.was_told = true;
                // The disk has the time of half the window.
                while cache.reading.len() > cache.depth() {
                    let Some(plan) = cache.reading.pop_front() else { break };
                    tables.bring_in_next(workers, &plan)?;
                    cache.look_ahead(tables, &mut self.tables, workers, &plan)?;
                }
                Ok(())
            }
            Some(cache) => cache.look_ahead(tables, &mut self.tables, workers, plan),
            None => Ok(()),
        }
    }

    /// Brings the rows of a step into the memory of the host, if tables spill.
    pub(super) fn bring_in(
        &mut self,
        tables: &mut TableSet,
        workers: &Workers,
        plan: &LookupPlan,
    ) -> Result<()> {
        if !tables.spills() {
            return Ok(());
        }
        self.follow_host(tables);
        let Some(cache) = &mut self.cache else { return Ok(()) };
        match cache.pass_read() {
            true => tables.bring_in(workers, plan)?,
            false => tables.bring_in_next(workers, plan)?,
        }
        // At the end of an epoch, no plan is announced that would let the next one go on.
        if !std::mem::take(&mut cache.was_told)
            && let Some(next) = cache.reading.pop_front()
        {
            tables.bring_in_next(workers, &next)?;
            cache.look_ahead(tables, &mut self.tables, workers, &next)?;
        }
        Ok(())
    }

    /// Moves rows without a slot to disk, as far as they have no room in the memory of the host.
    pub(super) fn spill(
        &mut self,
        tables: &mut TableSet,
        workers: &Workers,
        step: u32,
    ) -> Result<()> {
        let Some(spilling) = &tables.spilling else { return Ok(()) };
        let pull = spilling.pulls;
        let time = |spec| Moment::new(spec, step, tables.clock).now;
        let times: Vec<u32> = tables.specs().map(time).collect();
        let resident = &self.tables;
        each(workers, &mut tables.shards, |at, shard| {
            for ((index, table), time) in shard.tables.iter_mut().enumerate().zip(&times) {
                let places = &resident[index].places[at];
                table.settle_beside(pull, Some(*time), &|row| places.is_cached(row))?;
            }
            Ok(())
        })
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
    /// that have other numbers.
    pub(super) fn follow_host(&mut self, tables: &mut TableSet) {
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

    /// Returns the number of plans whose rows are read from disk at the same time.
    fn depth(&mut self) -> usize {
        let window = self.looked.saturating_sub(self.begun) + self.reading.len() as u32;
        self.window = self.window.max(window);
        self.window as usize / 2
    }

    /// Learns that the next batch begins. Returns whether its rows were brought from disk before.
    fn pass_read(&mut self) -> bool {
        if self.looked > self.begun {
            return true;
        }
        // The step itself brings in the rows of a plan that was not brought in before.
        self.reading.pop_front();
        false
    }

    fn look_ahead(
        &mut self,
        tables: &mut TableSet,
        resident: &mut [ResidentTable],
        workers: &Workers,
        plan: &LookupPlan,
    ) -> Result<()> {
        let Some(moves) = &mut self.moves else { return Ok(()) };
        moves.land(tables, resident, None)?;
        self.looked = self.looked.max(self.begun) + 1;
        let (batch, present) = (self.looked, self.begun);
        let (number, landed) = (moves.next_number(), moves.landed);
        let ranges = tables.ranges(plan);
        let job = |(shard, ranges)| Job {
            shard,
            caches: Vec::new(),
            ranges,
            moves: Vec::new(),
            wanted: 0,
            found: 0,
        };
        let mut jobs: Vec<Job<'_>> = tables.shards.iter().zip(ranges).map(job).collect();
        let mut forms = Vec::with_capacity(resident.len());
        for ResidentTable { form, places, .. } in resident.iter_mut() {
            forms.push(&*form);
            let caches = jobs.iter_mut().zip(places);
            caches.for_each(|(job, places)| job.caches.push(places.cache()));
        }
        workers.for_each_mut(&mut jobs, |_, job| {
            let Job { shard, caches, ranges, moves, wanted, found } = job;
            for (index, cache) in caches.iter_mut().enumerate() {
                let mut work = ShardMove::default();
                if let Some(cache) = cache {
                    let part = &shard.tables[index];
                    cache.reserve(part.slabs.len());
                    let keys = &plan.tables[index].keys[ranges[index].clone()];
                    let mut missing = Vec::new();
                    for (i, key) in keys.iter().enumerate() {
                        if let Some(soon) = keys.get(i + AHEAD) {
                            part.index.prefetch(*soon);
                        }
                        let Some(entry) = part.index.get(*key) else { continue };
                        if part.spill.is_some() && entry.is_cold() {
                            continue;
                        }
                        *wanted += 1;
                        match cache.want(entry.row(), batch) {
                            true => *found += 1,
                            false => missing.push(entry.row()),
                        }
                    }
                    for row in missing {
                        // The step fetches the rows for which there is no slot now.
                        let Taken::Slot(slot) = cache.take(present, landed) else { break };
                        cache.give(slot, row, (batch, number));
                        work.places.push(cache.place(slot));
                        gather(&part.slabs, row, forms[index], &mut work.words);
                    }
                    let reserve = cache.reserve_of_batch();
                    cache.mark_leaving(reserve, (present, number), &mut work.cleaned);
                }
                moves.push(work);
            }
        });
        self.work.clear();
        self.work.resize_with(forms.len(), TableMove::default);
        let mut done = Vec::with_capacity(jobs.len());
        for Job { moves, wanted, found, .. } in jobs {
            self.figures.wanted += wanted;
            self.figures.found += found;
            done.push(moves);
        }
        for (shard, of_tables) in done.into_iter().enumerate() {
            for (index, work) in of_tables.into_iter().enumerate() {
                let all = &mut self.work[index];
                all.places.extend_from_slice(&work.places);
                all.words.extend_from_slice(&work.words);
                let Some(cache) = resident[index].places[shard].cache() else { continue };
                let cleaned = work.cleaned.into_iter();
                all.cleaned.extend(cleaned.map(|row| (shard, cache.place(row.slot), row)));
            }
        }
        let waited = self.send(tables, resident)?.1;
        self.has_waited |= waited;
        Ok(())
    }

    /// Enqueues the collected move. Returns its number and whether the host has waited.
    fn send(
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
