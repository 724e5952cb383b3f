//! The repair of a cache whose files have changed on the disk.
//!
//! A file is hashed when it arrives, and later it is found by its name and its length. If a version
//! cannot be loaded, its files are hashed again, and those that differ are removed, so that the
//! next attempt fetches or makes them again.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use zillion_rows::layer::Throttle;

use super::{Cache, PIECE_BYTES, list_names};
use crate::error::Result;
use crate::version::VersionManifest;

impl Cache {
    /// Hashes the cached files of the versions of `chain` and of their merges, and removes those
    /// that differ from what was published or merged. Returns the names of the removed files.
    ///
    /// # Errors
    /// Returns an error if a merge cannot be read or a file cannot be removed.
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
            if has_hash(&path, &name, bytes, pace) {
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
    /// Returns an error if a merge cannot be read.
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
        if std::fs::symlink_metadata(&path).is_ok() && !has_hash(&path, &name, bytes, pace) {
            return Ok(Some(name));
        }
        self.scrubbed.insert(name);
        Ok(None)
    }

    /// Forgets what was read, after a load that has ended with a panic.
    pub fn reset(&mut self) {
        self.open.clear();
        self.manifests.clear();
    }
}

/// Returns whether a file has `wanted` bytes and the hash that its name begins with. The file is
/// read and not mapped, because a disk that fails ends a process that reads a mapping.
fn has_hash(path: &Path, name: &str, wanted: u64, pace: &mut dyn Throttle) -> bool {
    let Ok(mut file) = File::open(path) else { return false };
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
            Err(_) => return false,
        }
    }
    bytes == wanted && name.starts_with(hasher.finalize().to_hex().as_str())
}
