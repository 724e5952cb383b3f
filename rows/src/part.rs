//! Checkpoint parts: the rows of a slot range as one Arrow IPC file, sorted by key.
//!
//! A part is an uncompressed file with one record batch and the columns `key` (u64), `weights`
//! and `state` (fixed-size lists of f32, all segments of a row in one list), `count` (u32), `last_step`
//! (u64) and `dirty_epoch` (u32), without nulls. Weights may be f16 or bf16 as the table has them, bf16 as u16
//! whose field says so (`zillion.dtype`). Any Arrow tool opens it. The schema's metadata name the
//! format, the table, the slot range and the segments. Padding of rows in memory is not written.
//!
//! Keys that wait to be admitted are files beside them (`candidates-*.arrow`) with the columns `key`, `count`
//! and `last_step`, in tables whose admission counts; where it counts in a filter, the filter's blocks are
//! (`filter-*.arrow`). Rows that are narrow until their keys are frequent are parts of their own (`narrow-*.arrow`),
//! whose schema is that of the smaller table that they are. Where a table keeps statistics of use, rows have `show` and `click` (f32) too.
//!
//! In a checkpoint that stands on another one, parts may hold only the rows that changed since, and beside them lie
//! the keys that went (`gone-*.arrow`); [`RowPart`] is all that a chain of checkpoints says together.
//!
//! Where a table is cut depends on how many rows each slot has and on nothing else: its bytes are the same
//! for every number of shards and threads.

mod candidates;
mod chain;
mod filter;
mod gone;
mod listing;
mod narrow;
mod open;
mod read;
mod search;
mod source;
mod write;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use zillion_feature::SLOTS;

pub use candidates::{StoredCandidates, write_candidates};
pub use chain::{RowPart, open_rows};
pub use filter::{StoredFilter, open_filters, write_filter};
pub use gone::write_gone;
pub use listing::{ChangedParts, PartsBelow, listed_parts};
pub use narrow::open_narrow;
pub use read::{Need, open_candidates};
pub use source::PartSource;
pub use write::{PartRows, write_part, write_rows};

use crate::layout::TableLayout;
use crate::shape::RowShape;

/// Rows that a part has at most, unless a single slot has more.
pub const MAX_PART_ROWS: u64 = 1 << 20;

/// The version of the format, in every part's metadata.
const FORMAT: &str = "1";

/// One table's parts, as a checkpoint's manifest keeps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableParts {
    /// The table's name.
    pub table: String,
    /// Rows of the table, narrow ones included: those in all parts, unless these hold changes alone.
    pub rows: u64,
    /// The epoch that changes were marked with when the checkpoint was written.
    pub dirty_epoch: u32,
    /// In slot order: a power of two of them, each with the same number of slots.
    pub parts: Vec<PartInfo>,
    /// The rows that are not full yet; absent where all rows are from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrow: Option<ListedParts>,
    /// The keys that wait to be admitted; absent where the table lets every key in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<ListedParts>,
    /// The filter that they are counted in; absent where there is none. Its rows are blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<ListedParts>,
    /// Present where the parts hold only the rows that changed since another checkpoint; `rows` are all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<ChangedParts>,
}

/// Parts of one table that are cut by their own number of rows: narrow rows, keys that wait, blocks of their filter, or
/// keys that are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedParts {
    /// Rows in all parts.
    pub rows: u64,
    /// In slot order: a power of two of them, each with the same number of slots.
    pub parts: Vec<PartInfo>,
}

impl ListedParts {
    /// A list of files that were written.
    pub fn of(parts: Vec<PartInfo>) -> Self {
        Self { rows: parts.iter().map(|part| part.rows).sum(), parts }
    }
}

/// One part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartInfo {
    /// Path below the checkpoint's folder, with `/`: `tables/<table>/part-00000.arrow`.
    pub file: String,
    /// Rows.
    pub rows: u64,
    /// Size of the file.
    pub bytes: u64,
    /// BLAKE3 of the file, in hexadecimal.
    pub blake3: String,
}

impl TableParts {
    /// Rows that are full.
    pub fn full_rows(&self) -> Option<u64> {
        self.rows.checked_sub(self.narrow.as_ref().map_or(0, |narrow| narrow.rows))
    }
}

/// The path of a part below the checkpoint's folder.
fn file_name(table: &str, kind: &str, part: usize) -> String {
    format!("tables/{table}/{kind}-{part:05}.arrow")
}

/// The kinds of files that a table has.
const ROWS: &str = "part";
const NARROW: &str = "narrow";
const CANDIDATES: &str = "candidates";
const FILTER: &str = "filter";
const GONE: &str = "gone";

/// The slots of one part out of `parts`.
pub fn part_slots(part: usize, parts: usize) -> Range<usize> {
    let slots = SLOTS / parts;
    part * slots..(part + 1) * slots
}

/// How many parts a table is cut into: the smallest power of two whose parts have at most
/// `limit` rows, or one a slot.
pub fn part_count(slot_rows: &[u64], limit: u64) -> usize {
    let mut parts = 1;
    while parts < SLOTS {
        let rows = |part| slot_rows[part_slots(part, parts)].iter().sum::<u64>();
        if (0..parts).all(|part| rows(part) <= limit) {
            break;
        }
        parts *= 2;
    }
    parts
}

/// The segments as a part's metadata name them: what a row's floats and state mean.
fn describe_segments(shape: &RowShape) -> String {
    let segments = shape.spec.segments.iter();
    let described = segments.map(|s| format!("{}:{}:{}", s.name, s.dim, s.optimizer.kind()));
    described.collect::<Vec<_>>().join(",")
}

/// The part of the description that readers of weights depend on.
fn describe_layout(layout: &TableLayout) -> Vec<(String, usize)> {
    layout.segments.iter().map(|s| (s.name.clone(), s.dim)).collect()
}

#[cfg(test)]
mod cuts {
    use super::*;

    #[test]
    fn cuts_depend_on_row_counts_only() {
        assert_eq!(part_count(&[0; SLOTS], 10), 1);
        assert_eq!(part_count(&[1; SLOTS], 4096), 1);
        assert_eq!(part_count(&[1; SLOTS], 4095), 2);
        let mut skewed = [0; SLOTS];
        skewed[0] = 6;
        skewed[SLOTS / 4] = 6;
        assert_eq!(part_count(&skewed, 10), 4);
        // One slot beyond the limit cannot be cut.
        skewed[0] = 11;
        assert_eq!(part_count(&skewed, 10), SLOTS);
        assert_eq!(part_slots(3, 4), 3072..4096);
    }
}
