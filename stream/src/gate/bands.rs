//! The third leg: bands around the figures of the data and of the update.

use super::evidence::Evidence;
use super::reference::Reference;
use super::settings::{Band, GateSettings};
use super::verdict::{Check, Leg, Outcome};

/// Judges the figures of the data and of the update by their bands.
pub(super) fn judge_inputs(
    settings: &GateSettings,
    reference: &Reference,
    evidence: &Evidence<'_>,
) -> Vec<Check> {
    let bands = &settings.bands;
    let inputs = evidence.inputs;
    let mut checks = vec![judge_finite(evidence)];
    if let Some(window) = evidence.windows.last() {
        if window.rows < settings.min_rows {
            let reason = format!(
                "the window has {} rows, and {} are needed for its click rate, calibration and \
                 scores",
                window.rows, settings.min_rows
            );
            checks.push(Check::skip(Leg::Inputs, "window", reason));
        } else {
            if let (Some(auc), Some(usual)) = (window.live.auc, reference.auc.get()) {
                let text = format!(
                    "the AUC of the live model on the newest window is {auc:.4}, and {usual:.4} is \
                     usual"
                );
                let fall = usual - auc;
                checks.push(judge_bound("auc", auc, Some(usual), fall, bands.auc, text));
            }
            let rate = (window.weight > 0.0).then(|| window.positives / window.weight);
            let usual = reference.click_rate.get();
            checks.extend(judge_factor(
                "click_rate",
                "the click rate",
                rate,
                usual,
                bands.click_rate,
            ));
            let calibration = window.live.calibration;
            let name = "the sum of predictions over the sum of labels";
            checks.extend(judge_factor(
                "calibration",
                name,
                calibration,
                Some(1.0),
                bands.calibration,
            ));
            if let Some(drift) = reference.score_drift(&window.scores) {
                let text = format!("the drift of the scores (stability index) is {drift:.3}");
                checks.push(judge_bound(
                    "score_drift",
                    drift,
                    None,
                    drift,
                    bands.score_drift,
                    text,
                ));
            }
        }
    }
    for (column, &share) in &inputs.missing {
        let usual = reference.missing.get(column).and_then(|mean| mean.get());
        let name = format!("missing.{column}");
        let text = format!("the share of missing values of `{column}`");
        checks.extend(judge_rise(&name, &text, Some(share), usual, bands.missing));
    }
    let usual = reference.new_keys.get();
    let text = "the share of new keys";
    checks.extend(judge_rise("new_keys", text, inputs.new_keys, usual, bands.new_keys));
    let norm = inputs.update_norm.filter(|norm| norm.is_finite());
    let usual = reference.update_norm.get();
    let text = "the norm of the update";
    // An update smaller than usual is no danger.
    let norm = judge_factor("update_norm", text, norm, usual, bands.update_norm)
        .filter(|check| check.value > check.reference);
    checks.extend(norm);
    checks
}

/// Judges whether all values are finite.
fn judge_finite(evidence: &Evidence<'_>) -> Check {
    let in_windows: u64 = evidence.windows.iter().map(|window| window.not_finite).sum();
    let count = |scores: &[f32]| scores.iter().filter(|score| !score.is_finite()).count() as u64;
    let in_anchor = evidence.anchor.map_or(0, |anchor| count(anchor.candidate));
    let norm = evidence.inputs.update_norm.is_some_and(|norm| !norm.is_finite());
    let total = in_windows + in_anchor + evidence.inputs.not_finite + u64::from(norm);
    let (outcome, reason) = if total > 0 {
        (Outcome::Fail, format!("{total} scores or parameters are infinite or not a number"))
    } else {
        (Outcome::Pass, "all scores and parameters are finite".to_owned())
    };
    Check {
        outcome,
        value: Some(total as f64),
        fail: Some(0.0),
        ..Check::skip(Leg::Inputs, "not_finite", reason)
    }
}

/// Judges the factor between a figure and its reference, in both directions.
fn judge_factor(
    name: &str,
    text: &str,
    value: Option<f64>,
    reference: Option<f64>,
    band: Band,
) -> Option<Check> {
    let (value, reference) = (value?, reference.filter(|reference| *reference > 0.0)?);
    // A figure of 0 is infinitely far away in the sense of factors.
    let factor =
        if value > 0.0 { (value / reference).max(reference / value) } else { f64::INFINITY };
    let text = format!("{text} is {value:.4}, and {reference:.4} is usual");
    Some(judge_bound(name, value, Some(reference), factor, band, text))
}

/// Judges the rise of a share above its reference.
fn judge_rise(
    name: &str,
    text: &str,
    value: Option<f64>,
    reference: Option<f64>,
    band: Band,
) -> Option<Check> {
    let (value, reference) = (value?, reference?);
    let text = format!("{text} is {value:.3}, and {reference:.3} is usual");
    Some(judge_bound(name, value, Some(reference), value - reference, band, text))
}

/// Judges a distance by the two bounds of a band.
fn judge_bound(
    name: &str,
    value: f64,
    reference: Option<f64>,
    distance: f64,
    band: Band,
    text: String,
) -> Check {
    let (outcome, reason) = if distance > band.fail {
        (Outcome::Fail, format!("{text}: outside of the band that fails ({})", band.fail))
    } else if distance > band.warn {
        (Outcome::Warn, format!("{text}: outside of the band that warns ({})", band.warn))
    } else {
        (Outcome::Pass, text)
    };
    Check {
        outcome,
        value: Some(value),
        reference,
        warn: Some(band.warn),
        fail: Some(band.fail),
        ..Check::skip(Leg::Inputs, name, reason)
    }
}
