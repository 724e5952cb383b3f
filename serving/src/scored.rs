//! The work of a request on one version: the scoring of its rows, beside it a shadow version, and
//! the lines of the request log.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::span::EnteredSpan;
use zillion_feature::{RawColumns, RequestError};
use zillion_scorer::{RowScores, Servable};

use crate::admission::{Caller, Scoring, Turned};
use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::gathering::{Joined, MOST_ROWS, ReadRows};
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
    /// Whether the rows may be scored in one pass with those of other requests.
    pub(crate) gathers: bool,
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

/// The outcome of a turn of a request.
#[expect(clippy::large_enum_variant, reason = "a step is moved once, which is cheaper than a box")]
pub(crate) enum Step<T> {
    /// The answer is written.
    Done(T),
    /// The rows are read, and the function writes the answer once they are scored.
    Read(ReadRows, Finish<T>),
}

/// A function that writes the answer of a request from its scores.
pub(crate) type Finish<T> = Box<dyn FnOnce(&Scored, Joined) -> Result<T> + Send>;

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
        // The classes of a label are compared together.
        let compared = servable.classes().map_or(1, |classes| classes.len());
        let answered: Vec<f32> = scores.logits.iter().take(compared).flatten().copied().collect();
        let work = move || match servable.score_batch_unless(&batch, &|| scoring.has_waiting()) {
            Ok(scores) => {
                let shadow = scores.logits.into_iter().take(compared).flatten();
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

    /// Scores the rows of a request and calls `finish` with the answer, or reads the rows and
    /// leaves both to a later turn of the request.
    ///
    /// # Errors
    /// Returns the errors of [`Scored::score`] and of `finish`.
    pub(crate) fn score_then<T>(
        &self,
        request: RowsRequest<'_>,
        finish: impl FnOnce(&Self, Answer) -> Result<T> + Send + 'static,
    ) -> Result<Step<T>> {
        if !self.gathers || request.rows > MOST_ROWS {
            return finish(self, self.score(&request)?).map(Step::Done);
        }
        self.check_rows(&request)?;
        let began = Instant::now();
        let batch = self.servable().encoder().encode(request.rows, &request.columns)?;
        if !batch.shared.is_empty() {
            let deadline = self.deadline;
            let is_late = || Instant::now() >= deadline;
            let scores = self.servable().score_batch_unless(&batch, &is_late);
            self.spend(Stage::Score, began.elapsed());
            let scores = scores.map_err(|error| self.describe_failure(error))?;
            let answer = self.conclude(scores, request.rows, &request.outputs, 1)?;
            return finish(self, answer).map(Step::Done);
        }
        let encoding = began.elapsed();
        let (rows, outputs) = (request.rows, request.outputs);
        let finish = move |scored: &Self, joined: Joined| {
            scored.spend(Stage::Score, encoding + joined.took);
            let scores = joined.scores.ok_or_else(|| {
                ServeError::Internal("the scoring of the request panicked".to_owned())
            })?;
            let scores = scores.map_err(|error| scored.describe_failure(error))?;
            let answer = scored.conclude(scores, rows, &outputs, u64::from(joined.is_first))?;
            finish(scored, answer)
        };
        let servable = self.version.servable.clone();
        let rows = ReadRows { servable, batch, deadline: self.deadline };
        Ok(Step::Read(rows, Box::new(finish)))
    }

    /// Prepares for the work of a request whose turn has come.
    pub(crate) fn begin_turn(&mut self, turned: &Turned, small: &Arc<SmallWork>) {
        self.spent.set(Spent { queue: turned.waited, ..Spent::default() });
        self.deadline = turned.deadline;
        self.inline = turned.inline_time.map(|bound| (small.clone(), bound));
        // A shadow version and the request log need the raw columns.
        let is_plain = self.shadow.is_none() && self.sampling.is_none();
        self.gathers = turned.gathers && is_plain && self.servable().has_independent_rows();
        self.is_handed_over.set(false);
        self.values.set(None);
    }

    /// Checks the rows of a request against the limits, the quota of the caller and the thread.
    fn check_rows(&self, request: &RowsRequest<'_>) -> Result<()> {
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
        Ok(())
    }

    /// Scores the rows of a request, until its time is over.
    ///
    /// # Errors
    /// Returns an error if the request has no rows, if it has more rows or values than the
    /// limits allow, if the rows do not fit the model, or if the time of the request is over.
    pub fn score(&self, request: &RowsRequest<'_>) -> Result<Answer> {
        self.check_rows(request)?;
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
        self.conclude(scores, request.rows, &request.outputs, 1)
    }

    /// Counts the scores of a request, and chooses the outputs that it asks for. `executions` is
    /// the number of runs of the model that are counted for it.
    fn conclude(
        &self,
        scores: RowScores,
        rows: usize,
        outputs: &[String],
        executions: u64,
    ) -> Result<Answer> {
        self.metrics.record_scores(
            self.version.host.name(),
            rows as u64,
            scores.missing,
            scores.missing_side_rows,
        );
        let spent = self.spent.get();
        self.spent.set(Spent {
            rows: spent.rows + rows as u64,
            executions: spent.executions + executions,
            ..spent
        });
        Answer::choose(self.servable(), scores, outputs)
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
            zillion_scorer::Error::ItemScore => ServeError::Input(RequestError {
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
