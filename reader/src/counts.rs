//! Counts of what the passes over a dataset have read and left out so far, for observers of a run.
//!
//! # Concurrency
//! Added to by the tasks that decode, a few times a megabyte, and read at any time: plain atomic
//! counters that decide nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ReaderError;

/// Counters that the passes over a dataset share.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    bytes: AtomicU64,
    bad: [AtomicU64; BAD_ROWS.len()],
}

/// Why a row was left out as bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRowKind {
    /// A value that cannot be used.
    Value,
    /// More or fewer cells than the header has.
    Cells,
    /// A record that is not what its format says.
    Record,
}

/// All kinds of bad rows.
pub const BAD_ROWS: [BadRowKind; 3] = [BadRowKind::Value, BadRowKind::Cells, BadRowKind::Record];

impl BadRowKind {
    /// Returns the name of the kind, which is one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Cells => "cells",
            Self::Record => "record",
        }
    }

    /// Returns the kind of an error that is about one row.
    fn of(error: &ReaderError) -> Option<Self> {
        match error {
            ReaderError::Value { .. } => Some(Self::Value),
            ReaderError::CellCount { .. } => Some(Self::Cells),
            ReaderError::Record { .. } => Some(Self::Record),
            _ => None,
        }
    }
}

/// The counts of the passes over a dataset, the first passes and those that were taken up again
/// among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Bytes that were decoded: of text as it is without compression, of Parquet the columns that
    /// the job reads as the file has them, of Arrow whole record batches.
    pub bytes: u64,
    /// Rows that were left out as bad, in the order of [`BAD_ROWS`]; a row counts once a pass.
    pub bad_rows: [u64; BAD_ROWS.len()],
}

impl Counts {
    pub(crate) fn read(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn left_out(&self, error: &ReaderError) {
        if let Some(kind) = BadRowKind::of(error) {
            self.bad[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn now(&self) -> ReadCounts {
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
