//! The profiler of a run, which records the time of each thread.
//!
//! Every N-th batch is recorded completely, from the wait for the batch to the end of its step. The
//! record has the stages of the thread that drives the run, the work of the pool's threads, the
//! kernels of each lane, decoding and planning. Between recorded batches, only the work outside of
//! steps is recorded (validation, checkpoints, versions). If there are too many spans, every second
//! recorded batch is dropped and N is doubled. So the remaining records always cover the whole run.
//!
//! # Invariants
//! Recording only reads clocks: the result of a run is the same with and without it.

mod advice;
mod limits;
mod summary;
mod timeline;

use std::num::NonZeroU64;
use std::thread::ThreadId;
use std::time::Instant;

use zillion_device::Workers;
use zillion_feature::RowBuffer;
use zillion_nn::Executor;
use zillion_nn::timeline::{Event, Work};

use crate::pipeline::{Planned, PreparationTimes};
use crate::stage_seconds::Lap;
pub use advice::{Bound, Shares, advice};
pub use limits::Limits;
pub use summary::{KernelFigures, Summary, TableFigures};
pub use timeline::{Sampled, Span, SpanKind, Stage, Timeline};

/// The largest number of spans for stages outside of steps.
const MOST_BESIDE: usize = 20_000;
/// The shortest stage outside of steps that gets a span, in nanoseconds. Shorter stages, such as a
/// poll of a checkpoint that is written in the background, get no span.
const SHORTEST_BESIDE: u64 = 20_000;

/// The settings of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// The interval of recorded batches, in batches. The first batch is recorded.
    pub every: NonZeroU64,
    /// The largest number of spans of recorded batches, unless one batch alone has more.
    pub most_spans: usize,
}

/// A collector of the spans of a run.
#[derive(Debug)]
pub(crate) struct Profiler {
    options: ProfileOptions,
    origin: Instant,
    every: u64,
    /// The threads in the order of their numbers in spans. The thread that drives the run is first.
    threads: Vec<(ThreadId, String)>,
    /// The number of batches so far.
    batches: u64,
    open: Option<Sampled>,
    sampled: Vec<Sampled>,
    beside: Vec<Span>,
    left_out: u64,
    events: Vec<Event>,
}

impl Profiler {
    /// Makes a profiler whose time begins now, for a run that this thread drives.
    pub(crate) fn new(options: ProfileOptions, workers: &Workers) -> Self {
        let driver = (std::thread::current().id(), "training".to_owned());
        Self {
            options,
            origin: Instant::now(),
            every: options.every.get(),
            threads: std::iter::once(driver).chain(workers.names()).collect(),
            batches: 0,
            open: None,
            sampled: Vec::new(),
            beside: Vec::new(),
            left_out: 0,
            events: Vec::new(),
        }
    }

    fn thread(&mut self, id: ThreadId) -> u32 {
        let known = self.threads.iter().position(|&(known, _)| known == id);
        let at = known.unwrap_or_else(|| {
            self.threads.push((id, format!("thread {}", self.threads.len())));
            self.threads.len() - 1
        });
        at as u32
    }

    fn span(&mut self, kind: SpanKind, thread: ThreadId, begin: Instant, end: Instant) -> Span {
        let thread = self.thread(thread);
        let since = |at: Instant| at.saturating_duration_since(self.origin).as_nanos() as u64;
        Span { kind, thread, lane: None, begin: since(begin), nanos: since(end) - since(begin) }
    }

    /// Ends the recording of the last batch, and begins to record the next one if it is due.
    pub(crate) fn begin_batch(&mut self, workers: &Workers, executor: &mut Executor) {
        self.end_batch(workers, executor);
        let number = self.batches;
        if number.is_multiple_of(self.every) {
            self.open = Some(Sampled::new(number));
            workers.take_record();
            workers.record(true);
            executor.record(true);
        }
    }

    /// Ends the recording of the batch, if one is being recorded.
    pub(crate) fn end_batch(&mut self, workers: &Workers, executor: &mut Executor) {
        let Some(mut open) = self.open.take() else { return };
        workers.record(false);
        executor.record(false);
        let mut events = std::mem::take(&mut self.events);
        executor.take_events(&mut events);
        for event in events.drain(..) {
            let span =
                self.span(SpanKind::Kernel(event.work), event.thread, event.begin, event.end);
            open.spans.push(Span { lane: event.lane, ..span });
        }
        self.events = events;
        for stretch in workers.take_record() {
            let starter = self.thread(stretch.starter);
            let kind = SpanKind::Pool(stretch.activity, starter);
            let span = self.span(kind, stretch.thread, stretch.begin, stretch.end);
            open.spans.push(span);
        }
        if open.rows == 0 {
            // There was no further batch to record.
            return;
        }
        open.add_step();
        self.sampled.push(open);
        let spans = |sampled: &[Sampled]| sampled.iter().map(|s| s.spans.len()).sum::<usize>();
        while spans(&self.sampled) > self.options.most_spans && self.sampled.len() > 1 {
            self.every *= 2;
            let every = self.every;
            self.sampled.retain(|sampled| sampled.batch.is_multiple_of(every));
        }
    }

    /// Records a stage of the thread that drives the run.
    pub(crate) fn stage(&mut self, stage: Stage, lap: Lap) {
        let span =
            self.span(SpanKind::Stage(stage), std::thread::current().id(), lap.begin, lap.end);
        if !stage.is_beside_steps() {
            if let Some(open) = &mut self.open {
                open.spans.push(span);
            }
        } else if span.nanos >= SHORTEST_BESIDE {
            match self.beside.len() < MOST_BESIDE {
                true => self.beside.push(span),
                false => self.left_out += 1,
            }
        }
    }

    /// Records the decoding and planning of the present batch.
    pub(crate) fn record_decoding(&mut self, times: Option<PreparationTimes>) {
        let (Some(_), Some(PreparationTimes { decoding, planning })) = (&self.open, times) else {
            return;
        };
        let works = [(SpanKind::Decode, Some(decoding)), (SpanKind::Plan, planning)];
        let spans: Vec<_> = works
            .into_iter()
            .filter_map(|(kind, work)| Some((kind, work?)))
            .map(|(kind, work)| self.span(kind, work.thread, work.begin, work.end))
            .collect();
        if let Some(open) = &mut self.open {
            open.spans.extend(spans);
        }
    }

    /// Records the step and the sizes of the present batch.
    pub(crate) fn batch(&mut self, planned: &Planned, rows: &RowBuffer, step: u64) {
        self.batches += 1;
        let Some(open) = &mut self.open else { return };
        open.step = step;
        open.rows = planned.batch.rows;
        let values = |inverse: &Vec<u32>| inverse.len().div_ceil(open.rows.max(1)).max(1);
        open.list_len = planned.plan.columns.iter().map(|c| values(&c.inverse)).collect();
        open.unique_rows = rows.tables.iter().map(|t| t.rows() as u64).sum();
        let lines = |floats: usize| (4 * floats as u64).div_ceil(64);
        open.row_lines = rows.tables.iter().map(|t| t.rows() as u64 * lines(t.stride)).sum();
    }

    /// Returns the timeline of the run, with the graph of its nodes.
    pub(crate) fn finish(mut self, workers: &Workers, executor: &mut Executor) -> Timeline {
        self.end_batch(workers, executor);
        let program = executor.program();
        Timeline {
            threads: self.threads.into_iter().map(|(_, name)| name).collect(),
            graph: program.graph().clone(),
            lanes: program.settings().lanes,
            workers: workers.threads(),
            every: self.every,
            batches: self.batches,
            sampled: self.sampled,
            beside: self.beside,
            left_out: self.left_out,
        }
    }
}

/// Returns whether the work is that of a kernel. Other work is a pass, which contains other spans.
fn is_kernel(work: Work) -> bool {
    !matches!(work, Work::Pass(_))
}
