//! The implementation of [`Residency`] for local tables, and what the other calls of the client do
//! if the rows are on a GPU.

use std::sync::Arc;

use zillion_device::gpu::{Gpu, GpuError, Stream};
use zillion_embedding::{Counters, ResidentOptions, ResidentReport, ResidentTables};
use zillion_feature::{LookupPlan, RowBuffer};

use super::LocalClient;
use crate::client::{Residency, ResidentStep};
use crate::error::{Error, Result};

impl LocalClient {
    /// Copies the rows that have changed on a GPU to the host. Every call that reads rows comes
    /// after this.
    pub(super) fn settle(&mut self) -> Result<()> {
        let Some(resident) = &mut self.resident else { return Ok(()) };
        let settled = resident.settle(&mut self.tables);
        self.note_failure(settled)
    }

    /// Copies the rows to the host, and drops them on the GPU, because the host changes rows. The
    /// next step on the GPU copies all rows to it.
    pub(super) fn take_back(&mut self) -> Result<()> {
        self.settle()?;
        let Some(resident) = &mut self.resident else { return Ok(()) };
        let forgotten = resident.forget(&mut self.tables);
        self.note_failure(forgotten)
    }

    /// Drops the rows on a GPU, because all rows are replaced by those of a checkpoint. A step that
    /// has begun there is dropped too. If the GPU has failed, the rows are on the host from then
    /// on.
    pub(super) fn abandon_resident(&mut self) {
        // If the files of the checkpoint are bad, the newest rows are still needed. A failed GPU or
        // step has no rows that can be copied.
        let _ = self.settle();
        let Some(resident) = &mut self.resident else { return };
        if resident.abandon(&mut self.tables).is_err() {
            self.resident = None;
        }
    }

    /// Adds the counts of the steps that have run on a GPU to the counters of the tables.
    pub(super) fn count_steps(&mut self) -> Result<()> {
        let Some(resident) = &mut self.resident else { return Ok(()) };
        let counted = resident.count(&mut self.tables);
        self.note_failure(counted)
    }
}

impl Residency for LocalClient {
    fn residency_refusal(&self) -> Option<String> {
        ResidentTables::refusal(&self.tables)
    }

    fn make_resident(
        &mut self,
        gpu: &Arc<dyn Gpu>,
        stream: Stream,
        clips: bool,
        memory: Option<u64>,
    ) -> Result<Option<String>> {
        self.check_settled("make_resident")?;
        self.leave_gpu()?;
        if let Some(reason) = self.residency_refusal() {
            return Ok(Some(reason));
        }
        let options = ResidentOptions::new(Arc::clone(gpu), stream);
        let options = ResidentOptions { clips, memory, ..options };
        match ResidentTables::new(&self.tables, options) {
            Ok(resident) => {
                self.resident = Some(resident);
                Ok(None)
            }
            // The memory of the GPU or of the host is too small.
            Err(
                error @ (zillion_embedding::Error::Mismatch { .. }
                | zillion_embedding::Error::Gpu(
                    GpuError::OutOfMemory { .. } | GpuError::PinnedMemory { .. },
                )),
            ) => Ok(Some(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    fn leave_gpu(&mut self) -> Result<()> {
        self.take_back()?;
        self.resident = None;
        Ok(())
    }

    fn resident(&self) -> Option<&ResidentTables> {
        self.resident.as_ref()
    }

    fn prefetch_rows(&mut self, plan: &Arc<LookupPlan>) -> Result<bool> {
        self.check_whole()?;
        let Self { resident: Some(resident), tables, workers, .. } = self else {
            return Ok(true);
        };
        let announced = resident.look_ahead(tables, workers, plan);
        self.note_failure(announced)
    }

    fn begin_resident_step(
        &mut self,
        plan: &Arc<LookupPlan>,
        notes: &mut RowBuffer,
    ) -> Result<Option<String>> {
        const CALL: &str = "begin_resident_step";
        self.check_whole()?;
        self.order.allow_in_step(CALL)?;
        let update = self.update(1.0);
        let Self { resident: Some(resident), tables, workers, .. } = self else {
            let reason = "the rows are on the host; call `make_resident` first".to_owned();
            return Err(Error::Argument { call: CALL, reason });
        };
        let begun = resident.begin(tables, workers, plan, notes, update);
        let refused = self.note_failure(begun)?;
        if refused.is_none() {
            self.order.record_on_gpu();
        }
        Ok(refused)
    }

    fn end_resident_step(&mut self) -> Result<()> {
        const CALL: &str = "end_resident_step";
        self.check_whole()?;
        self.order.allow_end_on_gpu(CALL)?;
        let Self { resident: Some(resident), tables, .. } = self else { return Ok(()) };
        let ended = resident.end(tables);
        let pushed = self.note_failure(ended)?;
        self.counted = Counters { pushed, ..Counters::default() };
        self.end_step();
        Ok(())
    }

    fn collect_resident_step(&mut self, wait: bool) -> Result<Option<ResidentStep>> {
        let Self { resident: Some(resident), tables, .. } = self else { return Ok(None) };
        let collected = resident.collect(tables, wait);
        let report = self.note_failure(collected)?;
        Ok(report.map(|ResidentReport { step, is_skipped, counters }| ResidentStep {
            step,
            is_skipped,
            report: counters.into(),
        }))
    }
}
