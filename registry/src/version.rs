//! The manifests and the numbers of versions, and the references from one version to another.

use std::fmt;
use std::io::BufWriter;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use zillion_access::Signature;
use zillion_feature::{Cursor, HASH_ID, Statistics};
use zillion_rows::layer::{LayerFile, LayerManifest, deserialize_hash};
use zillion_rows::{TableLayout, TableSpec};

use crate::error::{Error, Result};
use crate::manifest_scan::Scan;

/// The number of the manifest format.
const FORMAT: u32 = 1;

/// The largest number of bytes of the graph and of the parity rows, which are parsed in memory.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// The largest number of bytes of a manifest. A part of a table has up to 32 MiB of rows and 400
/// bytes in the manifest, so that this is the manifest of 2.5 TiB of rows.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 32 << 20;

/// The number of bytes of a manifest that are hashed at once.
const HASHED_AT_ONCE: usize = 64 << 10;

/// The largest number of letters of the kind of a file.
const KIND_LETTERS: usize = 16;

/// The number of a version. The versions of a model are numbered from 1, and no number is used
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VersionId(pub u64);

/// The manifest of a published version. The files of the version are in the folder `files` of the
/// model. The name of a file contains its hash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionManifest {
    /// The number of the manifest's format.
    pub format: u32,
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
    /// The BLAKE3 hash of the schema, in hexadecimal. All versions of a chain have the same schema.
    pub schema_hash: String,
    /// The sections of the job that define features, labels and columns.
    pub schema: toml::Value,
    /// The settings of the version's tables.
    pub tables: Vec<TableSpec>,
    /// The statistics of the first pass over the training data.
    pub statistics: Statistics,
    /// The layer with the rows: all rows in a base, the changed rows in a delta.
    pub layer: LayerManifest,
    /// The file of the dense graph, built for inference.
    pub graph: VersionFile,
    /// The settings by which the trainer divides batches when it scores. With the same division, a
    /// server computes the same bits.
    pub settings: ScoreSettings,
    /// The file of the dense parameters, as safetensors.
    pub dense: VersionFile,
    /// The file of the parity rows.
    pub parity: VersionFile,
    /// The files of the side tables, in the order of the schema.
    pub sides: Vec<VersionFile>,
    /// The run and the step of the training from which the version was made.
    pub origin: Origin,
    /// The signatures of [`version_statement`](zillion_access::version_statement), which the chain
    /// hash does not include. An unsigned version has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<Signature>,
}

/// The run and the step of the training from which a version was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The id of the training run. A delta must come from the same run as its parent.
    pub run: String,
    /// The number of steps that training had done.
    pub step: u64,
    /// The position of training in the order of the rows.
    pub cursor: Cursor,
    /// The dirty epoch that ended with this version. The next delta has the rows that changed after
    /// this epoch.
    pub dirty_epoch: u32,
    /// The time of the newest event in the training data, in milliseconds since 1970. It is `None`
    /// if the job does not give the unit of event times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_event_ms: Option<u64>,
    /// The number of pushes that the run has lost with servers of its tables. A push of one trainer
    /// to two servers counts twice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_pushes: u64,
    /// The metrics that training measured. The key is the name of the metric.
    #[serde(default)]
    pub metrics: std::collections::BTreeMap<String, f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The settings that divide a batch when scores are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreSettings {
    /// The number of lanes into which the rows of a batch are divided.
    pub lanes: usize,
    /// The number of rows in a tile.
    pub tile_rows: usize,
}

/// A reference to a version. It has the number and the chain hash of the version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The number of the version.
    pub version: VersionId,
    /// The chain hash of the version.
    pub chain: String,
}

/// A file of a version that is not part of a layer. Its name is `<blake3>.<kind>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionFile {
    /// The extension of the name, for example `json` or `safetensors`: 1 to 16 lower-case letters
    /// and digits.
    #[serde(deserialize_with = "deserialize_kind")]
    pub kind: String,
    /// The BLAKE3 hash of the bytes, in hexadecimal.
    #[serde(deserialize_with = "deserialize_hash")]
    pub blake3: String,
    /// The number of bytes.
    pub bytes: u64,
}

impl VersionFile {
    /// Describes a file of this kind with these bytes.
    pub fn of(kind: &str, bytes: &[u8]) -> Self {
        Self {
            kind: kind.to_owned(),
            blake3: blake3::hash(bytes).to_hex().to_string(),
            bytes: bytes.len() as u64,
        }
    }

    /// Returns the name of the file, which is the same in every registry and cache.
    pub fn name(&self) -> String {
        format!("{}.{}", self.blake3, self.kind)
    }
}

impl VersionManifest {
    /// Returns the reference to this version.
    pub fn link(&self) -> Link {
        Link { version: self.version, chain: self.chain.clone() }
    }

    /// Returns the layouts of the rows in the version's tables.
    pub(crate) fn layouts(&self) -> Vec<TableLayout> {
        self.tables.iter().map(TableSpec::layout).collect()
    }

    /// Returns whether the version is a base and not a delta.
    pub fn is_base(&self) -> bool {
        self.parent.is_none()
    }

    /// Returns the time of publication.
    pub fn published(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.published_ms)
    }

    /// Returns the names, the hashes and the sizes of all files. The files of the layer come first.
    pub fn files(&self) -> Vec<(String, LayerFile)> {
        let rows = self.layer.files().map(|file| (file.name(), file.clone()));
        rows.chain(self.own_files()).collect()
    }

    /// Returns the names, hashes and sizes of the files that do not belong to the layer.
    pub(crate) fn own_files(&self) -> Vec<(String, LayerFile)> {
        let files = [&self.graph, &self.dense, &self.parity].into_iter().chain(&self.sides);
        let described = |f: &VersionFile| LayerFile { blake3: f.blake3.clone(), bytes: f.bytes };
        files.map(|f| (f.name(), described(f))).collect()
    }

    /// Computes the chain hash of this manifest.
    pub fn chain_hash(&self) -> String {
        // The manifest of a large version is neither copied nor written to memory for its hash.
        let mut out = BufWriter::with_capacity(HASHED_AT_ONCE, blake3::Hasher::new());
        serde_json::to_writer(&mut out, &Hashed::of(self))
            .expect("a manifest is plain data with text keys, which JSON can always hold");
        let hasher = out.into_inner().expect("a hasher takes every byte");
        hasher.finalize().to_hex().to_string()
    }

    /// Sets the format, the name of the hash rules and the chain hash. This must be the last change
    /// of a new manifest.
    #[must_use]
    pub fn seal(mut self) -> Self {
        self.format = FORMAT;
        self.hash = HASH_ID.to_owned();
        self.chain = self.chain_hash();
        self
    }

    /// Converts the manifest to the bytes of its object.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self)
            .expect("a manifest is plain data with text keys, which JSON can always hold")
    }

    /// Parses a manifest. Verifies its format and hash, and that it belongs to this version of this
    /// model.
    pub(crate) fn parse(name: &str, model: &str, version: VersionId, bytes: &[u8]) -> Result<Self> {
        let refuse = |reason: String| Err(Error::Manifest { path: name.to_owned(), reason });
        if let Err(reason) = Scan::of(bytes) {
            return refuse(reason);
        }
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
        if let Some(file) =
            [&manifest.graph, &manifest.parity].into_iter().find(|f| f.bytes > MAX_JSON_BYTES)
        {
            return refuse(format!(
                "file `{}` has {} bytes, but a graph or parity rows have at most {MAX_JSON_BYTES}",
                file.name(),
                file.bytes
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

/// The fields of a manifest that its chain hash includes, in the order of the manifest.
#[derive(Serialize)]
struct Hashed<'a> {
    format: u32,
    model: &'a str,
    version: VersionId,
    parent: &'a Option<Link>,
    /// An empty text, because a hash cannot include itself.
    chain: &'a str,
    published_ms: u64,
    hash: &'a str,
    schema_hash: &'a str,
    schema: &'a toml::Value,
    tables: &'a [TableSpec],
    statistics: &'a Statistics,
    layer: &'a LayerManifest,
    graph: &'a VersionFile,
    settings: &'a ScoreSettings,
    dense: &'a VersionFile,
    parity: &'a VersionFile,
    sides: &'a [VersionFile],
    origin: &'a Origin,
}

impl<'a> Hashed<'a> {
    fn of(manifest: &'a VersionManifest) -> Self {
        // A field that is added to the manifest must be hashed or named here.
        let VersionManifest {
            format,
            model,
            version,
            parent,
            chain: _,
            published_ms,
            hash,
            schema_hash,
            schema,
            tables,
            statistics,
            layer,
            graph,
            settings,
            dense,
            parity,
            sides,
            origin,
            signatures: _,
        } = manifest;
        Self {
            format: *format,
            model,
            version: *version,
            parent,
            chain: "",
            published_ms: *published_ms,
            hash,
            schema_hash,
            schema,
            tables,
            statistics,
            layer,
            graph,
            settings,
            dense,
            parity,
            sides,
            origin,
        }
    }
}

/// Reads the kind of a file, which becomes a part of a path.
fn deserialize_kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'z');
    if (1..=KIND_LETTERS).contains(&text.len()) && text.bytes().all(is_plain) {
        return Ok(text);
    }
    let shown: String = text.chars().take(KIND_LETTERS).collect();
    let expected = "a kind of file of 1 to 16 lower-case letters and digits";
    Err(D::Error::invalid_value(Unexpected::Str(&shown), &expected))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: &str, blake3: &str) -> Result<VersionFile, String> {
        let file = serde_json::json!({ "kind": kind, "blake3": blake3, "bytes": 1 });
        serde_json::from_value(file).map_err(|e| e.to_string())
    }

    #[test]
    fn the_name_of_a_file_stays_in_its_folder() {
        let hash = "a".repeat(64);
        assert_eq!(parse("arrow", &hash).unwrap().name(), format!("{hash}.arrow"));
        for kind in ["", "./../../secret.txt", "a/b", "JSON", "..", "a.b", &"a".repeat(17)] {
            let said = parse(kind, &hash).unwrap_err();
            assert!(said.contains("a kind of file"), "{kind}: {said}");
        }
        for blake3 in ["", "../../secret", &"A".repeat(64)] {
            assert!(parse("json", blake3).unwrap_err().contains("BLAKE3"), "{blake3}");
        }
    }
}
