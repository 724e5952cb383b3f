//! The last answers of the registry, which a cache keeps so that a server can begin without the
//! registry.
//!
//! ```text
//! <cache>/<model>/last/<followed>.json   the versions to load, for each name that a server follows
//! ```
//!
//! # Crash consistency
//! A file is replaced as a whole. It is not synced: if it is lost, a server waits for the registry.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zillion_device::Files;

use crate::error::Result;
use crate::model::check_name;
use crate::reference::VersionId;

/// The largest number of bytes of a file.
const MAX_BYTES: u64 = 16 << 20;

/// The last answer of a registry about the versions to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// The time of the answer, in milliseconds since 1970.
    pub seen_ms: u64,
    /// The version that answers by default.
    pub current: VersionId,
    /// The version of each pointer, by the name of the pointer.
    pub labels: BTreeMap<String, VersionId>,
}

/// Returns the folder of the answers about a model.
pub(crate) fn folder(cache: &Path, model: &str) -> PathBuf {
    cache.join(model).join("last")
}

/// Returns whether a server has served the model from this cache before.
pub(crate) fn can_begin(cache: &Path, model: &str) -> bool {
    let is_answer = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(".json"))
    };
    check_name("model", model).is_ok()
        && std::fs::read_dir(folder(cache, model)).is_ok_and(|mut all| all.any(is_answer))
}

impl Remembered {
    /// Reads the last answer about `followed`, the name of a pointer or of another rule. Returns
    /// `None` if there is none that can be read.
    pub(crate) fn read(folder: &Path, followed: &str) -> Option<Self> {
        check_name("pointer", followed).ok()?;
        let path = folder.join(format!("{followed}.json"));
        if std::fs::metadata(&path).ok()?.len() > MAX_BYTES {
            return None;
        }
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Replaces the last answer about `followed`.
    pub(crate) fn write(&self, files: &Files, folder: &Path, followed: &str) -> Result<()> {
        check_name("pointer", followed)?;
        let bytes = serde_json::to_vec(self)
            .expect("an answer is plain data with text keys, which JSON can always hold");
        let files = files.scratch();
        files.create_dir(folder)?;
        Ok(files.write_bytes(folder.join(format!("{followed}.json")), &bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_is_read_as_it_was_written() {
        let place = tempfile::tempdir().unwrap();
        let answers = folder(place.path(), "clicks");
        assert!(!can_begin(place.path(), "clicks"));
        let last = Remembered {
            seen_ms: 17,
            current: VersionId(4),
            labels: BTreeMap::from([("canary".to_owned(), VersionId(5))]),
        };
        last.write(&Files::new(), &answers, "stable").unwrap();
        assert!(can_begin(place.path(), "clicks"));
        assert_eq!(Remembered::read(&answers, "stable"), Some(last.clone()));
        assert_eq!(Remembered::read(&answers, "canary"), None);
        assert!(last.write(&Files::new(), &answers, "../stable").is_err());
        std::fs::write(answers.join("stable.json"), b"{").unwrap();
        assert_eq!(Remembered::read(&answers, "stable"), None);
    }
}
