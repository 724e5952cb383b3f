//! The timeline of a run: the recorded spans, as data.

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
    /// The run keeps row gradients until the norm of all gradients is known, and computes that
    /// norm, where it clips.
    Staging,
    /// The run pushes row gradients, and beside it runs the dense optimizer, where that is the
    /// shorter.
    Push,
    /// The run computes the norm of the dense gradients and runs the dense optimizer, and beside it
    /// pushes, where that is the shorter.
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

    /// Returns whether the stage is not a part of a step.
    pub fn is_beside_steps(self) -> bool {
        matches!(
            self,
            Self::Prepare | Self::Checkpoint | Self::Publish | Self::Validate | Self::Test
        )
    }
}

/// The activity of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
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

/// A stretch of a thread's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The activity of the thread.
    pub what: What,
    /// The number of the thread in [`Timeline::threads`].
    pub thread: u32,
    /// The lane that a kernel worked on.
    pub lane: Option<u32>,
    /// The nanoseconds from the beginning of the run.
    pub begin: u64,
    /// The length in nanoseconds.
    pub nanos: u64,
}

impl Span {
    /// Returns the nanoseconds from the beginning of the run to its end.
    pub fn end(&self) -> u64 {
        self.begin + self.nanos
    }
}

/// A batch that was recorded.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// The number among the batches of this session, from 0.
    pub batch: u64,
    /// The step of the batch.
    pub step: u64,
    /// The number of rows.
    pub rows: usize,
    /// The values a row of each sparse column, rounded up.
    pub list_len: Vec<usize>,
    /// The rows of tables that were pulled.
    pub unique_rows: u64,
    /// The cache lines of these rows.
    pub row_lines: u64,
    /// The spans of the batch, and of the work beside it.
    pub spans: Vec<Span>,
}

impl Sampled {
    pub(super) fn new(batch: u64) -> Self {
        Self { batch, ..Self::default() }
    }

    /// Adds the span of the whole step, from its stages.
    pub(super) fn add_step(&mut self) {
        let stages = self.spans.iter().filter(|span| matches!(span.what, What::Stage(_)));
        let (mut first, mut last): (Option<Span>, u64) = (None, 0);
        for stage in stages {
            first = first.filter(|f| f.begin <= stage.begin).or(Some(*stage));
            last = last.max(stage.end());
        }
        if let Some(first) = first {
            let nanos = last - first.begin;
            self.spans.push(Span { what: What::Step(self.step), nanos, ..first });
        }
    }

    /// Returns the size of the batch, for counting the cost of its kernels.
    pub fn sizes(&self) -> Sizes {
        Sizes { rows: self.rows, list_len: self.list_len.clone() }
    }
}

/// The recorded spans of a run.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The names of the threads, by number.
    pub threads: Vec<String>,
    /// The graph of the nodes that kernels run.
    pub graph: Graph,
    /// The lanes that share a batch.
    pub lanes: usize,
    /// The threads of the pool.
    pub workers: usize,
    /// The distance between recorded batches. The first one is recorded.
    pub every: u64,
    /// The number of batches of this session.
    pub batches: u64,
    /// The batches that were recorded.
    pub sampled: Vec<Sampled>,
    /// The stages beside the steps.
    pub beside: Vec<Span>,
    /// The number of stages beside the steps that were left out, because there were too many.
    pub left_out: u64,
}

impl Timeline {
    /// Returns all spans, by thread and time, with a span before those inside of it.
    pub fn spans(&self) -> Vec<&Span> {
        let steps = self.sampled.iter().flat_map(|sampled| &sampled.spans);
        let mut spans: Vec<&Span> = steps.chain(&self.beside).collect();
        spans.sort_by_key(|span| (span.thread, span.begin, std::cmp::Reverse(span.nanos)));
        spans
    }

    /// Returns the name of a span.
    pub fn name(&self, span: &Span) -> String {
        match span.what {
            What::Step(step) => format!("step {step}"),
            What::Stage(stage) => stage.name().to_owned(),
            What::Decode => "decode".to_owned(),
            What::Plan => "plan".to_owned(),
            What::Kernel(Work::Pass(number)) => format!("pass {number}"),
            What::Kernel(Work::Node(id)) => self.graph.node(id).name.clone(),
            What::Kernel(work) => kind_of(&self.graph, work),
            What::Pool(Activity::Wait, _) => "wait for threads".to_owned(),
            What::Pool(Activity::Task, _) => "background task".to_owned(),
            What::Pool(Activity::Phase, starter) => format!("phase of {}", self.thread(starter)),
        }
    }

    /// Returns the category of a span.
    pub fn category(&self, span: &Span) -> &'static str {
        match span.what {
            What::Step(_) => "step",
            What::Stage(Stage::Wait) | What::Pool(Activity::Wait, _) => "wait",
            What::Stage(_) | What::Decode | What::Plan => "stage",
            What::Kernel(Work::Pass(_)) => "pass",
            What::Kernel(_) => "kernel",
            What::Pool(..) => "pool",
        }
    }

    /// Returns the kind that a kernel is counted as; `None` for other spans.
    pub fn kind(&self, span: &Span) -> Option<String> {
        match span.what {
            What::Kernel(work) if super::is_kernel(work) => Some(kind_of(&self.graph, work)),
            _ => None,
        }
    }

    fn thread(&self, number: u32) -> &str {
        self.threads.get(number as usize).map_or("?", String::as_str)
    }
}

/// Returns the kind that the times of a kernel are summed by.
pub(super) fn kind_of(graph: &Graph, work: Work) -> String {
    match work {
        Work::Node(id) => kind(&graph.node(id).op),
        Work::Pass(_) => "pass".to_owned(),
        Work::Lists => "lists".to_owned(),
        Work::Pack => "pack weights".to_owned(),
        Work::Collect => "collect results".to_owned(),
    }
}
