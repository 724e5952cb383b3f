//! The manifests of versions in memory.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use zillion_access::Signature;
use zillion_feature::HASH_ID;
use zillion_rows::layer::{LayerFile, LayerManifest, LayerPack, Sparsity};
use zillion_rows::{TableLayout, TableSpec};

use crate::error::{Error, Result};
use crate::frame::Frame;
use crate::origin::Origin;
use crate::reference::{ITEM_DELTA, Link, VersionFile, VersionId};
use crate::stored::Stored;

/// The manifest of a published version. The files of the version are in the folder `files` of the
/// model. The name of a file contains its hash. A manifest is stored in one of two formats, see
/// [`stored`](crate::stored).
#[derive(Clone, Debug, PartialEq)]
pub struct VersionManifest {
    /// The name of the model.
    pub model: String,
    /// The number of the version.
    pub version: VersionId,
    /// The version that a delta changes, or `None` for a base.
    pub parent: Option<Link>,
    /// The BLAKE3 hash of the manifest without this field and without the signature, in
    /// hexadecimal. The hashed bytes include the chain hash of the parent.
    pub chain: String,
    /// The time of publication, in milliseconds since 1970.
    pub published_ms: u64,
    /// The name of the rules by which ids and texts are hashed to keys.
    pub hash: String,
    /// The contents that are usually the same in all versions of a training.
    pub frame: Arc<Frame>,
    /// The file of the frame, or `None` if the manifest itself has the contents of the frame. The
    /// manifest then has the format 1.
    pub frame_file: Option<VersionFile>,
    /// The layer with the rows: all rows in a base, the changed rows in a delta.
    pub layer: VersionLayer,
    /// The file of the dense parameters, as safetensors. A delta without new parameters names the
    /// file of its parent.
    pub dense: VersionFile,
    /// The file of the parity rows.
    pub parity: VersionFile,
    /// The file with the vectors of the items that the version can retrieve, or `None` if it
    /// retrieves none.
    pub items: Option<VersionFile>,
    /// The run and the step of the training from which the version was made.
    pub origin: Origin,
    /// The signatures of [`version_statement`](zillion_access::version_statement), which the chain
    /// hash does not include. An unsigned version has none.
    pub signatures: Vec<Signature>,
}

/// The layer of a version.
#[derive(Clone, Debug, PartialEq)]
pub enum VersionLayer {
    /// A layer whose files the manifest lists.
    Listed(LayerManifest),
    /// A layer in one file, which has the list of the files inside of it.
    Packed(LayerPack),
}

impl VersionLayer {
    /// Returns the number of keys in all tables together, including tombstones.
    pub fn rows(&self) -> u64 {
        match self {
            Self::Listed(layer) => layer.rows(),
            Self::Packed(pack) => pack.rows,
        }
    }

    /// Returns the number of tombstones in all tables together.
    pub fn tombstones(&self) -> u64 {
        match self {
            Self::Listed(layer) => layer.tombstones(),
            Self::Packed(pack) => pack.tombstones,
        }
    }

    /// Returns the zeros that the files of the layer leave out. Returns `None` if no file leaves
    /// out zeros. The list of a packed layer is not known here, so the result is `None` for it too.
    pub fn sparsity(&self) -> Option<Sparsity> {
        match self {
            Self::Listed(layer) => layer.sparsity(),
            Self::Packed(_) => None,
        }
    }

    /// Returns the names, the hashes and the sizes of the files in the store.
    pub fn files(&self) -> Vec<(String, LayerFile)> {
        match self {
            Self::Listed(layer) => layer.files().map(|f| (f.name(), f.clone())).collect(),
            Self::Packed(pack) => vec![(pack.name(), pack.file())],
        }
    }
}

impl VersionManifest {
    /// Returns the reference to this version.
    pub fn link(&self) -> Link {
        Link { version: self.version, chain: self.chain.clone() }
    }

    /// Returns the layouts of the rows in the version's tables.
    pub(crate) fn layouts(&self) -> Vec<TableLayout> {
        self.frame.tables.iter().map(TableSpec::layout).collect()
    }

    /// Returns whether the version is a base and not a delta.
    pub fn is_base(&self) -> bool {
        self.parent.is_none()
    }

    /// Returns the version that this base repeats in one layer, or `None` if the version has a
    /// state of its own.
    pub fn compacts(&self) -> Option<VersionId> {
        self.origin.compacts
    }

    /// Returns the time of publication.
    pub fn published(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.published_ms)
    }

    /// Returns the names, the hashes and the sizes of all files. The files of the layer come first.
    pub fn files(&self) -> Vec<(String, LayerFile)> {
        let mut files = self.layer.files();
        files.extend(self.own_files());
        files
    }

    /// Returns the names, hashes and sizes of the files that do not belong to the layer.
    pub(crate) fn own_files(&self) -> Vec<(String, LayerFile)> {
        let own = [&self.dense, &self.parity].into_iter().chain(&self.items);
        own.map(VersionFile::entry).chain(self.frame_files()).collect()
    }

    /// Returns the files with the items of the last version of `chain`: its file and, while that is
    /// a difference, those of the versions before.
    pub fn item_files(chain: &[Arc<Self>]) -> Vec<&VersionFile> {
        let mut files = Vec::new();
        for file in chain.iter().rev().map_while(|version| version.items.as_ref()) {
            files.push(file);
            if file.kind != ITEM_DELTA {
                break;
            }
        }
        files
    }

    /// Returns the names, hashes and sizes of the files that versions with the same frame share:
    /// the graph, the side tables and the frame itself.
    pub fn frame_files(&self) -> Vec<(String, LayerFile)> {
        let shared = self.frame.files().chain(&self.frame_file);
        shared.map(VersionFile::entry).collect()
    }

    /// Computes the chain hash of this manifest.
    pub fn chain_hash(&self) -> String {
        Stored::of(self).chain_hash()
    }

    /// Sets the name of the hash rules and the chain hash. This must be the last change of a new
    /// manifest.
    #[must_use]
    pub fn seal(mut self) -> Self {
        self.hash = HASH_ID.to_owned();
        self.chain = self.chain_hash();
        self
    }

    /// Converts the manifest to the bytes of its object.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        Stored::of(self).to_bytes()
    }

    /// Parses a manifest. Verifies its format and hash, and that it belongs to this version of this
    /// model. `frame` reads the file of the frame, after everything else was verified.
    pub(crate) fn parse(
        name: &str,
        model: &str,
        version: VersionId,
        bytes: &[u8],
        frame: impl FnOnce(&VersionFile) -> Result<Arc<Frame>>,
    ) -> Result<Self> {
        let refuse = |reason: String| Error::Manifest { path: name.to_owned(), reason };
        let stored = Stored::parse(model, version, bytes).map_err(refuse)?;
        let frame = match stored.frame_file() {
            Some(file) => frame(file)?,
            None => Arc::new(stored.inline_frame().map_err(refuse)?),
        };
        stored.into_manifest(frame).map_err(refuse)
    }
}

impl Serialize for VersionManifest {
    /// Writes the manifest as it is stored.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Stored::of(self).serialize(serializer)
    }
}
