//! Parts of a checkpoint: the rows of a slot range as one Arrow IPC file, sorted by key.
//!
//! A part is an uncompressed file with one record batch and the columns `key` (u64), `weights` and
//! `state` (fixed-size lists of f32, all segments of a row in one list), `count` (u32), `last_step`
//! (u64) and `dirty_epoch` (u32), without nulls. Weights may be f16 or bf16, as in the table; bf16
//! is stored as u16, and the field says so (`zillion.dtype`). Any Arrow tool opens a part. The
//! metadata of the schema name the format, the table, the slot range and the segments. The padding
//! of rows in memory is not written.
//!
//! Beside the parts lie further files, where a table needs them:
//!
//! * `candidates-*.arrow`: keys that wait to be admitted, with the columns `key`, `count` and
//!   `last_step`;
//! * `filter-*.arrow`: the blocks of the filter, where waiting keys are counted in a filter;
//! * `narrow-*.arrow`: rows that are narrow until their keys are frequent, with the schema of the
//!   smaller table that they form;
//! * `gone-*.arrow`: keys whose rows were evicted, in a checkpoint that holds only changes.
//!
//! Where a table keeps statistics of use, rows have the columns `show` and `click` (f32) too.
//!
//! The parts of a checkpoint that holds only changes have the rows that changed since the
//! checkpoint below it; [`RowPart`] reads a chain of checkpoints as one.
//!
//! The cuts between parts depend on the number of rows of each slot and on nothing else: the bytes
//! are the same for every number of shards and threads.

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

/// The largest number of rows of a part, unless a single slot has more.
pub const MAX_PART_ROWS: u64 = 1 << 20;

/// The version of the format, in the metadata of every part.
const FORMAT: &str = "1";

/// The files of one table, as the manifest of a checkpoint lists them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableParts {
    /// The name of the table.
    pub table: String,
    /// The number of rows of the table, narrow ones included. Where the parts hold only changes,
    /// they have fewer rows than this.
    pub rows: u64,
    /// The epoch that changes were marked with when the checkpoint was written.
    pub dirty_epoch: u32,
    /// The parts in slot order: a power of two of them, each with the same number of slots.
    pub parts: Vec<PartInfo>,
    /// The rows that are not full yet; absent where all rows are full from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrow: Option<ListedParts>,
    /// The keys that wait to be admitted; absent where the table admits every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<ListedParts>,
    /// The filter that waiting keys are counted in; absent where there is none. Its rows are
    /// blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<ListedParts>,
    /// Present where the parts hold only the rows that changed since another checkpoint; `rows`
    /// counts the whole table in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<ChangedParts>,
}

/// Files of one table that are cut by their own number of rows: narrow rows, waiting keys, blocks
/// of a filter, or evicted keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedParts {
    /// The number of rows in all files.
    pub rows: u64,
    /// The files in slot order: a power of two of them, each with the same number of slots.
    pub parts: Vec<PartInfo>,
}

impl ListedParts {
    /// Makes a list of files that were written.
    pub fn of(parts: Vec<PartInfo>) -> Self {
        Self { rows: parts.iter().map(|part| part.rows).sum(), parts }
    }
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartInfo {
    /// The path below the checkpoint's folder, with `/`: `tables/<table>/part-00000.arrow`.
    pub file: String,
    /// The number of rows in the file.
    pub rows: u64,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash of the file, in hexadecimal.
    pub blake3: String,
}

impl TableParts {
    /// Returns the number of full rows.
    pub fn full_rows(&self) -> Option<u64> {
        self.rows.checked_sub(self.narrow.as_ref().map_or(0, |narrow| narrow.rows))
    }
}

/// Returns the path of a file below the checkpoint's folder.
fn file_name(table: &str, kind: &str, part: usize) -> String {
    format!("tables/{table}/{kind}-{part:05}.arrow")
}

/// The kinds of files that a table has.
const ROWS: &str = "part";
const NARROW: &str = "narrow";
const CANDIDATES: &str = "candidates";
const FILTER: &str = "filter";
const GONE: &str = "gone";

/// Returns the slots of one part out of `parts`.
pub fn part_slots(part: usize, parts: usize) -> Range<usize> {
    let slots = SLOTS / parts;
    part * slots..(part + 1) * slots
}

/// Returns the number of parts that a table is cut into: the smallest power of two whose parts have
/// at most `limit` rows, or one part a slot.
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

/// Describes the segments as the metadata of a part name them: the meaning of a row's floats and
/// state.
fn describe_segments(shape: &RowShape) -> String {
    let segments = shape.spec.segments.iter();
    let described = segments.map(|s| format!("{}:{}:{}", s.name, s.dim, s.optimizer.kind()));
    described.collect::<Vec<_>>().join(",")
}

/// Returns the names and dimensions of the segments, on which readers of weights depend.
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
