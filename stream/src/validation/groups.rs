//! Groups of rows, from which standard errors are estimated by the jackknife.

use serde::{Deserialize, Serialize};

use super::error::ValidationError;
use super::figures::{Difference, Figures, Paired};
use super::histogram::{Histogram, Weight};
use super::tally::Tally;
use crate::partition::EventTime;

/// The number of groups.
const GROUPS: u64 = 20;
/// The number of consecutive rows that go into the same group.
const BLOCK: u64 = 16;

/// The sums of one group: of the live model over all rows, and of both models over the rows that
/// both have scored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    live: Tally,
    paired: Tally,
    stable: Tally,
}

/// The sums of all groups of a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Group>", into = "Vec<Group>")]
pub(crate) struct Groups(Vec<Group>);

impl Default for Groups {
    fn default() -> Self {
        Self(vec![Group::default(); GROUPS as usize])
    }
}

impl TryFrom<Vec<Group>> for Groups {
    type Error = &'static str;

    fn try_from(groups: Vec<Group>) -> Result<Self, Self::Error> {
        if groups.len() as u64 == GROUPS {
            Ok(Self(groups))
        } else {
            Err("a window does not have 20 groups")
        }
    }
}

impl From<Groups> for Vec<Group> {
    fn from(groups: Groups) -> Self {
        groups.0
    }
}

impl Groups {
    /// Adds the row with the number `at` of a window whose first row goes into the group `first`,
    /// counted in a circle. Scores must be finite.
    pub(crate) fn add(
        &mut self,
        first: u64,
        at: u64,
        is_positive: bool,
        weight: Weight,
        live: f32,
        stable: Option<f32>,
    ) {
        let group = &mut self.0[((first % GROUPS + at / BLOCK) % GROUPS) as usize];
        group.live.add(live, is_positive, weight);
        if let Some(stable) = stable {
            group.paired.add(live, is_positive, weight);
            group.stable.add(stable, is_positive, weight);
        }
    }

    /// Adds all rows of another window.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (group, more) in self.0.iter_mut().zip(&other.0) {
            group.live.merge(&more.live);
            group.paired.merge(&more.paired);
            group.stable.merge(&more.stable);
        }
    }

    /// Returns the figures of the live model, and its scores.
    pub(crate) fn live(&self) -> (Figures, Histogram) {
        let total = self.total(|group| &group.live);
        let aucs = self.leave_out(&total, |group| &group.live, auc);
        let figures = Figures { auc_error: aucs.as_deref().and_then(jackknife), ..total.figures() };
        (figures, total.scores().clone())
    }

    /// Returns the comparison of both models, or `None` if there are no common rows.
    pub(crate) fn paired(&self) -> Option<Paired> {
        let live = self.total(|group| &group.paired);
        let stable = self.total(|group| &group.stable);
        if live.is_empty() {
            return None;
        }
        let compare = |figure: fn(&Tally) -> Option<f64>| {
            let value = figure(&live)? - figure(&stable)?;
            let of_live = self.leave_out(&live, |group| &group.paired, figure)?;
            let of_stable = self.leave_out(&stable, |group| &group.stable, figure)?;
            let differences: Vec<f64> =
                of_live.iter().zip(of_stable).map(|(live, stable)| live - stable).collect();
            Some(Difference { value, error: jackknife(&differences)? })
        };
        Some(Paired {
            live: live.figures(),
            stable: stable.figures(),
            auc: compare(auc),
            logloss: compare(|tally| tally.figures().logloss),
        })
    }

    fn total(&self, part: fn(&Group) -> &Tally) -> Tally {
        let mut total = Tally::default();
        self.0.iter().for_each(|group| total.merge(part(group)));
        total
    }

    /// Returns the figure of all rows but those of one group, for each group with rows. Returns
    /// `None` if one of these figures does not exist.
    fn leave_out(
        &self,
        total: &Tally,
        part: fn(&Group) -> &Tally,
        figure: fn(&Tally) -> Option<f64>,
    ) -> Option<Vec<f64>> {
        let filled = self.0.iter().map(part).filter(|tally| !tally.is_empty());
        filled.map(|tally| figure(&total.without(tally))).collect()
    }
}

/// Returns the AUC of a tally.
fn auc(tally: &Tally) -> Option<f64> {
    tally.scores().auc()
}

/// Returns the standard error of a figure from its values without one group each, or `None` for
/// fewer than two groups.
fn jackknife(without: &[f64]) -> Option<f64> {
    let groups = without.len() as f64;
    if without.len() < 2 {
        return None;
    }
    let mean = without.iter().sum::<f64>() / groups;
    let squares: f64 = without.iter().map(|value| (value - mean) * (value - mean)).sum();
    Some((squares * (groups - 1.0) / groups).sqrt())
}

/// Compares two models on the same rows. Labels are 0 or 1. The scores are log-odds. Rows to which
/// a model gave no finite score are left out. Returns `None` if no row is left.
///
/// # Errors
/// Returns an error if the lengths differ, or a label or a weight cannot be used.
pub fn compare(
    labels: &[f32],
    weights: Option<&[f32]>,
    live: &[f32],
    stable: &[f32],
) -> Result<Option<Paired>, ValidationError> {
    check_rows(labels, weights, live, Some(stable))?;
    let mut groups = Groups::default();
    let scores = live.iter().zip(stable).enumerate();
    for (row, (&live, &stable)) in scores.filter(|(_, (a, b))| a.is_finite() && b.is_finite()) {
        let weight = Weight::new(weights.map_or(1.0, |weights| weights[row]));
        groups.add(0, row as u64, labels[row] == 1.0, weight, live, Some(stable));
    }
    Ok(groups.paired())
}

/// Checks that the times, labels and weights of a batch fit together and can be used.
pub(crate) fn check_batch(
    times: &[EventTime],
    labels: &[f32],
    weights: Option<&[f32]>,
) -> Result<(), ValidationError> {
    check_length("event times", times.len(), labels.len())?;
    check_rows(labels, weights, labels, None)
}

/// Checks that labels, weights and scores have the same length, and that labels and weights can be
/// used.
pub(crate) fn check_rows(
    labels: &[f32],
    weights: Option<&[f32]>,
    live: &[f32],
    stable: Option<&[f32]>,
) -> Result<(), ValidationError> {
    let rows = labels.len();
    check_length("live scores", live.len(), rows)?;
    check_length("stable scores", stable.map_or(rows, <[f32]>::len), rows)?;
    check_length("weights", weights.map_or(rows, <[f32]>::len), rows)?;
    if let Some(row) = labels.iter().position(|&label| label != 0.0 && label != 1.0) {
        return Err(ValidationError::Row { row, problem: "a label must be 0 or 1" });
    }
    let is_bad = |&weight: &f32| !(weight >= 0.0 && weight.is_finite());
    if let Some(row) = weights.and_then(|weights| weights.iter().position(is_bad)) {
        return Err(ValidationError::Row {
            row,
            problem: "a weight must be finite and at least 0",
        });
    }
    Ok(())
}

/// Checks that a column has one value for each row.
pub(crate) fn check_length(column: &str, found: usize, rows: usize) -> Result<(), ValidationError> {
    if found == rows {
        return Ok(());
    }
    Err(ValidationError::Length { column: column.to_owned(), found, rows })
}
