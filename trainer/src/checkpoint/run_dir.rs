//! The folder of a run, which holds its checkpoints.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use zillion_device::Files;

use super::Checkpoint;
use super::chain::read_parent;
use crate::error::{Error, Result};

/// The name of the folder with the checkpoints.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
const PREFIX: &str = "step-";
/// The word between the step and the cut in the name of a folder.
const CUT: &str = "-cut-";

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

    /// Returns the folder of the checkpoint of a step, which may not exist yet. If a step has
    /// several checkpoints with cuts, the last one is returned.
    pub fn checkpoint_path(&self, step: u64) -> Result<PathBuf> {
        let of_step = self.folders()?.into_iter().rev().find(|folder| folder.step == step);
        let name = of_step.map_or_else(|| folder_name(step, None), |folder| folder.name);
        Ok(self.checkpoints().join(name))
    }

    /// Returns the folder of a new checkpoint. With a cut, several checkpoints of the same step
    /// have different folders.
    pub(crate) fn new_path(&self, step: u64, cut: Option<&str>) -> PathBuf {
        self.checkpoints().join(folder_name(step, cut))
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
        let mut steps: Vec<u64> = self.folders()?.into_iter().map(|folder| folder.step).collect();
        steps.dedup();
        Ok(steps)
    }

    /// Returns the folders of the existing checkpoints, in the order of their steps and cuts.
    pub(super) fn folders(&self) -> Result<Vec<CheckpointFolder>> {
        let path = self.checkpoints();
        let read = Error::io("cannot list the checkpoints", &path);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(read(e)),
        };
        let mut folders = Vec::new();
        for entry in entries {
            let name = entry.map_err(&read)?.file_name();
            folders.extend(name.to_str().and_then(CheckpointFolder::parse));
        }
        folders.sort_unstable();
        Ok(folders)
    }

    /// Opens the newest checkpoint, if there is one.
    pub fn newest(&self) -> Result<Option<Checkpoint>> {
        match self.folders()?.last() {
            Some(folder) => Checkpoint::open(self.checkpoints().join(&folder.name)).map(Some),
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
                Checkpoint::open(self.checkpoint_path(best.step)?)
            }
            _ => Ok(newest),
        }
    }

    /// Removes old checkpoints. Keeps the newest `keep` checkpoints, those of the steps in
    /// `pinned`, and the parents of these checkpoints.
    pub(crate) fn retain(&self, keep: usize, pinned: &[u64], files: &Files) -> Result<()> {
        let folders = self.folders()?;
        let parent = |folder: &CheckpointFolder| self.parent_of(folder);
        let needed = needed(&folders, keep, pinned, parent)?;
        // The newest checkpoint is removed first. So a run that is killed here leaves no checkpoint
        // without its parent.
        for folder in folders.iter().rev().filter(|folder| !needed.contains(*folder)) {
            files.remove_dir(self.checkpoints().join(&folder.name))?;
        }
        Ok(())
    }

    /// Removes the checkpoints of the steps after `step`, which must have a checkpoint.
    pub(crate) fn remove_after(&self, step: u64, files: &Files) -> Result<()> {
        let folders = self.folders()?;
        if !folders.iter().any(|folder| folder.step == step) {
            return Err(Error::NoCheckpoint { path: self.new_path(step, None) });
        }
        // The newest checkpoint is removed first, because it may stand on earlier ones.
        for later in folders.iter().rev().filter(|folder| folder.step > step) {
            files.remove_dir(self.checkpoints().join(&later.name))?;
        }
        Ok(())
    }

    /// Removes all checkpoints, the newest one first.
    pub(crate) fn remove_all(&self, files: &Files) -> Result<()> {
        // The newest checkpoint is removed first, because it may stand on earlier ones.
        for folder in self.folders()?.iter().rev() {
            files.remove_dir(self.checkpoints().join(&folder.name))?;
        }
        Ok(())
    }

    /// Returns the folder of the parent of a checkpoint. A checkpoint that cannot be read any more
    /// has no parent.
    fn parent_of(&self, folder: &CheckpointFolder) -> Result<Option<CheckpointFolder>> {
        match read_parent(&self.checkpoints().join(&folder.name)) {
            Ok(parent) => Ok(parent.and_then(|parent| CheckpointFolder::parse(&parent.folder))),
            Err(Error::Checkpoint { .. }) => Ok(None),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(other) => Err(other),
        }
    }

    fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }
}

/// The name of a checkpoint's folder, with the step and the cut in it. Folders are ordered by step,
/// and then by cut.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CheckpointFolder {
    pub(super) step: u64,
    pub(super) name: String,
}

impl CheckpointFolder {
    /// Reads the name of a folder. Returns `None` if the folder is not the folder of a checkpoint.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(PREFIX)?;
        let step = rest.split_once(CUT).map_or(rest, |(step, _)| step).parse().ok()?;
        Some(Self { step, name: name.to_owned() })
    }

    /// Returns the cut in the name, if the checkpoint lies in a bucket.
    pub(super) fn cut(&self) -> Option<&str> {
        self.name.split_once(CUT).map(|(_, cut)| cut)
    }
}

/// Returns the name of the folder of a checkpoint.
fn folder_name(step: u64, cut: Option<&str>) -> String {
    match cut {
        None => format!("{PREFIX}{step:012}"),
        Some(cut) => format!("{PREFIX}{step:012}{CUT}{cut}"),
    }
}

/// Returns the checkpoints that are kept: the newest `keep` checkpoints, those of the steps in
/// `pinned`, and the parents of these checkpoints. `folders` are in ascending order.
pub(super) fn needed(
    folders: &[CheckpointFolder],
    keep: usize,
    pinned: &[u64],
    parent: impl Fn(&CheckpointFolder) -> Result<Option<CheckpointFolder>>,
) -> Result<BTreeSet<CheckpointFolder>> {
    let (_, newest) = folders.split_at(folders.len().saturating_sub(keep));
    let mut needed: BTreeSet<CheckpointFolder> = newest.iter().cloned().collect();
    for step in pinned {
        needed.extend(folders.iter().rev().find(|folder| folder.step == *step).cloned());
    }
    if needed.len() == folders.len() {
        return Ok(needed);
    }
    for mut folder in needed.clone() {
        while let Some(parent) = parent(&folder)?.filter(|parent| parent.step < folder.step) {
            needed.insert(parent.clone());
            folder = parent;
        }
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_ordered_by_step_and_cut() {
        let parse = |name: &str| CheckpointFolder::parse(name);
        let plain = parse(&folder_name(7, None)).unwrap();
        let first = parse(&folder_name(7, Some("0000000002-00000001"))).unwrap();
        let second = parse(&folder_name(7, Some("0000000010-00000001"))).unwrap();
        let later = parse(&folder_name(8, Some("0000000001-00000001"))).unwrap();
        assert!(plain < first && first < second && second < later);
        assert_eq!((plain.cut(), later.cut()), (None, Some("0000000001-00000001")));
        for name in ["step-", "step-x", "other", "step-1-cut", ".step-000000000001.tmp"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn the_newest_and_the_pinned_are_kept_with_their_parents() {
        let folders: Vec<_> =
            (1..=6).map(|step| CheckpointFolder { step, name: folder_name(step, None) }).collect();
        let parent = |folder: &CheckpointFolder| Ok((folder.step == 6).then(|| folders[3].clone()));
        let kept = needed(&folders, 1, &[2, 9], parent).unwrap();
        assert_eq!(kept.iter().map(|folder| folder.step).collect::<Vec<_>>(), [2, 4, 6]);
    }
}
