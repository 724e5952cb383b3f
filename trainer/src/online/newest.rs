//! The newest messages with rows, from which a version takes its parity rows.
//!
//! The messages are a function of the log: the state of the feed in a checkpoint has them too. So a
//! replay publishes the bytes of the first time.

use std::collections::VecDeque;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde::{Deserialize, Serialize};
use zillion_device::Files;
use zillion_reader::make_arrow_file;

use crate::error::Result;
use crate::job::StreamFormat;

/// The newest messages with rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub(crate) struct NewestRows {
    /// The messages, the oldest first. All have one format.
    messages: VecDeque<Vec<u8>>,
    format: StreamFormat,
}

/// The form in a file: messages as base64.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    messages: Vec<String>,
    format: StreamFormat,
}

impl From<NewestRows> for Stored {
    fn from(newest: NewestRows) -> Self {
        let messages = newest.messages.iter().map(|message| STANDARD.encode(message)).collect();
        Self { messages, format: newest.format }
    }
}

impl TryFrom<Stored> for NewestRows {
    type Error = base64::DecodeError;

    fn try_from(stored: Stored) -> std::result::Result<Self, Self::Error> {
        let messages = stored.messages.iter().map(|message| STANDARD.decode(message));
        Ok(Self { messages: messages.collect::<Result<_, _>>()?, format: stored.format })
    }
}

impl NewestRows {
    /// Adds a message with rows. At most `limit` messages are kept; of formats whose messages are
    /// whole files, only the newest one.
    pub(super) fn push(&mut self, message: &[u8], format: StreamFormat, limit: usize) {
        let limit = match format {
            StreamFormat::Json => limit.max(1),
            StreamFormat::Arrow => 1,
            // The reader of parity rows cannot read these messages.
            StreamFormat::Avro | StreamFormat::Protobuf => return,
        };
        if self.format != format {
            self.messages.clear();
            self.format = format;
        }
        // The memory of the oldest message is used again.
        let mut bytes = match self.messages.len() >= limit {
            true => self.messages.pop_front().unwrap_or_default(),
            false => Vec::new(),
        };
        bytes.clear();
        bytes.extend_from_slice(message);
        self.messages.push_back(bytes);
    }

    /// Returns whether there is no message yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Writes the messages to a file in `folder` that the reader can read, and returns its name.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or if an Arrow message cannot be a file.
    pub(crate) fn write(&self, files: &Files, folder: &Path) -> Result<std::path::PathBuf> {
        let path = folder.join(match self.format {
            StreamFormat::Json => "parity.jsonl",
            _ => "parity.arrow",
        });
        let mut bytes = Vec::new();
        for message in &self.messages {
            match self.format {
                // In JSON, a line break is white space between two values.
                StreamFormat::Json => {
                    let is_break = |byte: u8| matches!(byte, b'\n' | b'\r');
                    bytes.extend(message.iter().map(|&b| if is_break(b) { b' ' } else { b }));
                    bytes.push(b'\n');
                }
                // A message may be a stream, which has no list of its batches.
                _ => bytes.extend_from_slice(&make_arrow_file(message, &path)?),
            }
        }
        files.scratch().write_bytes(&path, &bytes)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_messages_are_kept_and_written_as_lines() {
        let mut newest = NewestRows::default();
        for message in ["{\"a\":1}", "{\"a\":\n2}", "{\"a\":3}"] {
            newest.push(message.as_bytes(), StreamFormat::Json, 2);
        }
        let stored = serde_json::to_string(&newest).unwrap();
        let restored: NewestRows = serde_json::from_str(&stored).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = restored.write(&Files::new(), folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "{\"a\": 2}\n{\"a\":3}\n");
    }

    #[test]
    fn whole_files_are_kept_one_at_a_time() {
        let mut newest = NewestRows::default();
        newest.push(b"{}", StreamFormat::Json, 9);
        newest.push(b"first", StreamFormat::Arrow, 9);
        newest.push(b"second", StreamFormat::Arrow, 9);
        assert_eq!(newest.messages, [b"second".to_vec()]);
    }
}
