//! The training of one trial in one rung.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow};
use zillion_console::progress::Progress;
use zillion_device::{Files, Workers};
use zillion_reader::{Paths, Share};
use zillion_trainer::{
    EpochRecord, Error, Job, TrainOptions, TrainReport, TrainerPlace, TuneResource, train,
};

use super::halving::Rung;
use super::state::{RungResult, State};
use crate::curves::write_curves;
use crate::runs::find_figure;

/// The tools of a training that all trials share.
pub(super) struct Trainer {
    pub(super) workers: Arc<Workers>,
    pub(super) files: Files,
    pub(super) stop: Arc<AtomicBool>,
}

/// The end of a trial in a rung.
pub(super) enum Ended {
    /// The trial has a value of the metric.
    Result(RungResult),
    /// The trial failed, which does not end the tune.
    Failed(String),
    /// The caller stopped the training, which goes on with the next start of the tune.
    Interrupted,
}

impl Trainer {
    /// Trains a trial up to the resource of a rung. A trial goes on from its newest checkpoint.
    /// `before` is the result of the rung before it.
    pub(super) fn train(
        &self,
        mut job: Job,
        rung: &Rung,
        folder: &Path,
        (state, before): (&State, Option<RungResult>),
    ) -> Result<Ended> {
        let output = match rung.rows_divisor {
            1 => folder.to_owned(),
            divisor => folder.join(format!("rows-1-of-{divisor}")),
        };
        job.run.output = Some(output.clone());
        job.run.metrics = None;
        job.publish = None;
        // Trials are compared over the validation rows alone.
        job.data.test = Paths::default();
        job.train.epochs = rung.epochs;
        job.train.keep = NonZeroUsize::MIN;
        if rung.rows_divisor > 1 {
            let share = job.data.sample.map_or(1.0, Share::get) / rung.rows_divisor as f64;
            job.data.sample = Some(Share::try_from(share).map_err(|problem| anyhow!(problem))?);
        }
        let options = TrainOptions {
            resume: true,
            overwrite: false,
            from: None,
            workers: self.workers.clone(),
            files: self.files.clone(),
            stop: self.stop.clone(),
            profile: None,
            in_memory: false,
            trainer: TrainerPlace::ALONE,
        };
        let report = match train(job, options, &mut Progress::new()) {
            Ok(report) => report,
            Err(error @ Error::Diverged { .. }) => return Ok(Ended::Failed(error.to_string())),
            Err(error) => return Err(error.into()),
        };
        if report.interrupted {
            return Ok(Ended::Interrupted);
        }
        if let Err(error) = write_curves(&output) {
            eprintln!("the curves of the trial cannot be written: {error:#}");
        }
        // A trial that begins again in each rung has a record of each of its runs.
        let earlier = before.filter(|_| state.resource == TuneResource::Rows);
        let seconds = earlier.map_or(0.0, |before| before.seconds);
        Ok(read_result(&report, state, seconds))
    }
}

/// Returns the result of a run. `seconds` is the time of earlier runs of the trial.
fn read_result(report: &TrainReport, state: &State, seconds: f64) -> Ended {
    let Some((best_epoch, metric)) = find_best_epoch(&report.history, state) else {
        return Ended::Failed(format!("the validation has no {}", state.metric));
    };
    let of_run: f64 = report.history.iter().map(|epoch| epoch.seconds).sum();
    let seconds = seconds + of_run;
    Ended::Result(RungResult { metric, epochs: report.epochs, best_epoch, seconds })
}

/// Returns the number of the epoch with the best finite value of the metric, and the value.
fn find_best_epoch(history: &[EpochRecord], state: &State) -> Option<(u64, f64)> {
    let value = |epoch: &EpochRecord| {
        let report = epoch.valid.as_ref()?;
        let task = state.task.as_ref().and_then(|task| report.get("tasks")?.get(task));
        let value = find_figure(task.unwrap_or(report), &state.metric)?;
        value.is_finite().then_some((epoch.epoch, value))
    };
    let is_better = |new: f64, old: f64| if state.lower_is_better { new < old } else { new > old };
    let mut best: Option<(u64, f64)> = None;
    for (epoch, value) in history.iter().filter_map(value) {
        if best.is_none_or(|(_, old)| is_better(value, old)) {
            best = Some((epoch, value));
        }
    }
    best
}

/// Removes the checkpoints of a trial. The record and the curves of its runs stay.
pub(super) fn remove_checkpoints(folder: &Path, rungs: &[Rung], files: &Files) -> Result<()> {
    let below = rungs.iter().filter(|rung| rung.rows_divisor > 1);
    let below = below.map(|rung| folder.join(format!("rows-1-of-{}", rung.rows_divisor)));
    for run in below.chain([folder.to_owned()]) {
        let checkpoints = run.join("checkpoints");
        if checkpoints.exists() {
            files.remove_dir(&checkpoints).map_err(|error| anyhow!(error)).with_context(|| {
                format!("cannot remove the checkpoints in {}", checkpoints.display())
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::state::Plan;
    use super::*;

    fn state(metric: &str, task: Option<&str>, lower_is_better: bool) -> State {
        State::new(Plan {
            settings: Value::Null,
            metric: metric.to_owned(),
            task: task.map(str::to_owned),
            lower_is_better,
            resource: TuneResource::Rows,
            rungs: Vec::new(),
            trials: Vec::new(),
        })
    }

    fn epoch(number: u64, valid: Option<Value>) -> EpochRecord {
        EpochRecord {
            epoch: number,
            step: number,
            rows: 1,
            loss: None,
            regulariser: None,
            valid,
            rate_scale: 1.0,
            seconds: 1.0,
            is_best: false,
        }
    }

    #[test]
    fn the_best_epoch_is_found_in_the_direction_of_the_metric() {
        let report = |auc: f64, loss: f64| {
            let tasks = json!({ "buy": { "auc": 1.0 - auc } });
            json!({ "auc": auc, "logloss": loss, "tasks": tasks, "ranking": { "ndcg@5": auc } })
        };
        let history = [
            epoch(1, Some(report(0.6, 0.4))),
            epoch(2, Some(report(0.75, 0.5))),
            epoch(3, Some(report(0.75, 0.3))),
            epoch(4, Some(json!({ "auc": null }))),
            epoch(5, None),
        ];
        let find = |state: State| find_best_epoch(&history, &state);
        assert_eq!(find(state("auc", None, false)), Some((2, 0.75)));
        assert_eq!(find(state("logloss", None, true)), Some((3, 0.3)));
        assert_eq!(find(state("ndcg@5", None, false)), Some((2, 0.75)));
        assert_eq!(find(state("auc", Some("buy"), false)), Some((1, 0.4)));
        assert_eq!(find(state("rmse", None, true)), None);
    }

    #[test]
    fn a_lost_trial_keeps_its_record() {
        let folder = tempfile::tempdir().expect("a folder");
        let rungs = [9, 1].map(|rows_divisor| Rung { epochs: 1, rows_divisor, trials: 3 });
        let runs = [folder.path().to_owned(), folder.path().join("rows-1-of-9")];
        for run in &runs {
            std::fs::create_dir_all(run.join("checkpoints").join("step-1")).expect("a folder");
            std::fs::write(run.join("record.json"), "{}").expect("a file");
        }
        for _ in 0..2 {
            remove_checkpoints(folder.path(), &rungs, &Files::new()).expect("they are removed");
            for run in &runs {
                assert!(!run.join("checkpoints").exists() && run.join("record.json").exists());
            }
        }
    }
}
