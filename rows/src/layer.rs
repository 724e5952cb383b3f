//! Layers of versions: the read-only form of tables, in which versions are published and served.
//!
//! A layer holds what one version changed: a base has every row, a delta has the rows that were
//! written since its parent, and tombstones for the keys that left. Each table of a layer is cut by
//! key into a power of two of *parts*: Arrow IPC files with one uncompressed record batch and the
//! columns `key` (u64, ascending), `weights` (a fixed-size list of f32: all segments of a row),
//! `count` (u32: the number of pushes of the row) and `tombstone` (u8: 1 where the key left),
//! without nulls. Any Arrow tool opens them.
//!
//! Where rows grow, the narrow ones have parts of their own, with columns of their width;
//! tombstones are among the full rows. The floats that a narrow row lacks read as those of the
//! initial row of its key, which the version's description of the table defines. A key of a layer
//! is in one of both.
//!
//! One more file, the *directory*, makes a part ready without reading it. Keys are mixed, so the
//! first bits of a key tell about where the key stands, and the directory tells exactly: entry `b`
//! of a part with `n` bits is the number of the first row whose key has `b` or more in the `n` bits
//! below those that name the part. Four keys share an entry on average, so a lookup costs a cache
//! line of the directory, one of the keys, and the row itself.
//!
//! Files are named by the BLAKE3 hash of their bytes: a file that is there under its name is
//! complete, two writers of the same rows write the same file, and a store needs no other identity
//! for it.
//!
//! # Invariants
//! * Rows are a function of what was written, and cuts of the number of parts that the writer was
//!   given: the same rows give the same bytes.
//! * A mapped file is never trusted further than one access: every index is checked where it is
//!   used, so that a damaged file gives a wrong row or none, and never a fault.

mod checkpoint;
mod difference;
mod merge;
mod open;
mod part;
mod source;
mod write;

use serde::{Deserialize, Serialize};
use zillion_feature::SLOTS;

pub use checkpoint::layer_of_checkpoint;
pub use difference::difference;
pub use merge::merge_layers;
pub use open::{Layer, Places, verify_layer};
pub use part::{Found, LayerRow, WholeRow};
pub use source::{LayerSource, MAX_LAYERS};
pub use write::LayerWriter;

/// The version of the format, in every file's metadata.
const FORMAT: &str = "1";

/// The largest number of bytes of rows of a part, unless a single slot has more; a writer holds a
/// part in memory.
pub const PART_BYTES: u64 = 32 << 20;

/// The mean number of keys that share an entry of the directory.
const KEYS_PER_ENTRY: u64 = 4;

/// A file of a layer of a version. The name is `<blake3>.arrow`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerFile {
    /// The BLAKE3 hash of the bytes, in hexadecimal.
    pub blake3: String,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// The files of a layer: the section of a version's manifest about rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerManifest {
    /// The tables, in the order of the schema.
    pub tables: Vec<LayerTable>,
    /// The directory of all parts.
    pub directory: LayerFile,
}

/// One table of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTable {
    /// The name of the table.
    pub table: String,
    /// The names and dimensions of the segments of a row, in order.
    pub segments: Vec<(String, usize)>,
    /// The number of keys, tombstones and narrow rows included.
    pub rows: u64,
    /// The number of keys that left the table.
    pub tombstones: u64,
    /// The parts in key order: a power of two of them, or none where the table has no row.
    pub parts: Vec<LayerPart>,
    /// The narrow rows; absent where every row is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrow: Option<NarrowRows>,
}

/// The narrow rows of a table of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NarrowRows {
    /// The names and dimensions of the segments of a narrow row, in order.
    pub segments: Vec<(String, usize)>,
    /// The number of narrow rows.
    pub rows: u64,
    /// The parts in key order: a power of two of them.
    pub parts: Vec<LayerPart>,
}

/// One part of a table in a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerPart {
    /// The file that holds the rows.
    pub file: LayerFile,
    /// The number of keys.
    pub rows: u64,
    /// The number of the first entry of the part in the directory.
    pub first_entry: u64,
    /// The number of bits of a key that choose an entry; the part has `2^bits + 1` entries.
    pub bits: u32,
}

/// A throttle for work on a thread that others need too.
///
/// The work calls [`Throttle::piece`] between two small pieces, at least every few hundred
/// microseconds. The implementer measures how long a piece took and pauses as long as the others
/// need.
pub trait Throttle {
    /// Notes that a piece of work has ended, and pauses where necessary.
    fn piece(&mut self);

    /// Notes that the time since the last piece was spent waiting for a disk or a store, without a
    /// processor.
    fn waited(&mut self) {}
}

/// A throttle that never pauses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unthrottled;

impl Throttle for Unthrottled {
    fn piece(&mut self) {}
}

impl LayerFile {
    /// Returns the name of the file, which is the same in every store.
    pub fn name(&self) -> String {
        format!("{}.arrow", self.blake3)
    }
}

impl LayerManifest {
    /// Yields every file, the directory last.
    pub fn files(&self) -> impl Iterator<Item = &LayerFile> {
        let parts = self.tables.iter().flat_map(|t| {
            let narrow = t.narrow.iter().flat_map(|narrow| &narrow.parts);
            t.parts.iter().chain(narrow).map(|part| &part.file)
        });
        parts.chain([&self.directory])
    }

    /// Returns the number of keys of all tables, tombstones included.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|t| t.rows).sum()
    }
}

impl LayerTable {
    /// Returns the number of floats of a row.
    pub fn width(&self) -> usize {
        self.segments.iter().map(|(_, dim)| dim).sum()
    }
}

impl NarrowRows {
    /// Returns the number of floats of a row.
    pub fn width(&self) -> usize {
        self.segments.iter().map(|(_, dim)| dim).sum()
    }
}

/// Returns the number of parts that a table with these rows is cut into. Keys are mixed, so that
/// equal ranges of keys hold about equal numbers of rows.
pub fn part_count(rows: u64, width: usize) -> usize {
    if rows == 0 {
        return 0;
    }
    let bytes = rows.saturating_mul(row_bytes(width));
    let parts = bytes.div_ceil(PART_BYTES).next_power_of_two();
    usize::try_from(parts).unwrap_or(SLOTS).min(SLOTS)
}

/// Returns the number of bytes of a row in a part.
fn row_bytes(width: usize) -> u64 {
    (size_of::<u64>() + size_of::<u32>() + 1 + width * size_of::<f32>()) as u64
}

/// Returns the number of bits that choose an entry of a part with this many rows.
fn entry_bits(rows: usize) -> u32 {
    let entries = (rows as u64).div_ceil(KEYS_PER_ENTRY).max(2);
    entries.next_power_of_two().trailing_zeros()
}

/// Returns the part of a key: its first bits.
fn part_of(key: u64, parts: usize) -> usize {
    match parts.trailing_zeros() {
        0 => 0,
        bits => (key >> (u64::BITS - bits)) as usize,
    }
}

/// Returns the entry of a key among those of its part: the next bits.
fn entry_of(key: u64, parts: usize, bits: u32) -> usize {
    ((key << parts.trailing_zeros()) >> (u64::BITS - bits)) as usize
}

#[cfg(test)]
mod tests;
