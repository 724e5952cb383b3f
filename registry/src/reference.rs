//! The numbers of versions, and the references to versions and to their files.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use zillion_rows::layer::{LayerFile, deserialize_hash};

/// The largest number of bytes of the graph and of the parity rows, which are parsed in memory.
pub(crate) const MAX_JSON_BYTES: u64 = 64 << 20;

/// The largest number of bytes of a manifest. A part of a table has up to 32 MiB of rows and 400
/// bytes in the manifest, so that this is the manifest of 2.5 TiB of rows.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 32 << 20;

/// The kind of the file with the vectors of all items.
pub const ITEMS: &str = "items";

/// The kind of the file with the difference between the items of a version and those of an earlier
/// one of its chain.
pub const ITEM_DELTA: &str = "itemdelta";

/// The kind of the file of a dense model that is an ONNX model.
pub const ONNX: &str = "onnx";

/// The kind of the file of a dense model that has the parameters of a graph.
pub(crate) const PARAMETERS: &str = "safetensors";

/// The largest number of bytes of an ONNX model, which each session of a server parses in memory.
pub const MAX_ONNX_BYTES: u64 = 1 << 30;

/// The largest number of letters of the kind of a file.
const KIND_LETTERS: usize = 16;

/// The number of a version. The versions of a model are numbered from 1, and no number is used
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VersionId(pub u64);

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

    /// Returns the name, the hash and the size of the file.
    pub(crate) fn entry(&self) -> (String, LayerFile) {
        (self.name(), LayerFile { blake3: self.blake3.clone(), bytes: self.bytes })
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

/// Returns the problem of a file that would take too much memory.
pub(crate) fn describe_large_file(file: &VersionFile) -> String {
    format!(
        "file `{}` has {} bytes, but a graph or parity rows have at most {MAX_JSON_BYTES}",
        file.name(),
        file.bytes
    )
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
