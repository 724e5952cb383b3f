//! A pipeline that prepares batches and their lookup plans during earlier steps.
//!
//! Background tasks on the pool decode and plan up to a number of batches ahead (`run.ahead`). The
//! tasks depend only on the data, and never on values of the tables. So preparing a batch early
//! does not change a result, and neither does the number. The pipeline can also prepare all batches
//! before the first step, which shows the cost of reading.
//!
//! If several trainers train together, each of them reads all batches. A trainer plans only its own
//! batches.

mod ahead;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

use zillion_device::Workers;
use zillion_feature::{Batch, Cursor, LookupPlan, Schema};
use zillion_nn::{BatchStager, Inputs, StagedBatch};
use zillion_ps::TrainerPlace;
use zillion_reader::BatchStream;

use crate::error::Result;
use crate::job::Job;
use ahead::{Ahead, Prepared};

/// A batch with its lookup plan.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) batch: Batch,
    /// The lookup plan, which is empty for a batch of another trainer.
    pub(crate) plan: Arc<LookupPlan>,
    /// The position after the batch.
    pub(crate) cursor: Cursor,
    /// The positions of the bad rows that were left out after the end of the previous batch and
    /// before the end of this batch.
    pub(crate) rejected: Vec<u64>,
    /// The batch in pinned memory for a step on a GPU; `None` if the step writes it.
    pub(crate) staged: Option<StagedBatch>,
}

impl Planned {
    /// Creates a planned batch that its step writes to a GPU, if there is one.
    pub(crate) fn new(
        batch: Batch,
        plan: Arc<LookupPlan>,
        cursor: Cursor,
        rejected: Vec<u64>,
    ) -> Self {
        Self { batch, plan, cursor, rejected, staged: None }
    }
}

/// The counts that are known after the last batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    /// The number of rows of the data that were read, including those that were left out.
    pub(crate) rows: u64,
    /// The positions of the bad rows that were left out after the last batch.
    pub(crate) rejected: Vec<u64>,
}

/// A stream of planned batches.
pub(crate) struct Pipeline {
    next: Next,
    /// The counts at the end of the data, which are known after the last batch.
    pub(crate) ending: Ending,
    /// The time of decoding and planning on any thread, in seconds.
    pub(crate) seconds: f64,
    /// The times and threads of the preparation of the last batch.
    pub(crate) times: Option<PreparationTimes>,
}

/// The source of the next batch.
enum Next {
    /// The batches that are prepared ahead; `None` after the last batch and after an error.
    Ahead(Option<Ahead>),
    /// The batches that were all made before the first step.
    Held(std::vec::IntoIter<Planned>),
}

/// The times and threads of the preparation of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparationTimes {
    pub(crate) decoding: Work,
    /// The planning; `None` for a batch of another trainer.
    pub(crate) planning: Option<Work>,
}

/// A stretch of work of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) thread: ThreadId,
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

impl Work {
    fn seconds(&self) -> f64 {
        (self.end - self.begin).as_secs_f64()
    }
}

/// The settings of a pipeline, which change no result.
#[derive(Clone)]
pub(crate) struct AheadOptions {
    pub(crate) workers: Arc<Workers>,
    /// The trainer whose batches are planned. The trainers take the batches in turn.
    pub(crate) place: TrainerPlace,
    /// The largest number of batches that are prepared ahead.
    pub(crate) ahead: NonZeroUsize,
    /// The writer of planned batches to pinned memory, if a GPU with the rows of the tables trains
    /// on them.
    pub(crate) stager: Option<PlanStager>,
}

/// A writer of planned batches to pinned memory.
#[derive(Clone)]
pub(crate) struct PlanStager {
    pub(crate) batches: BatchStager,
    /// The number of floats of a row of each table.
    pub(crate) strides: Vec<usize>,
}

impl PlanStager {
    fn stage(&self, batch: &Batch, plan: &LookupPlan) -> Option<StagedBatch> {
        self.batches.stage(&Inputs::with_device_rows(batch, plan, &self.strides))
    }
}

impl AheadOptions {
    /// Returns the settings of a job, for a trainer that is alone.
    pub(crate) fn of_job(job: &Job, workers: &Arc<Workers>) -> Self {
        let ahead = job.run.ahead(workers.threads());
        Self { workers: workers.clone(), place: TrainerPlace::ALONE, ahead, stager: None }
    }
}

impl Pipeline {
    /// Opens a pipeline that prepares batches ahead.
    pub(crate) fn new(batches: BatchStream, schema: Arc<Schema>, with: AheadOptions) -> Self {
        let next = Next::Ahead(Some(Ahead::new(batches, schema, with)));
        Self { next, ending: Ending::default(), seconds: 0.0, times: None }
    }

    /// Makes all batches now, and holds them in memory.
    pub(crate) fn in_memory(
        batches: BatchStream,
        schema: Arc<Schema>,
        with: AheadOptions,
    ) -> Result<Self> {
        let mut pipeline = Self::new(batches, schema, with);
        let mut planned = Vec::new();
        while let Some(next) = pipeline.next()? {
            planned.push(next);
        }
        Ok(Self { next: Next::Held(planned.into_iter()), times: None, ..pipeline })
    }

    /// Returns the next batch, or `None` at the end of the epoch.
    pub(crate) fn next(&mut self) -> Result<Option<Planned>> {
        let next = match &mut self.next {
            Next::Ahead(ahead) => ahead,
            Next::Held(batches) => return Ok(batches.next()),
        };
        let Some(ahead) = next else { return Ok(None) };
        match ahead.next() {
            Ok(Some(Prepared { planned, times })) => {
                let planning = times.planning.map_or(0.0, |work| work.seconds());
                self.seconds += times.decoding.seconds() + planning;
                self.times = Some(times);
                Ok(Some(planned))
            }
            Ok(None) => {
                self.ending = ahead.ending().unwrap_or_default();
                *next = None;
                Ok(None)
            }
            Err(error) => {
                *next = None;
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
