//! The scoring of requests as tasks of one pool of threads, under limits of number and time.
//!
//! The work of a request (reading its body, encoding, lookup, model, writing the answer) is one
//! task, and the network's thread only waits for it. A task whose client has left is not begun.
//!
//! # Concurrency
//! The threads of the pool run tasks in the order of their arrival. The number of waiting tasks is
//! bounded, and further requests are refused at once, because a queue that only grows answers every
//! request too late.

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

/// The answer of a version to the rows of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The number of the version that answered, from the first byte to the last.
    pub version: VersionId,
    /// The outputs by name, with one value per row.
    pub outputs: Vec<(String, Vec<f32>)>,
}

/// The name of the output of the first label.
pub const PROBABILITIES: &str = "probabilities";
/// The name of the output with the log odds of the first label. Only requests that name this
/// output get it.
pub const LOGITS: &str = "logits";
/// The name of the output of a model that scores without labels.
pub const SCORES: &str = "scores";

impl Answer {
    /// Creates an answer from its version and outputs.
    pub fn of(version: VersionId, outputs: Vec<(String, Vec<f32>)>) -> Self {
        Self { version, outputs }
    }

    /// Chooses the outputs that were asked for by name, or all probabilities if none was. The
    /// scores move into the answer; only scores that two outputs share are copied.
    ///
    /// # Errors
    /// Returns an error if the model has no output of a requested name.
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
                true => logits.into_iter().map(to_probability).collect(),
                false => logits,
            };
            outputs.push((output.name.clone(), values));
        }
        Ok(Self { version: servable.version(), outputs })
    }
}

/// Returns the output with a name, or an error that lists the outputs of the model.
fn find<'a>(outputs: &'a [Output], name: &str) -> Result<&'a Output> {
    outputs.iter().find(|output| output.name == name).ok_or_else(|| {
        let known: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        let known = known.join("`, `");
        ServeError::Malformed(format!("unknown output `{name}` (the model has `{known}`)"))
    })
}

/// Returns the logistic function of a logit, rounded once.
fn to_probability(logit: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32
}

/// An output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name of the output in the protocols.
    pub name: String,
    /// The number of the task whose score this output is.
    pub task: usize,
    /// Whether the output is the probability of the score instead of the score itself.
    pub is_probability: bool,
    /// Whether the output is in the answer to a request that names none.
    pub by_default: bool,
}

/// Lists the outputs of a model: the probability and the log odds of each task, or the score of a
/// model without labels.
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

/// The pool that processes requests, and the count of open requests.
#[derive(Clone, Debug)]
pub(crate) struct Scoring {
    workers: Arc<Workers>,
    /// The number of requests that wait or are being processed.
    open: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

/// A guard that counts one request as open while it lives.
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

    /// Returns the shared number of requests that wait or are being processed. Loaders rest
    /// while it is above zero.
    pub(crate) fn open(&self) -> Arc<AtomicUsize> {
        self.open.clone()
    }

    /// Runs `work` on the pool and returns its result. The argument of `work` is the time
    /// for which the request waited.
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
        // The task is held until its answer has come: a task that is dropped before it has begun is
        // withdrawn.
        let task = self.workers.spawn(move || {
            let waited = asked.elapsed();
            metrics.record_stage(Stage::Queue, waited);
            drop(queued);
            let _inside = request.enter();
            if !sender.is_closed() {
                // The client may have left meanwhile, so that the result is not wanted any more.
                let _ = sender.send(work(waited));
            }
            drop(open);
        });
        let outcome = tokio::time::timeout(limits.request_time, receiver).await;
        drop(task);
        match outcome {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ServeError::Internal(
                "the task of the request ended without a result".to_owned(),
            )),
            Err(_) => Err(ServeError::Deadline { limit: limits.request_time }),
        }
    }
}
