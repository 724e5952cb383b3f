//! A version and its ancestors in memory, so that their publisher need not read them again.

use std::sync::Arc;

use crate::error::Result;
use crate::model::{MAX_CHAIN, MAX_CHAIN_BYTES, Model};
use crate::version::{VersionId, VersionManifest};

/// A version and its ancestors, the base first.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    versions: Vec<Arc<VersionManifest>>,
    /// The sum of the bytes of the manifests.
    bytes: u64,
}

impl Chain {
    /// Reads the chain of a version.
    ///
    /// # Errors
    /// Returns the errors of [`Model::chain`].
    pub fn read(model: &Model, version: VersionId) -> Result<Self> {
        let mut bytes = 0u64;
        let versions = model.chain_by(version, |version| {
            let (manifest, size) = model.read_version(version)?;
            bytes = bytes.saturating_add(size);
            Ok((Arc::new(manifest), size))
        })?;
        Ok(Self { versions, bytes })
    }

    /// Returns the versions, the base first.
    pub fn versions(&self) -> &[Arc<VersionManifest>] {
        &self.versions
    }

    /// Returns the newest version, or `None` if the chain has no version.
    pub fn newest(&self) -> Option<&Arc<VersionManifest>> {
        self.versions.last()
    }

    /// Returns the chain of `version`, which was published on the newest version of this chain. The
    /// chain of a base has only the base.
    #[must_use]
    pub fn followed_by(mut self, version: Arc<VersionManifest>) -> Self {
        if version.is_base() {
            self = Self::default();
        }
        self.bytes = self.bytes.saturating_add(version.to_bytes().len() as u64);
        self.versions.push(version);
        self
    }

    /// Returns whether readers refuse the chain, because it has too many versions or because their
    /// manifests have too many bytes.
    pub fn is_too_long(&self) -> bool {
        self.versions.len() > MAX_CHAIN || self.bytes > MAX_CHAIN_BYTES
    }
}
