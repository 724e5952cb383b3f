//! Progressive validation and the gate of a resident run.
//!
//! Each batch is scored before it is learned from, by the present weights and by the *stable
//! version*: a published version that the gate has passed. The rows go into windows of event time.
//! Before a version is published, the gate judges the newest windows, the anchor rows and the
//! inputs. The anchor rows are kept here in their encoded form.

mod anchor;
mod gaps;
mod held;
mod recent;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use zillion_feature::{Batch, FeatureKey, LookupPlan, Schema};
use zillion_nn::zoo::TaskLabel;
use zillion_stream::EventTime;
use zillion_stream::gate::{
    AnchorScores, Evidence, Gate, GateState, Inputs, Leg, Outcome, Verdict,
};
use zillion_stream::validation::{self, ClosedWindow, State, Windows};

pub(crate) use self::anchor::AnchorBatch;
use self::anchor::AnchorStore;
use self::gaps::PassedGap;
use self::recent::RecentWindow;
use super::columns::RowShape;
use crate::error::Result;
use crate::job::Job;

/// The number of closed windows without a fault before which batches are known to be good. A window
/// that looks good may already have the first bad rows.
const GOOD_WINDOWS: usize = 2;
/// The number of windows with few rows after which versions wait no longer.
const HELD_WINDOWS: usize = 30;
/// The number of newest versions whose batches are remembered.
const REMEMBERED: usize = 4096;

/// The validation and the gate of a run.
pub(crate) struct Judging {
    windows: Windows,
    gate: Option<Gate>,
    anchor: AnchorStore,
    /// The first label of the job, which is judged, and its task.
    label: usize,
    /// The number of rows that a window needs to be judged.
    min_rows: u64,
    /// The event time after which the baseline is chosen anew, in milliseconds; 0: no baseline.
    baseline_ms: u64,
    /// The features of the sparse columns, with the key that stands for a missing value.
    columns: Vec<(String, FeatureKey)>,
    /// The sparse columns of the segments, in the order of the settings.
    segments: Vec<usize>,
    /// The time by which rows come later than the watermark, in milliseconds.
    delay: u64,
    /// The windows of the shortest length that were closed since the last verdict.
    recent: Vec<ClosedWindow>,
    /// The batches behind the gaps of the log, in ascending order.
    gaps: Vec<u64>,
    /// The batches that stay in the model although a rewind should have left them out.
    kept: Vec<Range<u64>>,
    history: History,
}

/// The past of a run, as far as a verdict depends on it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct History {
    /// The numbers of the batches with which the newest good windows were closed, the oldest first.
    good: VecDeque<u64>,
    /// The number of the last batch that was scored.
    batch: u64,
    /// The watermark of the rows.
    watermark: Option<i64>,
    /// The keys that were looked up, and those of them without a row, since the last version.
    keys: (u64, u64),
    /// The rows since the last version, and those of them without a value in each sparse column.
    missing: (u64, Vec<u64>),
    /// The norm of the change of the dense parameters since the last version.
    #[serde(skip)]
    update_norm: Option<f64>,
    /// The newest versions: the number of batches in each one, and its number.
    versions: VecDeque<(u64, u64)>,
    /// The stable version, and the watermark at which it was published.
    stable: Option<(u64, i64)>,
    /// The baseline, and the version that becomes the baseline next, with the watermark at which
    /// that one became the stable version.
    #[serde(default)]
    baseline: Option<u64>,
    #[serde(default)]
    next_baseline: Option<(u64, i64)>,
    /// The watermark at which the gate has held a version first since the last publication.
    #[serde(default)]
    held_since: Option<i64>,
    /// The last gap of the log; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gap: Option<PassedGap>,
}

/// The part of [`Judging`] that a checkpoint stores.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JudgingState {
    windows: State,
    gate: Option<GateState>,
    anchor: AnchorStore,
    history: History,
    /// The windows that were closed since the last verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    recent: Vec<RecentWindow>,
    /// The number of lines in the history of the run about the last batch; absent in a state of an
    /// earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lines: Option<u64>,
    /// The BLAKE3 of the file with the dense parameters of the newest version; absent before the
    /// first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) published: Option<String>,
}

/// The scores of one batch before it was learned from, in log-odds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchScores<'a> {
    /// The scores of the first task by the present weights.
    pub(crate) live: &'a [f32],
    /// The scores of the first task by the stable version, if there is one.
    pub(crate) stable: Option<&'a [f32]>,
    /// The number of unique keys that have no row.
    pub(crate) missing: u64,
}

/// The batches that a rewind leaves out.
#[derive(Clone, Debug)]
pub(crate) struct Trip {
    /// The number of the first batch that is left out.
    pub(crate) from: u64,
    /// The versions that contain such a batch, in ascending order.
    pub(crate) versions: Vec<u64>,
    /// The reasons of the verdict.
    pub(crate) reason: String,
}

impl Judging {
    /// Creates the validation of a job, from the state of a checkpoint if there is one. Returns
    /// `None` if the job validates nothing: its first task has no label of its own.
    pub(crate) fn open(job: &Job, state: Option<JudgingState>) -> Result<Option<Self>> {
        let Some(label) = job.tasks().first().and_then(|task| match task.label {
            TaskLabel::Own { label } => Some(label),
            TaskLabel::Both { .. } | TaskLabel::Given { .. } | TaskLabel::Class { .. } => None,
        }) else {
            return Ok(None);
        };
        let settings = job.validation.clone().unwrap_or_default();
        let (windows, gate, anchor, history, mut recent) = match state {
            Some(JudgingState { windows, gate, anchor, history, recent, .. }) => {
                (Some(windows), gate, anchor, history, recent)
            }
            None => (None, None, AnchorStore::default(), History::default(), Vec::new()),
        };
        let windows = match windows.map(|state| Windows::restore(settings.clone(), state)) {
            Some(Ok(windows)) => windows,
            // Other windows begin anew: their sums cannot be made from those of the old ones.
            // Closed ones that wait for a verdict may have another length.
            Some(Err(validation::ValidationError::Changed { setting })) => {
                recent.clear();
                tracing::warn!(
                    "`validation.{setting}` differs from that of the checkpoint, so the windows \
                     that were not judged begin anew"
                );
                Windows::new(settings.clone())?
            }
            Some(Err(error)) => return Err(error.into()),
            None => Windows::new(settings.clone())?,
        };
        let settings_of_gate = job.gate.clone();
        // Anchor rows belong to the gate that has chosen them.
        let anchor = if gate.is_some() { anchor } else { AnchorStore::default() };
        let gate = settings_of_gate.map(|settings| match gate {
            Some(state) => Gate::restore(settings, state),
            None => Gate::new(settings),
        });
        Ok(Some(Self {
            windows,
            gate: gate.transpose()?,
            anchor,
            label,
            min_rows: job.gate.as_ref().map_or(0, |gate| gate.min_rows),
            baseline_ms: job.gate.as_ref().map_or(0, |gate| gate.baseline_seconds * 1000),
            columns: job
                .schema
                .sparse()
                .map(|feature| (feature.name.clone(), FeatureKey::missing(&feature.name)))
                .collect(),
            segments: find_segments(&job.schema, &settings.segments)?,
            delay: job.join.as_ref().map_or(0, |join| join.delay_ms()),
            recent: recent.into_iter().map(RecentWindow::into_window).collect(),
            gaps: Vec::new(),
            kept: Vec::new(),
            history,
        }))
    }

    /// Returns the state for a checkpoint.
    pub(crate) fn state(&self) -> JudgingState {
        JudgingState {
            windows: self.windows.state().clone(),
            gate: self.gate.as_ref().map(|gate| gate.state().clone()),
            anchor: self.anchor.clone(),
            history: self.history.clone(),
            recent: self.recent.iter().map(RecentWindow::new).collect(),
            lines: None,
            published: None,
        }
    }

    /// Returns whether the run has a gate.
    pub(crate) fn has_gate(&self) -> bool {
        self.gate.is_some()
    }

    /// Returns the number of the stable version, if there is one.
    pub(crate) fn stable(&self) -> Option<u64> {
        self.history.stable.map(|(version, _)| version)
    }

    /// Returns the number of the baseline, if there is one.
    pub(crate) fn baseline(&self) -> Option<u64> {
        self.history.baseline
    }

    /// Returns the number of the version that becomes the baseline next, if there is one.
    pub(crate) fn next_baseline(&self) -> Option<u64> {
        self.history.next_baseline.map(|(version, _)| version)
    }

    /// Takes the scores of a batch, and returns the windows that it closes. Rows that take back an
    /// earlier label, and rows whose label is not known, are left out.
    pub(crate) fn observe(
        &mut self,
        job: &Job,
        (number, watermark): (u64, Option<EventTime>),
        (batch, plan, cancels): (&Batch, &LookupPlan, Option<&[f32]>),
        scores: BatchScores<'_>,
    ) -> Result<Vec<ClosedWindow>> {
        let column = &batch.labels[self.label];
        let is_judged = |row: &usize| {
            column.mask.as_ref().is_none_or(|mask| mask[*row])
                && cancels.is_none_or(|cancels| cancels[*row] == 0.0)
        };
        let rows: Vec<usize> = (0..batch.rows).filter(is_judged).collect();
        let pick = |values: &[f32]| rows.iter().map(|&row| values[row]).collect::<Vec<f32>>();
        let unit = job.schema.event_time_unit.unwrap_or(zillion_feature::TimeUnit::Millisecond);
        let times = batch.event_time.as_deref().unwrap_or_default();
        let time = |&row: &usize| {
            EventTime(times.get(row).and_then(|&time| unit.to_ms(time)).unwrap_or_default())
        };
        let times: Vec<EventTime> = rows.iter().map(time).collect();
        let labels = pick(&column.values);
        let weights = batch.weight.as_ref().map(|weights| pick(weights));
        let (live, stable) = (pick(scores.live), scores.stable.map(pick));
        let segment = |&at: &usize| {
            let first = |&row: &usize| batch.sparse[at].row(row).first().map_or(0, |key| key.0);
            rows.iter().map(first).collect::<Vec<u64>>()
        };
        let segments: Vec<Vec<u64>> = self.segments.iter().map(segment).collect();
        let segments: Vec<&[u64]> = segments.iter().map(Vec::as_slice).collect();
        self.note_gap(number);
        let mut closed = self.windows.add(&validation::Batch {
            times: &times,
            labels: &labels,
            weights: weights.as_deref(),
            live: &live,
            stable: stable.as_deref(),
            segments: &segments,
        })?;
        if let Some(gate) = &mut self.gate {
            gate.observe(&labels, weights.as_deref(), &live)?;
            // Rows of batches that a rewind should have left out must not enter the anchor.
            if !self.kept.iter().any(|kept| kept.contains(&number)) {
                let staged = gate.offer(&times, &labels, weights.as_deref())?;
                let shape = RowShape::of(&job.schema);
                for row in staged {
                    self.anchor.stage(batch, &shape, rows[row.row], row.place);
                }
            }
        }
        let keys: u64 = plan.tables.iter().map(|table| table.keys.len() as u64).sum();
        self.history.keys.0 += keys;
        self.history.keys.1 += scores.missing;
        self.count_missing(batch);
        self.history.batch = number;
        if let Some(watermark) = watermark {
            let watermark = watermark.0.saturating_sub_unsigned(self.delay);
            self.history.watermark = self.history.watermark.max(Some(watermark));
            closed.extend(self.windows.close(EventTime(watermark)));
        }
        if self.gate.is_some() {
            // Longer windows have rows that were judged before.
            let shortest = self.windows.shortest_length();
            self.recent.extend(closed.iter().filter(|w| w.length == shortest).cloned());
            let surplus = self.recent.len().saturating_sub(HELD_WINDOWS);
            self.recent.drain(..surplus);
        }
        Ok(closed)
    }

    /// Returns whether the labels of the newest windows are wrong: the stable version, which has
    /// not learned from them, does far worse there than usual. If it does as usual, the labels are
    /// right and the state of the model is bad.
    fn doubts_labels(&self, verdict: &Verdict) -> bool {
        let check = verdict.check(Leg::Progressive, "newest_auc");
        let Some(bound) = check.and_then(|check| check.hold) else { return false };
        self.recent.iter().any(|window| {
            let auc = window.paired.as_ref().and_then(|paired| paired.stable.auc);
            window.rows >= self.min_rows && auc.is_some_and(|auc| auc < bound)
        })
    }

    /// Returns the anchor rows as a batch, if there are any.
    pub(crate) fn anchor_batch(&mut self, schema: &Schema) -> Result<Option<&mut AnchorBatch>> {
        self.anchor.batch(schema)
    }

    /// Returns the scores of the anchor rows by the stable version and by the baseline, as far as
    /// they are known.
    pub(crate) fn known_anchor_scores(&self) -> Option<(&[f32], Option<&[f32]>)> {
        self.anchor.known_scores()
    }

    /// Judges the present state before it is published. `anchor` are the scores of the anchor rows.
    /// Returns `None` without a gate.
    pub(crate) fn judge(&self, anchor: Option<AnchorScores<'_>>) -> Result<Option<Verdict>> {
        let Some(gate) = &self.gate else { return Ok(None) };
        let inputs = self.inputs();
        Ok(Some(gate.judge(&Evidence { windows: &self.recent, anchor, inputs: &inputs })?))
    }

    /// Ends a verdict: the next one judges the rows that come after it.
    pub(crate) fn end_verdict(&mut self, verdict: &Verdict) {
        self.gate.iter_mut().for_each(|gate| gate.end_verdict(verdict));
    }

    /// Takes note that the present state was published as a version that the gate has passed.
    ///
    /// A publication that failed leaves the last version as it was, and changes nothing here.
    pub(crate) fn note_published(&mut self, version: u64) {
        if self.history.versions.back().is_some_and(|(_, last)| *last == version) {
            return;
        }
        let inputs = self.inputs();
        let History { good, batch, watermark, versions, keys, missing, held_since, .. } =
            &mut self.history;
        if let Some(gate) = &mut self.gate {
            let evidence = Evidence { windows: &self.recent, anchor: None, inputs: &inputs };
            let watermark = EventTime(watermark.unwrap_or(i64::MIN / 2));
            let admitted = gate.promote(watermark, &evidence);
            self.anchor.admit(&admitted);
        }
        if !self.recent.is_empty() {
            good.push_back(*batch);
            if good.len() > GOOD_WINDOWS {
                good.pop_front();
            }
        }
        *held_since = None;
        versions.push_back((*batch, version));
        if versions.len() > REMEMBERED {
            versions.pop_front();
        }
        *keys = (0, 0);
        *missing = (0, Vec::new());
        self.recent.clear();
    }

    /// Returns the version that becomes the stable one, if it is time: the newest version that
    /// has only batches that are known to be good.
    pub(crate) fn next_stable(&mut self, every_ms: u64) -> Option<u64> {
        let History { good, watermark, versions, stable, .. } = &mut self.history;
        let watermark = (*watermark)?;
        let is_due = stable.is_none_or(|(_, at)| watermark.saturating_sub_unsigned(every_ms) >= at);
        if !is_due {
            return None;
        }
        let known = good.front().copied().unwrap_or(u64::MAX);
        let newest = versions.iter().rev().find(|(batch, _)| *batch <= known);
        let (_, version) = *newest.or_else(|| versions.front().filter(|_| stable.is_none()))?;
        if stable.is_some_and(|(present, _)| present >= version) {
            return None;
        }
        *stable = Some((version, watermark));
        self.advance_baseline(version, watermark);
        self.anchor.forget_scores();
        Some(version)
    }

    /// Chooses the baseline anew if it is time. `version` is the stable version since now. So the
    /// baseline was the stable version at least `baseline_seconds` ago, and less than twice this
    /// time if versions are published all the time.
    fn advance_baseline(&mut self, version: u64, watermark: i64) {
        let History { baseline, next_baseline, .. } = &mut self.history;
        match next_baseline {
            _ if self.baseline_ms == 0 => {}
            Some((_, at)) if watermark.saturating_sub_unsigned(self.baseline_ms) < *at => {}
            Some((next, _)) => {
                *baseline = Some(*next);
                *next_baseline = Some((version, watermark));
            }
            None => *next_baseline = Some((version, watermark)),
        }
    }

    /// Returns what a rewind leaves out after a verdict that fails.
    pub(crate) fn trip(&self, verdict: &Verdict) -> Option<Trip> {
        if verdict.outcome != Outcome::Fail {
            return None;
        }
        // The first windows of a run have nothing to be compared with.
        let mut from = self.history.good.front()? + 1;
        // Batches before a gap were found to be good when the gap was made. They are not left out
        // because the labels behind the gap are still wrong.
        if self.doubts_labels(verdict) {
            from = from.max(self.last_gap().unwrap_or(0));
        }
        let bad = self.history.versions.iter().filter(|(batch, _)| *batch >= from);
        let versions = bad.map(|(_, version)| *version).collect();
        Some(Trip { from, versions, reason: verdict.explain() })
    }

    /// Takes the norm of the change of the dense parameters since the last version.
    pub(crate) fn set_update_norm(&mut self, norm: f64) {
        self.history.update_norm = Some(norm);
    }

    /// Counts the rows without a value in each sparse column: with the key of a missing value, or
    /// with an empty list.
    fn count_missing(&mut self, batch: &Batch) {
        let (rows, missing) = &mut self.history.missing;
        *rows += batch.rows as u64;
        missing.resize(self.columns.len(), 0);
        for ((count, column), (_, absent)) in
            missing.iter_mut().zip(&batch.sparse).zip(&self.columns)
        {
            let is_missing = |row: &usize| {
                let keys = column.row(*row);
                keys.is_empty() || keys == [*absent]
            };
            *count += (0..batch.rows).filter(is_missing).count() as u64;
        }
    }

    fn inputs(&self) -> Inputs {
        let (keys, new) = self.history.keys;
        let new_keys = (keys > 0).then(|| new as f64 / keys as f64);
        let (rows, missing) = &self.history.missing;
        let share = |((name, _), count): (&(String, FeatureKey), &u64)| {
            (name.clone(), *count as f64 / (*rows).max(1) as f64)
        };
        let missing = self.columns.iter().zip(missing).map(share).collect();
        Inputs { new_keys, missing, update_norm: self.history.update_norm, ..Inputs::default() }
    }
}

/// Returns the sparse columns of the features that are segments.
fn find_segments(schema: &Schema, names: &[String]) -> Result<Vec<usize>> {
    let known: Vec<&str> = schema.sparse().map(|feature| feature.name.as_str()).collect();
    let find = |name: &String| {
        known.iter().position(|known| known == name).ok_or_else(|| {
            zillion_config::ConfigError::unknown_value("validation.segments", name, &known).into()
        })
    };
    names.iter().map(find).collect()
}
