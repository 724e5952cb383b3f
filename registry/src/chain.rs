//! A version and its ancestors in memory, so that their publisher need not read them again.

use std::sync::Arc;

use crate::error::Result;
use crate::model::{ChainBytes, MAX_CHAIN, Model};
use crate::reference::VersionId;
use crate::version::VersionManifest;

/// A version and its ancestors, the base first.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    versions: Vec<Arc<VersionManifest>>,
    bytes: ChainBytes,
}

impl Chain {
    /// Reads the chain of a version.
    ///
    /// # Errors
    /// Returns the errors of [`Model::chain`].
    pub fn read(model: &Model, version: VersionId) -> Result<Self> {
        let mut bytes = ChainBytes::default();
        let versions = model.chain_by(version, |version| {
            let (manifest, size) = model.read_version(version)?;
            bytes.add(&manifest, size);
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
        let bytes = version.to_bytes().len() as u64;
        self.bytes.add(&version, bytes);
        self.versions.push(version);
        self
    }

    /// Returns whether readers refuse the chain, because it has too many versions or because their
    /// manifests have too many bytes.
    pub fn is_too_long(&self) -> bool {
        self.versions.len() > MAX_CHAIN || self.bytes.is_too_large()
    }
}
