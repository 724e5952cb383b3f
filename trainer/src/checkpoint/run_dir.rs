//! The folder of a run, which holds its checkpoints.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use zillion_device::Files;

use super::chain::read_parent;
use super::{Best, Checkpoint};
use crate::error::{Error, Result};

const CHECKPOINTS: &str = "checkpoints";
const PREFIX: &str = "step-";

/// The folder of a run, which may not exist yet.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes a handle to a run's folder without reading or creating anything.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder of the checkpoint of a step, which may not exist yet.
    pub fn checkpoint_path(&self, step: u64) -> PathBuf {
        self.checkpoints().join(format!("{PREFIX}{step:012}"))
    }

    /// Creates the folder of checkpoints durably, and removes half-written files of a killed run.
    pub(crate) fn prepare(&self, files: &Files) -> Result<()> {
        let checkpoints = self.checkpoints();
        // The names of new folders must be durable too. Otherwise, a power failure could remove the
        // checkpoints.
        let is_new = |folder: &&Path| !folder.exists();
        let made: Vec<&Path> = checkpoints.ancestors().take_while(is_new).collect();
        files.create_dir(&checkpoints)?;
        for folder in made {
            let parent = folder.parent().filter(|p| !p.as_os_str().is_empty());
            files.sync_dir(parent.unwrap_or(Path::new(".")))?;
        }
        files.sweep(&checkpoints)?;
        Ok(())
    }

    /// Returns the steps of the existing checkpoints in ascending order.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let path = self.checkpoints();
        let read = Error::io("cannot list the checkpoints", &path);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(read(e)),
        };
        let mut steps = Vec::new();
        for entry in entries {
            let name = entry.map_err(&read)?.file_name();
            steps.extend(name.to_str().and_then(step_of));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// Opens the newest checkpoint, if there is one.
    pub fn newest(&self) -> Result<Option<Checkpoint>> {
        match self.steps()?.last() {
            Some(&step) => Checkpoint::open(self.checkpoint_path(step)).map(Some),
            None => Ok(None),
        }
    }

    /// Opens the checkpoint of the best epoch if an epoch was validated, else the newest
    /// checkpoint.
    pub fn best(&self) -> Result<Checkpoint> {
        let newest =
            self.newest()?.ok_or_else(|| Error::NoCheckpoint { path: self.path.clone() })?;
        match newest.manifest.progress.best {
            Some(best) if best.step != newest.manifest.step => {
                Checkpoint::open(self.checkpoint_path(best.step))
            }
            _ => Ok(newest),
        }
    }

    /// Removes old checkpoints. Keeps the newest `keep` checkpoints, the best one, and the parents
    /// of these checkpoints.
    pub(crate) fn retain(&self, keep: usize, best: Option<Best>, files: &Files) -> Result<()> {
        let steps = self.steps()?;
        let (old, newest) = steps.split_at(steps.len().saturating_sub(keep));
        if old.is_empty() {
            return Ok(());
        }
        let mut needed: BTreeSet<u64> = newest.iter().copied().collect();
        needed.extend(best.map(|best| best.step));
        for mut step in needed.clone() {
            while let Some(parent) = self.parent_of(step)?.filter(|&parent| parent < step) {
                needed.insert(parent);
                step = parent;
            }
        }
        // The newest checkpoint is removed first. So a run that is killed here leaves no checkpoint
        // without its parent.
        for &step in old.iter().rev().filter(|step| !needed.contains(step)) {
            files.remove_dir(self.checkpoint_path(step))?;
        }
        Ok(())
    }

    /// Removes the checkpoints of the steps after `step`, which must have a checkpoint.
    pub(crate) fn remove_after(&self, step: u64, files: &Files) -> Result<()> {
        let steps = self.steps()?;
        if !steps.contains(&step) {
            return Err(Error::NoCheckpoint { path: self.checkpoint_path(step) });
        }
        // The newest checkpoint is removed first, because it may stand on earlier ones.
        for &later in steps.iter().rev().filter(|&&later| later > step) {
            files.remove_dir(self.checkpoint_path(later))?;
        }
        Ok(())
    }

    /// Returns the step of the parent of a checkpoint. A checkpoint that cannot be read any more
    /// has no parent.
    fn parent_of(&self, step: u64) -> Result<Option<u64>> {
        match read_parent(&self.checkpoint_path(step)) {
            Ok(parent) => Ok(parent.and_then(|parent| step_of(&parent.folder))),
            Err(Error::Checkpoint { .. }) => Ok(None),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(other) => Err(other),
        }
    }

    fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }
}

/// Returns the step in the name of a checkpoint's folder, or `None` if the folder is not the folder
/// of a checkpoint.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}
