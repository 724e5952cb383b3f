//! The window of batches whose rows are on their way to a cache on a device.
//!
//! The caller tells the plans of later batches in their order. Rows without a slot get one and are
//! copied beside the steps. The rows of tables that spill are read from disk first, and go on to
//! the device half a window later.

use std::ops::Range;

use zillion_device::Workers;
use zillion_feature::LookupPlan;

use crate::error::Result;
use crate::eviction::clock::Moment;
use crate::resident::cache::{Cleaned, ShardCache, Taken};
use crate::resident::caching::CacheState;
use crate::resident::copies::gather;
use crate::resident::moves::TableMove;
use crate::resident::table::ResidentTable;
use crate::resident::{ResidentTables, check_plan};
use crate::set::{TableSet, each};
use crate::shard::Shard;

/// The number of keys between the prefetch of a key's place in the index and its lookup.
const AHEAD: usize = 16;

/// The work of one shard on a batch of the window.
struct Job<'a> {
    shard: &'a Shard,
    caches: Vec<Option<&'a mut ShardCache>>,
    ranges: Vec<Range<usize>>,
    moves: Vec<ShardMove>,
    wanted: u64,
    found: u64,
    /// Whether a row of the batch has no slot.
    is_short: bool,
}

/// The rows of one table in one shard that a move takes.
#[derive(Default)]
struct ShardMove {
    places: Vec<u32>,
    words: Vec<u32>,
    cleaned: Vec<Cleaned>,
}

impl ResidentTables {
    /// Learns the plan of the batch behind the last one that was learned, or behind the present
    /// one. Begins to copy its rows to the device, as far as there are slots that no nearer batch
    /// wants. Returns whether all of its rows have slots; if not, the next call has the same plan
    /// again, unless its step has begun. Does nothing if the device has no cache with memory. The
    /// call changes no result.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] if the plan does not name all tables in their order, or an error
    /// of the device.
    pub fn look_ahead(
        &mut self,
        tables: &mut TableSet,
        workers: &Workers,
        plan: &LookupPlan,
    ) -> Result<bool> {
        check_plan(tables, plan)?;
        if self.cache.is_none() || self.tables.is_empty() {
            return Ok(true);
        }
        self.follow_host(tables);
        match &mut self.cache {
            Some(cache) if tables.spills() => {
                tables.look_ahead(workers, &[plan])?;
                cache.reading.push_back(plan.clone());
                cache.was_told = true;
                // The disk has the time of half the window.
                while cache.reading.len() > cache.depth() {
                    if !cache.bring_next(tables, &mut self.tables, workers)? {
                        break;
                    }
                }
                Ok(true)
            }
            Some(cache) => cache.look_ahead(tables, &mut self.tables, workers, plan),
            None => Ok(true),
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
        if !std::mem::take(&mut cache.was_told) {
            cache.bring_next(tables, &mut self.tables, workers)?;
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
}

impl CacheState {
    /// Returns the number of plans whose rows are read from disk at the same time.
    fn depth(&mut self) -> usize {
        let window = self.looked.saturating_sub(self.begun) + self.reading.len() as u32;
        self.window = self.window.max(window);
        self.window as usize / 2
    }

    /// Learns that the next batch begins. Returns whether its rows were brought from disk before.
    fn pass_read(&mut self) -> bool {
        if self.looked > self.begun {
            if self.is_short && self.looked == self.begun + 1 {
                // The plan is still the first one. Its step fetches the other rows.
                self.reading.pop_front();
                self.is_short = false;
            }
            return true;
        }
        // The step itself brings in the rows of a plan that was not brought in before.
        self.reading.pop_front();
        false
    }

    /// Brings the rows of the oldest plan that is read from disk to the memory of the host, and
    /// those that get slots to the device. Returns whether the plan is done.
    fn bring_next(
        &mut self,
        tables: &mut TableSet,
        resident: &mut [ResidentTable],
        workers: &Workers,
    ) -> Result<bool> {
        let Some(plan) = self.reading.pop_front() else { return Ok(false) };
        match self.is_short && self.looked > self.begun {
            true => tables.bring_in(workers, &plan)?,
            false => tables.bring_in_next(workers, &plan)?,
        }
        let is_done = self.look_ahead(tables, resident, workers, &plan)?;
        if !is_done {
            self.reading.push_front(plan);
        }
        Ok(is_done)
    }

    fn look_ahead(
        &mut self,
        tables: &mut TableSet,
        resident: &mut [ResidentTable],
        workers: &Workers,
        plan: &LookupPlan,
    ) -> Result<bool> {
        let Some(moves) = &mut self.moves else { return Ok(true) };
        moves.land(tables, resident, None)?;
        let is_again = self.is_short && self.looked > self.begun;
        if !is_again {
            self.looked = self.looked.max(self.begun) + 1;
        }
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
            is_short: false,
        };
        let mut jobs: Vec<Job<'_>> = tables.shards.iter().zip(ranges).map(job).collect();
        let mut forms = Vec::with_capacity(resident.len());
        for ResidentTable { form, places, .. } in resident.iter_mut() {
            forms.push(&*form);
            let caches = jobs.iter_mut().zip(places);
            caches.for_each(|(job, places)| job.caches.push(places.cache()));
        }
        workers.for_each_mut(&mut jobs, |_, job| {
            let Job { shard, caches, ranges, moves, wanted, found, is_short } = job;
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
                        let Taken::Slot(slot) = cache.take(present, landed) else {
                            *is_short = true;
                            break;
                        };
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
        self.is_short = jobs.iter().any(|job| job.is_short);
        for Job { moves, wanted, found, .. } in jobs {
            if !is_again {
                self.figures.wanted += wanted;
                self.figures.found += found;
            }
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
        Ok(!self.is_short)
    }
}
