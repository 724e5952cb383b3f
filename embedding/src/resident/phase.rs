//! The bookkeeping of a step in all shards, and the places of the step's rows on the device.

use std::ops::Range;

use zillion_device::Workers;
use zillion_feature::{LookupPlan, RowBuffer};

use crate::error::Result;
use crate::eviction::Due;
use crate::resident::caching::enter_rows;
use crate::resident::places::ShardPlaces;
use crate::resident::table::ResidentTable;
use crate::set::{TableSet, each};
use crate::shape::TableStep;
use crate::shard::{Shard, times};
use crate::table::record::Record;

/// The rows of a step in one shard, for each table. The numbers of rows are places on the device.
#[derive(Debug, Default)]
pub(super) struct ShardRecord {
    pub(super) tables: Vec<Record>,
    /// The positions of the keys of each table whose rows have no slot yet. Their numbers are those
    /// of the host.
    pub(super) late: Vec<Vec<u32>>,
    /// The number of rows with a slot in caches.
    pub(super) entered: u64,
    /// The newest move of a row of the step.
    pub(super) moved: u32,
}

/// The optimizer steps of a step, and what else the bookkeeping needs.
pub(super) struct Recorder<'a> {
    pub(super) plan: &'a LookupPlan,
    pub(super) notes: &'a RowBuffer,
    /// The steps of the tables without whole-table rules.
    pub(super) steps: &'a [Option<TableStep>],
    /// The steps of the tables with whole-table rules.
    pub(super) swept: &'a [Option<TableStep>],
    /// Whether the norm of the gradients is needed.
    pub(super) clips: bool,
    /// The number of the batch, for tables with caches.
    pub(super) batch: u32,
}

/// The work of one shard.
struct Job<'a> {
    shard: &'a mut Shard,
    places: Vec<&'a mut ShardPlaces>,
    record: &'a mut ShardRecord,
    ranges: Vec<Range<usize>>,
    outcome: Result<()>,
}

impl Recorder<'_> {
    /// Does the bookkeeping of the pull and the push of the step, and that of its rules of whole
    /// tables.
    pub(super) fn record(
        &self,
        tables: &mut TableSet,
        workers: &Workers,
        resident: &mut [ResidentTable],
        records: &mut Vec<ShardRecord>,
    ) -> Result<()> {
        let ranges = tables.ranges(self.plan);
        let marks: Vec<bool> = resident.iter_mut().zip(self.swept).map(marks_rows).collect();
        records.resize_with(tables.shards.len(), ShardRecord::default);
        let mut jobs = Vec::with_capacity(tables.shards.len());
        for ((shard, record), ranges) in tables.shards.iter_mut().zip(records).zip(ranges) {
            record.tables.resize_with(resident.len(), Record::default);
            record.late.resize_with(resident.len(), Vec::new);
            (record.entered, record.moved) = (0, 0);
            jobs.push(Job { shard, places: Vec::new(), record, ranges, outcome: Ok(()) });
        }
        for table in resident {
            let places = jobs.iter_mut().zip(&mut table.places);
            places.for_each(|(job, places)| job.places.push(places));
        }
        workers.for_each_mut(&mut jobs, |_, job| job.outcome = self.record_shard(job, &marks));
        jobs.into_iter().try_for_each(|job| job.outcome)?;
        tables.trim_changes();
        Ok(())
    }

    /// Does the work that is due after the step: evicts rows and candidates, ages counts, and makes
    /// room in tables at their limits.
    pub(super) fn evict(tables: &mut TableSet, workers: &Workers, step: u32) -> Result<()> {
        if tables.needs_sweep() {
            let turns: Vec<Vec<Due>> = tables.scheduled_work(step);
            if turns.iter().any(|dues| !dues.is_empty()) {
                each(workers, &mut tables.shards, |_, shard| {
                    let dues = shard.tables.iter_mut().zip(&turns);
                    dues.into_iter().try_for_each(|(table, dues)| {
                        dues.iter().try_for_each(|due| table.evict(*due))
                    })
                })?;
            }
            tables.displace(workers, step)?;
            tables.trim_changes();
        }
        Ok(())
    }

    fn record_shard(&self, job: &mut Job<'_>, marks: &[bool]) -> Result<()> {
        let Job { shard, places, record, ranges, .. } = job;
        let tables = self.plan.tables.iter().zip(&self.notes.tables).enumerate();
        for (index, (planned, notes)) in tables {
            let (table, range) = (&mut shard.tables[index], ranges[index].clone());
            let late = &mut record.late[index];
            let (entered, moved) = (&mut record.entered, &mut record.moved);
            let (record, places) = (&mut record.tables[index], &mut *places[index]);
            let keys = &planned.keys[range.clone()];
            match (&self.steps[index], &self.swept[index]) {
                (Some(step), _) => {
                    let times = times(planned, notes, range);
                    table.record_push(keys, times, step, self.clips, record)?;
                    if places.cached_slots().is_none() {
                        found(record).for_each(|row| places.mark(*row));
                    }
                }
                (None, Some(step)) => {
                    table.record_sweep(keys, step, marks[index], record);
                    places.mark_all();
                }
                (None, None) => table.record_pull(keys, record),
            }
            match places.cache() {
                Some(cache) => {
                    let with = (self.batch, self.steps[index].is_some());
                    let (rows, newest) = enter_rows(cache, record, late, with);
                    *entered += rows;
                    *moved = (*moved).max(newest);
                }
                None => found(record).for_each(|row| *row = places.slot(*row)),
            }
        }
        Ok(())
    }
}

/// Returns whether a sweep must give its dirty epoch to the rows of a table.
fn marks_rows((table, step): (&mut ResidentTable, &Option<TableStep>)) -> bool {
    let (Some(swept), Some(step)) = (&mut table.swept, step) else { return false };
    swept.epoch.replace(step.epoch) != Some(step.epoch)
}

/// Returns the numbers of the rows that keys have.
fn found(record: &mut Record) -> impl Iterator<Item = &mut u32> {
    record.rows.iter_mut().filter(|row| **row != Record::NO_ROW)
}
