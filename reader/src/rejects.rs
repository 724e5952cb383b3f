//! The log of rows that were left out as bad, with their places and reasons.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Near, Place, ReaderError, cell_count};

/// The number of messages that are kept for the error above the limit.
const EXAMPLES: usize = 3;

/// The number of bytes of a bad line that are kept.
pub(crate) const LINE: usize = 64 << 10;

/// A row that was left out as bad.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reject {
    /// The file, relative to the data's root if it lies below the root.
    pub file: String,
    /// The data row of the file, counted from 1; a header is not a row.
    pub row: u64,
    /// The byte of the (decompressed) text at which the row starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub byte: Option<u64>,
    /// The row group of a Parquet file or record batch of an Arrow file, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_group: Option<usize>,
    /// The column, if the problem lies in one column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// The problem of the row, and the remedy.
    pub reason: String,
    /// The row as a text file has it, without its line end, cut to 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// The log of the bad rows that the passes over a dataset have met, each once.
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
    /// Returns an empty log. If `keeps` is false, the log keeps only the first few messages and no
    /// rows.
    pub(crate) fn new(keeps: bool) -> Self {
        Self { keeps, inner: Mutex::default() }
    }

    /// Records a bad row. `file` is the number of the file and `name` its name in messages; `error`
    /// is the error that would end the pass if no bad rows were allowed.
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
            // Other errors are not about one row; they end the reading.
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

    /// Returns the bad rows, sorted by file and row.
    pub(crate) fn rows(&self) -> Vec<Reject> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.rows.values().cloned().collect()
    }

    /// Returns the first few messages.
    pub(crate) fn examples(&self) -> Vec<String> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).examples.clone()
    }
}
