//! The implementation of [`StepClient`] by borrowed rows, and that of [`TableAccess`].

use std::sync::Arc;

use zillion_embedding::{Adopted, EventClock, Pruned, Rates, TableStatistics};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId};
use zillion_rows::layer::WholeRow;
use zillion_rows::{LookupReport, TableLayout};

use super::BorrowingClient;
use crate::client::{
    Lending, PullOptions, PushMode, StepClient, StepReport, TableAccess, TrainClient,
};
use crate::error::Result;

impl<L: TrainClient + Lending> StepClient for BorrowingClient<L> {
    fn begin_step(&mut self, step: Step, rates: Rates) -> Result<()> {
        self.make_room()?;
        self.local.begin_step(step, rates)?;
        self.steps += 1;
        Ok(())
    }

    fn set_clock(&mut self, clock: EventClock) -> Result<()> {
        // A job of event time must not train on a GPU alone.
        self.lender.set_clock(clock)
    }

    fn looks_ahead(&self) -> bool {
        true
    }

    fn look_ahead(&mut self, plans: &[&Arc<LookupPlan>]) -> Result<()> {
        plans.iter().try_for_each(|plan| self.tell(plan))
    }

    fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        options: PullOptions,
        buffer: RowBuffer,
    ) -> Result<RowBuffer> {
        self.fetch(plan)?;
        self.local.pull(plan, options, buffer)
    }

    fn push(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
        mode: PushMode,
    ) -> Result<RowBuffer> {
        self.fetch(plan)?;
        self.is_changed = true;
        self.local.push(plan, gradients, mode)
    }

    fn grad_sq_norm(&mut self) -> Result<f64> {
        self.local.grad_sq_norm()
    }

    fn regulariser_loss(&mut self, plan: &LookupPlan) -> Result<f64> {
        // The rows of the last plan may have been removed.
        self.take_whole_tables()?;
        while self.open > 0 {
            self.take_answer()?;
        }
        let missing = self.local.missing_rows(plan)?;
        if !missing.is_empty() {
            self.lender.ask_for_rows(self.local.present_step(), missing)?;
            let rows = self.lender.take_rows()?;
            self.local.add_borrowed(&rows)?;
        }
        self.local.regulariser_loss(plan)
    }

    fn apply(&mut self, scale: f32) -> Result<StepReport> {
        self.local.apply(scale)
    }

    fn skip(&mut self) -> Result<StepReport> {
        self.local.skip()
    }

    fn sweep(&mut self) -> Result<StepReport> {
        self.local.sweep()
    }

    fn discard(&mut self) -> Result<()> {
        self.local.discard()
    }
}

impl<L: TrainClient + Lending> TableAccess for BorrowingClient<L> {
    fn layouts(&self) -> &[TableLayout] {
        self.local.layouts()
    }

    fn lookup(
        &mut self,
        plan: &LookupPlan,
        buffer: RowBuffer,
    ) -> Result<(RowBuffer, LookupReport)> {
        self.give_back()?;
        self.lender.lookup(plan, buffer)
    }

    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64> {
        self.give_back()?;
        self.drop_rows()?;
        self.lender.prefill(table, keys)
    }

    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted> {
        self.give_back()?;
        self.drop_rows()?;
        self.lender.adopt(table, from, rows)
    }

    fn prune(&mut self, table: TableId, share: f64) -> Result<Pruned> {
        self.give_back()?;
        self.drop_rows()?;
        self.lender.prune(table, share)
    }

    /// Returns the statistics of the lender, with the events and the new rows of borrowed tables.
    fn stats(&mut self) -> Result<Vec<TableStatistics>> {
        let mut all = self.lender.stats()?;
        let own = self.local.stats()?;
        let own = own.into_iter().zip(&self.past).zip(&self.returned);
        for (all, ((own, past), returned)) in all.iter_mut().zip(own) {
            all.counters.add(own.counters);
            all.counters.add(*past);
            all.rows += own.counters.created.saturating_sub(*returned);
        }
        Ok(all)
    }
}

impl<L: TrainClient + Lending> BorrowingClient<L> {
    /// Returns the number of rows of each table that were created here.
    pub(super) fn created(&mut self) -> Result<Vec<u64>> {
        Ok(self.local.stats()?.iter().map(|table| table.counters.created).collect())
    }
}
