//! The fetching of files into the cache. A file gets its name after its hash was verified.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use zillion_device::mmap;
use zillion_rows::layer::{LayerFile, Throttle};
use zillion_store::{Error as StoreError, Fetch};

use super::{Cache, PIECE_BYTES};
use crate::error::{Error, Result};
use crate::model::Model;

impl Cache {
    /// Fetches a file unless the folder has it. The file gets its name after its hash was verified.
    /// Returns whether the folder has a new name, which the caller must sync.
    pub(super) fn fetch(
        &self,
        model: &Model,
        name: &str,
        file: &LayerFile,
        pace: &mut dyn Throttle,
    ) -> Result<bool> {
        let target = self.files_dir.join(name);
        if self.has(name, file.bytes) {
            return Ok(false);
        }
        if self.is_offline {
            let reason =
                "the file is not in the cache, and the registry does not answer".to_owned();
            return Err(Error::File { path: target, reason });
        }
        // The folder may have been removed meanwhile; all of it can be made again.
        if !self.files_dir.is_dir() {
            self.files.create_dir(&self.files_dir)?;
        }
        let object = model.file_object(name);
        let refuse = |reason: String| {
            let path = model.store.local_path(&object).unwrap_or_else(|| PathBuf::from(&object));
            Err(Error::File { path, reason })
        };
        if let Some(fetch) = model.store.fetch(&object, file.bytes)? {
            self.receive(fetch, &object, name, file, pace)?;
            return Ok(true);
        }
        let path = match model.store.local_path(&object) {
            Some(path) if path.is_file() => path,
            _ => return refuse("the file is missing".into()),
        };
        let bytes = mmap::map(&path)?;
        let mut hasher = blake3::Hasher::new();
        for piece in bytes.chunks(PIECE_BYTES) {
            hasher.update(piece);
            pace.piece();
        }
        let hash = hasher.finalize().to_hex();
        if hash.as_str() != file.blake3 || bytes.len() as u64 != file.bytes {
            return refuse(describe_other_bytes(bytes.len() as u64, &hash, file.bytes));
        }
        // A link to a symbolic link would be one, and such a name is not believed.
        let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        // A file of another size under this name is damaged.
        self.unlink(&target)?;
        if is_file && self.files.link_file(&path, &target)? {
            self.count_fetched(file);
            pace.piece();
            return Ok(true);
        }
        self.files.write_file(&target, |out| {
            for piece in bytes.chunks(PIECE_BYTES) {
                out.write_all(piece)?;
                pace.piece();
            }
            Ok(())
        })?;
        self.count_fetched(file);
        pace.waited();
        Ok(true)
    }

    /// Receives a file from a remote store. Hashes the file while it is written, and names it if
    /// the hash is correct. If the transfer is interrupted, the file is fetched again from its
    /// beginning, because files of a version are small and the hash of a part cannot be verified.
    fn receive(
        &self,
        mut fetch: Fetch,
        object: &str,
        name: &str,
        file: &LayerFile,
        pace: &mut dyn Throttle,
    ) -> Result<()> {
        let mut refused = None;
        let written = self.files.write_named_by_content(&self.files_dir, |out| {
            let mut hasher = blake3::Hasher::new();
            let mut bytes = 0;
            while let Some(received) = fetch.next_piece() {
                pace.waited();
                let received = received.map_err(|error| {
                    refused = Some(fetch_error(error));
                    std::io::Error::other("the store did not send the whole file")
                })?;
                for piece in received.chunks(PIECE_BYTES) {
                    hasher.update(piece);
                    out.write_all(piece)?;
                    pace.piece();
                }
                bytes += received.len() as u64;
            }
            let hash = hasher.finalize().to_hex();
            if hash.as_str() != file.blake3 || bytes != file.bytes {
                let reason = describe_other_bytes(bytes, &hash, file.bytes);
                refused = Some(Error::File { path: object.into(), reason });
                return Err(std::io::Error::other("the file differs from the published file"));
            }
            Ok(name.to_owned())
        });
        pace.waited();
        match (refused, written) {
            (Some(error), _) => Err(error),
            (None, written) => Ok(written.map(drop)?),
        }
    }

    fn count_fetched(&self, file: &LayerFile) {
        self.fetched_files.fetch_add(1, Ordering::Relaxed);
        self.fetched_bytes.fetch_add(file.bytes, Ordering::Relaxed);
    }
}

/// Returns the error of a failed fetch. If the store does not have the object, the error names the
/// missing file of the version.
fn fetch_error(error: StoreError) -> Error {
    match error {
        StoreError::Missing { path } => {
            Error::File { path: path.into(), reason: "the file is missing".to_owned() }
        }
        other => other.into(),
    }
}

/// Describes the difference between a file and the published file: the bytes and the hash.
pub(crate) fn describe_other_bytes(bytes: u64, hash: &str, wanted: u64) -> String {
    format!(
        "its {bytes} bytes have hash {hash}, but the published file has {wanted} bytes and a different hash"
    )
}
