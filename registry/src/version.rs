//! What a version is: its manifest, its number, its place in the chain.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use zillion_feature::{Cursor, HASH_ID, Statistics};
use zillion_rows::TableSpec;
use zillion_rows::layer::{LayerFile, LayerManifest};

use crate::error::{Error, Result};

/// The version of the manifest's format.
const FORMAT: u32 = 1;

/// A version's number: the next `u64` of its model, from 1, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VersionId(pub u64);

/// A published version. Its files lie in the model's `files` folder under their hashes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionManifest {
    /// Format of this object.
    pub format: u32,
    /// The model.
    pub model: String,
    /// The number.
    pub version: VersionId,
    /// The version that this one changes; absent: it stands for itself, a base.
    pub parent: Option<Link>,
    /// BLAKE3 over the parent's chain and everything here but itself, in hexadecimal.
    pub chain: String,
    /// When it was published, in milliseconds since 1970.
    pub published_ms: u64,
    /// Rules that its keys are hashed by.
    pub hash: String,
    /// BLAKE3 of the schema, in hexadecimal: versions of one chain agree in it.
    pub schema_hash: String,
    /// The sections of the job that say what rows mean.
    pub schema: toml::Value,
    /// The tables; what an unknown key reads as is in them.
    pub tables: Vec<TableSpec>,
    /// What the first pass over the training data learned.
    pub statistics: Statistics,
    /// The rows: all of them in a base, those that changed in a delta.
    pub layer: LayerManifest,
    /// The dense graph, built for inference.
    pub graph: VersionFile,
    /// How the trainer cuts batches when it scores: the same cut gives the same bits.
    pub settings: ScoreSettings,
    /// The dense parameters, as safetensors.
    pub dense: VersionFile,
    /// Raw rows and the scores that they must have.
    pub parity: VersionFile,
    /// The side tables that rows are joined with, in the order of the schema.
    pub sides: Vec<VersionFile>,
    /// Where training stood.
    pub origin: Origin,
    /// Room for a signature over the chain hash; nobody signs yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// Where in training a version comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// What trained it: a delta needs to come from the same training as its parent.
    pub run: String,
    /// Steps done.
    pub step: u64,
    /// Position in the order of rows.
    pub cursor: Cursor,
    /// The dirty epoch that ended with this version: a delta has the rows that were written later.
    pub dirty_epoch: u32,
    /// When the newest event that was trained on happened, in milliseconds since 1970; absent where the job does
    /// not say how its data tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_event_ms: Option<u64>,
    /// Metrics that training measured, by name.
    #[serde(default)]
    pub metrics: std::collections::BTreeMap<String, f64>,
}

/// How batches are cut when they are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreSettings {
    /// Lanes that rows are dealt to.
    pub lanes: usize,
    /// Rows of a tile.
    pub tile_rows: usize,
}

/// A version as another names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its number.
    pub version: VersionId,
    /// Its chain hash.
    pub chain: String,
}

/// A file of a version that is not a layer's. Its name is `<blake3>.<kind>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionFile {
    /// What the name ends in: `json`, `safetensors`.
    pub kind: String,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub blake3: String,
    /// Its size.
    pub bytes: u64,
}

impl VersionFile {
    /// The description of these bytes.
    pub fn of(kind: &str, bytes: &[u8]) -> Self {
        Self {
            kind: kind.to_owned(),
            blake3: blake3::hash(bytes).to_hex().to_string(),
            bytes: bytes.len() as u64,
        }
    }

    /// The name it has wherever it is stored.
    pub fn name(&self) -> String {
        format!("{}.{}", self.blake3, self.kind)
    }
}

impl VersionManifest {
    /// What others name it by.
    pub fn link(&self) -> Link {
        Link { version: self.version, chain: self.chain.clone() }
    }

    /// Whether it stands for itself.
    pub fn is_base(&self) -> bool {
        self.parent.is_none()
    }

    /// When it was published.
    pub fn published(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.published_ms)
    }

    /// Names, hashes and sizes of all its files: the layer's first.
    pub fn files(&self) -> Vec<(String, LayerFile)> {
        let rows = self.layer.files().map(|file| (file.name(), file.clone()));
        let rest = [&self.graph, &self.dense, &self.parity].into_iter().chain(&self.sides);
        let rest = rest.map(|f| (f.name(), LayerFile { blake3: f.blake3.clone(), bytes: f.bytes }));
        rows.chain(rest).collect()
    }

    /// The chain hash of what is here.
    pub fn chain_hash(&self) -> String {
        let unsigned = Self { chain: String::new(), signature: None, ..self.clone() };
        let body = serde_json::to_vec(&unsigned)
            .expect("a manifest is plain data with text keys, which JSON can always hold");
        blake3::hash(&body).to_hex().to_string()
    }

    /// Sets the chain hash: the last step of making one.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.format = FORMAT;
        self.hash = HASH_ID.to_owned();
        self.chain = self.chain_hash();
        self
    }

    /// The object's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self)
            .expect("a manifest is plain data with text keys, which JSON can always hold")
    }

    /// Reads an object that is expected to be this version of this model.
    pub(crate) fn parse(name: &str, model: &str, version: VersionId, bytes: &[u8]) -> Result<Self> {
        let refuse = |reason: String| Err(Error::Manifest { path: name.to_owned(), reason });
        let manifest: Self = match serde_json::from_slice(bytes) {
            Ok(manifest) => manifest,
            Err(error) => return refuse(format!("the manifest does not parse: {error}")),
        };
        if manifest.format != FORMAT {
            return refuse(format!(
                "the manifest's format is {} and this program reads {FORMAT}",
                manifest.format
            ));
        }
        if manifest.model != model || manifest.version != version {
            return refuse(format!(
                "the manifest is that of version {} of `{}`",
                manifest.version, manifest.model
            ));
        }
        if manifest.hash != HASH_ID {
            return refuse(format!(
                "keys are hashed by {}, by this program by {HASH_ID}",
                manifest.hash
            ));
        }
        let hash = manifest.chain_hash();
        if hash != manifest.chain {
            return refuse(format!(
                "the manifest hashes to {hash} and says {}: it was changed after it was published",
                manifest.chain
            ));
        }
        if let Some(parent) = &manifest.parent
            && parent.version >= version
        {
            return refuse(format!("its parent, version {}, is not before it", parent.version));
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
