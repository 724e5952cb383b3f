//! A folder that becomes visible together with all its files. It is written under a hidden name,
//! synced, and renamed.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Files, TEMPORARY, hidden_beside, parent_of};
use crate::error::DeviceError;

/// A folder that is being written under a hidden name. The methods add files to it. Other code may
/// add files below [`Stage::path`] if it syncs them. [`Stage::commit`] gives the folder its final
/// name. If the value is dropped before the commit, the folder is removed.
#[derive(Debug)]
pub struct Stage {
    files: Files,
    hidden: PathBuf,
    target: PathBuf,
    committed: bool,
}

impl Stage {
    pub(super) fn begin(files: Files, target: &Path) -> Result<Self, DeviceError> {
        let hidden = hidden_beside(target, TEMPORARY)?;
        if fs::symlink_metadata(&hidden).is_ok() {
            files.delete(&hidden)?;
        }
        files.create_dir(&hidden)?;
        Ok(Self { files, hidden, target: target.to_path_buf(), committed: false })
    }

    /// Returns the path of the hidden folder, where files are written before the commit.
    pub fn path(&self) -> &Path {
        &self.hidden
    }

    /// Returns the path of the folder after the commit.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Creates a folder inside the stage.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be created.
    pub fn create_dir(&self, name: impl AsRef<Path>) -> Result<PathBuf, DeviceError> {
        let path = self.hidden.join(name);
        self.files.create_dir(&path)?;
        Ok(path)
    }

    /// Writes and syncs a file inside the stage. Returns its size in bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written or `fill` fails.
    pub fn write_file(
        &self,
        name: impl AsRef<Path>,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<u64, DeviceError> {
        self.files.create_file(self.hidden.join(name), fill)
    }

    /// Writes the given bytes as [`Stage::write_file`] does.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Stage::write_file`].
    pub fn write_bytes(&self, name: impl AsRef<Path>, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write_file(name, |file| file.write_all(bytes)).map(drop)
    }

    /// Syncs the folder and all folders in it, and renames the folder to its target. An existing
    /// target must be empty.
    ///
    /// # Errors
    ///
    /// Returns an error if a sync or the rename fails, for example because the target exists and is
    /// not empty. Then the target is unchanged.
    pub fn commit(mut self) -> Result<(), DeviceError> {
        self.sync_below(&self.hidden)?;
        self.files.rename(&self.hidden, &self.target)?;
        self.committed = true;
        self.files.sync_dir(parent_of(&self.target))
    }

    /// Syncs the folders below `folder`, then the folder itself.
    fn sync_below(&self, folder: &Path) -> Result<(), DeviceError> {
        let read = |e| DeviceError::file("list the folder", folder, e);
        let mut inner = Vec::new();
        for entry in fs::read_dir(folder).map_err(read)? {
            let entry = entry.map_err(read)?;
            if entry.file_type().map_err(read)?.is_dir() {
                inner.push(entry.path());
            }
        }
        // The order is fixed, so that a failpoint's number means the same operation every time.
        inner.sort();
        for folder in inner {
            self.sync_below(&folder)?;
        }
        self.files.sync_dir(folder)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.committed {
            // Best effort: a leftover is removed by the next stage of this name or by a sweep.
            let _ = fs::remove_dir_all(&self.hidden);
        }
    }
}
