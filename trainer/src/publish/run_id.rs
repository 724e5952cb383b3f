//! The name of a training in the versions that come from it.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use zillion_device::Files;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};

/// The name of the file in a run's folder.
const FILE: &str = "RUN";

/// A training, from its first step over all its resumptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunId(pub(crate) String);

impl RunId {
    /// Returns the run of a folder, and names it if it has no name yet.
    pub(crate) fn of(folder: &Path, files: &Files) -> Result<Self> {
        if let Some(id) = Self::find(folder)? {
            return Ok(id);
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&since.as_nanos().to_le_bytes());
        hasher.update(&std::process::id().to_le_bytes());
        hasher.update(folder.as_os_str().as_encoded_bytes());
        let id = hasher.finalize().to_hex().chars().take(16).collect();
        Self::inherit(folder, Self(id), files)
    }

    /// Returns the run of a folder that begins from another's checkpoint. If it has no name yet, it
    /// gets the other's, so that its versions are deltas on the other's.
    pub(crate) fn inherit(folder: &Path, other: Self, files: &Files) -> Result<Self> {
        if let Some(id) = Self::find(folder)? {
            return Ok(id);
        }
        files.write_bytes(folder.join(FILE), other.0.as_bytes())?;
        Ok(other)
    }

    /// Returns the run that a checkpoint comes from.
    pub(crate) fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let folder = checkpoint.path().parent().and_then(Path::parent);
        if let Some(id) = folder.map(Self::find).transpose()?.flatten() {
            return Ok(id);
        }
        // A checkpoint that was copied elsewhere is named by its contents.
        let manifest = &checkpoint.manifest;
        let digest = format!("{}-{}", manifest.dense.blake3, manifest.step);
        Ok(Self(blake3::hash(digest.as_bytes()).to_hex().chars().take(16).collect()))
    }

    /// Returns the run of a folder, if it has a name.
    fn find(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        match std::fs::read_to_string(&path) {
            Ok(id) => Ok(Some(Self(id.trim().to_owned()))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => {
                Err(Error::Io { action: "cannot read the name of the run", path, source })
            }
        }
    }
}
