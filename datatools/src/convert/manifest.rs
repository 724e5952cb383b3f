//! The manifest of a conversion: the sources, the settings and the finished parts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use zillion_reader::{FileFacts, ReaderError, Reject, Result};

use super::{ConvertOutput, ConvertSpec};

/// The version of the format of manifests. It also covers how rows are divided into parts and
/// encoded. Parts of another version are not kept.
const FORMAT: u32 = 1;

/// The name of the limit of bad rows, the only setting that does not change the bytes of finished
/// parts.
const LIMIT: &str = "max bad rows";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    /// The settings that determine the bytes of the parts, and the limit of bad rows.
    settings: BTreeMap<String, String>,
    sources: Vec<SourceEntry>,
    /// Whether every part has been written.
    pub(super) complete: bool,
    pub(super) parts: BTreeMap<usize, PartEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceEntry {
    path: String,
    bytes: u64,
    /// The time of the last change, in nanoseconds since the start of 1970.
    modified_ns: u64,
}

/// The entry of a finished part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartEntry {
    pub(super) name: String,
    /// The number of rows of the data that the part covers, including bad rows that were left out.
    pub(super) span: u64,
    /// The number of rows that the part contains.
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) blake3: String,
    /// The bad rows that were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) rejects: Vec<Reject>,
}

/// Returns the value of a setting as JSON.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("settings are texts, numbers and lists of texts")
}

impl Manifest {
    /// Returns the manifest of a new conversion, without parts.
    pub(super) fn new(spec: &ConvertSpec) -> Result<Self> {
        let mut sources = Vec::with_capacity(spec.sources.len());
        for path in &spec.sources {
            let FileFacts { bytes, modified } = spec.config.file_facts(path)?;
            let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            let modified_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            sources.push(SourceEntry { path: path.display().to_string(), bytes, modified_ns });
        }
        let config = &spec.config;
        let columns: Vec<String> =
            spec.columns.iter().map(|(name, of)| format!("{name}={of}")).collect();
        let part_rows = match &spec.output {
            ConvertOutput::Folder { part_rows, .. } => part_rows.to_string(),
            ConvertOutput::File(_) => "all".to_owned(),
        };
        let settings = [
            ("to", spec.to.ending().to_owned()),
            ("part rows", part_rows),
            ("group rows", spec.group_rows.to_string()),
            (LIMIT, spec.max_bad_rows.to_string()),
            ("columns", columns.join(", ")),
            ("data.format", json(&config.format)),
            ("data.header", json(&config.header)),
            ("data.delimiter", json(&config.delimiter)),
            ("data.quote", json(&config.quote)),
            ("data.decimal", json(&config.decimal)),
            ("data.null", json(&config.null)),
            ("data.list_separator", json(&config.list_separator)),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value)).into();
        Ok(Self { format: FORMAT, settings, sources, complete: false, parts: BTreeMap::new() })
    }

    /// Reads a manifest. Returns `None` if the file does not exist.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(ReaderError::Io { what: "read", source, path: path.to_owned() });
            }
        };
        let damaged = |reason: String| ReaderError::Damaged {
            what: "not the manifest of a conversion; remove it to begin again".to_owned(),
            reason,
            path: path.to_owned(),
        };
        let read: Self = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        let is_plain = |name: &str| !name.is_empty() && !name.contains(['/', '\\']);
        match read.parts.values().find(|part| !is_plain(&part.name)) {
            Some(part) => Err(damaged(format!("`{}` is not the name of a part", part.name))),
            None => Ok(Some(read)),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self)
            .expect("a manifest is plain data with keys that are texts or numbers");
        bytes.push(b'\n');
        bytes
    }

    /// Returns the number of bad rows in all finished parts.
    pub(super) fn bad(&self) -> u64 {
        self.parts.values().map(|part| part.rejects.len() as u64).sum()
    }

    /// Returns this manifest with the limit of bad rows of `wanted`. The limit does not change the
    /// bytes of the parts.
    pub(super) fn with_limit_of(mut self, wanted: &Self) -> Self {
        if let Some(limit) = wanted.settings.get(LIMIT) {
            self.settings.insert(LIMIT.to_owned(), limit.clone());
        }
        self
    }

    /// Returns a message about the first source or setting that differs from `wanted`, or `None` if
    /// all are equal.
    pub(super) fn difference(&self, wanted: &Self) -> Option<String> {
        if self.format != wanted.format {
            return Some("the conversion was begun by another version of this program".to_owned());
        }
        for (key, now) in &wanted.settings {
            let before = self.settings.get(key).map_or("absent", String::as_str);
            if before != now {
                return Some(format!(
                    "the conversion was begun with {key} `{before}` instead of `{now}`"
                ));
            }
        }
        if let Some(key) = self.settings.keys().find(|key| !wanted.settings.contains_key(*key)) {
            return Some(format!("the conversion was begun with the unknown setting `{key}`"));
        }
        for (before, now) in self.sources.iter().zip(&wanted.sources) {
            if before.path != now.path {
                let (before, now) = (&before.path, &now.path);
                return Some(format!(
                    "the conversion was begun with the source `{before}` instead of `{now}`"
                ));
            }
            if before != now {
                return Some(format!(
                    "the source `{}` has changed since the conversion was begun ({} bytes then, {} now)",
                    now.path, before.bytes, now.bytes
                ));
            }
        }
        let (before, now) = (self.sources.len(), wanted.sources.len());
        (before != now).then(|| {
            format!("the conversion was begun with {before} sources, but now there are {now}")
        })
    }
}
