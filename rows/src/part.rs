//! The parts of a checkpoint. A part holds the rows of a slot range as one Arrow IPC file, sorted
//! by key.
//!
//! A part is an uncompressed file with one record batch, without nulls. Its columns are `key`
//! (u64), `weights` and `state` (fixed-size lists of f32, with all segments of a row in one list),
//! `count` (u32), `last_step` (u64) and `dirty_epoch` (u32). Weights have the type of the table:
//! f32, f16 or bf16. Arrow has no bf16, so these weights are stored as u16, and the metadata of the
//! field name the type (`zillion.dtype`). Any Arrow tool can open a part. The metadata of the
//! schema name the format, the table, the slot range and the segments. The padding that rows have
//! in memory is not written.
//!
//! A table may have further files beside its parts:
//!
//! * `candidates-*.arrow`: keys that wait for admission, with the columns `key`, `count` and
//!   `last_step`;
//! * `filter-*.arrow`: the blocks of the filter in which waiting keys are counted;
//! * `narrow-*.arrow`: the rows that are still narrow. Such a file has the schema of a table that
//!   has only the segments of the narrow rows;
//! * `gone-*.arrow`: keys whose rows were evicted, in a checkpoint that holds only changes.
//!
//! If a table keeps statistics of use, its rows also have the columns `show` and `click` (f32).
//!
//! The parts of a checkpoint of changes have only the rows that changed since the checkpoint below
//! it. A [`RowPart`] reads a chain of such checkpoints as one part.
//!
//! The division of a table into parts depends only on the number of rows of each slot, and on the
//! slots that the writer owns. So the bytes of the files are the same for every number of shards
//! and threads. The manifest lists the slots of each file, because several processes may each own
//! some slots of a table and write their own files (see [`cut()`] and [`TableParts::merge`]).

mod candidates;
mod chain;
mod cut;
mod digest;
mod filter;
mod gone;
mod listing;
mod merge;
mod narrow;
mod open;
mod opened;
mod read;
mod search;
mod source;
mod write;

use serde::{Deserialize, Serialize};

pub use candidates::{StoredCandidates, write_candidates};
pub use chain::{RowPart, open_rows};
pub use cut::{ALL_SLOTS, Place, cut, find_slot, overlap};
pub use digest::RowDigest;
pub use filter::{StoredFilter, open_filters, write_filter};
pub use gone::write_gone;
pub use listing::{ChangedParts, PartsBelow, listed_parts};
pub use narrow::open_narrow;
pub use opened::{OpenedTable, check_digest, open_tables};
pub use read::{Need, open_candidates};
pub use source::PartSource;
pub(crate) use source::open_weights;
pub use write::{PartRows, write_rows};

use crate::layout::TableLayout;
use crate::shape::RowShape;

/// The largest number of rows of a part. A part that has only one slot may have more rows.
pub const MAX_PART_ROWS: u64 = 1 << 20;

/// The version of the file format, which the metadata of every part contain.
const FORMAT: &str = "1";

/// The remedy for a file that differs from its entry in the manifest.
const REMEDY: &str = "use another checkpoint, or copy this checkpoint again";

/// The entry of one table in the manifest of a checkpoint, which lists the files of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableParts {
    /// The name of the table.
    pub table: String,
    /// The number of rows of the table, including narrow rows. If the parts hold only changes, they
    /// have fewer rows than this number.
    pub rows: u64,
    /// The dirty epoch that was current when the checkpoint was written.
    pub dirty_epoch: u32,
    /// The parts in slot order. Every slot belongs to exactly one part.
    pub parts: Vec<PartInfo>,
    /// The files of the narrow rows; absent if rows do not grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrow: Option<ListedParts>,
    /// The files of the keys that wait for admission; absent if the table does not count keys
    /// exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<ListedParts>,
    /// The files of the filter in which waiting keys are counted; absent if the table has no
    /// filter. The rows of these files are blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<ListedParts>,
    /// The details of a table whose parts hold only changed rows; absent if the parts hold all
    /// rows. `rows` counts all rows of the table in both cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<ChangedParts>,
    /// The digest of the rows, waiting keys and filter blocks in the files of this entry. Evicted
    /// keys and the files of checkpoints below this one are not part of it. Absent in a manifest of
    /// an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<RowDigest>,
}

/// A group of files of one table that has its own number of parts: narrow rows, waiting keys,
/// blocks of a filter, or evicted keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedParts {
    /// The number of rows in all files of the group.
    pub rows: u64,
    /// The files in slot order. Every slot belongs to exactly one file.
    pub parts: Vec<PartInfo>,
}

/// The entry of one file in the manifest of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartInfo {
    /// The path of the file relative to the checkpoint's folder, with `/` as separator:
    /// `tables/<table>/part-00000.arrow`, or `tables/<table>/part-s0000-1344.arrow` if the writer
    /// owned only some slots of the table.
    pub file: String,
    /// The number of rows in the file.
    pub rows: u64,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash of the file, in hexadecimal.
    pub blake3: String,
    /// The first slot of the file, and the slot after its last slot. Absent in a manifest of an
    /// earlier version. There, the files of a list have equal numbers of slots, and their number is
    /// a power of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<(usize, usize)>,
}

impl TableParts {
    /// Returns the number of full rows, or `None` if the entry lists more narrow rows than rows.
    pub fn full_rows(&self) -> Option<u64> {
        self.rows.checked_sub(self.narrow.as_ref().map_or(0, |narrow| narrow.rows))
    }
}

/// The beginning of the names of files with full rows.
const ROWS: &str = "part";
/// The beginning of the names of files with narrow rows.
const NARROW: &str = "narrow";
/// The beginning of the names of files with waiting keys.
const CANDIDATES: &str = "candidates";
/// The beginning of the names of files with blocks of a filter.
const FILTER: &str = "filter";
/// The beginning of the names of files with evicted keys.
const GONE: &str = "gone";

/// Returns the text that describes the segments in the metadata of a part: the name, the dimension
/// and the optimizer of each segment.
fn describe_segments(shape: &RowShape) -> String {
    let segments = shape.spec.segments.iter();
    let described = segments.map(|s| format!("{}:{}:{}", s.name, s.dim, s.optimizer.kind()));
    described.collect::<Vec<_>>().join(",")
}

/// Returns the names and dimensions of the segments. A reader that needs only weights compares them
/// with the segments of a part.
fn describe_layout(layout: &TableLayout) -> Vec<(String, usize)> {
    layout.segments.iter().map(|s| (s.name.clone(), s.dim)).collect()
}
