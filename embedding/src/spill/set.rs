//! The functions of a set that spill rows. Before a plan is looked up, its rows are brought into
//! memory. After a plan has been applied, rows beyond the budget leave memory.

use crate::spill::spilling::Spilling;
use zillion_device::Workers;
use zillion_feature::{LookupPlan, TableId, TablePlan};

use crate::error::Result;
use crate::eviction::clock::Moment;
use crate::set::{TableSet, each};
use crate::shard::Shard;
use crate::spill::SpillHome;

impl TableSet {
    /// Lets the rows of a table spill to a file in the folder of `home`. Between two steps, the
    /// rows in memory then take at most `memory` bytes. If all plans have similar sizes, this limit
    /// also holds during a step. The index stays in memory. Spilling changes no result.
    ///
    /// # Errors
    /// Returns [`Error::Spec`](crate::Error::Spec) if the table cannot spill, or if a shard's share
    /// of the memory cannot hold a row. Returns another error if an operation on the disk fails.
    pub fn spill(&mut self, table: TableId, memory: u64, home: &SpillHome) -> Result<()> {
        self.shape(table)?.spec.check_spill()?;
        let (tables, shards) = (self.shapes.len(), self.shards.len() as u64);
        for shard in &mut self.shards {
            shard.tables[table.index()].spill(home, memory / shards)?;
        }
        let spilling = self.spilling.get_or_insert_with(|| Spilling {
            home: home.clone(),
            memory: vec![None; tables],
            pulls: 0,
            announced: 0,
        });
        spilling.memory[table.index()] = Some(memory);
        Ok(())
    }

    /// Returns whether any table spills. If no table spills, [`TableSet::look_ahead`] has no
    /// effect.
    pub fn spills(&self) -> bool {
        self.spilling.is_some()
    }

    /// Begins to read the rows of the next plans that are not in memory. The call does not wait for
    /// the reads. `plans` must be looked up in this order, after the plans that were announced
    /// before.
    pub fn look_ahead(&mut self, workers: &Workers, plans: &[&LookupPlan]) -> Result<()> {
        let Some(spilling) = &mut self.spilling else { return Ok(()) };
        spilling.announced = spilling.announced.max(spilling.pulls) + plans.len() as u32;
        let until = spilling.announced;
        let tables = self.shapes.len();
        let by_plan: Vec<_> = plans.iter().map(|plan| self.ranges(plan)).collect();
        each(workers, &mut self.shards, |i, shard| {
            for table in 0..tables {
                if shard.tables[table].spill.is_none() {
                    continue;
                }
                let mut keys = Vec::new();
                for (plan, ranges) in plans.iter().zip(&by_plan) {
                    let tables = plan.tables.iter().zip(&ranges[i]);
                    let of_table = tables.filter(|(t, _)| t.table.index() == table);
                    keys.extend(of_table.map(|(t, range)| &t.keys[range.clone()]));
                }
                shard.tables[table].look_ahead(&keys, until);
            }
            Ok(())
        })
    }

    /// Prepares the lookup of a plan. It spills rows that earlier lookups without a push have
    /// brought into memory, counts the lookup, and brings the rows of the plan into memory. The
    /// function must be called before every lookup.
    pub(crate) fn begin_lookup(&mut self, workers: &Workers, plan: &LookupPlan) -> Result<()> {
        if self.spilling.is_none() {
            return Ok(());
        }
        self.settle(workers, None)?;
        self.bring_in_next(workers, plan)
    }

    /// Counts the lookup of a plan, and brings its rows into memory.
    pub(crate) fn bring_in_next(&mut self, workers: &Workers, plan: &LookupPlan) -> Result<()> {
        if let Some(spilling) = &mut self.spilling {
            spilling.pulls += 1;
        }
        self.bring_in(workers, plan)
    }

    /// Brings the rows of a plan that are in the file into memory.
    pub(crate) fn bring_in(&mut self, workers: &Workers, plan: &LookupPlan) -> Result<()> {
        let Some(spilling) = &self.spilling else { return Ok(()) };
        let pull = spilling.pulls;
        let ranges = self.ranges(plan);
        each(workers, &mut self.shards, |i, shard| {
            for (table, range) in plan.tables.iter().zip(&ranges[i]) {
                shard.tables[table.table.index()].begin_bringing_in(&table.keys[range.clone()]);
            }
            Ok(())
        })?;
        each(workers, &mut self.shards, |_, shard| {
            let bring =
                |table: &TablePlan| shard.tables[table.table.index()].finish_bringing_in(pull);
            plan.tables.iter().try_for_each(bring)
        })
    }

    /// Spills rows until the remaining rows fit into their memory. `step` is the step that has just
    /// been applied, or `None` after a lookup without a push.
    pub(crate) fn settle(&mut self, workers: &Workers, step: Option<u32>) -> Result<()> {
        let Some(spilling) = &self.spilling else { return Ok(()) };
        let pull = spilling.pulls;
        let time = |spec| step.map(|step| Moment::new(spec, step, self.clock).now);
        let times: Vec<Option<u32>> = self.specs().map(time).collect();
        each(workers, &mut self.shards, |_, shard| {
            let tables = shard.tables.iter_mut().zip(&times);
            tables.into_iter().try_for_each(|(table, time)| table.settle(pull, *time))
        })
    }

    /// Lets the tables of new shards spill if the tables of the old shards do.
    pub(crate) fn spill_shards(&self, shards: &mut [Shard]) -> Result<()> {
        let Some(spilling) = &self.spilling else { return Ok(()) };
        let count = shards.len() as u64;
        for (table, memory) in spilling.memory.iter().enumerate() {
            let Some(memory) = memory else { continue };
            for shard in shards.iter_mut() {
                shard.tables[table].spill(&spilling.home, memory / count)?;
            }
        }
        Ok(())
    }
}
