//! A set of tables with all their shards. The work is done in phases of one thread pool.
//!
//! # Invariants
//! * Results do not depend on the number of shards or threads. Rows are independent of each other,
//!   and every sum over rows is added slot by slot, in slot order.
//! * Results do not depend on the number of processes that hold a table, if each process holds
//!   whole [groups](crate::groups) of slots. Every rule about many rows is a rule of one group.
//! * The keys of a plan are in slot order. So the keys of a shard are one run, and their rows are
//!   one part of the caller's buffer.
//!
//! # Concurrency
//! Exclusive access by `&mut self` is the only protection that is needed. A phase that changes rows
//! gives each shard to one thread at a time. A phase that reads changes no row.

mod checks;
mod clock;
mod find;
mod frozen;
mod owned;
mod partials;
mod read;
mod skipping;
mod sums;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, SLOTS, ShardMap, Step, TableId};

use crate::changes::tracking::Tracking;
use crate::error::{Error, Result};
use crate::eviction::clock::EventClock;
use crate::eviction::shared_limit::SharedLimit;
use crate::groups::table_groups;
use crate::optimizer::Rates;
pub use crate::set::find::{LiveKey, LiveRow};
pub use crate::set::partials::Partials;
use crate::shape::{TableShape, TableStep};
use crate::shard::Shard;
use crate::snapshot::Snapshot;
use crate::snapshot::generations::Generations;
use crate::snapshot::marks::Marks;
use crate::spill::spilling::Spilling;
use crate::statistics::{Counters, TableStatistics};
use crate::table::Table;
use zillion_rows::part::ALL_SLOTS;
use zillion_rows::{TableLayout, TableSpec};

/// The greatest step number that the metadata of a row can hold.
pub const LAST_STEP: Step = Step(u32::MAX as u64);

/// A set of live tables.
///
/// The client of the parameter service enforces the order of calls in a step. This type does not
/// check the order.
#[derive(Debug)]
pub struct TableSet {
    pub(crate) shapes: Vec<Arc<TableShape>>,
    pub(crate) layouts: Vec<TableLayout>,
    pub(crate) swept: Vec<bool>,
    /// Whether each table is frozen. A step does not change a frozen table.
    pub(crate) frozen: Vec<bool>,
    /// The slots of each table that this set owns.
    pub(crate) owned: Vec<Range<usize>>,
    pub(crate) map: ShardMap,
    pub(crate) shards: Vec<Shard>,
    pub(crate) generations: Generations,
    /// The tracking of changes for deltas; `None` if changes are not tracked.
    pub(crate) tracking: Option<Tracking>,
    /// The checkpoint that is being written beside training; `None` if there is none.
    pub(crate) snapshot: Option<Box<Snapshot>>,
    /// The marks of checkpoints; `None` if no checkpoints of changes are written.
    pub(crate) marks: Option<Marks>,
    /// The number of groups of slots of each table, by which limits are kept.
    pub(crate) groups: Vec<usize>,
    /// The limit of the memory of all tables together.
    pub(crate) shared: SharedLimit,
    /// The event time of the present step; `None` if no event time was given.
    pub(crate) clock: Option<EventClock>,
    /// The state of spilling; `None` if no table spills.
    pub(crate) spilling: Option<Spilling>,
    /// Whether the set borrows its rows from another process.
    pub(crate) borrows: bool,
}

/// The settings of the optimizer step that applies gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// The step of the job, counted from 1. It is used for Adam's bias correction, and stored as
    /// the last step of the rows.
    pub step: Step,
    /// The factors of the learning rates.
    pub rates: Rates,
    /// The factor of all gradients, including the gradients of the regulariser. It is 1, or the
    /// factor of clipping.
    pub scale: f32,
}

impl TableSet {
    /// Creates a set of empty tables. The [`TableId`] of a plan is a position in `specs`, counted
    /// from 0.
    ///
    /// # Errors
    /// Returns [`Error::Spec`] if a setting is out of range, or if two tables have the same name.
    pub fn new(specs: Vec<TableSpec>, shards: NonZeroUsize) -> Result<Self> {
        Self::new_within(specs, shards, 0..SLOTS)
    }

    /// Creates a set of empty tables as [`TableSet::new`] does, for a process that holds only the
    /// rows of `slots`. The shards divide this range evenly (see [`ShardMap::within`]). The range
    /// changes no result.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`TableSet::new`].
    pub fn new_within(
        specs: Vec<TableSpec>,
        shards: NonZeroUsize,
        slots: Range<usize>,
    ) -> Result<Self> {
        for (i, spec) in specs.iter().enumerate() {
            if specs[..i].iter().any(|s| s.name == spec.name) {
                let key = format!("tables.{}", spec.name);
                let reason = "two tables have this name; rename one of them".to_owned();
                return Err(Error::Spec { key, reason });
            }
        }
        let groups = table_groups(&specs, None)?;
        let shapes = specs.into_iter().map(|spec| TableShape::new(spec).map(Arc::new));
        let shapes: Vec<Arc<TableShape>> = shapes.collect::<Result<_>>()?;
        let map = ShardMap::within(slots, shards);
        let shards = empty_shards(&shapes, &map)?;
        Ok(Self {
            layouts: shapes.iter().map(|s| s.layout.clone()).collect(),
            swept: shapes.iter().map(|s| s.swept).collect(),
            frozen: vec![false; shapes.len()],
            owned: vec![ALL_SLOTS; shapes.len()],
            shapes,
            groups,
            map,
            shards,
            generations: Generations::of_epoch(1),
            tracking: None,
            snapshot: None,
            marks: None,
            shared: SharedLimit::default(),
            clock: None,
            spilling: None,
            borrows: false,
        })
    }

    /// Returns the layout of the rows of each table.
    pub fn layouts(&self) -> &[TableLayout] {
        &self.layouts
    }

    /// Returns the specs of the tables.
    pub fn specs(&self) -> impl ExactSizeIterator<Item = &TableSpec> {
        self.shapes.iter().map(|s| &s.spec)
    }

    /// Returns the assignment of slots to shards.
    pub fn map(&self) -> ShardMap {
        self.map
    }

    /// Returns the number of rows of one table.
    pub fn rows(&self, table: TableId) -> u64 {
        self.shards.iter().map(|s| s.tables.get(table.index()).map_or(0, |t| t.rows())).sum()
    }

    /// Returns whether any table has a whole-table rule, evicts rows, or lets counts age. If so,
    /// every step must end with [`TableSet::sweep`].
    pub fn needs_sweep(&self) -> bool {
        self.specs().any(TableSpec::needs_sweep)
    }

    /// Returns the current dirty epoch. Rows that change are marked with it, and a delta holds the
    /// rows of all epochs since the previous delta.
    pub fn dirty_epoch(&self) -> u32 {
        self.generations.epoch()
    }

    /// Ends the current dirty epoch and begins the next one. Rows that change after this call
    /// belong to the next delta. Returns the epoch that has ended.
    pub fn advance_dirty_epoch(&mut self) -> u32 {
        let ended = self.generations.epoch();
        self.generations.end_epoch();
        self.seal_changes();
        ended
    }

    /// Applies gradients. There is one row of gradients for each key of the plan, summed over the
    /// occurrences of the key. In tables with whole-table rules, the gradients are staged until
    /// [`TableSet::sweep`].
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`] if the arguments do not fit the tables, and another error if
    /// there is no memory. After an error for lack of memory, only some of the rows are updated,
    /// and training can continue only from a checkpoint.
    pub fn push(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        update: Update,
    ) -> Result<Counters> {
        let mut counted = self.stage(workers, plan, gradients)?;
        counted.add(self.apply(workers, plan, gradients, update)?);
        Ok(counted)
    }

    /// Adds the gradients of tables with whole-table rules to the staged gradients of their rows.
    /// [`TableSet::sweep`] applies and counts them. The call does not keep the gradients of the
    /// other tables: the caller must pass them to [`TableSet::apply`].
    ///
    /// # Errors
    /// Returns an error under the conditions of [`TableSet::push`].
    pub fn stage(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
    ) -> Result<Counters> {
        self.check_gradients(plan, gradients)?;
        if !self.swept.contains(&true) {
            return Ok(Counters::default());
        }
        let (ranges, swept) = (self.ranges(plan), self.moving_swept());
        let before = total(&self.shards);
        each(workers, &mut self.shards, |i, shard| {
            shard.stage(plan, &ranges[i], gradients, &swept)
        })?;
        Ok(total(&self.shards).since(before))
    }

    /// Applies the gradients of tables without whole-table rules.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`TableSet::push`].
    pub fn apply(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        update: Update,
    ) -> Result<Counters> {
        let steps = self.steps(update, false)?;
        self.apply_steps(workers, plan, gradients, (update.step, steps))
    }

    /// Applies gradients with the optimizer step of each table.
    fn apply_steps(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        (step, mut steps): (Step, Vec<Option<TableStep>>),
    ) -> Result<Counters> {
        self.check_gradients(plan, gradients)?;
        // `steps` has refused a step that does not fit into 32 bits.
        let number = step.0 as u32;
        let ranges = self.ranges(plan);
        self.bring_in(workers, plan)?;
        self.set_permits(workers, plan, gradients, (number, &mut steps))?;
        let before = total(&self.shards);
        let pushed = each(workers, &mut self.shards, |i, shard| {
            shard.push(plan, &ranges[i], gradients, &steps)
        });
        self.trim_changes();
        pushed?;
        let counted = total(&self.shards).since(before);
        self.settle(workers, Some(number))?;
        Ok(counted)
    }

    /// Sets the permits of a step: the keys that may get a row. Only the uses of `notes` are read.
    pub(crate) fn set_permits(
        &self,
        workers: &Workers,
        plan: &LookupPlan,
        notes: &RowBuffer,
        (step, steps): (u32, &mut [Option<TableStep>]),
    ) -> Result<()> {
        let permits = self.find_permits(workers, plan, notes, step)?;
        for (step, permits) in steps.iter_mut().zip(permits) {
            if let Some(step) = step {
                step.permits = permits;
            }
        }
        Ok(())
    }

    /// Ends a step. First, it applies the staged gradients and the whole-table rules to every row
    /// of the tables that have such rules. Then, in every table that evicts on schedule, it evicts
    /// rows of the slots whose turn it is. Finally, it makes room in tables at their limits.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] if the number of the step is out of range.
    pub fn sweep(&mut self, workers: &Workers, update: Update) -> Result<Counters> {
        let steps = self.steps(update, true)?;
        self.sweep_steps(workers, update.step, &steps)
    }

    /// Ends a step with the optimizer step of each table with whole-table rules.
    fn sweep_steps(
        &mut self,
        workers: &Workers,
        step: Step,
        steps: &[Option<TableStep>],
    ) -> Result<Counters> {
        if !self.needs_sweep() {
            return Ok(Counters::default());
        }
        // `steps` has refused a step that does not fit into 32 bits.
        let step = step.0 as u32;
        let turns = self.scheduled_work(step);
        let before = total(&self.shards);
        each(workers, &mut self.shards, |_, shard| shard.sweep(steps, &turns))?;
        self.displace(workers, step)?;
        self.trim_changes();
        Ok(total(&self.shards).since(before))
    }

    /// Drops the staged gradients of all tables.
    pub fn discard(&mut self) {
        self.tables_mut().for_each(Table::discard);
    }

    /// Adds the keys of a vocabulary to a dense table. `keys` must be in ascending order and
    /// without duplicates. Keys that already have a row keep it. Returns the number of rows that
    /// were added.
    ///
    /// # Errors
    /// Returns [`Error::NotDense`] if the table is not dense, [`Error::Vocabulary`] if the keys are
    /// not in ascending order or contain duplicates, and [`Error::TooManyRows`] if there are too
    /// many keys. After an error, no row has been added. The keys are counted in this process: if
    /// several processes hold the table, the caller must compare the limit with their sum.
    pub fn prefill(
        &mut self,
        workers: &Workers,
        table: TableId,
        keys: &[FeatureKey],
    ) -> Result<u64> {
        let shape = self.shape(table)?;
        let name = || shape.name().to_owned();
        let Some(cap) = shape.spec.row_limit() else {
            return Err(Error::NotDense { table: name() });
        };
        if let Some(index) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
            let key = keys[index + 1].0;
            return Err(Error::Vocabulary { table: name(), index: index + 1, key });
        }
        let before = self.rows(table);
        let known = |key: &&FeatureKey| self.owner(table.index(), key.slot()).has(**key);
        // The upper bound is checked first, because the exact count needs a lookup for each key.
        if before + keys.len() as u64 > cap {
            let rows = before + keys.iter().filter(|key| !known(key)).count() as u64;
            if rows > cap {
                return Err(Error::TooManyRows { table: name(), rows, cap });
            }
        }
        let epoch = self.generations.now();
        each(workers, &mut self.shards, |_, shard| {
            let slots = shard.slots();
            let start = keys.partition_point(|key| key.slot() < slots.start);
            let end = keys.partition_point(|key| key.slot() < slots.end);
            shard.tables[table.index()].prefill(&keys[start..end], epoch)
        })?;
        Ok(self.rows(table) - before)
    }

    /// Returns the memory and the counters of each table.
    pub fn statistics(&self) -> Vec<TableStatistics> {
        let table = |index: usize| {
            let mut sum = TableStatistics {
                table: self.shapes[index].name().to_owned(),
                ..TableStatistics::default()
            };
            self.shards.iter().for_each(|shard| sum.add(&shard.tables[index].statistics()));
            sum.snapshot_bytes += self.snapshot.as_ref().map_or(0, |s| s.part_bytes(index));
            sum
        };
        (0..self.shapes.len()).map(table).collect()
    }

    /// Returns the part of a table in the shard that owns a slot.
    pub(crate) fn owner(&self, table: usize, slot: usize) -> &Table {
        &self.shards[self.map.shard_of(slot)].tables[table]
    }

    /// Returns an iterator over the parts of all tables in all shards.
    pub(crate) fn tables_mut(&mut self) -> impl Iterator<Item = &mut Table> {
        self.shards.iter_mut().flat_map(|shard| &mut shard.tables)
    }

    pub(crate) fn shape(&self, table: TableId) -> Result<&Arc<TableShape>> {
        self.shapes.get(table.index()).ok_or_else(|| {
            let count = self.shapes.len();
            let reason = format!("unknown number; the set has {count} tables, numbered from 0");
            Error::mismatch(&table.0.to_string(), reason)
        })
    }

    /// Returns the ranges of the plan's keys that belong to each shard, for each table of the plan.
    pub(crate) fn ranges(&self, plan: &LookupPlan) -> Vec<Vec<Range<usize>>> {
        let by_table: Vec<_> = plan.tables.iter().map(|t| t.shard_ranges(&self.map)).collect();
        (0..self.shards.len())
            .map(|shard| by_table.iter().map(|ranges| ranges[shard].clone()).collect())
            .collect()
    }

    /// Returns the optimizer step of each table. If `swept` is `true`, only tables with whole-table
    /// rules have a step. If it is `false`, only the other tables have a step. The result is `None`
    /// for a table without a step and for a frozen table.
    pub(crate) fn steps(&self, update: Update, swept: bool) -> Result<Vec<Option<TableStep>>> {
        if update.step == Step(0) || update.step > LAST_STEP {
            let reason = format!(
                "step {} is out of range; number steps from 1 to {}",
                update.step.0, LAST_STEP.0
            );
            return Err(Error::misuse(reason));
        }
        self.check_clock()?;
        let step = |s: &Arc<TableShape>| {
            let Update { step, rates, scale } = update;
            s.step(step, rates, scale, self.clock, self.generations.now())
        };
        let shapes = self.shapes.iter().zip(&self.frozen);
        let has_step = |s: &Arc<TableShape>, frozen: bool| s.swept == swept && !frozen;
        Ok(shapes.map(|(s, &frozen)| has_step(s, frozen).then(|| step(s))).collect())
    }
}

pub(crate) fn empty_shards(shapes: &[Arc<TableShape>], map: &ShardMap) -> Result<Vec<Shard>> {
    (0..map.shards()).map(|i| Shard::new(shapes, map.range(i))).collect()
}

/// Calls `f` for every shard in one phase. Returns the first error in the order of the shards.
pub(crate) fn each(
    workers: &Workers,
    shards: &mut [Shard],
    f: impl Fn(usize, &mut Shard) -> Result<()> + Sync,
) -> Result<()> {
    let mut jobs: Vec<(&mut Shard, Result<()>)> =
        shards.iter_mut().map(|shard| (shard, Ok(()))).collect();
    workers.for_each_mut(&mut jobs, |i, (shard, outcome)| *outcome = f(i, shard));
    jobs.into_iter().try_for_each(|(_, outcome)| outcome)
}

/// Returns the sum of the counters of all tables in all shards.
pub(crate) fn total(shards: &[Shard]) -> Counters {
    let mut sum = Counters::default();
    shards.iter().flat_map(|shard| &shard.tables).for_each(|table| sum.add(table.counters));
    sum
}

#[cfg(test)]
pub(crate) mod tests;
