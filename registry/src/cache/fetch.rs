//! The fetching of files into the cache. A file gets its name after its hash was verified.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use zillion_rows::layer::{LayerFile, Throttle};
use zillion_store::{Error as StoreError, Fetch};

use super::{Cache, PIECE_BYTES};
use crate::error::{Error, Result, describe_other_bytes};
use crate::model::Model;

impl Cache {
    /// Fetches a file unless the folder has it. The file gets its name after its hash was verified.
    /// Returns whether the folder has a new name, which the caller must sync. Files are at most a
    /// few dozen MiB, so the wish of `pace` to end the work is looked at here.
    pub(super) fn fetch(
        &self,
        model: &Model,
        name: &str,
        file: &LayerFile,
        pace: &mut dyn Throttle,
    ) -> Result<bool> {
        let target = self.files_dir.join(name);
        if pace.is_stopped() {
            return Err(zillion_rows::Error::Stopped.into());
        }
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
            // Another kind of file, such as a pipe, would block its reader.
            Some(path) if path.is_file() => path,
            _ => return refuse("the file is missing".into()),
        };
        // A file that is linked is one with the registry's file, and its writers could change it
        // later. So a reader with trusted keys copies what it hashes.
        if !model.trust.has_keys() && self.link(&path, name, file, pace)? {
            self.count_fetched(file);
            return Ok(true);
        }
        self.copy(&path, name, file, pace)?;
        Ok(true)
    }

    /// Links a file of a local registry into the cache, and hashes the file that was linked.
    /// Returns `false` if the file cannot be linked.
    fn link(
        &self,
        path: &Path,
        name: &str,
        file: &LayerFile,
        pace: &mut dyn Throttle,
    ) -> Result<bool> {
        // A link to a symbolic link would be one, and such a name is not believed.
        if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
            return Ok(false);
        }
        let target = self.files_dir.join(name);
        // The name that is believed is given to a file whose hash is known.
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let linked = self.files_dir.join(format!(".{process}-{thread:?}.link.tmp"));
        self.unlink(&linked)?;
        if !self.files.link_file(path, &linked)? {
            return Ok(false);
        }
        let named = self.check_linked(path, &linked, file, pace).and_then(|()| {
            // A file of another size under this name is damaged.
            self.unlink(&target)?;
            Ok(self.files.link_file(&linked, &target)?)
        });
        self.unlink(&linked)?;
        pace.piece();
        named
    }

    /// Checks the hash of the file at `linked`, which is the registry's file at `path`.
    fn check_linked(
        &self,
        path: &Path,
        linked: &Path,
        file: &LayerFile,
        pace: &mut dyn Throttle,
    ) -> Result<()> {
        let refuse = |reason| Error::File { path: path.to_owned(), reason };
        let failed = |error: io::Error| refuse(format!("cannot read the file: {error}"));
        let mut input = File::open(linked).map_err(failed)?;
        // A writer could have put another kind of file in the place of the one that was seen.
        if !input.metadata().map_err(failed)?.is_file() {
            return Err(refuse("it is not a plain file".to_owned()));
        }
        let mut buffer = vec![0; PIECE_BYTES];
        let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
        loop {
            let read = input.read(&mut buffer).map_err(failed)?;
            if read == 0 || bytes > file.bytes {
                break;
            }
            hasher.update(&buffer[..read]);
            bytes += read as u64;
            pace.piece();
        }
        let hash = hasher.finalize().to_hex();
        if hash.as_str() == file.blake3 && bytes == file.bytes {
            return Ok(());
        }
        Err(refuse(describe_other_bytes(bytes, &hash, file.bytes)))
    }

    /// Copies a file of a local registry into the cache. The bytes that are hashed are those that
    /// are written.
    fn copy(
        &self,
        path: &Path,
        name: &str,
        file: &LayerFile,
        pace: &mut dyn Throttle,
    ) -> Result<()> {
        let refuse = |reason| Error::File { path: path.to_owned(), reason };
        let mut input =
            File::open(path).map_err(|e| refuse(format!("cannot read the file: {e}")))?;
        let mut buffer = vec![0; PIECE_BYTES];
        self.write_hashed(path, name, file, pace, |_| match input.read(&mut buffer) {
            Ok(0) => None,
            Ok(read) => Some(Ok(Bytes::copy_from_slice(&buffer[..read]))),
            Err(error) => Some(Err(refuse(format!("cannot read the file: {error}")))),
        })
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
        self.write_hashed(Path::new(object), name, file, pace, |pace| {
            let received = fetch.next_piece();
            pace.waited();
            received.map(|received| received.map_err(fetch_error))
        })
    }

    /// Writes a file of the cache and hashes what is written. The file gets its name if the hash is
    /// correct. `next` returns the pieces of the file, and `place` is its origin for errors.
    fn write_hashed(
        &self,
        place: &Path,
        name: &str,
        file: &LayerFile,
        pace: &mut dyn Throttle,
        mut next: impl FnMut(&mut dyn Throttle) -> Option<Result<Bytes>>,
    ) -> Result<()> {
        let mut refused = None;
        let written = self.files.write_named_by_content(&self.files_dir, |out| {
            let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
            while bytes <= file.bytes
                && let Some(received) = next(&mut *pace)
            {
                let received = received.map_err(|error| {
                    refused = Some(error);
                    io::Error::other("the store did not send the whole file")
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
                refused = Some(Error::File { path: place.to_owned(), reason });
                return Err(io::Error::other("the file differs from the published file"));
            }
            Ok(name.to_owned())
        });
        pace.waited();
        match (refused, written) {
            (Some(error), _) => Err(error),
            (None, written) => {
                written?;
                self.count_fetched(file);
                Ok(())
            }
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
