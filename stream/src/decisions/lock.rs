//! The lock of a log: one process writes to a log at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zillion_device::{DeviceError, Files};

use super::segment::list;
use crate::error::{Error, Result};

const LOCK: &str = "LOCK";

/// The number of times, a millisecond apart, that a writer tries again to take the lock.
const MOST_LOOKS: u32 = 200;

/// The right of this process to write to a log. A process that changes other files beside the log
/// takes the lock before its first change, and keeps it while the log is opened and closed.
#[derive(Clone, Debug)]
pub struct LogLock(Arc<Lock>);

impl LogLock {
    /// Takes the lock of the log in `folder`. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// Returns [`Error::InUse`] if another process has the lock, or an error if the folder or the
    /// file of the lock cannot be created.
    pub fn take(files: &Files, folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        if list(folder)?.is_empty() {
            create_folder(files, folder)?;
        }
        Ok(Self(Arc::new(Lock::take(folder)?)))
    }

    /// Returns the folder of the log.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Begins to write to the log, which only one part of the process may do.
    pub(super) fn begin_writing(&self) -> Result<Writing> {
        match self.0.is_writing.swap(true, Ordering::Acquire) {
            true => Err(Error::InUse(self.0.folder.clone())),
            false => Ok(Writing(self.clone())),
        }
    }
}

/// The right of one open log to write.
#[derive(Debug)]
pub(super) struct Writing(LogLock);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.0.is_writing.store(false, Ordering::Release);
    }
}

/// A file with a lock of the system, which ends with the process.
#[derive(Debug)]
struct Lock {
    folder: PathBuf,
    file: File,
    /// Whether this process has the log open.
    is_writing: AtomicBool,
}

impl Lock {
    fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(LOCK);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|e| DeviceError::file("open", &path, e))?;
        let mut looks = 0;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // A look at the lock takes a share of it for a moment.
                Err(TryLockError::WouldBlock) if looks < MOST_LOOKS => looks += 1,
                Err(TryLockError::WouldBlock) => return Err(Error::InUse(folder.to_owned())),
                Err(TryLockError::Error(e)) => {
                    return Err(DeviceError::file("lock", &path, e).into());
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { folder: folder.to_owned(), file, is_writing: AtomicBool::new(false) })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that was started at this moment may still have a copy of the open file, and
        // would keep the lock. The end of the process releases a lock that this call does not.
        let _ = self.file.unlock();
    }
}

/// Returns whether a process has the lock of a log. The look takes a share of a free lock for a
/// moment, so that several looks do not take each other for a writer.
pub(super) fn is_taken(folder: &Path) -> Result<bool> {
    let path = folder.join(LOCK);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(DeviceError::file("open", &path, error).into()),
    };
    match file.try_lock_shared() {
        Ok(()) => {
            // The end of the file's life releases a share that this call does not.
            let _ = file.unlock();
            Ok(false)
        }
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(e)) => Err(DeviceError::file("lock", &path, e).into()),
    }
}

/// Creates the folder of a new log so that its name survives a loss of power.
///
/// The name of each folder is synced before the next one is created. So a process that was killed
/// here leaves at most one name that is not synced: that of the last folder that exists.
fn create_folder(files: &Files, folder: &Path) -> Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    let existing = missing.last().map_or(Some(folder), |path| path.parent());
    if let Some(existing) = existing {
        sync_name(files, existing)?;
    }
    for path in missing.into_iter().rev() {
        files.create_dir(path)?;
        sync_name(files, path)?;
    }
    Ok(())
}

/// Syncs the parent of a folder, which has its name. The root and the working folder need no sync.
fn sync_name(files: &Files, folder: &Path) -> Result<()> {
    let Some(parent) = folder.parent() else { return Ok(()) };
    let is_relative = parent.as_os_str().is_empty();
    files.sync_dir(if is_relative { Path::new(".") } else { parent })?;
    Ok(())
}
