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
use crate::validation::{Difference, Paired, check_batch, compare};

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

    /// Judges a version. The gate does not change: call [`Gate::promote`] if the version is
    /// promoted, or [`Gate::discard_staged`] if it is quarantined.
    ///
    /// # Errors
    /// Returns an error if the evidence does not fit to the gate.
    pub fn judge(&self, evidence: &Evidence<'_>) -> Result<Verdict, GateError> {
        evidence.inputs.check()?;
        let anchor = self.judge_anchor(evidence)?;
        let mut checks: Vec<Check> = evidence
            .windows
            .iter()
            .map(|window| self.judge_window(window.paired.as_ref(), &anchor))
            .collect();
        if checks.is_empty() {
            let reason = "no window was closed since the last verdict".to_owned();
            checks.push(Check::skip(Leg::Progressive, "auc", reason));
        }
        checks.push(anchor);
        checks.extend(judge_inputs(&self.settings, &self.state.reference, evidence));
        Ok(Verdict::of(checks))
    }

    /// Takes note that the version of the evidence was promoted at a watermark: its figures enter
    /// the reference, and staged rows that are old enough enter the anchor. The caller moves the
    /// encoded rows of the returned places in their order.
    pub fn promote(&mut self, watermark: EventTime, evidence: &Evidence<'_>) -> Vec<Admitted> {
        self.state.reference.add(evidence, self.settings.reference_versions);
        self.state.anchor.admit(&self.settings, watermark)
    }

    /// Removes all staged rows, because a version that learned from them was quarantined.
    pub fn discard_staged(&mut self) {
        self.state.anchor.discard();
    }

    /// Judges the difference of AUCs on a window.
    fn judge_window(&self, paired: Option<&Paired>, anchor: &Check) -> Check {
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
        if gains && anchor.outcome == Outcome::Fail {
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

    /// Judges the difference of AUCs on the anchor rows.
    fn judge_anchor(&self, evidence: &Evidence<'_>) -> Result<Check, GateError> {
        let leg = Leg::Anchor;
        let rows = self.state.anchor.len();
        let is_enough = rows as u64 >= self.settings.min_rows;
        let Some(scores) = evidence.anchor else {
            let needed = self.settings.min_rows;
            let reason = match is_enough {
                true => "the promoted version scored no anchor rows".to_owned(),
                false => format!("the anchor has {rows} rows, and {needed} are needed"),
            };
            return Ok(Check::skip(leg, "auc", reason));
        };
        let (labels, weights) = (self.state.anchor.labels(), self.state.anchor.weights());
        let paired = compare(&labels, Some(&weights), scores.candidate, scores.promoted)?;
        let difference = match paired {
            Some(paired) => self.find_difference(&paired),
            None => Err("no rows that both versions scored".to_owned()),
        };
        Ok(match difference {
            Ok(difference) => {
                self.judge_difference(leg, "the anchor", difference, self.settings.anchor_auc_drop)
            }
            Err(reason) => Check::skip(leg, "auc", format!("the anchor has {reason}")),
        })
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
