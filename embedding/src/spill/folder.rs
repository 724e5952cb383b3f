//! The folders of scratch files. Each folder belongs to one process.
//!
//! Every owner has a subfolder `spill-<n>` of the given folder, and holds a lock on the file `LOCK`
//! in it. The operating system releases the lock when the process ends, even if the process is
//! killed. So a subfolder whose lock is free has no owner, and the process that finds it removes
//! the scratch files in it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zillion_device::{DeviceError, Files};

use crate::error::Result;

const PREFIX: &str = "spill-";
const LOCK: &str = "LOCK";
const SUFFIX: &str = ".log";

/// A locked folder of scratch files. When this value is dropped, the folder is removed, unless it
/// contains other files.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// The open file whose lock marks the folder as owned.
    _lock: File,
}

impl Folder {
    pub(crate) fn open(files: &Files, parent: &Path) -> Result<Self> {
        files.create_dir(parent)?;
        // The files of ended processes are removed from every subfolder, and not only from the one
        // that this process will use.
        for path in list(parent)? {
            let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX));
            let is_ours = number.is_some_and(|number| number.parse::<u32>().is_ok());
            if is_ours && let Some(lock) = lock(&path)? {
                clear(&path)?;
                drop(lock);
            }
        }
        let mut number = 0u32;
        loop {
            let path = parent.join(format!("{PREFIX}{number}"));
            files.create_dir(&path)?;
            if let Some(lock) = lock(&path)? {
                clear(&path)?;
                return Ok(Self { path, _lock: lock });
            }
            number += 1;
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns an unused path for the next file of a table.
    pub(crate) fn next(&self, table: &str) -> PathBuf {
        let name = |n: u32| self.path.join(format!("{table}-{n}{SUFFIX}"));
        (0..).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(u32::MAX))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Another process may be opening the lock at this moment; it sees that the file has lost
        // its name.
        let _ = fs::remove_file(self.path.join(LOCK));
        let _ = fs::remove_dir(&self.path);
    }
}

/// Tries to lock a folder. Returns `None` if another owner has the lock.
fn lock(folder: &Path) -> Result<Option<File>> {
    let path = folder.join(LOCK);
    let open = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = match open {
        Ok(file) => file,
        // The owner of the folder has just removed it.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(DeviceError::file("open", &path, e).into()),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(DeviceError::file("lock", &path, e).into()),
    }
    let inode = |metadata: std::io::Result<fs::Metadata>| metadata.ok().map(|m| (m.dev(), m.ino()));
    let held = inode(file.metadata());
    Ok((held.is_some() && held == inode(fs::metadata(&path))).then_some(file))
}

/// Returns the paths of the entries of a folder.
fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| DeviceError::file("list the folder", folder, e);
    let entries = fs::read_dir(folder).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

/// Removes the scratch files of a folder.
fn clear(folder: &Path) -> Result<()> {
    for path in list(folder)? {
        if path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.ends_with(SUFFIX)) {
            fs::remove_file(&path).map_err(|e| DeviceError::file("remove", &path, e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_are_left_alone_and_what_the_dead_left_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let files = Files::new();
        let first = Folder::open(&files, parent.path()).unwrap();
        fs::write(first.next("ids"), b"x").unwrap();
        assert!(first.next("ids").ends_with("ids-1.log"));
        let second = Folder::open(&files, parent.path()).unwrap();
        assert_ne!(first.path(), second.path());
        assert!(first.path().join("ids-0.log").exists());

        // This is the folder of a killed process: its lock is free and its files are there.
        let dead = parent.path().join("spill-7");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(LOCK), b"").unwrap();
        fs::write(dead.join("ids-0.log"), b"x").unwrap();
        fs::write(dead.join("notes.txt"), b"not ours").unwrap();
        let foreign = parent.path().join("spill-of-water");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("a.log"), b"x").unwrap();
        let path = first.path().to_owned();
        drop(first);
        assert!(path.join("ids-0.log").exists(), "whoever has files there removes them");
        let third = Folder::open(&files, parent.path()).unwrap();
        assert_eq!(third.path(), path);
        assert!(!path.join("ids-0.log").exists());
        assert!(!dead.join("ids-0.log").exists() && dead.join("notes.txt").exists());
        assert!(foreign.join("a.log").exists());
        drop(third);
        assert!(!path.exists());
    }
}
