//! A pipeline that prepares the next batch and its lookup plan during the present step.
//!
//! One background task on the pool decodes and plans the next batch. The task depends only on the
//! data, and never on values of the tables. So preparing a batch early does not change a result.
//! The pipeline can also prepare all batches before the first step, which shows the cost of
//! reading.
//!
//! If several trainers train together, each of them reads all batches. A trainer plans only its own
//! batches.

use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Instant;

use zillion_device::{Task, Workers};
use zillion_feature::{Batch, Cursor, LookupPlan, PlanScratch, Schema};
use zillion_ps::TrainerPlace;
use zillion_reader::BatchStream;

use crate::error::Result;

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
    workers: Arc<Workers>,
    next: Next,
    /// The counts at the end of the data, which are known after the last batch.
    pub(crate) ending: Ending,
    /// The time of decoding and planning on any thread, in seconds.
    pub(crate) seconds: f64,
    /// The time and thread of the decoding of the last batch.
    pub(crate) decoding: Option<Decoding>,
}

/// The source of the next batch.
enum Next {
    /// A task that makes the next batch; `None` after the last batch and after an error.
    Made(Option<Task<Fetched>>),
    /// The batches that were all made before the first step.
    Held(std::vec::IntoIter<Planned>),
}

/// The time and thread of the decoding and planning of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoding {
    pub(crate) thread: ThreadId,
    pub(crate) begin: Instant,
    /// The end of decoding, which is the beginning of planning.
    pub(crate) decoded: Instant,
    pub(crate) end: Instant,
}

struct Source {
    batches: BatchStream,
    schema: Arc<Schema>,
    scratch: PlanScratch,
    /// The trainer whose batches are planned.
    place: TrainerPlace,
    /// The number of batches so far.
    batches_read: usize,
}

struct Fetched {
    source: Source,
    item: Option<zillion_reader::Result<Planned>>,
    decoding: Decoding,
}

impl Pipeline {
    /// Opens a pipeline that plans every batch.
    pub(crate) fn new(batches: BatchStream, schema: Arc<Schema>, workers: Arc<Workers>) -> Self {
        Self::of_trainer(batches, schema, workers, TrainerPlace::ALONE)
    }

    /// Opens a pipeline that plans only the batches of the trainer at `place`. The trainers take
    /// the batches in turn.
    pub(crate) fn of_trainer(
        batches: BatchStream,
        schema: Arc<Schema>,
        workers: Arc<Workers>,
        place: TrainerPlace,
    ) -> Self {
        let scratch = PlanScratch::default();
        let source = Source { batches, schema, scratch, place, batches_read: 0 };
        let next = Next::Made(Some(workers.spawn(move || source.fetch())));
        Self { workers, next, ending: Ending::default(), seconds: 0.0, decoding: None }
    }

    /// Makes all batches now, and holds them in memory.
    pub(crate) fn in_memory(
        batches: BatchStream,
        schema: Arc<Schema>,
        workers: Arc<Workers>,
        place: TrainerPlace,
    ) -> Result<Self> {
        let mut pipeline = Self::of_trainer(batches, schema, workers, place);
        let mut planned = Vec::new();
        while let Some(next) = pipeline.next()? {
            planned.push(next);
        }
        Ok(Self { next: Next::Held(planned.into_iter()), decoding: None, ..pipeline })
    }

    /// Returns the next batch, or `None` at the end of the epoch.
    pub(crate) fn next(&mut self) -> Result<Option<Planned>> {
        let task = match &mut self.next {
            Next::Made(task) => task.take(),
            Next::Held(batches) => return Ok(batches.next()),
        };
        let Some(task) = task else { return Ok(None) };
        let Fetched { mut source, item, decoding } = task.join();
        self.seconds += (decoding.end - decoding.begin).as_secs_f64();
        self.decoding = Some(decoding);
        match item {
            None => {
                let rejected = source.batches.take_rejected();
                self.ending = Ending { rows: source.batches.rows_read(), rejected };
                Ok(None)
            }
            Some(planned) => {
                let planned = planned?;
                self.next = Next::Made(Some(self.workers.spawn(move || source.fetch())));
                Ok(Some(planned))
            }
        }
    }
}

impl Source {
    fn fetch(mut self) -> Fetched {
        let begin = Instant::now();
        let item = self.batches.next();
        let decoded = Instant::now();
        let item = item.map(|item| {
            item.map(|(batch, cursor)| {
                let is_own = self.batches_read % self.place.count == self.place.index;
                self.batches_read += 1;
                let plan = match is_own {
                    true => LookupPlan::build(&batch, &self.schema, &mut self.scratch),
                    false => LookupPlan::default(),
                };
                let rejected = self.batches.take_rejected();
                Planned { batch, plan: Arc::new(plan), cursor, rejected }
            })
        });
        let decoding =
            Decoding { thread: thread::current().id(), begin, decoded, end: Instant::now() };
        Fetched { source: self, item, decoding }
    }
}
