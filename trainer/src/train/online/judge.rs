//! The validation of a resident run, its stable version, and its gate.

use zillion_registry::{Cache, VersionId};
use zillion_rows::layer::Unthrottled;
use zillion_scorer::Servable;
use zillion_stream::gate::{AnchorScores, Outcome, Verdict};

use super::super::Run;
use super::by_hand::quarantine_versions;
use super::skip::{log_of, read_keeps, read_skips};
use crate::error::Result;
use crate::job::Job;
use crate::observer::Observer;
use crate::online::{
    BatchScores, FedBatch, Judging, SnapshotLink, Trip, read_judging, read_published, write_judging,
};
use crate::validation_history::ValidationHistory;

/// The name of the folder, inside the folder `stream`, for the files of the stable version.
const STABLE_FOLDER: &str = "stable";

/// The validation of a run with the stable version.
pub(super) struct Validation {
    judging: Judging,
    /// The loaded versions with which the model is compared.
    versions: Vec<Servable>,
    /// The dense parameters of the newest version, and those of the state that was judged last.
    published: Vec<f32>,
    judged: Vec<f32>,
    history: ValidationHistory,
    /// Whether the present hold was reported, and whether it has warned.
    has_reported: bool,
    has_warned: bool,
}

/// The answer of a gate to the wish to publish.
pub(super) enum Judged {
    /// The present state may be published.
    Publish,
    /// Nothing is published now: the verdict says so, or no window was judged yet after the
    /// batches that were left out.
    Hold,
    /// The gate has found bad batches.
    Trip(Trip),
}

impl Validation {
    /// Opens the validation of a run, at the state of a checkpoint if there is one.
    pub(super) fn open(run: &mut Run, link: Option<&SnapshotLink>) -> Result<Option<Self>> {
        let streams = crate::online::stream_folder(run.output.dir.path());
        let state = link.map(|link| read_judging(&streams, link)).transpose()?.flatten();
        let lines = state.as_ref().and_then(|state| state.lines);
        let published = match (link, &state) {
            (Some(link), Some(state)) => read_published(&streams, link, state)?,
            _ => Vec::new(),
        };
        let Some(mut judging) = Judging::open(&run.job, state)? else { return Ok(None) };
        let log = log_of(run.output.dir.path());
        if log.is_dir() {
            judging.set_gaps(read_skips(&log)?.into_iter().map(|(_, _, to)| to).collect());
            judging.set_kept(&read_keeps(&log)?, link.map_or(0, |link| link.next_decision));
        }
        let batches = link.map_or(0, |link| link.batches);
        let history = ValidationHistory::open(&streams, batches, lines)?;
        let mut validation = Self {
            judging,
            versions: Vec::new(),
            published,
            judged: Vec::new(),
            history,
            has_reported: false,
            has_warned: false,
        };
        validation.load_versions(run);
        Ok(Some(validation))
    }

    /// Writes the state beside that of the feed, and names it in the link.
    pub(super) fn save(&self, run: &Run, link: &mut SnapshotLink) -> Result<()> {
        let streams = crate::online::stream_folder(run.output.dir.path());
        let mut state = self.judging.state();
        state.lines = Some(self.history.lines_about(link.batches));
        link.known_good = self.judging.known_good();
        write_judging(&run.options.files, &streams, link, (state, &self.published))
    }

    /// Scores a batch before the run learns from it, and reports the windows that it closes.
    pub(super) fn observe(
        &mut self,
        run: &mut Run,
        fed: &FedBatch,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let (logits, missing) = run.score_with_missing(&fed.batch, &fed.plan)?;
        let stable = self.score_by_stable(&fed.batch)?;
        let job = run.job.clone();
        let scores = BatchScores {
            live: logits.first().map(Vec::as_slice).unwrap_or_default(),
            stable: stable.as_deref(),
            missing,
        };
        let rows = (&fed.batch, &*fed.plan, fed.cancels.as_deref());
        let closed = self.judging.observe(&job, (fed.number, fed.watermark), rows, scores)?;
        for window in &closed {
            self.history.add_window(fed.number, window)?;
            observer.report_window(window);
        }
        Ok(())
    }

    /// Judges the present state before it is published.
    pub(super) fn judge(
        &mut self,
        run: &mut Run,
        batch: u64,
        observer: &mut dyn Observer,
    ) -> Result<Judged> {
        if !self.judging.has_gate() {
            return Ok(Judged::Publish);
        }
        let job = run.job.clone();
        let mut dense = Vec::new();
        run.model.settle()?;
        run.model.copy_dense_to(&mut dense);
        if self.published.len() == dense.len() {
            let change = dense.iter().zip(&self.published).map(|(now, then)| f64::from(now - then));
            self.judging.set_update_norm(change.map(|x| x * x).sum::<f64>().sqrt());
        }
        self.judged = dense;
        let (stable, baseline) = (self.judging.stable(), self.judging.baseline());
        let mut candidate = None;
        if let Some(stable) = find(&self.versions, stable)
            && let Some(anchor) = self.judging.anchor_batch(&job.schema)?
        {
            let (logits, _) = run.score_with_missing(&anchor.batch, &anchor.plan)?;
            candidate = Some(first_task(logits));
            if anchor.stable.is_none() {
                anchor.stable = Some(first_task(stable.score_batch(&anchor.batch)?.logits));
            }
            if let (None, Some(baseline)) = (&anchor.baseline, find(&self.versions, baseline)) {
                anchor.baseline = Some(first_task(baseline.score_batch(&anchor.batch)?.logits));
            }
        }
        let known = self.judging.known_anchor_scores();
        let scores = candidate.as_ref().zip(known).map(|(candidate, (promoted, baseline))| {
            AnchorScores { candidate, promoted, baseline }
        });
        let Some(verdict) = self.judging.judge(scores)? else { return Ok(Judged::Publish) };
        self.judging.end_verdict(&verdict);
        self.history.add_verdict(batch, &verdict)?;
        observer.report_verdict(&verdict);
        let is_held = verdict.outcome == Outcome::Hold;
        // A hold is reported when it begins, and not again at each publication.
        if !(is_held && self.has_reported) {
            report(&verdict, observer);
        }
        let trip = self.judging.trip(&verdict);
        let is_kept = trip.as_ref().is_some_and(|trip| self.judging.must_keep(trip));
        match trip {
            // The versions of these batches went into quarantine when the batches were kept.
            Some(trip) if is_kept => self.judging.forget_bad(trip.from),
            Some(trip) => return Ok(Judged::Trip(trip)),
            None => {}
        }
        if is_kept || is_held {
            self.report_hold(&job, &verdict, observer);
            return Ok(Judged::Hold);
        }
        observer.report_hold(0.0);
        Ok(if self.judging.is_held() { Judged::Hold } else { Judged::Publish })
    }

    /// Reports that a version is held. A hold that lasts longer than `gate.hold_seconds` of event
    /// time warns once.
    fn report_hold(&mut self, job: &Job, verdict: &Verdict, observer: &mut dyn Observer) {
        self.has_reported = true;
        let seconds = self.judging.note_held() as f64 / 1000.0;
        observer.report_hold(seconds);
        let limit = job.gate.as_ref().map_or(0, |gate| gate.hold_seconds);
        let is_long = seconds > limit as f64;
        if is_long && !self.has_warned {
            let reason = verdict.explain();
            tracing::warn!(
                seconds,
                "no version was published for {limit} seconds of event time (`gate.hold_seconds`), \
                 because the gate holds them: {reason}; look at the labels, and rewind the run if \
                 they are wrong, or start it with a higher `gate.hold_drop` if the world has changed"
            );
        }
        self.has_warned = is_long;
    }

    /// Returns the event time for which versions have been held, in seconds; `None` if the last one
    /// was published.
    pub(super) fn held_seconds(&self) -> Option<f64> {
        self.judging.held_ms().map(|held| held as f64 / 1000.0)
    }

    /// Returns the number of the newest version that the run has published, if there is one.
    pub(super) fn newest_version(&self) -> Option<u64> {
        self.judging.newest_version()
    }

    /// Takes note of a version that was published, and chooses the stable version anew if it is
    /// time.
    pub(super) fn note_published(&mut self, run: &mut Run, version: u64) {
        self.judging.note_published(version);
        (self.has_reported, self.has_warned) = (false, false);
        self.published = std::mem::take(&mut self.judged);
        let every = run.job.online.clone().unwrap_or_default().stable_seconds;
        let next = self.judging.next_stable((every * 1000.0) as u64);
        // A stable version that could not be loaded is tried again.
        let stable = self.judging.stable();
        if next.is_some() || (stable.is_some() && find(&self.versions, stable).is_none()) {
            self.load_versions(run);
        }
    }

    /// Loads the versions with which the model is compared, apart from those that are loaded, and
    /// drops all others. A version that cannot be loaded is not compared with until another one
    /// is chosen.
    fn load_versions(&mut self, run: &Run) {
        let wanted = [self.judging.stable(), self.judging.baseline(), self.judging.next_baseline()];
        self.versions.retain(|loaded| wanted.contains(&Some(loaded.version().0)));
        for number in wanted.into_iter().flatten() {
            if find(&self.versions, Some(number)).is_some() {
                continue;
            }
            match open_version(run, number) {
                Ok(loaded) => self.versions.extend(loaded),
                Err(error) => {
                    tracing::warn!("version {number} is not compared with, because {error}");
                }
            }
        }
    }

    fn score_by_stable(&self, batch: &zillion_feature::Batch) -> Result<Option<Vec<f32>>> {
        let Some(stable) = find(&self.versions, self.judging.stable()) else { return Ok(None) };
        Ok(Some(first_task(stable.score_batch(batch)?.logits)))
    }
}

/// Returns a loaded version by its number.
fn find(versions: &[Servable], number: Option<u64>) -> Option<&Servable> {
    versions.iter().find(|loaded| Some(loaded.version().0) == number)
}

/// Loads a version of the run's model; `None` if the run publishes nothing.
fn open_version(run: &Run, version: u64) -> Result<Option<Servable>> {
    let Some(model) = run.open_model()? else { return Ok(None) };
    let files = run.options.files.scratch();
    let folder = crate::online::stream_folder(run.output.dir.path()).join(STABLE_FOLDER);
    let mut cache = Cache::open(&folder, model.name(), files)?;
    let (workers, number) = (&run.options.workers, VersionId(version));
    let loaded = Servable::load(&model, number, None, &mut cache, workers, &mut Unthrottled)?;
    Ok(Some(loaded))
}

/// Returns the scores of the first task.
fn first_task(logits: Vec<Vec<f32>>) -> Vec<f32> {
    logits.into_iter().next().unwrap_or_default()
}

/// Reports a verdict that does not pass.
fn report(verdict: &Verdict, observer: &mut dyn Observer) {
    let explained = verdict.explain();
    if !explained.is_empty() {
        observer.note(&format!("the gate: {explained}"));
    }
}

impl Run {
    /// Puts the versions that contain a bad batch into quarantine, which moves the pointer back.
    pub(super) fn quarantine(&mut self, trip: &Trip, observer: &mut dyn Observer) -> Result<()> {
        let Some(model) = self.open_model()?.filter(|_| !trip.versions.is_empty()) else {
            return Ok(());
        };
        let by = format!("run {}", self.output.id.0);
        let versions: Vec<VersionId> = trip.versions.iter().copied().map(VersionId).collect();
        for version in quarantine_versions(&model, &versions, &by, &trip.reason)? {
            observer.note(&format!(
                "version {version} and all versions on it are in quarantine: {}",
                trip.reason
            ));
        }
        Ok(())
    }
}
