//! `zillion tune`: trains a job with other settings, and finds the best ones by successive halving.
//!
//! The trials run one after the other in this process. The state is in one file, so that a tune
//! that was stopped or killed goes on with the same command.

mod assign;
mod halving;
mod outcome;
mod plot;
mod space;
mod state;
mod trial;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::{Table, Value};
use zillion_console::exit::usage_error;
use zillion_console::{compute_pool, durable_files, job_file, print_result, signals};
use zillion_device::Files;
use zillion_trainer::{Job, TuneConfig};

use crate::args::TuneArgs;
use halving::Rung;
use space::Space;
use state::{Plan, State, Trial, TuneLock, trial_folder};
use trial::{Ended, Trainer};

pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    let mut sets = args.job.set.clone();
    sets.extend(args.trials.map(|trials| format!("tune.trials={trials}")));
    let written = job_file::load(&args.job.job, std::env::vars(), &sets)?;
    let job = job_file::load_job(&args.job.job, &sets)?;
    let Value::Table(written) = written else { return usage_error("a job is a TOML table") };
    check(&job)?;
    let config = job.tune.clone().unwrap_or_default();
    let space = Space::new(&written, &job).with_context(|| args.job.job.display().to_string())?;
    let values = space.draw_trials(config.seed.unwrap_or(job.seed), config.trials.get());
    if values.len() < config.trials.get() {
        eprintln!("the space has only {} different trials", values.len());
    }
    let jobs = read_jobs(&space, &values)?;
    let plan = make_plan(&job, &config, &space, &values)?;

    let folder = args.output.clone().unwrap_or_else(|| default_folder(&job));
    let files = durable_files()?;
    files.create_dir(&folder)?;
    let _lock = TuneLock::take(&folder)?;
    let mut state = State::open(&folder, plan)?;
    state.save(&folder, &files)?;
    let tune = Tune {
        trainer: Trainer {
            workers: compute_pool(job.run.threads)?,
            files: files.clone(),
            stop: signals::stop_flag()?,
        },
        folder: &folder,
        jobs,
    };
    announce(&state, &folder);
    if !tune.run_rungs(&mut state)? {
        eprintln!("interrupted: the same command goes on");
        return Ok(());
    }
    finish(args, &state, (&space, &values), (&folder, &files))
}

/// Writes the best job and the plot, and prints the outcome.
fn finish(
    args: &TuneArgs,
    state: &State,
    (space, values): (&Space, &[Vec<Value>]),
    (folder, files): (&Path, &Files),
) -> Result<()> {
    let outcome = outcome::judge(state, folder)?;
    let best = space.job_of(&values[outcome.best]);
    outcome::write_best_job(&outcome, best, folder, files)?;
    plot::write_plot(state, folder, files)?;
    print_result(args.json, &outcome, outcome::show)
}

/// A tune that runs.
struct Tune<'a> {
    trainer: Trainer,
    folder: &'a Path,
    /// The jobs of the trials, the job as written first.
    jobs: Vec<Job>,
}

impl Tune<'_> {
    /// Runs the rungs that have not ended. Returns `false` if the caller stopped the tune.
    fn run_rungs(&self, state: &mut State) -> Result<bool> {
        let rungs = state.rungs.clone();
        let files = &self.trainer.files;
        for (at, rung) in rungs.iter().enumerate() {
            let lower = state.lower_is_better;
            for number in halving::members(&state.trials, &rungs, at, lower) {
                let trial = &state.trials[number];
                if trial.failure.is_some() || trial.results.len() > at {
                    continue;
                }
                eprintln!("{}", describe_trial(state, at, number));
                let before = trial.results.last().copied();
                let folder = trial_folder(self.folder, number);
                let job = self.jobs[number].clone();
                let ended = self
                    .trainer
                    .train(job, rung, &folder, (state, before))
                    .with_context(|| format!("trial {number}, in {}", folder.display()))?;
                let trial = &mut state.trials[number];
                match ended {
                    Ended::Interrupted => return Ok(false),
                    Ended::Result(result) => trial.results.push(result),
                    Ended::Failed(reason) => {
                        eprintln!("trial {number} failed: {reason}");
                        trial.failure = Some(reason);
                    }
                }
                state.save(self.folder, files)?;
                self.remove_losers(state, at)?;
            }
            self.remove_losers(state, at)?;
        }
        Ok(true)
    }

    /// Removes the checkpoints of the trials that cannot be promoted any more.
    fn remove_losers(&self, state: &State, rung: usize) -> Result<()> {
        let lower = state.lower_is_better;
        for number in halving::losers(&state.trials, &state.rungs, rung, lower) {
            let folder = trial_folder(self.folder, number);
            trial::remove_checkpoints(&folder, &state.rungs, &self.trainer.files)?;
        }
        Ok(())
    }
}

/// Checks that the job can be tuned.
fn check(job: &Job) -> Result<()> {
    if job.data.valid.is_empty() {
        return usage_error(
            "trials are compared over validation rows, but the job has none; name files in `data.valid` \
             (`zillion data split` makes them)",
        );
    }
    if !job.streams.is_empty() {
        return usage_error(
            "a tune trains on files, but the job follows streams; remove `[[stream]]`",
        );
    }
    if job.ps.is_some() {
        return usage_error(
            "a tune trains in this process, but the job has `[ps]`; remove the section",
        );
    }
    Ok(())
}

/// Reads the jobs of all trials before the first one is trained.
fn read_jobs(space: &Space, values: &[Vec<Value>]) -> Result<Vec<Job>> {
    let read = |(number, values): (usize, &Vec<Value>)| {
        let job = space.job_of(values);
        space::read(job).with_context(|| {
            let texts = space.describe(values).into_iter();
            let texts: Vec<String> = texts.map(|(key, text)| format!("{key} = {text}")).collect();
            format!(
                "the job refuses trial {number} ({}); make `tune.space` smaller",
                texts.join(", ")
            )
        })
    };
    values.iter().enumerate().map(read).collect()
}

/// Plans the trials and their rungs.
fn make_plan(job: &Job, config: &TuneConfig, space: &Space, values: &[Vec<Value>]) -> Result<Plan> {
    let epochs = job.train.epochs;
    let resource =
        config.resource.unwrap_or_else(|| halving::default_resource(epochs, config.factor));
    let ranges: Table = space
        .ranges()
        .iter()
        .map(|range| (range.key(), Value::from(format!("{:?}", range.values))))
        .collect();
    let settings = serde_json::json!({
        "job": job.portable()?,
        "tune": { "trials": config.trials, "factor": config.factor, "resource": resource,
                  "seed": config.seed, "space": ranges },
    });
    let metric = job.judge();
    let trial = |(number, values): (usize, &Vec<Value>)| Trial::new(number, space.describe(values));
    Ok(Plan {
        settings,
        metric: metric.to_string(),
        task: job.train.plateau.as_ref().and_then(|plateau| plateau.task.clone()),
        lower_is_better: metric.lower_is_better(),
        resource,
        rungs: halving::plan_rungs(values.len(), epochs, config.factor, resource),
        trials: values.iter().enumerate().map(trial).collect(),
    })
}

/// Returns the folder of a tune: `tune-NAME` beside the folder NAME of the run.
fn default_folder(job: &Job) -> PathBuf {
    let output = job.output();
    let name = output.file_name().map_or_else(|| job.name.clone(), |n| n.display().to_string());
    output.with_file_name(format!("tune-{name}"))
}

fn announce(state: &State, folder: &Path) {
    let rungs: Vec<String> = state.rungs.iter().map(describe_rung).collect();
    eprintln!(
        "{} trials by the validation {} into {}: {}",
        state.trials.len(),
        state.metric,
        folder.display(),
        rungs.join(", then ")
    );
}

fn describe_rung(rung: &Rung) -> String {
    let epochs = match rung.epochs {
        1 => "1 epoch".to_owned(),
        epochs => format!("{epochs} epochs"),
    };
    let rows = match rung.rows_divisor {
        1 => String::new(),
        divisor => format!(" of 1/{divisor} of the rows"),
    };
    format!("{} with {epochs}{rows}", rung.trials)
}

fn describe_trial(state: &State, rung: usize, number: usize) -> String {
    let trial = &state.trials[number];
    let values: Vec<String> =
        trial.values.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    let what = if number == 0 { " (the job as written)" } else { "" };
    format!(
        "rung {} of {}, trial {number}{what}: {}",
        rung + 1,
        state.rungs.len(),
        values.join(", ")
    )
}
