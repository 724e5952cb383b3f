//! Versions: their manifests, their numbers, and their places in the chain.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use zillion_feature::{Cursor, HASH_ID, Statistics};
use zillion_rows::TableSpec;
use zillion_rows::layer::{LayerFile, LayerManifest};

use crate::error::{Error, Result};

/// The version of the format of manifests.
const FORMAT: u32 = 1;

/// The number of a version: the next `u64` of its model, from 1, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VersionId(pub u64);

/// A published version. Its files lie in the folder `files` of the model, named by their hashes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionManifest {
    /// The format of this object.
    pub format: u32,
    /// The name of the model.
    pub model: String,
    /// The number of the version.
    pub version: VersionId,
    /// The version that this delta changes. A base has none.
    pub parent: Option<Link>,
    /// The BLAKE3 hash over the parent's chain hash and everything here but this field, in
    /// hexadecimal.
    pub chain: String,
    /// The time of publication, in milliseconds since 1970.
    pub published_ms: u64,
    /// The name of the rules that hash the keys.
    pub hash: String,
    /// The BLAKE3 hash of the schema, in hexadecimal. The versions of one chain have the same.
    pub schema_hash: String,
    /// The sections of the job that define the meaning of rows.
    pub schema: toml::Value,
    /// The tables, with the row that an unknown key reads as.
    pub tables: Vec<TableSpec>,
    /// The statistics of the first pass over the training data.
    pub statistics: Statistics,
    /// The rows: all of them in a base, the changed ones in a delta.
    pub layer: LayerManifest,
    /// The dense graph, built for inference.
    pub graph: VersionFile,
    /// The way the trainer cuts batches when it scores. The same cut gives the same bits.
    pub settings: ScoreSettings,
    /// The dense parameters, as safetensors.
    pub dense: VersionFile,
    /// Raw rows and the scores that they must have.
    pub parity: VersionFile,
    /// The side tables that rows are joined with, in the order of the schema.
    pub sides: Vec<VersionFile>,
    /// The place in training where the version was made.
    pub origin: Origin,
    /// A signature over the chain hash. Versions are not signed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// The place in training where a version was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The name of the training run. A delta must come from the same run as its parent.
    pub run: String,
    /// The number of steps that were done.
    pub step: u64,
    /// The position in the order of rows.
    pub cursor: Cursor,
    /// The dirty epoch that ended with this version. A delta has the rows that were written later.
    pub dirty_epoch: u32,
    /// The time of the newest event of the training data, in milliseconds since 1970. Absent if the
    /// job does not say which column has the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_event_ms: Option<u64>,
    /// The metrics that training measured, by name.
    #[serde(default)]
    pub metrics: std::collections::BTreeMap<String, f64>,
}

/// The way batches are cut when they are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreSettings {
    /// The number of lanes that rows are dealt to.
    pub lanes: usize,
    /// The number of rows of a tile.
    pub tile_rows: usize,
}

/// A version as other objects name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The number of the version.
    pub version: VersionId,
    /// The chain hash of the version.
    pub chain: String,
}

/// A file of a version that belongs to no layer. Its name is `<blake3>.<kind>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionFile {
    /// The ending of the name: `json`, `safetensors`.
    pub kind: String,
    /// The BLAKE3 hash of the bytes, in hexadecimal.
    pub blake3: String,
    /// The number of bytes.
    pub bytes: u64,
}

impl VersionFile {
    /// Describes the file of these bytes.
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
    /// Returns the link by which other objects name this version.
    pub fn link(&self) -> Link {
        Link { version: self.version, chain: self.chain.clone() }
    }

    /// Returns whether the version is a base.
    pub fn is_base(&self) -> bool {
        self.parent.is_none()
    }

    /// Returns the time of publication.
    pub fn published(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.published_ms)
    }

    /// Lists the names, hashes and sizes of all files, those of the layer first.
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

    /// Sets the chain hash, which is the last step of making a manifest.
    #[must_use]
    pub fn seal(mut self) -> Self {
        self.format = FORMAT;
        self.hash = HASH_ID.to_owned();
        self.chain = self.chain_hash();
        self
    }

    /// Returns the bytes of the object.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self)
            .expect("a manifest is plain data with text keys, which JSON can always hold")
    }

    /// Reads an object that must be this version of this model.
    pub(crate) fn parse(name: &str, model: &str, version: VersionId, bytes: &[u8]) -> Result<Self> {
        let refuse = |reason: String| Err(Error::Manifest { path: name.to_owned(), reason });
        let manifest: Self = match serde_json::from_slice(bytes) {
            Ok(manifest) => manifest,
            Err(error) => return refuse(format!("the manifest cannot be parsed: {error}")),
        };
        if manifest.format != FORMAT {
            return refuse(format!(
                "the manifest has format {}, and this program reads format {FORMAT}",
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
                "the version hashes its keys with {}, and this program with {HASH_ID}",
                manifest.hash
            ));
        }
        let hash = manifest.chain_hash();
        if hash != manifest.chain {
            return refuse(format!(
                "the manifest was changed after it was published: its hash is {hash} and it records {}",
                manifest.chain
            ));
        }
        if let Some(parent) = &manifest.parent
            && parent.version >= version
        {
            return refuse(format!(
                "the parent, version {}, does not come before it",
                parent.version
            ));
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
