//! The manifests that a cache has read, and their copies for a start without the registry.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_rows::layer::Unthrottled;

use super::Cache;
use crate::error::{Error, Result};
use crate::frame::Frame;
use crate::frames::Frames;
use crate::model::Model;
use crate::reference::{MAX_MANIFEST_BYTES, VersionFile, VersionId};
use crate::version::VersionManifest;

impl Cache {
    /// Returns the chain of a version like [`Model::chain`], but reads no manifest twice. Without
    /// the registry, the manifests are those that the cache has kept.
    ///
    /// # Errors
    /// Returns the errors of [`Model::chain`].
    pub fn chain(
        &mut self,
        model: &Model,
        version: VersionId,
    ) -> Result<Vec<Arc<VersionManifest>>> {
        let mut read = Vec::new();
        let chain = model.chain_by(version, |version| {
            if let Some(known) = self.manifests.get(&version) {
                return Ok(known.clone());
            }
            let (manifest, bytes) = if self.is_offline {
                let copy = self.read_copy(version)?;
                let frame = |file: &VersionFile| self.read_frame(&model.frames, file);
                (model.parse_version(version, &copy, frame)?, copy.len() as u64)
            } else {
                model.read_version(version)?
            };
            let manifest = Arc::new(manifest);
            read.push((manifest.clone(), bytes));
            Ok((manifest, bytes))
        });
        for (manifest, bytes) in read {
            if !self.is_offline {
                // A copy that is lost costs nothing but a start without the registry.
                let _ = self.keep_manifest(model, &manifest);
            }
            self.manifests.insert(manifest.version, (manifest, bytes));
        }
        chain
    }

    /// Reads the copy of a manifest.
    fn read_copy(&self, version: VersionId) -> Result<Vec<u8>> {
        let path = self.manifest_path(version);
        let copy = read_at_most(&path, MAX_MANIFEST_BYTES);
        copy.map_err(|error| Error::File {
            path,
            reason: format!("the registry does not answer, and the cache has no copy: {error}"),
        })
    }

    /// Keeps a copy of a manifest, without a sync: its hash tells whether it is whole. Fetches the
    /// frame that the manifest names.
    fn keep_manifest(&self, model: &Model, manifest: &VersionManifest) -> Result<()> {
        if let Some(frame) = &manifest.frame_file {
            let (name, file) = frame.entry();
            self.fetch(model, &name, &file, &mut Unthrottled)?;
        }
        let files = self.files.scratch();
        files.create_dir(&self.manifests_dir)?;
        Ok(files.write_bytes(self.manifest_path(manifest.version), &manifest.to_bytes())?)
    }

    /// Returns a manifest that this process has read or that the cache has kept.
    pub(super) fn known_manifest(&self, version: VersionId) -> Option<Arc<VersionManifest>> {
        if let Some((manifest, _)) = self.manifests.get(&version) {
            return Some(manifest.clone());
        }
        let copy = read_at_most(&self.manifest_path(version), MAX_MANIFEST_BYTES).ok()?;
        let frame = |file: &VersionFile| self.read_frame(&self.frames, file);
        let manifest = VersionManifest::parse("", &self.model, version, &copy, frame).ok()?;
        Some(Arc::new(manifest))
    }

    /// Returns the frame in a cached file, unless `known` has it.
    fn read_frame(&self, known: &Frames, file: &VersionFile) -> Result<Arc<Frame>> {
        let path = self.files_dir.join(file.name());
        known.get_or_read(file, path.clone(), || {
            let bytes = read_at_most(&path, MAX_MANIFEST_BYTES).map_err(|error| Error::File {
                path,
                reason: format!("the cache has no copy of the version's frame: {error}"),
            })?;
            Ok(bytes.into())
        })
    }

    pub(super) fn manifest_path(&self, version: VersionId) -> PathBuf {
        self.manifests_dir.join(format!("{:020}.json", version.0))
    }
}

/// Reads a file of at most `most` bytes.
fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("the file has more than {most} bytes")));
    }
    Ok(bytes)
}
