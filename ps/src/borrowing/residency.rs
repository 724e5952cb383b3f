//! The implementation of [`Residency`] by borrowed rows.

use std::sync::Arc;

use zillion_device::gpu::{Gpu, Stream};
use zillion_embedding::ResidentTables;
use zillion_feature::{LookupPlan, RowBuffer};

use super::BorrowingClient;
use crate::client::{Lending, Residency, ResidentStep, TrainClient};
use crate::error::Result;

impl<L: TrainClient + Lending> Residency for BorrowingClient<L> {
    fn residency_refusal(&self) -> Option<String> {
        self.local.residency_refusal()
    }

    fn make_resident(
        &mut self,
        gpu: &Arc<dyn Gpu>,
        stream: Stream,
        clips: bool,
        memory: Option<u64>,
    ) -> Result<Option<String>> {
        // The GPU has all rows of these tables, so it must have the memory for them.
        self.take_whole_tables()?;
        self.local.make_resident(gpu, stream, clips, memory)
    }

    fn leave_gpu(&mut self) -> Result<()> {
        self.local.leave_gpu()
    }

    fn resident(&self) -> Option<&ResidentTables> {
        self.local.resident()
    }

    fn announce_rows(&mut self, plan: &Arc<LookupPlan>) -> Result<()> {
        self.tell(plan)
    }

    fn prefetch_rows(&mut self, plan: &Arc<LookupPlan>) -> Result<bool> {
        self.tell(plan)?;
        let found = self.told.iter().position(|told| Arc::ptr_eq(&told.plan, plan));
        let Some(at) = found else { return Ok(false) };
        // The servers have the time of a step to answer.
        if self.told[at].is_open && self.told[at].asked == self.steps {
            return Ok(false);
        }
        while self.told[at].is_open {
            self.take_answer()?;
        }
        self.local.prefetch_rows(plan)
    }

    fn begin_resident_step(
        &mut self,
        plan: &Arc<LookupPlan>,
        notes: &mut RowBuffer,
    ) -> Result<Option<String>> {
        self.fetch(plan)?;
        self.is_changed = true;
        self.local.begin_resident_step(plan, notes)
    }

    fn end_resident_step(&mut self) -> Result<()> {
        self.local.end_resident_step()
    }

    fn collect_resident_step(&mut self, wait: bool) -> Result<Option<ResidentStep>> {
        self.local.collect_resident_step(wait)
    }
}
