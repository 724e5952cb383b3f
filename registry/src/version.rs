//! The manifests and the numbers of versions, and the links between them.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use zillion_feature::{Cursor, HASH_ID, Statistics};
use zillion_rows::layer::{LayerFile, LayerManifest};
use zillion_rows::{TableLayout, TableSpec};

use crate::error::{Error, Result};

/// The version of the format of manifests.
const FORMAT: u32 = 1;

/// The number of a version. The versions of a model are numbered from 1, and no number is used
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VersionId(pub u64);

/// The manifest of a published version. Its files are in the folder `files` of the model, and their
/// names are their hashes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionManifest {
    /// The number of the manifest's format.
    pub format: u32,
    /// The name of the model.
    pub model: String,
    /// The number of the version.
    pub version: VersionId,
    /// The version that this delta changes; absent in a base.
    pub parent: Option<Link>,
    /// The BLAKE3 hash of the manifest without this field, in hexadecimal. It includes the chain
    /// hash of the parent.
    pub chain: String,
    /// The time of publication, in milliseconds since 1970.
    pub published_ms: u64,
    /// The name of the rules that hash the keys.
    pub hash: String,
    /// The BLAKE3 hash of the schema, in hexadecimal. All versions of a chain have the same schema.
    pub schema_hash: String,
    /// The sections of the job that define features, labels and columns.
    pub schema: toml::Value,
    /// The specs of the tables.
    pub tables: Vec<TableSpec>,
    /// The statistics of the first pass over the training data.
    pub statistics: Statistics,
    /// The layer with the rows: all rows in a base, the changed rows in a delta.
    pub layer: LayerManifest,
    /// The file of the dense graph, built for inference.
    pub graph: VersionFile,
    /// The settings by which the trainer divides batches when it scores. The same division gives
    /// the same bits.
    pub settings: ScoreSettings,
    /// The file of the dense parameters, as safetensors.
    pub dense: VersionFile,
    /// The file of the parity rows.
    pub parity: VersionFile,
    /// The files of the side tables that are joined to rows, in the order of the schema.
    pub sides: Vec<VersionFile>,
    /// The run and the step of the training that made the version.
    pub origin: Origin,
    /// A signature of the chain hash. Versions are not signed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// The run and the step of the training that made a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The id of the training run. A delta must come from the same run as its parent.
    pub run: String,
    /// The number of steps that were done.
    pub step: u64,
    /// The position in the order of rows.
    pub cursor: Cursor,
    /// The dirty epoch that ended with this version. The next delta has the rows that changed
    /// later.
    pub dirty_epoch: u32,
    /// The time of the newest event in the training data, in milliseconds since 1970; absent if the
    /// job does not give the unit of event times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_event_ms: Option<u64>,
    /// The metrics that training measured, by name.
    #[serde(default)]
    pub metrics: std::collections::BTreeMap<String, f64>,
}

/// The settings by which batches are divided when they are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreSettings {
    /// The number of lanes that share the rows of a batch.
    pub lanes: usize,
    /// The number of rows in a tile.
    pub tile_rows: usize,
}

/// A reference to a version, by its number and its chain hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The number of the version.
    pub version: VersionId,
    /// The chain hash of the version.
    pub chain: String,
}

/// A file of a version that does not belong to a layer. Its name is `<blake3>.<kind>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionFile {
    /// The extension of the name, for example `json` or `safetensors`.
    pub kind: String,
    /// The BLAKE3 hash of the bytes, in hexadecimal.
    pub blake3: String,
    /// The number of bytes.
    pub bytes: u64,
}

impl VersionFile {
    /// Makes the description of a file with these bytes.
    pub fn of(kind: &str, bytes: &[u8]) -> Self {
        Self {
            kind: kind.to_owned(),
            blake3: blake3::hash(bytes).to_hex().to_string(),
            bytes: bytes.len() as u64,
        }
    }

    /// Returns the name of the file in every store and cache.
    pub fn name(&self) -> String {
        format!("{}.{}", self.blake3, self.kind)
    }
}

impl VersionManifest {
    /// Returns the reference to this version.
    pub fn link(&self) -> Link {
        Link { version: self.version, chain: self.chain.clone() }
    }

    /// Returns the layouts of the tables' rows.
    pub(crate) fn layouts(&self) -> Vec<TableLayout> {
        self.tables.iter().map(TableSpec::layout).collect()
    }

    /// Returns whether the version is a base.
    pub fn is_base(&self) -> bool {
        self.parent.is_none()
    }

    /// Returns the time of publication.
    pub fn published(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.published_ms)
    }

    /// Returns the names, hashes and sizes of all files, those of the layer first.
    pub fn files(&self) -> Vec<(String, LayerFile)> {
        let rows = self.layer.files().map(|file| (file.name(), file.clone()));
        let rest = [&self.graph, &self.dense, &self.parity].into_iter().chain(&self.sides);
        let rest = rest.map(|f| (f.name(), LayerFile { blake3: f.blake3.clone(), bytes: f.bytes }));
        rows.chain(rest).collect()
    }

    /// Computes the chain hash of this manifest.
    pub fn chain_hash(&self) -> String {
        let unsigned = Self { chain: String::new(), signature: None, ..self.clone() };
        let body = serde_json::to_vec(&unsigned)
            .expect("a manifest is plain data with text keys, which JSON can always hold");
        blake3::hash(&body).to_hex().to_string()
    }

    /// Sets the format and the chain hash, as the last step of making a manifest.
    #[must_use]
    pub fn seal(mut self) -> Self {
        self.format = FORMAT;
        self.hash = HASH_ID.to_owned();
        self.chain = self.chain_hash();
        self
    }

    /// Returns the manifest as the bytes of its object.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self)
            .expect("a manifest is plain data with text keys, which JSON can always hold")
    }

    /// Reads a manifest, and verifies that it belongs to this version of this model.
    pub(crate) fn parse(name: &str, model: &str, version: VersionId, bytes: &[u8]) -> Result<Self> {
        let refuse = |reason: String| Err(Error::Manifest { path: name.to_owned(), reason });
        let manifest: Self = match serde_json::from_slice(bytes) {
            Ok(manifest) => manifest,
            Err(error) => return refuse(format!("the manifest cannot be parsed: {error}")),
        };
        if manifest.format != FORMAT {
            return refuse(format!(
                "the manifest has format {}, but this program reads format {FORMAT}",
                manifest.format
            ));
        }
        if manifest.model != model || manifest.version != version {
            return refuse(format!(
                "the manifest belongs to version {} of model `{}`",
                manifest.version, manifest.model
            ));
        }
        if manifest.hash != HASH_ID {
            return refuse(format!(
                "the version hashes its keys with {}, but this program uses {HASH_ID}",
                manifest.hash
            ));
        }
        let hash = manifest.chain_hash();
        if hash != manifest.chain {
            return refuse(format!(
                "the manifest was changed after it was published: its hash is {hash}, but it records {}",
                manifest.chain
            ));
        }
        if let Some(parent) = &manifest.parent
            && parent.version >= version
        {
            return refuse(format!(
                "the number of its parent, version {}, is not lower",
                parent.version
            ));
        }
        // Readers compute the layouts of rows from the specs, and trust the numbers in them.
        if let Err(error) = manifest.tables.iter().try_for_each(TableSpec::validate) {
            return refuse(format!("a table of the version is not valid: {error}"));
        }
        Ok(manifest)
    }
}

impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for VersionId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}
