//! The lock of a run's folder: one process trains into a folder at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::time::Duration;

use super::RunDir;
use crate::error::{Error, Result};

/// The name of the file of the lock.
pub(crate) const LOCK: &str = "LOCK";
/// The number of times, ten milliseconds apart, that a process tries again to take the lock. A
/// process that was killed keeps it until the system has ended it.
const MOST_TRIES: u32 = 100;

/// The right of this process to train into a folder. The system takes it back when the process
/// ends.
#[derive(Debug)]
pub(crate) struct RunLock(File);

impl RunLock {
    /// Takes the lock of a run's folder, which must exist.
    ///
    /// # Errors
    /// Returns an error if another process trains into the folder, or if the file of the lock
    /// cannot be written.
    pub(crate) fn take(dir: &RunDir) -> Result<Self> {
        let path = dir.path().join(LOCK);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = file.map_err(Error::io("cannot open the lock", &path))?;
        let mut tries = 0;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries < MOST_TRIES => tries += 1,
                Err(TryLockError::WouldBlock) => {
                    let mut owner = String::new();
                    // The number of the process is only a help.
                    let _ = (&file).take(32).read_to_string(&mut owner);
                    return Err(Error::Refused(format!(
                        "process {} trains into the folder {}; wait for its end, stop it, or set \
                         `run.output` to another folder",
                        owner.trim(),
                        dir.path().display()
                    )));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(Error::io("cannot lock", &path)(error));
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let named = file
            .rewind()
            .and_then(|()| file.set_len(0))
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        named.map_err(Error::io("cannot write the lock", &path))?;
        Ok(Self(file))
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // The end of the process releases a lock that this call does not.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_run_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = RunDir::new(folder.path());
        let lock = RunLock::take(&dir).expect("the lock is free");
        let error = RunLock::take(&dir).expect_err("the lock is taken").to_string();
        let process = format!("process {} trains into the folder", std::process::id());
        assert!(error.contains(&process) && error.contains("`run.output`"), "{error}");
        drop(lock);
        RunLock::take(&dir).expect("the lock is free again");
    }
}
