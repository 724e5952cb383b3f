//! The timeline of a run, which holds its recorded spans.

use zillion_device::Activity;
use zillion_nn::timeline::{Work, kind};
use zillion_nn::{Graph, Sizes};

/// A stage of the thread that drives a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The run opens its data, makes first passes over it, and reads the last checkpoint.
    Prepare,
    /// The run waits for the next planned batch.
    Wait,
    /// The run pulls rows.
    Pull,
    /// The run computes the forward and backward pass of the dense model.
    Model,
    /// The run stages row gradients until the norm of all gradients is known, and computes that
    /// norm if it clips gradients.
    Staging,
    /// The run pushes row gradients. If the dense optimizer runs at the same time and takes less
    /// time than the push, its time is included.
    Push,
    /// The run computes the norm of the dense gradients and runs the dense optimizer. If the push
    /// runs at the same time and takes less time than the optimizer, its time is included.
    Optimizer,
    /// The run computes the figures of the progress line.
    Other,
    /// The run writes a checkpoint.
    Checkpoint,
    /// The run publishes a version.
    Publish,
    /// The run validates an epoch.
    Validate,
    /// The run tests the best epoch.
    Test,
}

impl Stage {
    /// Returns the name of the stage.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Wait => "wait for a batch",
            Self::Pull => "pull",
            Self::Model => "model",
            Self::Staging => "staging",
            Self::Push => "push",
            Self::Optimizer => "optimizer",
            Self::Other => "other",
            Self::Checkpoint => "checkpoint",
            Self::Publish => "publish",
            Self::Validate => "validation",
            Self::Test => "test",
        }
    }

    /// Returns whether the stage lies outside of the steps.
    pub fn is_beside_steps(self) -> bool {
        matches!(
            self,
            Self::Prepare | Self::Checkpoint | Self::Publish | Self::Validate | Self::Test
        )
    }
}

/// The activity of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SpanKind {
    /// A step, from the wait for its batch to its end.
    Step(u64),
    /// A stage of the thread that drives the run.
    Stage(Stage),
    /// The reading and decoding of a batch.
    Decode,
    /// The planning of a batch's lookups.
    Plan,
    /// The work of a kernel of the dense model.
    Kernel(Work),
    /// The work of a thread of the pool, and the number of the thread that started it.
    Pool(Activity, u32),
}

/// A recorded stretch of a thread's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The activity of the thread.
    pub kind: SpanKind,
    /// The number of the thread in [`Timeline::threads`].
    pub thread: u32,
    /// The lane that a kernel worked on; absent for other spans.
    pub lane: Option<u32>,
    /// The beginning of the span, in nanoseconds since the beginning of the run.
    pub begin: u64,
    /// The length of the span, in nanoseconds.
    pub nanos: u64,
}

impl Span {
    /// Returns the end of the span, in nanoseconds since the beginning of the run.
    pub fn end(&self) -> u64 {
        self.begin + self.nanos
    }
}

/// A recorded batch with its spans.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// The index of the batch among the batches since the process started, counted from 0.
    pub batch: u64,
    /// The number of the batch's step.
    pub step: u64,
    /// The number of rows in the batch.
    pub rows: usize,
    /// The mean number of values in a row, rounded up, for each sparse column.
    pub list_len: Vec<usize>,
    /// The number of rows of tables that were pulled.
    pub unique_rows: u64,
    /// The number of cache lines of the pulled rows.
    pub row_lines: u64,
    /// The spans of the batch, and of other work at the same time.
    pub spans: Vec<Span>,
}

impl Sampled {
    pub(super) fn new(batch: u64) -> Self {
        Self { batch, ..Self::default() }
    }

    /// Adds the span of the whole step, from the beginning of its first stage to the end of its
    /// last stage.
    pub(super) fn add_step(&mut self) {
        let stages = self.spans.iter().filter(|span| matches!(span.kind, SpanKind::Stage(_)));
        let (mut first, mut last): (Option<Span>, u64) = (None, 0);
        for stage in stages {
            first = first.filter(|f| f.begin <= stage.begin).or(Some(*stage));
            last = last.max(stage.end());
        }
        if let Some(first) = first {
            let nanos = last - first.begin;
            self.spans.push(Span { kind: SpanKind::Step(self.step), nanos, ..first });
        }
    }

    /// Returns the sizes of the batch, from which the cost of its kernels is computed.
    pub fn sizes(&self) -> Sizes {
        Sizes { rows: self.rows, list_len: self.list_len.clone() }
    }
}

/// The recorded spans of a run.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The names of the threads, in the order of their numbers.
    pub threads: Vec<String>,
    /// The graph whose nodes the kernels compute.
    pub graph: Graph,
    /// The number of lanes that share a batch.
    pub lanes: usize,
    /// The number of threads in the pool.
    pub workers: usize,
    /// The interval of recorded batches, in batches. The first batch is recorded.
    pub every: u64,
    /// The number of batches since the process started.
    pub batches: u64,
    /// The batches that were recorded, in their order.
    pub sampled: Vec<Sampled>,
    /// The spans of stages outside of steps.
    pub beside: Vec<Span>,
    /// The number of stages outside of steps that have no span, because there were too many.
    pub left_out: u64,
}

impl Timeline {
    /// Returns all spans, sorted by thread and time. A span comes before the spans inside of it.
    pub fn spans(&self) -> Vec<&Span> {
        let steps = self.sampled.iter().flat_map(|sampled| &sampled.spans);
        let mut spans: Vec<&Span> = steps.chain(&self.beside).collect();
        spans.sort_by_key(|span| (span.thread, span.begin, std::cmp::Reverse(span.nanos)));
        spans
    }

    /// Returns the name of a span.
    pub fn name(&self, span: &Span) -> String {
        match span.kind {
            SpanKind::Step(step) => format!("step {step}"),
            SpanKind::Stage(stage) => stage.name().to_owned(),
            SpanKind::Decode => "decode".to_owned(),
            SpanKind::Plan => "plan".to_owned(),
            SpanKind::Kernel(Work::Pass(number)) => format!("pass {number}"),
            SpanKind::Kernel(Work::Node(id)) => self.graph.node(id).name.clone(),
            SpanKind::Kernel(work) => kind_of(&self.graph, work),
            SpanKind::Pool(Activity::Wait, _) => "wait for threads".to_owned(),
            SpanKind::Pool(Activity::Task, _) => "background task".to_owned(),
            SpanKind::Pool(Activity::Phase, starter) => {
                format!("phase of {}", self.thread(starter))
            }
        }
    }

    /// Returns the category of a span.
    pub fn category(&self, span: &Span) -> &'static str {
        match span.kind {
            SpanKind::Step(_) => "step",
            SpanKind::Stage(Stage::Wait) | SpanKind::Pool(Activity::Wait, _) => "wait",
            SpanKind::Stage(_) | SpanKind::Decode | SpanKind::Plan => "stage",
            SpanKind::Kernel(Work::Pass(_)) => "pass",
            SpanKind::Kernel(_) => "kernel",
            SpanKind::Pool(..) => "pool",
        }
    }

    /// Returns the kind of a kernel, or `None` for other spans.
    pub fn kind(&self, span: &Span) -> Option<String> {
        match span.kind {
            SpanKind::Kernel(work) if super::is_kernel(work) => Some(kind_of(&self.graph, work)),
            _ => None,
        }
    }

    fn thread(&self, number: u32) -> &str {
        self.threads.get(number as usize).map_or("?", String::as_str)
    }
}

/// Returns the kind of work by which times are summed.
pub(super) fn kind_of(graph: &Graph, work: Work) -> String {
    match work {
        Work::Node(id) => kind(&graph.node(id).op),
        Work::Pass(_) => "pass".to_owned(),
        Work::Lists => "lists".to_owned(),
        Work::Pack => "pack weights".to_owned(),
        Work::Collect => "collect results".to_owned(),
    }
}
