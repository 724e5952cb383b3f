//! The log of bad rows that were left out, with their places and the reasons.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Near, Place, ReaderError, cell_count};

/// The number of messages that are kept for the error about too many bad rows.
const EXAMPLES: usize = 3;

/// The maximum number of bytes that the log keeps of a bad line.
pub(crate) const LINE: usize = 64 << 10;

/// A bad row that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reject {
    /// The path of the file. It is relative to the root folder of the data if the file lies in this
    /// folder.
    pub file: String,
    /// The number of the row in the file, counted from 1. The header does not count as a row.
    pub row: u64,
    /// The byte of the (decompressed) text at which the row starts, counted from 0. `None` if the
    /// file is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub byte: Option<u64>,
    /// The row group of a Parquet file or the record batch of an Arrow file, counted from 0. `None`
    /// if the file is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_group: Option<usize>,
    /// The name of the column, if the problem lies in one column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// The problem of the row, and the remedy.
    pub reason: String,
    /// The text of the row without its line end, cut to 64 KiB. `None` if the file is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// A log of the bad rows of all passes over a dataset. A row that several passes meet is stored
/// once.
#[derive(Debug, Default)]
pub(crate) struct RejectLog {
    keeps: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    rows: BTreeMap<(usize, u64), Reject>,
    examples: Vec<String>,
}

impl RejectLog {
    /// Returns an empty log. If `keeps` is false, the log stores the first few messages but no
    /// rows.
    pub(crate) fn new(keeps: bool) -> Self {
        Self { keeps, inner: Mutex::default() }
    }

    /// Adds a bad row to the log. `file` is the index of the file, and `name` is its name in the
    /// log. `error` is the error of the row, which would end the pass if bad rows were not allowed.
    pub(crate) fn add(&self, file: usize, name: &str, error: &ReaderError, line: Option<&[u8]>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.examples.len() < EXAMPLES {
            let example = error.to_string();
            if !inner.examples.contains(&example) {
                inner.examples.push(example);
            }
        }
        if !self.keeps {
            return;
        }
        let (place, column, reason) = match error {
            ReaderError::Value { column, place, problem, .. } => {
                (*place, Some(column.clone()), problem.clone())
            }
            ReaderError::CellCount { place, found, expected, .. } => {
                (*place, None, cell_count(*found, *expected))
            }
            ReaderError::Record { place, problem, .. } => (*place, None, problem.clone()),
            // Other errors do not concern a single row. They end the reading.
            _ => return,
        };
        let Place { row, near } = place;
        let (byte, row_group) = match near {
            Near::Byte(byte) => (Some(byte), None),
            Near::RowGroup(group) | Near::RecordBatch(group) => (None, Some(group)),
        };
        let line = line.map(|line| String::from_utf8_lossy(line).into_owned());
        let (key, file) = ((file, row), name.to_owned());
        let reject = Reject { file, row, byte, row_group, column, reason, line };
        inner.rows.entry(key).or_insert(reject);
    }

    /// Returns the bad rows in the log, sorted by file and row.
    pub(crate) fn rows(&self) -> Vec<Reject> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.rows.values().cloned().collect()
    }

    /// Returns the error messages of the first few bad rows.
    pub(crate) fn examples(&self) -> Vec<String> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).examples.clone()
    }
}
