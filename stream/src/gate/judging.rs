//! The gate and its verdicts.

use serde::{Deserialize, Serialize};

use super::anchor::{Admitted, AnchorRows, Staged};
use super::bands::judge_inputs;
use super::error::GateError;
use super::evidence::Evidence;
use super::reference::Reference;
use super::settings::GateSettings;
use super::verdict::{Check, Leg, Outcome, Verdict};
use crate::partition::EventTime;
use crate::validation::{Difference, Paired, Tally, Weight, check_batch, check_rows, compare};

/// The name of the check of the newest rows.
const NEWEST: &str = "newest_auc";

/// The gate of an online model.
#[derive(Clone, Debug)]
pub struct Gate {
    settings: GateSettings,
    state: GateState,
}

/// The part of a [`Gate`] that a checkpoint stores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateState {
    anchor: AnchorRows,
    reference: Reference,
    /// The scores of the live model on the rows since the last verdict.
    #[serde(default)]
    newest: Tally,
    /// Whether the live model has done far worse than usual on the last rows that were enough to be
    /// judged. Versions are held until it does as usual on as many later rows.
    #[serde(default)]
    is_newest_low: bool,
    /// Whether the last verdict was a hold.
    #[serde(default)]
    is_held: bool,
}

impl Gate {
    /// Creates a gate without anchor rows and without a reference.
    ///
    /// # Errors
    /// Returns an error if a setting cannot be used.
    pub fn new(settings: GateSettings) -> Result<Self, GateError> {
        Self::restore(settings, GateState::default())
    }

    /// Creates a gate that goes on from a stored state.
    ///
    /// # Errors
    /// Returns an error if a setting cannot be used, or if `anchor_rows` has changed.
    pub fn restore(settings: GateSettings, state: GateState) -> Result<Self, GateError> {
        settings.check()?;
        if !state.anchor.fits(&settings) {
            return Err(GateError::Setting {
                setting: "anchor_rows".to_owned(),
                value: settings.anchor_rows.to_string(),
                remedy: "the number with which the stored gate was made",
            });
        }
        Ok(Self { settings, state })
    }

    /// Returns the state for a checkpoint.
    pub fn state(&self) -> &GateState {
        &self.state
    }

    /// Returns the anchor rows: the versions of [`Evidence::anchor`] are scored on them.
    pub fn anchor(&self) -> &AnchorRows {
        &self.state.anchor
    }

    /// Offers the rows of a batch to the anchor. Returns the rows that were staged. The caller
    /// stores their encoded rows at the returned places.
    ///
    /// # Errors
    /// Returns an error if the lengths differ, or a label or a weight cannot be used.
    pub fn offer(
        &mut self,
        times: &[EventTime],
        labels: &[f32],
        weights: Option<&[f32]>,
    ) -> Result<Vec<Staged>, GateError> {
        check_batch(times, labels, weights)?;
        Ok(self.state.anchor.offer(&self.settings, times, labels, weights))
    }

    /// Takes the scores of the live model on the rows of a batch, in log-odds, before it learns
    /// from them.
    ///
    /// # Errors
    /// Returns an error if the lengths differ, or a label or a weight cannot be used.
    pub fn observe(
        &mut self,
        labels: &[f32],
        weights: Option<&[f32]>,
        live: &[f32],
    ) -> Result<(), GateError> {
        check_rows(labels, weights, live, None)?;
        for (row, &logit) in live.iter().enumerate().filter(|(_, logit)| logit.is_finite()) {
            let weight = Weight::new(weights.map_or(1.0, |weights| weights[row]));
            self.state.newest.add(logit, labels[row] == 1.0, weight);
        }
        Ok(())
    }

    /// Ends a verdict: the next one judges the rows that come after it. Rows that were too few to
    /// be judged stay.
    pub fn end_verdict(&mut self, verdict: &Verdict) {
        self.state.is_held = verdict.outcome == Outcome::Hold;
        if let Some(check) = verdict.check(Leg::Progressive, NEWEST) {
            self.state.is_newest_low = check.outcome == Outcome::Hold;
        }
        if self.state.newest.rows() >= self.settings.min_rows {
            self.state.newest = Tally::default();
        }
    }

    /// Judges a version. The gate does not change: call [`Gate::promote`] if the version is
    /// promoted, [`Gate::hold`] if it is held, or [`Gate::discard_staged`] if it is quarantined.
    ///
    /// # Errors
    /// Returns an error if the evidence does not fit to the gate.
    pub fn judge(&self, evidence: &Evidence<'_>) -> Result<Verdict, GateError> {
        evidence.inputs.check()?;
        let anchor = self.judge_anchor(evidence)?;
        let is_lost = anchor.iter().any(|check| check.outcome == Outcome::Fail);
        let mut checks: Vec<Check> = evidence
            .windows
            .iter()
            .map(|window| self.judge_window(window.paired.as_ref(), is_lost))
            .collect();
        if checks.is_empty() {
            let reason = "no window was closed since the last verdict".to_owned();
            checks.push(Check::skip(Leg::Progressive, "auc", reason));
        }
        checks.extend(anchor);
        checks.extend(self.judge_newest());
        checks.extend(judge_inputs(&self.settings, &self.state.reference, evidence));
        Ok(Verdict::of(checks))
    }

    /// Takes note that the version of the evidence was promoted at a watermark: its figures enter
    /// the reference, and staged rows that are old enough enter the anchor. The caller moves the
    /// encoded rows of the returned places in their order.
    pub fn promote(&mut self, watermark: EventTime, evidence: &Evidence<'_>) -> Vec<Admitted> {
        self.state.reference.add(evidence, self.settings.reference_versions);
        let age = self.settings.anchor_delay_seconds;
        self.state.anchor.admit(&self.settings, watermark, age)
    }

    /// Takes note that the version of the last verdict is held at a watermark: staged rows that are
    /// older than `anchor_delay_seconds` and `hold_seconds` together enter the anchor, although no
    /// version was promoted. The caller moves the encoded rows as after [`Gate::promote`].
    pub fn hold(&mut self, watermark: EventTime) -> Vec<Admitted> {
        let age = self.settings.anchor_delay_seconds.saturating_add(self.settings.hold_seconds);
        self.state.anchor.admit(&self.settings, watermark, age)
    }

    /// Removes all staged rows, because a version that learned from them was quarantined.
    pub fn discard_staged(&mut self) {
        self.state.anchor.discard();
    }

    /// Judges the difference of AUCs on a window. `is_lost` says whether the anchor fails.
    fn judge_window(&self, paired: Option<&Paired>, is_lost: bool) -> Check {
        let leg = Leg::Progressive;
        let Some(paired) = paired else {
            let reason = "the promoted version scored no rows of the window".to_owned();
            return Check::skip(leg, "auc", reason);
        };
        let difference = match self.find_difference(paired) {
            Ok(difference) => difference,
            Err(reason) => return Check::skip(leg, "auc", format!("the window has {reason}")),
        };
        let check =
            self.judge_difference(leg, "the newest window", difference, self.settings.auc_drop);
        let gains = difference.value > self.settings.errors * difference.error;
        if gains && is_lost {
            let reason = format!(
                "the AUC on the newest window is {:.4} ± {:.4} above that of the promoted version, \
                 but that on the anchor is below it: the labels of the window have changed their \
                 meaning",
                difference.value, difference.error
            );
            return Check { outcome: Outcome::Fail, reason, ..check };
        }
        check
    }

    /// Judges the AUC of the live model on the rows since the last verdict, which may be in no
    /// closed window yet. If it has fallen far, their labels have probably changed their meaning,
    /// and the version that has learned from them is held until the anchor shows the damage. Rows
    /// that are too few to be judged neither begin nor end such a hold.
    fn judge_newest(&self) -> Option<Check> {
        let GateState { newest, reference, is_newest_low, .. } = &self.state;
        let (rows, needed) = (newest.rows(), self.settings.min_rows);
        let usual = reference.auc.get()?;
        let bound = usual - self.settings.bands.auc.warn;
        let auc = newest.figures().auc;
        let is_low = auc.filter(|_| rows >= needed).map(|auc| auc < bound);
        let text = match auc {
            Some(auc) => format!(
                "the AUC of the live model on the rows since the last verdict is {auc:.4}, and \
                 {usual:.4} is usual"
            ),
            None if *is_newest_low => {
                "the AUC of the live model on the rows since the last verdict is not known"
                    .to_owned()
            }
            None => return None,
        };
        let (outcome, reason) = match is_low.unwrap_or(*is_newest_low) {
            true => {
                let reason = format!("{text}: held until {needed} later rows are as usual");
                (Outcome::Hold, reason)
            }
            false => (Outcome::Pass, text),
        };
        Some(Check {
            outcome,
            value: auc,
            reference: Some(usual),
            hold: Some(bound),
            ..Check::skip(Leg::Progressive, NEWEST, reason)
        })
    }

    /// Judges the differences of AUCs on the anchor rows: to the promoted version, and to the
    /// baseline if there is one.
    fn judge_anchor(&self, evidence: &Evidence<'_>) -> Result<Vec<Check>, GateError> {
        let leg = Leg::Anchor;
        let rows = self.state.anchor.len();
        let is_enough = rows as u64 >= self.settings.min_rows;
        let Some(scores) = evidence.anchor else {
            let needed = self.settings.min_rows;
            let reason = match is_enough {
                true => "the promoted version scored no anchor rows".to_owned(),
                false => format!("the anchor has {rows} rows, and {needed} are needed"),
            };
            return Ok(vec![Check::skip(leg, "auc", reason)]);
        };
        let difference = self.compare_on_anchor(scores.candidate, scores.promoted)?;
        let mut checks = vec![match difference {
            Ok(of) => {
                let drop = self.settings.anchor_auc_drop;
                let check = self.judge_difference(leg, "the anchor", of, drop);
                self.hold_loss(check, of)
            }
            Err(reason) => Check::skip(leg, "auc", format!("the anchor has {reason}")),
        }];
        if let Some(baseline) = scores.baseline
            && let Ok(of) = self.compare_on_anchor(scores.candidate, baseline)?
        {
            checks.push(self.hold_loss(describe_baseline(of), of));
        }
        Ok(checks)
    }

    /// Returns the difference of the AUCs of two versions on the anchor rows, or the reason why it
    /// cannot be judged.
    fn compare_on_anchor(
        &self,
        candidate: &[f32],
        other: &[f32],
    ) -> Result<Result<Difference, String>, GateError> {
        let (labels, weights) = (self.state.anchor.labels(), self.state.anchor.weights());
        let paired = compare(&labels, Some(&weights), candidate, other)?;
        Ok(match paired {
            Some(paired) => self.find_difference(&paired),
            None => Err("no rows that both versions scored".to_owned()),
        })
    }

    /// Holds a version whose loss on the anchor is too large to be served, unless the check fails.
    /// A hold ends only at `hold_drop` itself, so that no state is published which the noise of the
    /// anchor favours.
    fn hold_loss(&self, check: Check, of: Difference) -> Check {
        let errors = if self.state.is_held { 0.0 } else { self.settings.hold_errors };
        let bound = self.settings.hold_drop + errors * of.error;
        let check = Check { hold: Some(-bound), ..check };
        if check.outcome >= Outcome::Hold || of.value >= -bound {
            return check;
        }
        let reason = format!("{}: held until a later version has lost less", check.reason);
        Check { outcome: Outcome::Hold, reason, ..check }
    }

    /// Returns the difference of AUCs, or the reason why it cannot be judged.
    fn find_difference(&self, paired: &Paired) -> Result<Difference, String> {
        let (rows, needed) = (paired.live.rows, self.settings.min_rows);
        if rows < needed {
            return Err(format!("{rows} rows, and {needed} are needed"));
        }
        paired.auc.ok_or_else(|| "too few rows of a class".to_owned())
    }

    /// Judges a difference of AUCs by a largest drop.
    fn judge_difference(&self, leg: Leg, place: &str, of: Difference, drop: f64) -> Check {
        let noise = self.settings.errors * of.error;
        let text = format!(
            "the AUC on {place} differs by {:+.4} ± {:.4} from that of the promoted version",
            of.value, of.error
        );
        let (outcome, reason) = if of.value < -(drop + noise) {
            (Outcome::Fail, format!("{text}: a loss of more than {drop}"))
        } else if of.value < -noise {
            (Outcome::Warn, format!("{text}: a loss"))
        } else {
            (Outcome::Pass, text)
        };
        Check {
            outcome,
            value: Some(of.value),
            error: Some(of.error),
            warn: Some(-noise),
            fail: Some(-(drop + noise)),
            ..Check::skip(leg, "auc", reason)
        }
    }
}

/// Returns the check of a difference to the baseline, which can hold a version but not fail it: a
/// rewind goes back over the newest windows only, and this loss is older.
fn describe_baseline(of: Difference) -> Check {
    let reason = format!(
        "the AUC on the anchor differs by {:+.4} ± {:.4} from that of the baseline",
        of.value, of.error
    );
    Check {
        value: Some(of.value),
        error: Some(of.error),
        ..Check::skip(Leg::Baseline, "auc", reason)
    }
}
