//! Successive halving: many trials get a small resource, and only the best of them get more.
//!
//! The schedule is the inner loop of Hyperband (Li et al. 2018, "Hyperband: A Novel Bandit-Based
//! Approach to Hyperparameter Optimization"), which is the algorithm of Jamieson and Talwalkar
//! (2016). The trials of a rung end before the next rung begins, so that the outcome depends on no
//! timing. There is one difference: the first trial, which is the job as written, is in every rung,
//! so that the table compares it with the best trial at the same resource.

use serde::{Deserialize, Serialize};
use zillion_trainer::TuneResource;

use super::state::Trial;

/// The most rungs of a tune in rows: with more, the first rung would have too few rows to tell
/// anything.
const MOST_ROW_RUNGS: u32 = 3;

/// The resource of the trials of a rung.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rung {
    /// The number of epochs up to which a trial is trained.
    pub(super) epochs: u64,
    /// The part of the training rows is one in this number.
    pub(super) rows_divisor: u64,
    /// The number of trials, to which the first trial may be added.
    pub(super) trials: usize,
}

/// Returns the resource that a tune uses if its job does not name one.
pub(super) fn default_resource(epochs: u64, factor: u64) -> TuneResource {
    if epochs >= factor { TuneResource::Epochs } else { TuneResource::Rows }
}

/// Returns the rungs of a tune. The last rung has all epochs of the job and all rows.
pub(super) fn plan_rungs(
    trials: usize,
    epochs: u64,
    factor: u64,
    resource: TuneResource,
) -> Vec<Rung> {
    let mut resources: Vec<(u64, u64)> = vec![(epochs, 1)];
    let (mut left, mut trials_left) = (epochs, trials as u64);
    let mut divisor = 1;
    // A rung with one trial would choose nothing, so there are only as many rungs as the trials
    // need.
    while trials_left > 1 {
        trials_left = trials_left.div_ceil(factor);
        match resource {
            TuneResource::Epochs if left > 1 => {
                left = left.div_ceil(factor);
                resources.push((left, 1));
            }
            TuneResource::Rows if resources.len() < MOST_ROW_RUNGS as usize => {
                divisor *= factor;
                resources.push((epochs, divisor));
            }
            _ => break,
        }
    }
    resources.reverse();
    let mut count = trials as u64;
    let rung = |(epochs, rows_divisor): (u64, u64)| {
        let trials = count as usize;
        count = count.div_ceil(factor);
        Rung { epochs, rows_divisor, trials }
    };
    resources.into_iter().map(rung).collect()
}

/// Returns the numbers of the trials of a rung, ascending. All trials of the rungs before it must
/// have ended.
pub(super) fn members(trials: &[Trial], rungs: &[Rung], rung: usize, lower: bool) -> Vec<usize> {
    if rung == 0 {
        return (0..trials.len()).collect();
    }
    let mut members = rank(trials, rung - 1, lower);
    let count = rungs.get(rung).map_or(0, |rung| rung.trials);
    let first = members.iter().position(|&number| number == 0);
    members.truncate(count);
    if first.is_some_and(|place| place >= count) {
        members.push(0);
    }
    members.sort_unstable();
    members
}

/// Returns the numbers of the trials that have a result of a rung, the best first. A trial that
/// failed later is not among them.
pub(super) fn rank(trials: &[Trial], rung: usize, lower: bool) -> Vec<usize> {
    let of = |trial: &Trial| {
        let result = trial.results.get(rung).filter(|_| trial.failure.is_none())?;
        Some((trial.number, result.metric))
    };
    let mut ranked: Vec<(usize, f64)> = trials.iter().filter_map(of).collect();
    ranked.sort_by(|a, b| {
        let order = if lower { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) };
        order.then(a.0.cmp(&b.0))
    });
    ranked.into_iter().map(|(number, _)| number).collect()
}

/// Returns the numbers of all trials, the best first: those of the last rung, those of the rung
/// before it, and so on, and the failed ones at the end.
pub(super) fn rank_all(trials: &[Trial], rungs: &[Rung], lower: bool) -> Vec<usize> {
    let mut ranked: Vec<usize> = Vec::with_capacity(trials.len());
    for rung in (0..rungs.len()).rev() {
        let new = rank(trials, rung, lower);
        let new: Vec<usize> = new.into_iter().filter(|number| !ranked.contains(number)).collect();
        ranked.extend(new);
    }
    let rest: Vec<usize> = (0..trials.len()).filter(|number| !ranked.contains(number)).collect();
    ranked.extend(rest);
    ranked
}

/// Returns the numbers of the trials whose checkpoints are not needed any more, while the trials of
/// a rung end.
pub(super) fn losers(trials: &[Trial], rungs: &[Rung], rung: usize, lower: bool) -> Vec<usize> {
    let members = members(trials, rungs, rung, lower);
    let is_last = rung + 1 == rungs.len();
    let count = rungs.get(rung + 1).map_or(1, |next| next.trials);
    let mut kept = rank(trials, rung, lower);
    kept.truncate(count);
    let is_lost = |trial: &&Trial| {
        let has_ended = trial.failure.is_some() || trial.results.len() > rung;
        let is_needed = kept.contains(&trial.number)
            || (trial.number == 0 && !is_last && trial.failure.is_none());
        !members.contains(&trial.number) || (has_ended && !is_needed)
    };
    trials.iter().filter(is_lost).map(|trial| trial.number).collect()
}

#[cfg(test)]
mod tests {
    use super::super::state::RungResult;
    use super::*;

    fn trial(number: usize, metrics: &[f64]) -> Trial {
        let result =
            |metric: &f64| RungResult { metric: *metric, epochs: 1, best_epoch: 1, seconds: 1.0 };
        Trial { results: metrics.iter().map(result).collect(), ..Trial::new(number, Vec::new()) }
    }

    fn plan(trials: usize, epochs: u64, resource: TuneResource) -> Vec<(u64, u64, usize)> {
        let rungs = plan_rungs(trials, epochs, 3, resource);
        rungs.into_iter().map(|rung| (rung.epochs, rung.rows_divisor, rung.trials)).collect()
    }

    #[test]
    fn a_third_of_the_trials_gets_three_times_the_resource() {
        use TuneResource::{Epochs, Rows};
        assert_eq!(plan(9, 9, Epochs), [(1, 1, 9), (3, 1, 3), (9, 1, 1)]);
        assert_eq!(plan(12, 10, Epochs), [(1, 1, 12), (2, 1, 4), (4, 1, 2), (10, 1, 1)]);
        assert_eq!(plan(3, 30, Epochs), [(10, 1, 3), (30, 1, 1)]);
        assert_eq!(plan(1, 30, Epochs), [(30, 1, 1)]);
        assert_eq!(plan(12, 1, Epochs), [(1, 1, 12)]);
        assert_eq!(plan(12, 2, Rows), [(2, 9, 12), (2, 3, 4), (2, 1, 2)]);
        assert_eq!(default_resource(2, 3), Rows);
        assert_eq!(default_resource(3, 3), Epochs);
    }

    #[test]
    fn the_best_are_promoted_and_the_first_goes_with_them() {
        let rungs = plan_rungs(4, 9, 3, TuneResource::Epochs);
        assert_eq!(rungs.iter().map(|rung| rung.trials).collect::<Vec<_>>(), [4, 2, 1]);
        let mut trials =
            vec![trial(0, &[0.1]), trial(1, &[0.5]), trial(2, &[0.4]), trial(3, &[0.5])];
        assert_eq!(members(&trials, &rungs, 0, false), [0, 1, 2, 3]);
        assert_eq!(members(&trials, &rungs, 1, false), [0, 1, 3]);
        assert_eq!(members(&trials, &rungs, 1, true), [0, 2]);
        assert_eq!(losers(&trials, &rungs, 0, false), [2]);
        // A failed trial is not promoted, and its checkpoints are not needed.
        trials[1].failure = Some("diverged".to_owned());
        assert_eq!(members(&trials, &rungs, 1, false), [0, 2, 3]);
        assert_eq!(losers(&trials, &rungs, 0, false), [1]);
        for (number, metric) in [(0, 0.6), (2, 0.7), (3, 0.8)] {
            let next = trial(number, &[metric]).results.remove(0);
            trials[number].results.push(next);
        }
        assert_eq!(members(&trials, &rungs, 2, false), [0, 3]);
        assert_eq!(losers(&trials, &rungs, 1, false), [1, 2]);
        assert_eq!(rank_all(&trials, &rungs, false), [3, 2, 0, 1]);
        // In the last rung, only the best trial keeps its checkpoints.
        for (number, metric) in [(0, 0.9), (3, 0.8)] {
            let next = trial(number, &[metric]).results.remove(0);
            trials[number].results.push(next);
        }
        assert_eq!(losers(&trials, &rungs, 2, false), [1, 2, 3]);
        assert_eq!(rank_all(&trials, &rungs, false), [0, 3, 2, 1]);
    }

    #[test]
    fn checkpoints_of_trials_that_cannot_win_go_while_the_rung_runs() {
        let rungs = plan_rungs(3, 3, 3, TuneResource::Epochs);
        let trials = vec![trial(0, &[0.1]), trial(1, &[0.2]), trial(2, &[])];
        assert!(losers(&trials, &rungs, 0, false).is_empty());
        let trials = vec![trial(0, &[0.1]), trial(1, &[0.2]), trial(2, &[0.3])];
        assert_eq!(losers(&trials, &rungs, 0, false), [1]);
    }
}
