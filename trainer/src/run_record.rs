//! The record of a run in a file: its settings, its losses, its epochs and its figures.
//!
//! The file is for people and for the tools that show and compare runs. Training never reads it,
//! except to continue it after a stop.
//!
//! # Crash consistency
//! The record of an epoch is written before the checkpoint of the epoch. A run that is killed
//! between the two repeats the epoch, and the repeated epoch replaces the first one.

mod losses;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use zillion_device::Files;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::evaluate::EvalReport;
use crate::job::Job;
use crate::observer::EpochReport;
use crate::train_report::TrainReport;

pub use losses::{LossCurve, LossPoint};

/// The name of the file in the folder of a run.
pub const RECORD_FILE: &str = "record.json";
/// The format of the file that this binary writes and reads.
const FORMAT: u32 = 1;
/// The size at which a file is refused as a record, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// The record of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// The number of the format.
    format: u32,
    /// The name of the job.
    pub name: String,
    /// The job with every default, without `[run]` and `[ps]`.
    pub settings: Value,
    /// The training loss along the run.
    pub losses: LossCurve,
    /// The complete epochs, the first one first.
    pub epochs: Vec<EpochRecord>,
    /// The best epoch, counted from 1; absent before the first epoch has ended.
    #[serde(default)]
    pub best_epoch: Option<u64>,
    /// The report of the run as `zillion train` prints it; absent until the run has ended or was
    /// stopped.
    #[serde(default)]
    pub report: Option<Value>,
}

/// The record of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochRecord {
    /// The number of the epoch, counted from 1.
    pub epoch: u64,
    /// The number of steps of the run at its end.
    pub step: u64,
    /// The number of rows that were trained on in the epoch.
    pub rows: u64,
    /// The mean training loss of these rows.
    pub loss: Option<f64>,
    /// The loss of the regularisers at its end.
    pub regulariser: Option<f64>,
    /// The figures of the validation, as in the report of an evaluation; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid: Option<Value>,
    /// The learning-rate multiplier of the next epoch.
    pub rate_scale: f32,
    /// The duration in seconds, including the validation and without the checkpoint.
    pub seconds: f64,
    /// Whether the weights after the epoch were the best so far.
    pub is_best: bool,
}

impl RunRecord {
    /// Returns the record of a run of this job that has not begun.
    pub(crate) fn new(job: &Job) -> Result<Self> {
        let settings = serde_json::to_value(job.portable()?).map_err(unwritable)?;
        Ok(Self {
            format: FORMAT,
            name: job.name.clone(),
            settings,
            losses: LossCurve::default(),
            epochs: Vec::new(),
            best_epoch: None,
            report: None,
        })
    }

    /// Reads the record of a run. `path` is the folder of the run. Returns `None` if the folder has
    /// no record, as that of an earlier version.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is larger than 64 MiB, or is not a record of
    /// the format of this binary.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let path = path.join(RECORD_FILE);
        let failed = Error::io("cannot read the record of the run", &path);
        let bytes = match std::fs::metadata(&path) {
            Ok(facts) if facts.len() > MOST_BYTES => {
                let problem = format!("it has {} bytes, and at most 64 MiB are read", facts.len());
                return Err(refused(&path, problem));
            }
            Ok(_) => std::fs::read(&path).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        Self::parse(&path, &bytes).map(Some)
    }

    /// Returns the record of a run. The record of a run of an earlier version is made out of its
    /// newest checkpoint: it has the settings and the best epoch, and no curve.
    ///
    /// # Errors
    /// Returns an error if the folder has neither a record nor a checkpoint, or if the file cannot
    /// be read.
    pub fn find(path: &Path) -> Result<Self> {
        if let Some(record) = Self::read(path)? {
            return Ok(record);
        }
        let manifest = Checkpoint::find(path)?.manifest;
        let best = manifest.progress.best;
        let name = manifest.job.get("name").and_then(toml::Value::as_str).unwrap_or_default();
        let epoch = best.map(|best| EpochRecord {
            epoch: best.epoch + 1,
            step: best.step,
            rows: 0,
            loss: None,
            regulariser: None,
            valid: best.valid_auc.map(|auc| serde_json::json!({ "auc": auc })),
            rate_scale: 1.0,
            seconds: 0.0,
            is_best: true,
        });
        Ok(Self {
            format: FORMAT,
            name: name.to_owned(),
            settings: serde_json::to_value(&manifest.job).map_err(unwritable)?,
            losses: LossCurve::default(),
            epochs: epoch.into_iter().collect(),
            best_epoch: best.map(|best| best.epoch + 1),
            report: None,
        })
    }

    /// Returns the best epoch, if an epoch has ended.
    pub fn best(&self) -> Option<&EpochRecord> {
        let best = self.best_epoch?;
        self.epochs.iter().find(|epoch| epoch.epoch == best)
    }

    /// Returns the figures of the test, if the run was tested.
    pub fn test(&self) -> Option<&Value> {
        self.report.as_ref()?.get("test").filter(|test| !test.is_null())
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| refused(path, format!("it is not JSON: {error}")))?;
        match value.get("format").and_then(Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            format => {
                let format = format.map_or("no number".to_owned(), |format| format.to_string());
                let problem = format!("it has the format {format}, and this binary reads {FORMAT}");
                return Err(refused(path, problem));
            }
        }
        serde_json::from_value(value)
            .map_err(|error| refused(path, format!("it is not a record: {error}")))
    }
}

/// The record of a run that is being trained, and its file.
pub(crate) struct Recorder {
    path: PathBuf,
    record: RunRecord,
}

impl Recorder {
    /// Opens the record of a run. With `resumes`, an existing record is continued. Also returns the
    /// reason if an existing record cannot be continued.
    pub(crate) fn open(folder: &Path, job: &Job, resumes: bool) -> Result<(Self, Option<String>)> {
        let mut record = RunRecord::new(job)?;
        let mut problem = None;
        match resumes.then(|| RunRecord::read(folder)) {
            Some(Ok(Some(before))) => {
                record.losses = before.losses;
                record.epochs = before.epochs;
                record.best_epoch = before.best_epoch;
            }
            Some(Err(error)) => problem = Some(format!("the record begins anew, because {error}")),
            Some(Ok(None)) | None => {}
        }
        Ok((Self { path: folder.join(RECORD_FILE), record }, problem))
    }

    /// Forgets what was recorded after a step and after the epochs before `epoch`, counted from 0.
    pub(crate) fn rewind(&mut self, step: u64, epoch: u64) {
        let record = &mut self.record;
        record.losses.rewind(step);
        record.epochs.retain(|recorded| recorded.epoch <= epoch && recorded.step <= step);
        let best = record.epochs.iter().rev().find(|recorded| recorded.is_best);
        record.best_epoch = best.map(|best| best.epoch);
        record.report = None;
    }

    /// Adds the mean loss of the rows of a batch.
    pub(crate) fn add_loss(&mut self, step: u64, rows: u64, loss: f64) {
        self.record.losses.add(step, rows, loss);
    }

    /// Adds an epoch and writes the record.
    pub(crate) fn add_epoch(
        &mut self,
        report: &EpochReport,
        (step, rows): (u64, u64),
        files: &Files,
    ) -> Result<()> {
        let finite = |value: f64| value.is_finite().then_some(value);
        let valid = report.valid.as_ref().map(value_of_report).transpose()?;
        self.record.epochs.push(EpochRecord {
            epoch: report.epoch + 1,
            step,
            rows,
            loss: finite(report.mean_loss),
            regulariser: finite(report.regulariser),
            valid,
            rate_scale: report.rate_scale,
            seconds: report.seconds,
            is_best: report.is_best,
        });
        if report.is_best {
            self.record.best_epoch = Some(report.epoch + 1);
        }
        self.save(files)
    }

    /// Adds the report of the run and writes the record.
    pub(crate) fn add_report(&mut self, report: &TrainReport, files: &Files) -> Result<()> {
        self.record.report = Some(serde_json::to_value(report).map_err(unwritable)?);
        self.save(files)
    }

    /// Returns the recorded epochs.
    pub(crate) fn epochs(&self) -> &[EpochRecord] {
        &self.record.epochs
    }

    fn save(&self, files: &Files) -> Result<()> {
        let mut bytes = serde_json::to_vec(&self.record).map_err(unwritable)?;
        bytes.push(b'\n');
        Ok(files.write_bytes(&self.path, &bytes)?)
    }
}

fn value_of_report(report: &EvalReport) -> Result<Value> {
    serde_json::to_value(report).map_err(unwritable)
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::Unsupported(format!(
        "the record of the run cannot be written as JSON ({error}); report it as a defect"
    ))
}

fn refused(path: &Path, problem: String) -> Error {
    Error::Refused(format!(
        "the file {} is refused as the record of a run: {problem}; remove the file, or train the \
         run again",
        path.display()
    ))
}

#[cfg(test)]
mod tests;
