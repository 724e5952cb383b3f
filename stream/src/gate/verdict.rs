//! The verdict of a gate: its outcome, and the figures and reasons that led to it.

use serde::Serialize;

/// The outcome of a check or of a whole verdict, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The version can be promoted.
    Pass,
    /// The version can be promoted, and an operator should look at the reason.
    Warn,
    /// The version is not published. A later state is judged anew, and nothing is rewound.
    Hold,
    /// The version must not be promoted.
    Fail,
}

/// The part of a gate to which a check belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Leg {
    /// The paired difference on the newest windows.
    Progressive,
    /// The paired difference on the anchor rows.
    Anchor,
    /// The paired difference to the baseline, an older version, on the anchor rows.
    Baseline,
    /// The bands of the inputs.
    Inputs,
}

/// One check of a gate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The part of the gate.
    pub leg: Leg,
    /// The name of the figure, for example `auc` or `missing.country`.
    pub name: String,
    /// The outcome of the check.
    pub outcome: Outcome,
    /// The figure that was judged; `None` if the check could not be made.
    pub value: Option<f64>,
    /// The standard error of the figure, if it has one.
    pub error: Option<f64>,
    /// The value of the figure in the reference, if there is one.
    pub reference: Option<f64>,
    /// The bound beyond which the check warns.
    pub warn: Option<f64>,
    /// The bound beyond which the version is held.
    pub hold: Option<f64>,
    /// The bound beyond which the check fails.
    pub fail: Option<f64>,
    /// The reason for the outcome, as a sentence without a full stop.
    pub reason: String,
}

/// The judgement on a version.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The worst outcome of the checks.
    pub outcome: Outcome,
    /// All checks, in the order of the legs.
    pub checks: Vec<Check>,
}

impl Check {
    /// Creates a check that passes because it cannot be made.
    pub(super) fn skip(leg: Leg, name: &str, reason: String) -> Self {
        Self {
            leg,
            name: name.to_owned(),
            outcome: Outcome::Pass,
            value: None,
            error: None,
            reference: None,
            warn: None,
            hold: None,
            fail: None,
            reason,
        }
    }
}

impl Verdict {
    /// Creates the verdict of checks.
    pub(super) fn of(checks: Vec<Check>) -> Self {
        let outcome = checks.iter().map(|check| check.outcome).max().unwrap_or(Outcome::Pass);
        Self { outcome, checks }
    }

    /// Returns the reasons of the checks with the worst outcome, for logs and for the reason of a
    /// quarantine. It is empty for a version that passes.
    pub fn explain(&self) -> String {
        let worst = self.checks.iter().filter(|check| check.outcome == self.outcome);
        let reasons: Vec<&str> = worst.map(|check| check.reason.as_str()).collect();
        if self.outcome == Outcome::Pass { String::new() } else { reasons.join("; ") }
    }

    /// Returns the check of a leg with a name.
    pub fn check(&self, leg: Leg, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.leg == leg && check.name == name)
    }
}
