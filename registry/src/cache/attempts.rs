//! The marks of loads that have begun, so that a server that ends in a load knows it after its
//! restart.
//!
//! ```text
//! <cache>/<model>/attempts/<version>.json   locked while its process loads the version
//! ```
//!
//! # Crash consistency
//! A mark is written before a load and removed after it. A mark that is not locked belongs to a
//! process that has ended in the load. Marks are not synced: they tell of processes, and not of
//! machines.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::Cache;
use crate::reference::VersionId;

/// The largest number of bytes of a mark.
const MAX_BYTES: u64 = 64;

/// The mark of a load, which is removed when the value is dropped.
#[derive(Debug)]
pub struct Attempt {
    path: PathBuf,
    _locked: File,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // A mark that stays delays the next load of the version.
        let _ = fs::remove_file(&self.path);
    }
}

/// The loads of a version that have ended with their process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crashes {
    /// The number of loads since the version was loaded last.
    pub number: u32,
    /// The time since the last of them began.
    pub age: Duration,
}

impl Cache {
    /// Marks that a load of a version begins. Returns `None` if another process is loading the
    /// version, or if the mark cannot be written.
    pub fn begin_attempt(&self, version: VersionId) -> Option<Attempt> {
        let path = self.attempt_path(version);
        fs::create_dir_all(path.parent()?).ok()?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).ok()?;
        file.try_lock().ok()?;
        let number = read_number(&mut file).saturating_add(1);
        file.rewind().ok()?;
        file.set_len(0).ok()?;
        file.write_all(number.to_string().as_bytes()).ok()?;
        Some(Attempt { path, _locked: file })
    }

    /// Returns the loads of a version that have ended with their process, if there are any.
    pub fn crashes(&self, version: VersionId) -> Option<Crashes> {
        let mut file = File::open(self.attempt_path(version)).ok()?;
        // A process that is loading the version has not crashed.
        file.try_lock_shared().ok()?;
        let began = file.metadata().ok()?.modified().ok()?;
        let age = SystemTime::now().duration_since(began).unwrap_or_default();
        let number = read_number(&mut file);
        (number > 0).then_some(Crashes { number, age })
    }

    fn attempt_path(&self, version: VersionId) -> PathBuf {
        self.attempts_dir.join(format!("{:020}.json", version.0))
    }
}

fn read_number(file: &mut File) -> u32 {
    let mut text = String::new();
    let read = file.take(MAX_BYTES).read_to_string(&mut text);
    read.ok().and_then(|_| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use zillion_device::Files;

    use super::*;

    #[test]
    fn a_load_that_ends_with_its_process_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Cache::open(folder.path(), "m", Files::new()).unwrap();
        let (cache, version) = (open(), VersionId(3));
        let attempt = cache.begin_attempt(version).unwrap();
        // A load that goes on is no crash, and has one mark.
        assert_eq!(open().crashes(version), None);
        assert!(open().begin_attempt(version).is_none());
        drop(attempt);
        assert_eq!(cache.crashes(version), None);
        for number in 1..=3 {
            let attempt = cache.begin_attempt(version).unwrap();
            // The lock of a killed process ends, and its mark stays.
            let copy = fs::read(&attempt.path).unwrap();
            let path = attempt.path.clone();
            drop(attempt);
            fs::write(path, copy).unwrap();
            assert_eq!(open().crashes(version).unwrap().number, number);
        }
        assert_eq!(cache.crashes(VersionId(4)), None);
        drop(cache.begin_attempt(version).unwrap());
        assert_eq!(cache.crashes(version), None);
    }
}
