//! The id of a run, which its versions name as their origin.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use zillion_device::Files;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};

/// The name of the file with the id in a run's folder.
const FILE: &str = "RUN";

/// The id of a run, which stays the same when the run is resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunId(pub(crate) String);

impl RunId {
    /// Returns the id of the run in a folder. If the run has no id yet, makes one and writes it.
    pub(crate) fn of(folder: &Path, files: &Files) -> Result<Self> {
        if let Some(id) = Self::find(folder)? {
            return Ok(id);
        }
        Self::inherit(folder, Self::make(folder.as_os_str().as_encoded_bytes()), files)
    }

    /// Makes a new id. `place` tells apart runs that begin at the same time.
    pub(super) fn make(place: &[u8]) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&since.as_nanos().to_le_bytes());
        hasher.update(&std::process::id().to_le_bytes());
        hasher.update(place);
        Self(hasher.finalize().to_hex().chars().take(16).collect())
    }

    /// Returns the id of a run that begins from another run's checkpoint. If the folder of the run
    /// has no id yet, the run gets the id `other`. Its versions can then be deltas on versions of
    /// the other run.
    pub(crate) fn inherit(folder: &Path, other: Self, files: &Files) -> Result<Self> {
        if let Some(id) = Self::find(folder)? {
            return Ok(id);
        }
        files.write_bytes(folder.join(FILE), other.0.as_bytes())?;
        Ok(other)
    }

    /// Returns whether the folder of a run has an id.
    pub(crate) fn exists(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    /// Removes the id of the run in a folder, if it has one.
    pub(crate) fn remove(folder: &Path, files: &Files) -> Result<()> {
        match Self::exists(folder) {
            true => Ok(files.remove_file(folder.join(FILE))?),
            false => Ok(()),
        }
    }

    /// Returns the id of the run that wrote a checkpoint.
    pub(crate) fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let folder = checkpoint.path().parent().and_then(Path::parent);
        if let Some(id) = folder.map(Self::find).transpose()?.flatten() {
            return Ok(id);
        }
        // The id of a checkpoint that was copied elsewhere is made from its contents.
        let manifest = &checkpoint.manifest;
        let digest = format!("{}-{}", manifest.dense.blake3, manifest.step);
        Ok(Self(blake3::hash(digest.as_bytes()).to_hex().chars().take(16).collect()))
    }

    /// Reads the id of the run in a folder. Returns `None` if the run has no id yet.
    fn find(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        match std::fs::read_to_string(&path) {
            Ok(id) => Ok(Some(Self(id.trim().to_owned()))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("cannot read the id of the run", &path)(error)),
        }
    }
}
