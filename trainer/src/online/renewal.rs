//! The renewal of a checkpoint while the model does not change.
//!
//! A feed goes on without a batch: it consumes impressions that wait for their feedback, and
//! partitions become idle. The checkpoint of the model stays right then, and only the state of the
//! feed is newer. So a renewal is a file beside the checkpoint that names the newer state:
//! `<run>/stream/renewed-<step>`. There is at most one for each checkpoint, and it is replaced as a
//! whole. The state that the checkpoint named before is removed afterwards.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zillion_device::{DeviceError, Files};

use super::setup::stream_folder;
use super::snapshot::SnapshotLink;
use crate::checkpoint::{Best, Checkpoint, RunDir};
use crate::error::{Error, Result};

const PREFIX: &str = "renewed-";

/// The contents of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Renewal {
    /// The BLAKE3 of the manifest of the checkpoint. A checkpoint that was made anew at the same
    /// step is another one.
    checkpoint: String,
    /// The newest state of the feed.
    link: SnapshotLink,
}

/// Returns the newest state of the feed that belongs to a checkpoint of the run in `run`; `None` if
/// the run reads files.
///
/// # Errors
/// Returns an error if the file of the renewal cannot be read.
pub(crate) fn newest_link(run: &Path, checkpoint: &Checkpoint) -> Result<Option<SnapshotLink>> {
    let link = checkpoint.manifest.stream.clone();
    if link.is_none() {
        return Ok(None);
    }
    let path = path_of(run, checkpoint.manifest.step);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(link),
        Err(error) => {
            return Err(Error::io("cannot read the renewal of a checkpoint", &path)(error));
        }
    };
    let renewal: Renewal = serde_json::from_slice(&bytes).map_err(|error| Error::Checkpoint {
        path: path.clone(),
        problem: format!("the renewal of the checkpoint does not parse: {error}"),
    })?;
    Ok(if renewal.checkpoint == checkpoint.blake3() { Some(renewal.link) } else { link })
}

/// Makes `link` the newest state of the feed that belongs to a checkpoint. Returns the number of
/// bytes that were written.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn renew(
    files: &Files,
    run: &Path,
    checkpoint: &Checkpoint,
    link: &SnapshotLink,
) -> Result<u64> {
    let path = path_of(run, checkpoint.manifest.step);
    let renewal = Renewal { checkpoint: checkpoint.blake3().to_owned(), link: link.clone() };
    let bytes = serde_json::to_vec(&renewal)
        .map_err(|error| DeviceError::file("write", &path, std::io::Error::from(error)))?;
    files.write_bytes(&path, &bytes)?;
    Ok(bytes.len() as u64)
}

/// Removes the renewals of checkpoints that are not kept. `steps` are the kept ones.
///
/// # Errors
/// Returns an error if the folder cannot be listed, or a file cannot be removed.
pub(crate) fn retain_renewals(files: &Files, run: &Path, steps: &[u64]) -> Result<()> {
    let streams = stream_folder(run);
    let failed = Error::io("cannot list the states of the streams", &streams);
    for entry in std::fs::read_dir(&streams).map_err(&failed)? {
        let name = entry.map_err(&failed)?.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
        if step.is_some_and(|step: u64| !steps.contains(&step)) {
            files.remove_file(streams.join(name))?;
        }
    }
    Ok(())
}

/// Returns the steps of the checkpoints that are kept beside the newest ones: the best one, and the
/// newest one to which the gate can set the run back. `stream` is the present state of the feed.
///
/// # Errors
/// Returns an error if a checkpoint cannot be read.
pub(crate) fn pinned_steps(
    dir: &RunDir,
    best: Option<Best>,
    stream: Option<&SnapshotLink>,
) -> Result<Vec<u64>> {
    let mut pinned: Vec<u64> = best.map(|best| best.step).into_iter().collect();
    let Some(good) = stream.and_then(|link| link.known_good) else { return Ok(pinned) };
    for step in dir.steps()?.into_iter().rev() {
        let checkpoint = Checkpoint::open(dir.checkpoint_path(step)?)?;
        if checkpoint.manifest.stream.is_some_and(|link| link.batches <= good) {
            pinned.push(step);
            break;
        }
    }
    Ok(pinned)
}

fn path_of(run: &Path, step: u64) -> PathBuf {
    stream_folder(run).join(format!("{PREFIX}{step:012}"))
}
