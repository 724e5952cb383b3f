//! The work of a request on one version: the scoring of its rows, beside it a shadow version, and
//! the lines of the request log.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::span::EnteredSpan;
use zillion_feature::{RawColumns, RequestError};
use zillion_scorer::{RowScores, Servable};

use crate::admission::{Caller, Scoring};
use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::host::Resolved;
use crate::metrics::{Metrics, Stage};
use crate::queue::SmallWork;
use crate::request_log::{Sample, Sampling, Scores};
use crate::score::{Answer, output_names};
use crate::statistics::Spent;
use crate::tensor::{too_many_rows, too_many_values};
use crate::trace::span;

/// The raw rows of a request.
#[derive(Debug)]
pub struct RowsRequest<'a> {
    /// The number of rows.
    pub rows: usize,
    /// The inputs of the rows.
    pub columns: RawColumns<'a>,
    /// The names of the outputs to return. If there are none, the answer has the probabilities.
    pub outputs: Vec<String>,
    /// The id that the body of the request has, if it has one.
    pub id: Option<&'a str>,
}

/// A request that is being processed: its version, and the time that its stages have taken.
pub struct Scored {
    pub(crate) version: Resolved,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) spent: Cell<Spent>,
    pub(crate) caller: Arc<Caller>,
    /// The time that the request had when it was admitted.
    pub(crate) limit: Duration,
    pub(crate) deadline: Instant,
    /// The averages of small requests and the largest average, if this is a network thread.
    pub(crate) inline: Option<(Arc<SmallWork>, Duration)>,
    /// The number of rows and values of the request, once it is known.
    pub(crate) values: Cell<Option<usize>>,
    /// Whether the request is too long for this thread, and must be done on the pool.
    pub(crate) is_handed_over: Cell<bool>,
    pub(crate) shadow: Option<Shadow>,
    /// The choice of the request log, if the server has one.
    pub(crate) sampling: Option<Sampling>,
    /// The lines of the request log, if the request belongs to its sample.
    pub(crate) sample: RefCell<Option<Sample>>,
}

/// A version that scores the rows of a request beside the answer.
pub(crate) struct Shadow {
    pub(crate) servable: Arc<Servable>,
    pub(crate) scoring: Scoring,
}

impl Shadow {
    /// Scores the rows when no request waits, and records the differences from `scores`. A request
    /// that comes to wait stops it.
    fn compare(&self, scored: &Scored, request: &RowsRequest<'_>, scores: &RowScores) {
        let (model, metrics) = (scored.model(), &scored.metrics);
        let estimate = scored.spent.get().infer;
        if self.scoring.has_waiting() {
            metrics.record_shadow_skipped(model);
            return;
        }
        // The rows are borrowed from the body, so that they are encoded at once.
        let batch = match self.servable.encoder().encode(request.rows, &request.columns) {
            Ok(batch) => batch,
            Err(error) => {
                tracing::debug!("a shadow version does not take the rows: {error}");
                metrics.record_shadow_skipped(model);
                return;
            }
        };
        let (servable, scoring) = (self.servable.clone(), self.scoring.clone());
        let (name, series) = (model.to_owned(), metrics.clone());
        let predicts = servable.has_predictions().then(|| servable.kind_of_task(0));
        let answered: Vec<f32> = scores.logits.first().cloned().unwrap_or_default();
        let work = move || match servable.score_batch_unless(&batch, &|| scoring.has_waiting()) {
            Ok(scores) => {
                let shadow = scores.logits.into_iter().next().unwrap_or_default();
                let value = |logit: f32| {
                    predicts.map_or(f64::from(logit), |kind| kind.predict_exactly(logit))
                };
                let pairs = answered.into_iter().zip(shadow);
                let differences = pairs.map(|(a, b)| (value(a) - value(b)).abs());
                series.record_shadow(&name, differences);
            }
            Err(error) => {
                tracing::debug!("a shadow version did not score: {error}");
                series.record_shadow_skipped(&name);
            }
        };
        if !self.scoring.run_idle(estimate, &scored.limits, work) {
            metrics.record_shadow_skipped(model);
        }
    }
}

/// A running stage of a request. The stage ends when the value is dropped.
pub(crate) struct Timed<'a> {
    scored: &'a Scored,
    stage: Stage,
    began: Instant,
    _span: EnteredSpan,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.scored.spend(self.stage, self.began.elapsed());
    }
}

impl Scored {
    /// Returns the version that answers.
    pub fn servable(&self) -> &Servable {
        &self.version.servable
    }

    /// Returns the limits of requests, as they were when the work began.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the name of the model.
    pub fn model(&self) -> &str {
        self.version.host.name()
    }

    /// Runs a stage of the work and measures its time.
    pub fn time<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let _timed = self.begin(stage);
        work()
    }

    /// Starts a stage of the work. The stage ends when the returned value is dropped, which
    /// suits work that borrows its own results.
    pub(crate) fn begin(&self, stage: Stage) -> Timed<'_> {
        let span = span!("stage", otel.name = stage.name()).entered();
        Timed { scored: self, stage, began: Instant::now(), _span: span }
    }

    fn spend(&self, stage: Stage, took: Duration) {
        self.metrics.record_stage(stage, took);
        let mut spent = self.spent.get();
        match stage {
            Stage::Parse | Stage::Decompress => spent.input += took,
            Stage::Score => spent.infer += took,
            Stage::Log | Stage::Write => spent.output += took,
            // These stages come before the work, and their own code counts them.
            Stage::Receive | Stage::Queue => {}
        }
        self.spent.set(spent);
    }

    /// Scores the rows of a request, until its time is over.
    ///
    /// # Errors
    /// Returns an error if the request has no rows, if it has more rows or values than the
    /// limits allow, if the rows do not fit the model, or if the time of the request is over.
    pub fn score(&self, request: &RowsRequest<'_>) -> Result<Answer> {
        if request.rows == 0 {
            return Err(ServeError::Malformed(
                "the request has no rows; send at least one".to_owned(),
            ));
        }
        if request.rows > self.limits.rows {
            return Err(too_many_rows(&self.limits));
        }
        let values: usize = request.columns.values().map(|column| column.values.len()).sum();
        // A shared value stands for one value in every row.
        let shared = request.columns.values().filter(|column| column.is_shared);
        let shared: usize = shared.map(|column| column.values.len()).sum();
        let values = values.saturating_add(shared.saturating_mul(request.rows));
        self.check_thread(values.saturating_add(request.rows))?;
        self.caller.take_rows(request.rows)?;
        if values > self.limits.values {
            return Err(too_many_values(&self.limits));
        }
        let deadline = self.deadline;
        let is_late = || Instant::now() >= deadline;
        let scores = self.time(Stage::Score, || {
            let scores =
                self.servable().score_unless(request.rows, &request.columns, Some(&is_late));
            scores.map_err(|error| self.describe_failure(error))
        })?;
        if let Some(shadow) = &self.shadow {
            shadow.compare(self, request, &scores);
        }
        if let Some(sampling) = &self.sampling {
            let sample = self.time(Stage::Log, || self.log(sampling, request, &scores));
            *self.sample.borrow_mut() = sample;
        }
        let rows = request.rows as u64;
        self.metrics.record_scores(
            self.version.host.name(),
            rows,
            scores.missing,
            scores.missing_side_rows,
        );
        let spent = self.spent.get();
        self.spent.set(Spent {
            rows: spent.rows + rows,
            executions: spent.executions + 1,
            ..spent
        });
        Answer::choose(self.servable(), scores, &request.outputs)
    }

    /// Checks whether this thread may score a request with this number of rows and values.
    ///
    /// # Errors
    /// Returns an error that no client sees if it may not. The request is then done on the pool.
    fn check_thread(&self, values: usize) -> Result<()> {
        self.values.set(Some(values));
        match &self.inline {
            Some((small, bound)) if !small.has_values(values, *bound) => {
                self.is_handed_over.set(true);
                Err(ServeError::Deadline { limit: self.limit })
            }
            _ => Ok(()),
        }
    }

    /// Returns the error of a request whose scoring has failed.
    pub(crate) fn describe_failure(&self, error: zillion_scorer::Error) -> ServeError {
        match error {
            zillion_scorer::Error::Input(input) => ServeError::Input(input),
            zillion_scorer::Error::Late => ServeError::Deadline { limit: self.limit },
            zillion_scorer::Error::UserVector => ServeError::Input(RequestError {
                input: "context".to_owned(),
                row: None,
                reason: "a score of the items is too large for a float; send other inputs, or \
                         train the model again"
                    .to_owned(),
            }),
            other => ServeError::Scoring(other),
        }
    }

    /// Writes the lines of the request log for rows that were scored.
    fn log(
        &self,
        sampling: &Sampling,
        request: &RowsRequest<'_>,
        scores: &RowScores,
    ) -> Option<Sample> {
        let (servable, model) = (self.servable(), self.version.host.shared_name());
        sampling.sample(&Scores {
            model: &model,
            version: servable.version(),
            encoder: servable.encoder(),
            rows: request.rows,
            columns: &request.columns,
            id: request.id,
            outputs: &output_names(servable),
            logits: &scores.logits,
        })
    }
}
