//! The counts of bytes and bad rows over all passes of a dataset, for monitoring a run.
//!
//! # Concurrency
//! The decoding tasks add to the counters a few times for each megabyte of data. Any thread may
//! read the counters at any time. The counters are independent atomic numbers, and no decision
//! depends on them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ReaderError;

/// The counters that the passes over a dataset share.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    bytes: AtomicU64,
    bad: [AtomicU64; BAD_ROWS.len()],
}

/// The reason why a row was left out as bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRowKind {
    /// A value of the row cannot be used.
    Value,
    /// The row has more or fewer cells than the header.
    Cells,
    /// The row does not have the form that its format requires.
    Record,
}

/// The kinds of bad rows, in the order in which they are counted.
pub const BAD_ROWS: [BadRowKind; 3] = [BadRowKind::Value, BadRowKind::Cells, BadRowKind::Record];

impl BadRowKind {
    /// Returns the name of the kind in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Cells => "cells",
            Self::Record => "record",
        }
    }

    /// Returns the kind of the bad row that an error describes, or `None` if the error does not
    /// concern one row.
    fn of(error: &ReaderError) -> Option<Self> {
        match error {
            ReaderError::Value { .. } => Some(Self::Value),
            ReaderError::CellCount { .. } => Some(Self::Cells),
            ReaderError::Record { .. } => Some(Self::Record),
            _ => None,
        }
    }
}

/// The counts of decoded bytes and bad rows in all passes over a dataset. They include the passes
/// before the first epoch, and the passes that continue an interrupted run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// The number of bytes that were decoded. For text, these are the decompressed bytes; for
    /// Parquet, the bytes that the decoded columns take in the file; for Arrow, the bytes of whole
    /// record batches.
    pub bytes: u64,
    /// The number of rows that were left out for each kind of [`BAD_ROWS`], in the same order. If
    /// several passes meet the same bad row, each of them counts it.
    pub bad_rows: [u64; BAD_ROWS.len()],
}

impl Counts {
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_bad_row(&self, error: &ReaderError) {
        if let Some(kind) = BadRowKind::of(error) {
            self.bad[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> ReadCounts {
        ReadCounts {
            bytes: self.bytes.load(Ordering::Relaxed),
            bad_rows: [0, 1, 2].map(|kind: usize| self.bad[kind].load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_as_they_are_listed() {
        assert!(BAD_ROWS.iter().enumerate().all(|(number, &kind)| kind as usize == number));
    }
}
