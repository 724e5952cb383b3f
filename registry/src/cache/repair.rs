//! The repair of a cache whose files have changed on the disk.
//!
//! A file is hashed when it arrives, and later it is found by its name and its length. If a version
//! cannot be loaded, its files are hashed again, and those that differ are removed, so that the
//! next attempt fetches or makes them again.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use zillion_rows::layer::Throttle;

use super::{Cache, PIECE_BYTES, list_names};
use crate::error::{Error, Result};
use crate::version::VersionManifest;

/// The error number of a disk that cannot read a block.
const EIO: i32 = 5;

impl Cache {
    /// Hashes the cached files of the versions of `chain` and of their merges, and removes those
    /// that differ from what was published or merged. Returns the names of the removed files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or removed. A file that cannot be read stays,
    /// because a process without free descriptors must not empty its cache.
    pub fn repair(
        &mut self,
        chain: &[Arc<VersionManifest>],
        pace: &mut dyn Throttle,
    ) -> Result<Vec<String>> {
        let mut files = self.needed(chain)?.files;
        let mut published = std::collections::BTreeSet::new();
        for (name, file) in chain.iter().flat_map(|version| version.files()) {
            published.insert(name.clone());
            files.insert(name, file.bytes);
        }
        let mut damaged = Vec::new();
        for (name, bytes) in files {
            let path = self.files_dir.join(&name);
            // A file that is not there is fetched in any case.
            if std::fs::symlink_metadata(&path).is_err() {
                continue;
            }
            if has_hash(&path, &name, bytes, pace)? {
                self.scrubbed.insert(name);
            } else {
                self.unlink(&path)?;
                damaged.push(name);
            }
        }
        if damaged.is_empty() {
            return Ok(damaged);
        }
        // A merge of damaged rows has the hash of damaged rows.
        if damaged.iter().any(|name| published.contains(name)) {
            for name in list_names(&self.merges_dir)? {
                self.unlink(&self.merges_dir.join(name))?;
            }
            self.files.sync_dir(&self.merges_dir)?;
        }
        self.files.sync_dir(&self.files_dir)?;
        self.open.clear();
        Ok(damaged)
    }

    /// Hashes one cached file of `chain` that this cache has not hashed since it was opened.
    /// Returns the name of the file if it differs from what was published or merged; the next
    /// [`Cache::repair`] removes it. The caller repeats the call, so that in time every file has
    /// been hashed.
    ///
    /// # Errors
    /// Returns an error if a merge or a file cannot be read.
    pub fn scrub(
        &mut self,
        chain: &[Arc<VersionManifest>],
        pace: &mut dyn Throttle,
    ) -> Result<Option<String>> {
        let Some(newest) = chain.last() else { return Ok(None) };
        if self.unscrubbed.0 != newest.chain {
            let files = self.needed(chain)?.files.into_iter();
            let files = files.filter(|(name, _)| !self.scrubbed.contains(name)).collect();
            self.unscrubbed = (newest.chain.clone(), files);
        }
        let Some((name, bytes)) = self.unscrubbed.1.pop() else { return Ok(None) };
        let path = self.files_dir.join(&name);
        // A file that was removed is fetched again when it is needed.
        if std::fs::symlink_metadata(&path).is_ok() {
            match has_hash(&path, &name, bytes, pace) {
                Ok(true) => {}
                Ok(false) => return Ok(Some(name)),
                Err(error) => {
                    self.unscrubbed.1.insert(0, (name, bytes));
                    return Err(error);
                }
            }
        }
        self.scrubbed.insert(name);
        Ok(None)
    }

    /// Returns whether [`Cache::scrub`] has files of its last chain left.
    pub fn has_unscrubbed(&self) -> bool {
        !self.unscrubbed.1.is_empty()
    }

    /// Forgets what was read, after a load that has ended with a panic.
    pub fn reset(&mut self) {
        self.open.clear();
        self.manifests.clear();
    }
}

/// Returns whether a file has `wanted` bytes and the hash that its name begins with. The file is
/// read and not mapped, because a disk that fails ends a process that reads a mapping.
///
/// # Errors
/// Returns an error if the file cannot be read for a reason that says nothing about its bytes.
fn has_hash(path: &Path, name: &str, wanted: u64, pace: &mut dyn Throttle) -> Result<bool> {
    let failed = |error: io::Error| Error::File {
        path: path.to_owned(),
        reason: format!("cannot read the file: {error}"),
    };
    // Another kind of file, such as a link or a pipe, is never what was published.
    if !std::fs::symlink_metadata(path).map_err(failed)?.is_file() {
        return Ok(false);
    }
    let mut file = File::open(path).map_err(failed)?;
    let mut buffer = vec![0; PIECE_BYTES];
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                bytes += read as u64;
                hasher.update(&buffer[..read]);
                pace.piece();
            }
            // A disk that has lost the bytes has another file than the published one.
            Err(error) if error.raw_os_error() == Some(EIO) => return Ok(false),
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(bytes == wanted && name.starts_with(hasher.finalize().to_hex().as_str()))
}

#[cfg(test)]
mod tests {
    use zillion_rows::layer::Unthrottled;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_not_called_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let name = blake3::hash(b"bytes").to_hex().to_string();
        let seen = |path: &Path| has_hash(path, &name, 5, &mut Unthrottled);
        // A name that no system takes fails as a process without descriptors does.
        assert!(seen(&folder.path().join("x".repeat(1000))).is_err());
        std::fs::write(&path, b"bytes").unwrap();
        assert!(seen(&path).unwrap());
        std::fs::write(&path, b"bytez").unwrap();
        assert!(!seen(&path).unwrap());
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
        assert!(!seen(&folder.path().join("link")).unwrap());
    }
}
