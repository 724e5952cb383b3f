//! The sums over rows: the norm of the gradients and the loss of the regulariser. Each group of
//! slots has a partial sum in `f64` ([`Partials`]), to which the sums of its slots are added in
//! slot order. The partial sums are added in the order of tables and groups.

use std::ops::Range;

use zillion_device::Workers;
use zillion_feature::{LookupPlan, RowBuffer, Step, TablePlan};

use crate::error::Result;
use crate::set::TableSet;
use crate::set::partials::{Partials, add_slots};
use crate::shard::{Shard, slot_runs, times};
use crate::table::Table;

/// The sums of slots, each with its slot, in slot order.
type SlotSums = Vec<(usize, f64)>;

impl TableSet {
    /// Returns the squared norm of all gradients of a step, including the gradients of the
    /// regulariser. In a table with whole-table rules, the sum is over all rows and uses the staged
    /// gradients. In any other table, the sum is over the plan's rows. `step` is the step in which
    /// the gradients will be applied. Gradients that the push would drop are not part of the sum.
    /// The result has the same bits for every number of shards and threads.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`](crate::Error::Mismatch) if the arguments do not fit the tables.
    pub fn grad_sq_norm(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        step: Step,
    ) -> Result<f64> {
        Ok(self.grad_sq_norm_partials(workers, plan, gradients, step)?.total())
    }

    /// Returns the partial sums of [`TableSet::grad_sq_norm`]. The norm is their total, over all
    /// processes that hold rows of the tables.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`](crate::Error::Mismatch) if the arguments do not fit the tables.
    pub fn grad_sq_norm_partials(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        step: Step,
    ) -> Result<Partials> {
        self.check_gradients(plan, gradients)?;
        self.bring_in(workers, plan)?;
        // A step that does not fit into 32 bits is refused when the gradients are applied.
        let step = step.0 as u32;
        let rooms = self.find_permits(workers, plan, gradients, step)?;
        let run = |position: usize, live: &Table, table: &TablePlan, range: Range<usize>| {
            let rows = &gradients.tables[position];
            slot_runs(table, range, |keys, run| {
                let values = &rows.values[run.start * rows.stride..run.end * rows.stride];
                let room = &rooms[table.table.index()];
                let times = times(table, rows, run);
                (keys[0].slot(), live.run_squares(keys, values, times, room, step))
            })
        };
        Ok(self.sum(workers, plan, Table::staged_squares, |table| !self.swept[table], run))
    }

    /// Returns the loss of the regulariser, `(l2 / 2) * |w|^2` with the current weights. For
    /// segments whose regulariser applies to the whole table, the sum is over all rows. For the
    /// other segments, it is over the plan's rows.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`](crate::Error::Mismatch) if the arguments do not fit the tables.
    pub fn regulariser_loss(&mut self, workers: &Workers, plan: &LookupPlan) -> Result<f64> {
        Ok(self.regulariser_partials(workers, plan)?.total())
    }

    /// Returns the partial sums of [`TableSet::regulariser_loss`]. The loss is their total, over
    /// all processes that hold rows of the tables.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`](crate::Error::Mismatch) if the arguments do not fit the tables.
    pub fn regulariser_partials(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
    ) -> Result<Partials> {
        for table in &plan.tables {
            self.shape(table.table)?;
        }
        self.bring_in(workers, plan)?;
        let run = |_: usize, live: &Table, table: &TablePlan, range: Range<usize>| {
            slot_runs(table, range, |keys, _| (keys[0].slot(), live.run_regulariser(keys)))
        };
        Ok(self.sum(workers, plan, Table::whole_regulariser, |_| true, run))
    }

    /// Returns the partial sums over all tables. For a table with a whole-table rule, the sums are
    /// over the results of `whole`, one for each slot. For a table of the plan for which `has_runs`
    /// returns `true`, they are over the results of `run`, one for each run of keys of one slot.
    /// Each result comes with its slot.
    fn sum(
        &self,
        workers: &Workers,
        plan: &LookupPlan,
        whole: impl Fn(&Table) -> Vec<(usize, f64)> + Sync,
        has_runs: impl Fn(usize) -> bool + Sync,
        run: impl Fn(usize, &Table, &TablePlan, Range<usize>) -> Vec<(usize, f64)> + Sync,
    ) -> Partials {
        let ranges = self.ranges(plan);
        // Each table has one list of sums over whole slots and one over runs.
        let by_slot = |i: usize, shard: &Shard| -> (Vec<SlotSums>, Vec<SlotSums>) {
            let swept =
                |(table, swept)| if swept { whole(&shard.tables[table]) } else { Vec::new() };
            let wholes = self.moving_swept().into_iter().enumerate().map(swept).collect();
            let runs = plan.tables.iter().enumerate().map(|(position, table)| {
                let index = table.table.index();
                if self.frozen[index] || !has_runs(index) {
                    return Vec::new();
                }
                run(position, &shard.tables[index], table, ranges[i][position].clone())
            });
            (wholes, runs.collect())
        };
        let by_shard = workers.map(self.shards.len(), |i| by_slot(i, &self.shards[i]));
        let mut partials = Partials::new(self.shapes.len(), plan.tables.len());
        // Shards are in the order of their slots.
        for (wholes, runs) in &by_shard {
            let sums = partials.wholes.iter_mut().zip(wholes);
            sums.chain(partials.runs.iter_mut().zip(runs))
                .for_each(|(sums, of)| add_slots(sums, of));
        }
        partials
    }
}
