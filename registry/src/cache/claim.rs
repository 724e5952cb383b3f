//! The claims of the processes that share a cache: each lists the versions that it has open, so
//! that no other process removes their files.
//!
//! ```text
//! <cache>/<model>/claims/<process>.json   a claim, locked by its process for as long as it lives
//! <cache>/<model>/lock                    shared while a claim is written, exclusive for a trim
//! ```
//!
//! # Concurrency
//! A claim is written before the files of its versions are looked for, and a trim reads all claims
//! before it removes a file. The lock keeps the two apart: a trim has either seen a claim or has
//! ended before the claimed files are looked for. A claim whose file is not locked belongs to a
//! process that has ended, and is removed.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::reference::VersionId;

/// The longest wait for a trim of another process.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// The largest difference between the clock of a process and the times of its files.
pub(super) const SLACK: Duration = Duration::from_secs(60);
/// The largest number of bytes of a claim.
const MAX_BYTES: u64 = 1 << 20;

/// The versions that a process has open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    versions: BTreeSet<VersionId>,
    /// The time when the process began to load a version or to merge layers, in milliseconds since
    /// 1970; absent if it does neither. Files that are newer may belong to the load or the merge.
    since_ms: Option<u64>,
}

/// The claims on the cache of one model.
#[derive(Debug)]
pub(super) struct Claims {
    folder: PathBuf,
    lock: PathBuf,
    /// The claim of this process, after the first claim.
    own: Option<(PathBuf, File)>,
}

/// The claims of the other processes.
#[derive(Debug, Default)]
pub(super) struct Others {
    pub(super) versions: BTreeSet<VersionId>,
    /// The time since which all files are kept, if another process is loading.
    pub(super) since: Option<SystemTime>,
}

/// The exclusive right to remove files. It ends when the value is dropped.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code, reason = "the open file holds the lock")] File);

impl Claims {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.join("claims"), lock: folder.join("lock"), own: None }
    }

    /// Replaces the claim of this process. `since` is the time when it began to load a version or
    /// to merge layers, if it does.
    pub(super) fn set(
        &mut self,
        versions: BTreeSet<VersionId>,
        since: Option<SystemTime>,
    ) -> Result<()> {
        let since_ms = since.map(to_ms);
        let bytes = serde_json::to_vec(&Claim { versions, since_ms })
            .expect("a claim is plain data, which JSON can always hold");
        let lock = self.lock_file()?;
        // A trim that hangs must not keep versions from being loaded.
        let began = Instant::now();
        while matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock))
            && began.elapsed() < LONGEST_WAIT
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The cache may have been removed meanwhile.
        if self.own.as_ref().is_none_or(|(path, _)| !path.exists()) {
            self.own = Some(self.create()?);
        }
        let Some((path, file)) = &mut self.own else { return Ok(()) };
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(&bytes)
        };
        write(file).map_err(|e| failed(path, &e))
    }

    /// Creates and locks the claim of this process.
    fn create(&self) -> Result<(PathBuf, File)> {
        for number in 0u32.. {
            let path = self.folder.join(format!("{}-{number}.json", std::process::id()));
            let created = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
            match created {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, &error)),
                Ok(file) => {
                    file.lock().map_err(|e| failed(&path, &e))?;
                    return Ok((path, file));
                }
            }
        }
        Err(Error::Refused(
            "the cache has no free name for a claim; remove old files from its folder of claims"
                .to_owned(),
        ))
    }

    /// Takes the exclusive right to remove files. Returns `None` while another process has it, or
    /// is writing its claim.
    pub(super) fn take_turn(&self) -> Result<Option<Turn>> {
        let lock = self.lock_file()?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Turn(lock))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed(&self.lock, &error)),
        }
    }

    /// Reads the claims of the other processes, and removes those of processes that have ended.
    /// Returns `None` if a claim cannot be read.
    pub(super) fn others(&self, _turn: &Turn) -> Result<Option<Others>> {
        let mut others = Others::default();
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(others)),
            Err(error) => return Err(failed(&self.folder, &error)),
        };
        for entry in entries {
            let path = entry.map_err(|e| failed(&self.folder, &e))?.path();
            if self.own.as_ref().is_some_and(|(own, _)| *own == path) {
                continue;
            }
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(&path, &error)),
            };
            if file.try_lock().is_ok() {
                // A claim that another process has removed meanwhile is gone all the same.
                let _ = std::fs::remove_file(&path);
                continue;
            }
            let mut bytes = Vec::new();
            file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|e| failed(&path, &e))?;
            let Ok(claim) = serde_json::from_slice::<Claim>(&bytes) else { return Ok(None) };
            others.versions.extend(claim.versions);
            let since = claim.since_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
            let since = since.map(|since| since.checked_sub(SLACK).unwrap_or(UNIX_EPOCH));
            others.since = [others.since, since].into_iter().flatten().min();
        }
        Ok(Some(others))
    }

    fn lock_file(&self) -> Result<File> {
        std::fs::create_dir_all(&self.folder).map_err(|e| failed(&self.folder, &e))?;
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).open(&self.lock);
        opened.map_err(|e| failed(&self.lock, &e))
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.own {
            // A claim that stays is not locked, and the next trim removes it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn to_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        reason: format!("cannot use the claim on the cache: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_end_with_their_process() {
        let folder = tempfile::tempdir().unwrap();
        let set = |versions: &[u64]| versions.iter().copied().map(VersionId).collect();
        let (mut a, mut b) = (Claims::new(folder.path()), Claims::new(folder.path()));
        a.set(set(&[1, 2]), None).unwrap();
        b.set(set(&[3]), Some(SystemTime::now())).unwrap();
        let seen = |claims: &Claims| {
            let turn = claims.take_turn().unwrap().unwrap();
            assert!(claims.take_turn().unwrap().is_none(), "one process trims at a time");
            claims.others(&turn).unwrap().unwrap()
        };
        assert_eq!(seen(&a).versions, set(&[3]));
        assert!(seen(&a).since.is_some());
        assert_eq!((seen(&b).versions, seen(&b).since), (set(&[1, 2]), None));
        b.set(set(&[4]), None).unwrap();
        assert_eq!((seen(&a).versions, seen(&a).since), (set(&[4]), None));
        // The claim of a process that was killed is not locked.
        std::fs::write(folder.path().join("claims/9-0.json"), b"{").unwrap();
        drop(b);
        assert_eq!(seen(&a).versions, set(&[]));
        assert_eq!(std::fs::read_dir(folder.path().join("claims")).unwrap().count(), 1);
    }
}
