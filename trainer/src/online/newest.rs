//! The newest messages with rows, from which a version takes its parity rows.
//!
//! The messages are a function of the log: the state of the feed in a checkpoint has them too. So a
//! replay publishes the bytes of the first time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use zillion_device::Files;
use zillion_reader::make_arrow_file;

use crate::error::Result;
use crate::job::StreamFormat;

/// The largest number of bytes of all messages together. The newest message is kept whatever its
/// size is.
const MOST_BYTES: usize = 16 << 20;

/// The newest messages with rows. A copy shares the messages.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub(crate) struct NewestRows {
    /// The messages, the oldest first. All have one format.
    messages: VecDeque<Arc<Vec<u8>>>,
    /// The number of bytes of all messages.
    bytes: usize,
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
        let messages = newest.messages.iter().map(|message| STANDARD.encode(&**message)).collect();
        Self { messages, format: newest.format }
    }
}

impl TryFrom<Stored> for NewestRows {
    type Error = base64::DecodeError;

    fn try_from(stored: Stored) -> std::result::Result<Self, Self::Error> {
        let messages = stored.messages.iter().map(|message| STANDARD.decode(message).map(Arc::new));
        let messages: VecDeque<_> = messages.collect::<Result<_, _>>()?;
        let bytes = messages.iter().map(|message| message.len()).sum();
        Ok(Self { messages, bytes, format: stored.format })
    }
}

impl NewestRows {
    /// Adds a message with rows. At most `limit` messages of at most [`MOST_BYTES`] are kept; of
    /// formats whose messages are whole files, only the newest one.
    pub(super) fn push(&mut self, message: &[u8], format: StreamFormat, limit: usize) {
        let limit = match format {
            StreamFormat::Json => limit.max(1),
            StreamFormat::Arrow => 1,
            // The reader of parity rows cannot read these messages.
            StreamFormat::Avro | StreamFormat::Protobuf => return,
        };
        if self.format != format {
            (self.messages, self.bytes) = (VecDeque::new(), 0);
            self.format = format;
        }
        // The memory of the oldest message is used again, unless a copy shares it.
        let mut spare = None;
        while self.messages.len() >= limit
            || (!self.messages.is_empty() && self.bytes + message.len() > MOST_BYTES)
        {
            spare = self.messages.pop_front();
            self.bytes -= spare.as_ref().map_or(0, |spare| spare.len());
        }
        let mut bytes = spare.and_then(Arc::into_inner).unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(message);
        self.bytes += bytes.len();
        self.messages.push_back(Arc::new(bytes));
    }

    /// Returns whether there is no message yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Writes the messages to a file in `folder` that the reader can read, and returns its name.
    /// `columns` are those that the rows must have. In JSON, an absent key is a missing value. The
    /// reader of a file asks for each key in one of the first rows, so the first one gets nulls.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or if an Arrow message cannot be a file.
    pub(crate) fn write(
        &self,
        files: &Files,
        folder: &Path,
        columns: &[&str],
    ) -> Result<std::path::PathBuf> {
        let path = folder.join(match self.format {
            StreamFormat::Json => "parity.jsonl",
            _ => "parity.arrow",
        });
        let mut bytes = Vec::new();
        for (index, message) in self.messages.iter().enumerate() {
            match self.format {
                // In JSON, a line break is white space between two values.
                StreamFormat::Json => {
                    let is_break = |byte: u8| matches!(byte, b'\n' | b'\r');
                    let completed = match index {
                        0 => add_nulls(message, columns),
                        _ => None,
                    };
                    let message = completed.as_deref().unwrap_or(message);
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

/// Returns a JSON object with a null for each of the columns that it lacks, or `None` if it lacks
/// none. A message that is no object is left as it is, and the reader says what is wrong with it.
fn add_nulls(message: &[u8], columns: &[&str]) -> Option<Vec<u8>> {
    let known: BTreeMap<String, &RawValue> = serde_json::from_slice(message).ok()?;
    let lacks = |column: &&str| !known.contains_key(*column);
    let absent: BTreeSet<&str> = columns.iter().copied().filter(lacks).collect();
    let end = message.iter().rposition(|&byte| byte == b'}').filter(|_| !absent.is_empty())?;
    let mut bytes = message[..end].to_vec();
    for (index, column) in absent.into_iter().enumerate() {
        if index > 0 || !known.is_empty() {
            bytes.push(b',');
        }
        bytes.extend(serde_json::to_vec(column).ok()?);
        bytes.extend(b":null");
    }
    bytes.extend(&message[end..]);
    Some(bytes)
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
        let path = restored.write(&Files::new(), folder.path(), &["a"]).unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "{\"a\": 2}\n{\"a\":3}\n");
    }

    #[test]
    fn the_first_row_gets_nulls_for_the_keys_that_it_lacks() {
        let mut newest = NewestRows::default();
        newest.push(b"{\"a\":{\"b\":1} }", StreamFormat::Json, 9);
        newest.push(b"{\"c\":1}", StreamFormat::Json, 9);
        let folder = tempfile::tempdir().unwrap();
        let path = newest.write(&Files::new(), folder.path(), &["a", "b", "\"", "b"]).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(first, serde_json::json!({"a": {"b": 1}, "b": null, "\"": null}));
        assert_eq!(text.lines().nth(1), Some("{\"c\":1}"));
        assert_eq!(add_nulls(b"{}", &["a"]).unwrap(), b"{\"a\":null}");
        assert_eq!(add_nulls(b"{\"a\":1}", &["a"]), None);
        assert_eq!(add_nulls(b"[1]", &["a"]), None);
    }

    #[test]
    fn messages_are_bounded_by_their_bytes_and_shared_by_copies() {
        let mut newest = NewestRows::default();
        let large = vec![b' '; MOST_BYTES / 2];
        for _ in 0..5 {
            newest.push(&large, StreamFormat::Json, 64);
        }
        assert_eq!((newest.messages.len(), newest.bytes), (2, MOST_BYTES));
        let copy = newest.clone();
        assert!(Arc::ptr_eq(&copy.messages[0], &newest.messages[0]));
        newest.push(&vec![b' '; MOST_BYTES * 2], StreamFormat::Json, 64);
        assert_eq!((newest.messages.len(), newest.bytes), (1, MOST_BYTES * 2));
        newest.push(b"{}", StreamFormat::Json, 64);
        assert_eq!((newest.messages.len(), newest.bytes, copy.messages.len()), (1, 2, 2));
    }

    #[test]
    fn whole_files_are_kept_one_at_a_time() {
        let mut newest = NewestRows::default();
        newest.push(b"{}", StreamFormat::Json, 9);
        newest.push(b"first", StreamFormat::Arrow, 9);
        newest.push(b"second", StreamFormat::Arrow, 9);
        assert_eq!(newest.messages, [Arc::new(b"second".to_vec())]);
    }
}
