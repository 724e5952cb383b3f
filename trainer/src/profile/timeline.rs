//! What was recorded of a run, as data.

use zillion_device::Activity;
use zillion_nn::timeline::{Work, kind};
use zillion_nn::{Graph, Sizes};

/// A stage of the thread that drives a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Opening data, first passes over it, the last checkpoint.
    Prepare,
    /// Waiting for the next planned batch.
    Wait,
    /// Pulling rows.
    Pull,
    /// Forward and backward of the dense model.
    Model,
    /// Keeping row gradients until the norm of all gradients is known, and that norm, where it is clipped.
    Staging,
    /// Pushing row gradients, and beside it the dense optimizer, where that is the shorter.
    Push,
    /// The norm of the dense gradients and the dense optimizer, and beside that the push, where that is the shorter.
    Optimizer,
    /// Figures of the progress line.
    Other,
    /// Checkpoints.
    Checkpoint,
    /// Versions.
    Publish,
    /// Validation.
    Validate,
    /// The test of the best epoch.
    Test,
}

impl Stage {
    /// Its name.
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

    /// Whether it is no part of a step.
    pub fn is_beside_steps(self) -> bool {
        matches!(
            self,
            Self::Prepare | Self::Checkpoint | Self::Publish | Self::Validate | Self::Test
        )
    }
}

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// A step, from the wait for its batch to its end.
    Step(u64),
    /// A stage of the thread that drives the run.
    Stage(Stage),
    /// Reading and decoding a batch.
    Decode,
    /// Planning its lookups.
    Plan,
    /// Work of the dense model.
    Kernel(Work),
    /// What a thread of the pool was busy with, and the number of the thread that started it.
    Pool(Activity, u32),
}

/// A stretch of a thread's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// What was done.
    pub what: What,
    /// Number of the thread: [`Timeline::threads`].
    pub thread: u32,
    /// The lane that a kernel worked on.
    pub lane: Option<u32>,
    /// Nanoseconds from the beginning of the run.
    pub begin: u64,
    /// Its length in nanoseconds.
    pub nanos: u64,
}

impl Span {
    /// Nanoseconds from the beginning of the run to its end.
    pub fn end(&self) -> u64 {
        self.begin + self.nanos
    }
}

/// A batch that was recorded.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// Its number among the batches of this sitting, from 0.
    pub batch: u64,
    /// The step that it was of.
    pub step: u64,
    /// Its rows.
    pub rows: usize,
    /// Values a row of each sparse column, rounded up.
    pub list_len: Vec<usize>,
    /// Rows of tables that were pulled.
    pub unique_rows: u64,
    /// Cache lines of these.
    pub row_lines: u64,
    /// What was done for it, and beside it.
    pub spans: Vec<Span>,
}

impl Sampled {
    pub(super) fn new(batch: u64) -> Self {
        Self { batch, ..Self::default() }
    }

    /// The span of the whole step, from its stages.
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

    /// How large the batch was, for counting what its kernels cost.
    pub fn sizes(&self) -> Sizes {
        Sizes { rows: self.rows, list_len: self.list_len.clone() }
    }
}

/// What was recorded of a run.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Names of threads, by number.
    pub threads: Vec<String>,
    /// The graph whose nodes kernels are.
    pub graph: Graph,
    /// Lanes that share a batch.
    pub lanes: usize,
    /// Threads of the pool.
    pub workers: usize,
    /// One batch in so many was recorded, the first one first.
    pub every: u64,
    /// Batches of this sitting.
    pub batches: u64,
    /// The batches that were recorded.
    pub sampled: Vec<Sampled>,
    /// Stages beside the steps.
    pub beside: Vec<Span>,
    /// Of these, how many were left out, because there were too many.
    pub left_out: u64,
}

impl Timeline {
    /// All spans, by thread and time, those that lie around others before them.
    pub fn spans(&self) -> Vec<&Span> {
        let steps = self.sampled.iter().flat_map(|sampled| &sampled.spans);
        let mut spans: Vec<&Span> = steps.chain(&self.beside).collect();
        spans.sort_by_key(|span| (span.thread, span.begin, std::cmp::Reverse(span.nanos)));
        spans
    }

    /// What a span is called.
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

    /// What kind of span it is.
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

    /// The kind that a kernel is counted as; `None` of what is none.
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

/// What times of a kernel are summed up as.
pub(super) fn kind_of(graph: &Graph, work: Work) -> String {
    match work {
        Work::Node(id) => kind(&graph.node(id).op),
        Work::Pass(_) => "pass".to_owned(),
        Work::Lists => "lists".to_owned(),
        Work::Pack => "pack weights".to_owned(),
        Work::Collect => "collect results".to_owned(),
    }
}
