//! The state of a tune, in one file of its folder.
//!
//! # Crash consistency
//! The file is replaced as a whole after each rung of a trial. A tune that is killed between two
//! replacements repeats the rung of one trial, which goes on from its own checkpoint. The result of
//! a run does not depend on stops, so the repeated rung has the same figures.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zillion_console::exit::refuse;
use zillion_device::Files;
use zillion_trainer::TuneResource;

use super::halving::Rung;
use crate::runs::flatten_settings;

/// The name of the file in the folder of a tune.
const STATE_FILE: &str = "tune.json";
const LOCK_FILE: &str = "LOCK";
/// The format of the file that this binary writes and reads.
const FORMAT: u32 = 1;
/// The size at which a file is refused as a state, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// The state of a tune.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    format: u32,
    /// The settings that decide the trials: the job with every default, the space and the schedule.
    settings: Value,
    /// The name of the metric by which trials are compared.
    pub(super) metric: String,
    /// The task with the metric; absent: the first one.
    pub(super) task: Option<String>,
    pub(super) lower_is_better: bool,
    pub(super) resource: TuneResource,
    pub(super) rungs: Vec<Rung>,
    pub(super) trials: Vec<Trial>,
}

/// A trial: values of the keys, and its results so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trial {
    pub(super) number: usize,
    /// The keys and their values, in the order of the space. The first trial has the values of the
    /// job as written.
    pub(super) values: Vec<(String, String)>,
    /// The results of the rungs, the first rung first.
    pub(super) results: Vec<RungResult>,
    /// The reason why the trial has failed.
    pub(super) failure: Option<String>,
}

/// The result of a trial in a rung.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RungResult {
    /// The best value of the metric so far.
    pub(super) metric: f64,
    /// The number of epochs that were trained, which is below that of the rung if the schedule of
    /// the job has stopped the training.
    pub(super) epochs: u64,
    /// The epoch with the best value, counted from 1.
    pub(super) best_epoch: u64,
    /// The time of all epochs of the trial so far, in seconds.
    pub(super) seconds: f64,
}

impl Trial {
    /// Creates a trial without results.
    pub(super) fn new(number: usize, values: Vec<(String, String)>) -> Self {
        Self { number, values, results: Vec::new(), failure: None }
    }
}

/// The comparison of a tune: its metric, its schedule and its trials before the first result.
pub(super) struct Plan {
    pub(super) settings: Value,
    pub(super) metric: String,
    pub(super) task: Option<String>,
    pub(super) lower_is_better: bool,
    pub(super) resource: TuneResource,
    pub(super) rungs: Vec<Rung>,
    pub(super) trials: Vec<Trial>,
}

impl State {
    /// Creates the state of a tune that has not begun.
    pub(super) fn new(plan: Plan) -> Self {
        let Plan { settings, metric, task, lower_is_better, resource, rungs, trials } = plan;
        let format = FORMAT;
        Self { format, settings, metric, task, lower_is_better, resource, rungs, trials }
    }

    /// Returns the state of this tune in a folder, or the state of a tune that has not begun.
    ///
    /// # Errors
    /// Returns an error if the folder has the state of another tune, or a file that is not a state.
    pub(super) fn open(folder: &Path, plan: Plan) -> Result<Self> {
        let path = folder.join(STATE_FILE);
        let new = Self::new(plan);
        let bytes = match std::fs::metadata(&path) {
            Ok(facts) if facts.len() > MOST_BYTES => {
                return refuse_file(&path, &format!("it has {} bytes", facts.len()));
            }
            Ok(_) => std::fs::read(&path).with_context(|| path.display().to_string())?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(new),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let found: Self = match serde_json::from_slice(&bytes) {
            Ok(found) => found,
            Err(error) => return refuse_file(&path, &error.to_string()),
        };
        if found.format != FORMAT {
            let problem =
                format!("it has the format {}, and this binary reads {FORMAT}", found.format);
            return refuse_file(&path, &problem);
        }
        if let Some((key, then, now)) = find_difference(&found.settings, &new.settings) {
            return refuse(format!(
                "the folder {} has another tune: `{key}` was {then} when it began and is {now} now; \
                 undo the change, or give the tune another folder with --output",
                folder.display()
            ));
        }
        if !found.continues(&new) {
            return refuse_file(&path, "its trials are not those of its settings");
        }
        Ok(found)
    }

    /// Writes the state into the folder of the tune.
    pub(super) fn save(&self, folder: &Path, files: &Files) -> Result<()> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(files.write_bytes(folder.join(STATE_FILE), &bytes)?)
    }

    /// Returns whether the state is that of a tune after some results.
    fn continues(&self, new: &Self) -> bool {
        let same = |(found, new): (&Trial, &Trial)| {
            found.number == new.number
                && found.values == new.values
                && found.results.len() <= self.rungs.len()
                && found.results.iter().all(|result| result.metric.is_finite())
        };
        let fields =
            |of: &Self| (of.metric.clone(), of.task.clone(), of.lower_is_better, of.resource);
        fields(self) == fields(new)
            && self.rungs == new.rungs
            && self.trials.len() == new.trials.len()
            && self.trials.iter().zip(&new.trials).all(same)
    }
}

/// The right of this process to run a tune in a folder. The system takes it back when the process
/// ends.
pub(super) struct TuneLock(#[expect(dead_code, reason = "holds the lock")] File);

impl TuneLock {
    /// Takes the lock of a folder, which must exist.
    pub(super) fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(LOCK_FILE);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => refuse(format!(
                "another process tunes in the folder {}; wait for its end, or give this tune another \
                 folder with --output",
                folder.display()
            )),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| path.display().to_string())
            }
        }
    }
}

/// Returns the folder of a trial.
pub(super) fn trial_folder(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number:03}"))
}

/// Returns the first setting that differs, with both values.
fn find_difference(found: &Value, new: &Value) -> Option<(String, String, String)> {
    let (found, new) = (flatten_settings(found), flatten_settings(new));
    let keys = found.keys().chain(new.keys());
    let value = |of: Option<&String>| of.cloned().unwrap_or_else(|| "absent".to_owned());
    let key = keys.into_iter().find(|key| found.get(*key) != new.get(*key))?;
    Some((key.clone(), value(found.get(key)), value(new.get(key))))
}

fn refuse_file<T>(path: &Path, problem: &str) -> Result<T> {
    refuse(format!(
        "the file {} is refused as the state of a tune: {problem}; remove the folder, or give the tune \
         another one with --output",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use zillion_feature::random::mix64;

    use super::*;

    fn plan(lr: f64) -> Plan {
        Plan {
            settings: serde_json::json!({ "job": { "lr": lr } }),
            metric: "auc".to_owned(),
            task: None,
            lower_is_better: false,
            resource: TuneResource::Epochs,
            rungs: vec![Rung { epochs: 3, rows_divisor: 1, trials: 2 }],
            trials: (0..2).map(|n| Trial::new(n, vec![("lr".to_owned(), n.to_string())])).collect(),
        }
    }

    #[test]
    fn a_state_goes_on_and_another_tune_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut state = State::open(folder.path(), plan(0.1)).expect("it has not begun");
        let result = RungResult { metric: 0.7, epochs: 3, best_epoch: 2, seconds: 1.5 };
        state.trials[1].results.push(result);
        state.save(folder.path(), &Files::new()).expect("it is written");
        assert_eq!(State::open(folder.path(), plan(0.1)).expect("it goes on"), state);
        let error = State::open(folder.path(), plan(0.2)).expect_err("another job").to_string();
        assert!(error.contains("`job.lr` was 0.1 when it began and is 0.2 now"), "{error}");
        let mut other = plan(0.1);
        other.trials.pop();
        let error = State::open(folder.path(), other).expect_err("other trials").to_string();
        assert!(error.contains("its trials are not those"), "{error}");
    }

    #[test]
    fn a_folder_has_one_tune_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = TuneLock::take(folder.path()).expect("it is free");
        let error = TuneLock::take(folder.path()).err().expect("it is taken").to_string();
        assert!(error.contains("another process tunes"), "{error}");
        drop(lock);
        TuneLock::take(folder.path()).map(drop).expect("it is free again");
    }

    #[test]
    fn damaged_files_are_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(STATE_FILE);
        let whole = serde_json::to_vec(&State::new(plan(0.1))).expect("JSON");
        for round in 0..2000 {
            let mut bytes = whole.clone();
            for change in 0..1 + round % 3 {
                let draw = mix64(round * 8 + change);
                let at = (draw % bytes.len() as u64) as usize;
                match draw >> 60 {
                    0..4 => bytes.truncate(at.max(1)),
                    4..8 => drop(bytes.remove(at.min(bytes.len() - 1))),
                    _ => bytes[at] = (draw >> 32) as u8,
                }
                if bytes.is_empty() {
                    break;
                }
            }
            std::fs::write(&path, &bytes).expect("it is written");
            if let Err(error) = State::open(folder.path(), plan(0.1)) {
                let error = error.to_string();
                assert!(error.contains("tune") && error.contains("--output"), "{error}");
            }
        }
    }
}
