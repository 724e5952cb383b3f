//! The note with which trainer 0 tells the other trainers from which state the run starts.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The state from which a run starts. Without any field, the run starts from its initial state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartNote {
    /// The step of the run's own checkpoint, from which the run resumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) checkpoint: Option<u64>,
    /// The folder of another run's checkpoint, from which the run begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<PathBuf>,
    /// The number of the version from which the run begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<u64>,
}

impl StartNote {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a note is plain data with text keys")
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| Error::Exchange {
            problem: format!("the note of trainer 0 cannot be read ({error})"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back() {
        for note in [
            StartNote::default(),
            StartNote { checkpoint: Some(7), ..StartNote::default() },
            StartNote { origin: Some("a/b".into()), version: Some(3), ..StartNote::default() },
        ] {
            assert_eq!(StartNote::from_bytes(&note.to_bytes()).unwrap(), note);
        }
        let error = StartNote::from_bytes(b"{\"checkpoint\":").unwrap_err();
        assert!(error.to_string().contains("trainer 0"), "{error}");
    }
}
