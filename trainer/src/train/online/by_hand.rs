//! Rewinds by hand: the plan, which shows the consequences, and the request that a run follows.
//!
//! An operator knows a good version. The plan finds out which batches came after it, and from which
//! checkpoint the run would go on. A run that is stopped is rewound at once. A live run finds the
//! request in its folder and acts on it as on a verdict of the gate. The request is removed when
//! the decision to leave the batches out is in the log.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use zillion_device::{DeviceError, Files};
use zillion_registry::{Error as RegistryError, Model, Registry, VersionId};
use zillion_stream::{Decision, DecisionLog, first_decision, read_decisions};

use super::super::Run;
use super::skip::{log_of, read_skips, remove_bad_checkpoints};
use super::way_back::{WayBack, find_way_back};
use crate::checkpoint::{Checkpoint, RunDir};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::online::{Trip, lock_run, newest_link, stream_folder};

/// The name of the file with a request to rewind, in the folder `stream` of a run.
pub const REWIND_FILE: &str = "REWIND";

/// A request to rewind a run to a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewindRequest {
    /// The number of the version to go back to.
    pub version: u64,
    /// The number of the first batch that is left out.
    pub from: u64,
    /// The reason, which is written to the log of decisions and to the logs of pointers. It must
    /// differ from the reasons of earlier requests, so that no request is followed twice.
    pub reason: String,
}

/// The consequences of a rewind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RewindPlan {
    /// The number of the first batch that is left out.
    pub from: u64,
    /// The number of the last batch of the log, which is left out too.
    pub last: u64,
    /// The number of batches that are left out now, and were not before.
    pub batches: u64,
    /// The number of their rows.
    pub rows: u64,
    /// The number of batches in the checkpoint from which the run goes on; 0: it begins anew.
    pub checkpoint_batches: u64,
    /// The number of batches that are repeated from this checkpoint on.
    pub repeated: u64,
    /// Whether a process runs the training now.
    pub is_live: bool,
}

/// Returns the consequences of a rewind of the run of a job to its state after `step` steps.
/// Nothing changes.
///
/// # Errors
/// Returns an error if the log of the run cannot be read, if it has no batch after this step, or if
/// the way back is lost: no kept checkpoint is early enough, or messages were removed.
pub fn plan_rewind(job: &Job, step: u64) -> Result<RewindPlan> {
    let run = &*job.output();
    let (dir, log) = (RunDir::new(run.to_owned()), log_of(run));
    let begin = first_decision(&log)?;
    let mut known = if begin == 0 { Some((0, 0, 0)) } else { None };
    for checkpoint in dir.steps()? {
        let checkpoint = Checkpoint::open(dir.checkpoint_path(checkpoint)?)?;
        let at = checkpoint.manifest.step;
        if let Some(link) = newest_link(run, &checkpoint)?.filter(|_| at <= step) {
            known = known.max(Some((at, link.batches, link.next_decision)));
        }
    }
    let Some((mut steps, mut batches, next)) = known else {
        return Err(refuse_way(
            "no kept checkpoint is early enough, and the log does not go back \
                               to its beginning",
        ));
    };
    let skips = read_skips(&log)?;
    let is_skipped = |number: u64, batch: u64| {
        skips.iter().any(|&(skip, from, to)| number < skip && (from..to).contains(&batch))
    };
    let (mut last, mut left_out) = (0, (0, 0));
    for entry in read_decisions(&log, next)? {
        let (number, Decision::Cut { batch, rows, .. }) = entry? else { continue };
        last = batch;
        if is_skipped(number, batch) {
            continue;
        }
        if steps < step {
            (steps, batches) = (steps + 1, batch);
        } else {
            left_out = (left_out.0 + 1, left_out.1 + rows);
        }
    }
    if steps < step || left_out.0 == 0 {
        return Err(Error::Refused(format!(
            "the log of {} has no batch after step {step}, so there is nothing to rewind; choose \
             an earlier version",
            run.display()
        )));
    }
    let checkpoint_batches = match find_way_back(job, &dir, batches + 1)? {
        WayBack::Checkpoint { batches, .. } => batches,
        WayBack::Beginning => 0,
        WayBack::Lost(problem) => return Err(refuse_way(&problem)),
    };
    Ok(RewindPlan {
        from: batches + 1,
        last,
        batches: left_out.0,
        rows: left_out.1,
        checkpoint_batches,
        repeated: batches.saturating_sub(checkpoint_batches),
        is_live: is_live(&log)?,
    })
}

/// Returns the versions of the same training run that came after a version, in ascending order.
///
/// # Errors
/// Returns an error if a manifest cannot be read.
pub fn versions_after(model: &Model, version: VersionId) -> Result<Vec<VersionId>> {
    let run = model.version(version)?.origin.run;
    let (mut after, mut end) = (Vec::new(), None);
    loop {
        let page = model.page(end, 100)?;
        let newer: Vec<VersionId> = page.iter().copied().filter(|v| *v > version).collect();
        let is_last = newer.len() < page.len() || page.is_empty();
        end = newer.last().copied();
        for number in newer {
            if model.version(number)?.origin.run == run {
                after.push(number);
            }
        }
        if is_last {
            after.reverse();
            return Ok(after);
        }
    }
}

/// Puts versions into quarantine, apart from those that are there. A version that builds on one in
/// quarantine is there too, and a base builds on none. Versions that do not exist any more are
/// passed over, because a collection may have removed them. Returns the versions that this call has
/// put there.
///
/// # Errors
/// Returns an error if a version cannot be read or a pointer cannot be moved.
pub fn quarantine_versions(
    model: &Model,
    versions: &[VersionId],
    by: &str,
    reason: &str,
) -> Result<Vec<VersionId>> {
    let mut roots = Vec::new();
    let mut quarantined = model.quarantined()?;
    for &version in versions {
        let found = quarantined.find(model, version);
        let placed = found.and_then(|root| match root {
            Some(_) => Ok(false),
            None => model.quarantine(version, by, reason).map(|_| true),
        });
        match placed {
            Ok(true) => {}
            Ok(false) => continue,
            Err(RegistryError::NoVersion { version: missing, .. }) if missing == version => {
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        roots.push(version);
        quarantined = model.quarantined()?;
    }
    Ok(roots)
}

/// Rewinds a run that is stopped: the log leaves the batches out, and the checkpoints that contain
/// one of them are removed. The versions must be in quarantine already.
///
/// # Errors
/// Returns an error if a process runs the training, or if a file cannot be written.
pub fn rewind_stopped(job: &Job, files: &Files, request: &RewindRequest) -> Result<()> {
    let dir = RunDir::new(job.output());
    let lock = lock_run(dir.path(), files)?;
    if let WayBack::Lost(problem) = find_way_back(job, &dir, request.from)? {
        return Err(refuse_way(&problem));
    }
    super::skip::leave_out(&lock, files, request.from, &request.reason)?;
    remove_bad_checkpoints(job, &dir, files)
}

/// Makes the error of a rewind whose way back is lost.
fn refuse_way(problem: &str) -> Error {
    Error::Refused(format!(
        "the run cannot go back so far: {problem}; restore the messages if they were removed, \
         choose a later version, or begin from the good version in another folder \
         (`train.warm_start`, `run.output`), and keep more checkpoints in future (`train.keep`)"
    ))
}

/// Returns whether the log of a run has the decision that a request asks for.
///
/// # Errors
/// Returns an error if the log cannot be read.
pub fn has_rewound(run: &Path, request: &RewindRequest) -> Result<bool> {
    let log = log_of(run);
    for entry in read_decisions(&log, first_decision(&log)?)? {
        if let (_, Decision::Skip { from, reason, .. }) = entry?
            && (from, &reason) == (request.from, &request.reason)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Asks a live run to rewind. The run removes the file when it has acted.
///
/// # Errors
/// Returns an error if the file cannot be written, or if an earlier request is there.
pub fn request_rewind(run: &Path, files: &Files, request: &RewindRequest) -> Result<()> {
    let path = stream_folder(run).join(REWIND_FILE);
    if path.exists() {
        return Err(Error::Refused(format!(
            "`{}` is an earlier request that the run has not followed yet; wait, or remove the \
             file",
            path.display()
        )));
    }
    let bytes = serde_json::to_vec(request)
        .map_err(|error| DeviceError::file("write", &path, std::io::Error::from(error)))?;
    Ok(files.write_bytes(&path, &bytes)?)
}

/// Returns whether a process writes to a log.
fn is_live(log: &Path) -> Result<bool> {
    match DecisionLog::is_in_use(log) {
        Ok(is_in_use) => Ok(is_in_use),
        Err(error) => Err(error.into()),
    }
}

impl Run {
    /// Returns what a rewind leaves out, if an operator has asked for one.
    pub(super) fn find_request(&self) -> Result<Option<Trip>> {
        let path = stream_folder(self.output.dir.path()).join(REWIND_FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("cannot read the request to rewind", &path)(error)),
        };
        let request: RewindRequest =
            serde_json::from_slice(&bytes).map_err(|error| Error::Checkpoint {
                path: path.clone(),
                problem: format!("the request to rewind does not parse: {error}"),
            })?;
        // A run that was killed after the decision finds the request again.
        if has_rewound(self.output.dir.path(), &request)? {
            self.options.files.remove_file(&path)?;
            return Ok(None);
        }
        if let WayBack::Lost(problem) = find_way_back(&self.job, &self.output.dir, request.from)? {
            tracing::warn!("a request to rewind is refused: {}", refuse_way(&problem));
            self.options.files.remove_file(&path)?;
            return Ok(None);
        }
        let mut versions = Vec::new();
        if let Some(model) = self.open_model()? {
            versions = versions_after(&model, VersionId(request.version))?;
        }
        let versions = versions.into_iter().map(|version| version.0).collect();
        Ok(Some(Trip { from: request.from, versions, reason: request.reason }))
    }

    /// Removes a request that was followed.
    pub(super) fn forget_request(&self) -> Result<()> {
        let path = stream_folder(self.output.dir.path()).join(REWIND_FILE);
        match path.exists() {
            true => Ok(self.options.files.remove_file(&path)?),
            false => Ok(()),
        }
    }

    /// Opens the model in which the run publishes; `None` if it publishes nothing.
    pub(super) fn open_model(&self) -> Result<Option<Model>> {
        let Some(publish) = &self.job.publish else { return Ok(None) };
        let files = self.options.files.scratch();
        let clock = std::sync::Arc::new(zillion_device::SystemClock::new());
        let registry = Registry::open(&publish.registry, files, clock)?;
        Ok(Some(registry.model(publish.model.as_deref().unwrap_or(&self.job.name))?))
    }
}
