//! The outcome of a tune: the table of trials and the best job.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use toml::{Table, Value};
use zillion_console::exit::Stop;
use zillion_device::Files;

use super::halving::rank_all;
use super::state::{State, Trial, trial_folder};
use crate::text::{self, figure};

/// The name of the file with the best job in the folder of a tune.
const BEST_FILE: &str = "best.toml";
/// The number of trials in the command that compares them.
const MOST_COMPARED: usize = 6;

/// The outcome of a tune.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    folder: PathBuf,
    metric: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    lower_is_better: bool,
    /// The number of the best trial.
    pub(super) best: usize,
    /// The path of the best job.
    best_job: PathBuf,
    /// The trials, the best one first.
    trials: Vec<Line>,
}

/// A trial in the outcome.
#[derive(Debug, Serialize)]
struct Line {
    trial: usize,
    folder: PathBuf,
    values: serde_json::Map<String, serde_json::Value>,
    /// The metric of the last rung of the trial; absent if the trial failed in the first rung.
    metric: Option<f64>,
    /// The last rung of the trial, counted from 1; 0 if the trial failed in the first rung.
    rung: usize,
    /// The part of the training rows of this rung.
    rows_share: f64,
    epochs: u64,
    best_epoch: Option<u64>,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

/// Ranks the trials of a tune that has ended.
///
/// # Errors
/// Returns an error if all trials failed.
pub(super) fn judge(state: &State, folder: &Path) -> Result<Outcome> {
    let ranked = rank_all(&state.trials, &state.rungs, state.lower_is_better);
    let best = ranked.first().copied().unwrap_or(0);
    if let Some(failure) = &state.trials[best].failure {
        return Err(Stop::Refused(format!(
            "all {} trials failed; the best job cannot be chosen; the first one failed because {failure}",
            state.trials.len()
        ))
        .into());
    }
    let line = |number: usize| describe(state, &state.trials[number], folder);
    Ok(Outcome {
        folder: folder.to_owned(),
        metric: state.metric.clone(),
        task: state.task.clone(),
        lower_is_better: state.lower_is_better,
        best,
        best_job: folder.join(BEST_FILE),
        trials: ranked.into_iter().map(line).collect(),
    })
}

fn describe(state: &State, trial: &Trial, folder: &Path) -> Line {
    let last = trial.results.last();
    let rung = trial.results.len();
    let divisor = state.rungs.get(rung.max(1) - 1).map_or(1, |rung| rung.rows_divisor);
    let value = |(key, text): &(String, String)| (key.clone(), text.clone().into());
    Line {
        trial: trial.number,
        folder: trial_folder(folder, trial.number),
        values: trial.values.iter().map(value).collect(),
        metric: last.map(|result| result.metric),
        rung,
        rows_share: 1.0 / divisor as f64,
        epochs: last.map_or(0, |result| result.epochs),
        best_epoch: last.map(|result| result.best_epoch),
        seconds: last.map_or(0.0, |result| result.seconds),
        failure: trial.failure.clone(),
    }
}

/// Writes the best job into the folder of the tune. Comments name the keys that differ from the job
/// as written.
pub(super) fn write_best_job(
    outcome: &Outcome,
    mut job: Table,
    folder: &Path,
    files: &Files,
) -> Result<()> {
    let run = job.entry("run").or_insert_with(|| Value::Table(Table::new()));
    if let Some(run) = run.as_table_mut() {
        run.insert("output".to_owned(), folder.join("best").display().to_string().into());
    }
    let mut text = describe_best(outcome);
    text.push_str(&toml::to_string(&job)?);
    Ok(files.write_bytes(&outcome.best_job, text.as_bytes())?)
}

/// Returns the comments of the best job.
fn describe_best(outcome: &Outcome) -> String {
    let find = |number: usize| outcome.trials.iter().find(|line| line.trial == number);
    let (Some(best), Some(first)) = (find(outcome.best), find(0)) else { return String::new() };
    let mut text = format!(
        "# The best of {} trials of `zillion tune` is trial {}: validation {} {} at epoch {} of {}.\n",
        outcome.trials.len(),
        best.trial,
        outcome.metric,
        figure(best.metric, 6),
        best.best_epoch.unwrap_or_default(),
        best.epochs
    );
    if best.trial == 0 {
        text.push_str("# It is the job as written.\n");
    } else {
        text.push_str(&format!("# The job as written has {}.\n", figure(first.metric, 6)));
        for (key, value) in &best.values {
            let written = first.values.get(key).and_then(|text| text.as_str()).unwrap_or("absent");
            let value = value.as_str().unwrap_or_default();
            if value != written {
                text.push_str(&format!("# {key} = {value} (was {written})\n"));
            }
        }
    }
    text.push_str(
        "# Settings of the command line and of the environment are written out below.\n\n",
    );
    text
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
pub(super) fn show(outcome: &Outcome) {
    let keys: Vec<&str> = outcome
        .trials
        .first()
        .map(|line| line.values.keys().map(String::as_str).collect())
        .unwrap_or_default();
    let metric = format!("valid {}", outcome.metric);
    let has_shares = outcome.trials.iter().any(|line| line.rows_share < 1.0);
    let mut heads = vec!["trial", &metric, "epochs", "best", "seconds"];
    if has_shares {
        heads.push("rows");
    }
    heads.extend(&keys);
    heads.push("");
    let cells = |line: &Line| {
        let mut cells = vec![
            line.trial.to_string(),
            figure(line.metric, 6),
            line.epochs.to_string(),
            line.best_epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
            format!("{:.1}", line.seconds),
        ];
        if has_shares {
            cells.push(text::percent(line.rows_share));
        }
        let value =
            |key: &&str| line.values.get(*key).and_then(|text| text.as_str()).unwrap_or("-");
        cells.extend(keys.iter().map(|key| value(key).to_owned()));
        cells.push(match (&line.failure, line.trial) {
            // The remedy behind the reason was printed when the trial failed.
            (Some(reason), _) => format!("failed: {}", reason.split(';').next().unwrap_or(reason)),
            (None, 0) => "the job as written".to_owned(),
            _ => String::new(),
        });
        cells
    };
    print!("{}", text::table(&heads, outcome.trials.iter().map(cells), 0));
    println!("\nplot      {}", outcome.folder.join(super::plot::PLOT_FILE).display());
    // The trials of the last rung have a run in their folder, whatever the resource is.
    let last = outcome.trials.iter().map(|line| line.rung).max().unwrap_or(0);
    let finalists = outcome.trials.iter().filter(|line| line.rung == last).take(MOST_COMPARED);
    let folders: Vec<String> = finalists.map(|line| line.folder.display().to_string()).collect();
    println!("compare   zillion board {}", folders.join(" "));
    println!("train     zillion train {}", outcome.best_job.display());
}
