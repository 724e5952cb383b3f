//! A schema in the folder of a run, under the name of its hash.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;
use zillion_device::{DeviceError, Files};

use crate::error::{Error, Result};

/// A schema of a registry, with all texts that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredSchema {
    /// The language of the schema: `AVRO`, `PROTOBUF`, `JSON` or another one of the registry.
    pub language: String,
    /// The text of the schema.
    pub text: String,
    /// The schemas to which the text refers, and those to which these refer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<StoredReference>,
}

/// A schema to which another one refers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredReference {
    /// The name in the reference: the full name of a type in Avro, the path of a file in Protobuf.
    pub name: String,
    /// The text of the schema.
    pub text: String,
}

impl StoredSchema {
    /// Returns the hash of the schema: xxh3-64 of its bytes in a file.
    pub fn fingerprint(&self) -> u64 {
        xxh3_64(&self.to_bytes())
    }

    fn to_bytes(&self) -> Vec<u8> {
        // Texts and lists of texts can always be written.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Writes the schema to its file in `folder`, unless it is there, and returns its hash.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or if it has another schema.
    pub fn save(&self, files: &Files, folder: &Path) -> Result<u64> {
        let bytes = self.to_bytes();
        let fingerprint = xxh3_64(&bytes);
        let path = path_of(folder, fingerprint);
        if !path.exists() {
            files.create_dir(folder)?;
            files.write_bytes(&path, &bytes)?;
            files.sync_dir(folder)?;
        }
        if Self::load(folder, fingerprint)? != *self {
            let problem = "another schema has the same hash".to_owned();
            let remedy = "change a comment of one of the two schemas";
            return Err(Error::StoredSchema { path, problem, remedy });
        }
        Ok(fingerprint)
    }

    /// Reads the schema with a hash from `folder`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if it does not have this hash.
    pub fn load(folder: &Path, fingerprint: u64) -> Result<Self> {
        let path = path_of(folder, fingerprint);
        let bytes = std::fs::read(&path).map_err(|e| DeviceError::file("read", &path, e))?;
        let refused = |problem: &str| Error::StoredSchema {
            path: path.clone(),
            problem: problem.to_owned(),
            remedy: "restore the file from a copy of the run",
        };
        if xxh3_64(&bytes) != fingerprint {
            return Err(refused("the file is not the one that the log of decisions names"));
        }
        serde_json::from_slice(&bytes).map_err(|e| refused(&format!("it does not parse ({e})")))
    }
}

fn path_of(folder: &Path, fingerprint: u64) -> PathBuf {
    folder.join(format!("{fingerprint:016x}.json"))
}
