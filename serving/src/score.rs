//! Scoring as tasks on the one pool: admission, deadlines, and the way back to who waits.
//!
//! A request's work (reading its body, encoding, lookup, model, writing the answer) is one task; the
//! network's thread only waits for it. Work that nobody waits for any more is not begun.
//!
//! # Concurrency
//! The pool's threads run tasks in the order of their arrival. How many may wait is bounded: more are
//! refused at once, because a queue that only grows answers everybody too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::Span;
use zillion_device::Workers;
use zillion_registry::VersionId;
use zillion_scorer::{RowScores, Servable};

use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::metrics::{Metrics, Stage};
use crate::trace::span;

/// What a version says of a request's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The version that said it, from the first byte to the last.
    pub version: VersionId,
    /// Outputs by name, one value a row.
    pub outputs: Vec<(String, Vec<f32>)>,
}

/// The name of the first label's output.
pub const PROBABILITIES: &str = "probabilities";
/// The name of its log odds, which are an output on request.
pub const LOGITS: &str = "logits";
/// The name of the output of a model that scores without labels.
pub const SCORES: &str = "scores";

impl Answer {
    /// An answer of these outputs.
    pub fn of(version: VersionId, outputs: Vec<(String, Vec<f32>)>) -> Self {
        Self { version, outputs }
    }

    /// Chooses the outputs that were asked for by name, or all probabilities if none was. The scores move
    /// into the answer; only scores that two outputs share are copied.
    ///
    /// # Errors
    /// A name that the model does not have.
    pub fn choose(servable: &Servable, mut scores: RowScores, names: &[String]) -> Result<Self> {
        let all = output_names(servable);
        let chosen: Vec<&Output> = match names {
            [] => all.iter().filter(|output| output.by_default).collect(),
            names => names.iter().map(|name| find(&all, name)).collect::<Result<_>>()?,
        };
        let mut uses = vec![0usize; scores.logits.len()];
        chosen.iter().for_each(|output| uses[output.task] += 1);
        let mut outputs = Vec::with_capacity(chosen.len());
        for output in chosen {
            let logits = &mut scores.logits[output.task];
            uses[output.task] -= 1;
            let logits = match uses[output.task] {
                0 => std::mem::take(logits),
                _ => logits.clone(),
            };
            let values = match output.is_probability {
                true => logits.into_iter().map(probability).collect(),
                false => logits,
            };
            outputs.push((output.name.clone(), values));
        }
        Ok(Self { version: servable.version(), outputs })
    }
}

/// Finds the output of a name.
fn find<'a>(outputs: &'a [Output], name: &str) -> Result<&'a Output> {
    outputs.iter().find(|output| output.name == name).ok_or_else(|| {
        let known: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        let known = known.join("`, `");
        ServeError::Malformed(format!("unknown output `{name}` (the model has `{known}`)"))
    })
}

/// The logistic function, rounded once.
fn probability(logit: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32
}

/// One output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its name in the protocols.
    pub name: String,
    /// Which of the model's scores.
    pub task: usize,
    /// Whether it is the score's probability instead of the score itself.
    pub is_probability: bool,
    /// Whether it is in the answer to a request that names none.
    pub by_default: bool,
}

/// A model's outputs: the probability and the log odds of each task, or the score of a model that scores
/// without labels.
pub fn output_names(servable: &Servable) -> Vec<Output> {
    if !servable.has_probabilities() {
        let name = SCORES.to_owned();
        return vec![Output { name, task: 0, is_probability: false, by_default: true }];
    }
    let named = |prefix: &str, task: usize, name: &str| match task {
        0 => prefix.to_owned(),
        _ => format!("{prefix}/{name}"),
    };
    let of = |(task, name): (usize, &String)| {
        [(PROBABILITIES, true), (LOGITS, false)].map(|(prefix, is_probability)| Output {
            name: named(prefix, task, name),
            task,
            is_probability,
            by_default: is_probability,
        })
    };
    servable.tasks().iter().enumerate().flat_map(of).collect()
}

/// Where work goes.
#[derive(Clone, Debug)]
pub(crate) struct Scoring {
    workers: Arc<Workers>,
    /// Requests that wait or are being worked on.
    open: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

/// Counts an open request for as long as it lives.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Scoring {
    pub(crate) fn new(workers: Arc<Workers>, metrics: Arc<Metrics>) -> Self {
        Self { workers, open: Arc::default(), metrics }
    }

    /// Requests that wait or are being worked on: what a loader makes way for.
    pub(crate) fn open(&self) -> Arc<AtomicUsize> {
        self.open.clone()
    }

    /// Does `work` on the pool and returns what it returned. It is told how long it waited.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        limits: &Limits,
        work: impl FnOnce(Duration) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let waiting = self.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(self.open.clone());
        if waiting >= limits.waiting {
            return Err(ServeError::Overloaded { waiting });
        }
        let (sender, receiver) = oneshot::channel();
        let (asked, metrics) = (Instant::now(), self.metrics.clone());
        let (request, queued) = (Span::current(), span!("queue"));
        // Held until the answer is here: dropped before it is begun, a task is taken back.
        let task = self.workers.spawn(move || {
            let waited = asked.elapsed();
            metrics.stage(Stage::Queue, waited);
            drop(queued);
            let _inside = request.enter();
            if !sender.is_closed() {
                // Whoever asked may have left meanwhile; then nobody wants the result.
                let _ = sender.send(work(waited));
            }
            drop(open);
        });
        let outcome = tokio::time::timeout(limits.request_time, receiver).await;
        drop(task);
        match outcome {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ServeError::Internal("the request's work was abandoned".to_owned())),
            Err(_) => Err(ServeError::Deadline { limit: limits.request_time }),
        }
    }
}
