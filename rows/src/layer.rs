//! Layers: the read-only form of tables, in which versions are published and served.
//!
//! A layer is what one version changed: a base has every row, a delta the rows that were written since its
//! parent, and tombstones for those that left. Each table of a layer is cut by key into a power of two of
//! *parts*: Arrow IPC files with one uncompressed record batch and the columns `key` (u64, ascending),
//! `weights` (a fixed-size list of f32: all segments of a row), `count` (u32: how often training pushed the
//! row) and `tombstone` (u8: 1 where the key left), without nulls. Any Arrow tool opens them.
//!
//! Where rows grow, those that are narrow have parts of their own, whose rows are as wide as they are; tombstones
//! are among the full ones. What a narrow row does not have is read as the initial row of its key, which the
//! version's description of the table tells. A key of a layer is in one of both.
//!
//! One more file, the *directory*, makes a part ready without reading it. Keys are mixed, so the first
//! bits of a key say about where it stands; the directory says exactly: entry `b` of a part with `n` bits is
//! the number of its first row whose key has `b` or more in the `n` bits below those that name the part.
//! Four keys share an entry on average, so a lookup costs a line of the directory, one of the keys, and
//! the row itself.
//!
//! Files are named by the BLAKE3 of their bytes: what is there under its name is whole, two writers of the
//! same rows write the same file, and a store needs no other identity for it.
//!
//! # Invariants
//! * Rows are a function of what was written, and cuts of the number of parts that the writer was given:
//!   the same rows give the same bytes.
//! * Nothing in a mapped file is trusted further than the access that it decides: every index is checked
//!   where it is used, so that a damaged file gives a wrong row or none, and never a fault.

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

/// Bytes of rows that a part has at most, unless a single slot has more: what a writer holds in memory.
pub const PART_BYTES: u64 = 32 << 20;

/// Keys that share an entry of the directory, on average.
const KEYS_PER_ENTRY: u64 = 4;

/// A file of a layer. Its name is `<blake3>.arrow`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerFile {
    /// BLAKE3 of its bytes, in hexadecimal.
    pub blake3: String,
    /// Its size.
    pub bytes: u64,
}

/// What a layer consists of: the part of a version's manifest that is about rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerManifest {
    /// One entry a table, in the order of the schema.
    pub tables: Vec<LayerTable>,
    /// The directory of all parts.
    pub directory: LayerFile,
}

/// One table of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTable {
    /// The table's name.
    pub table: String,
    /// Names and floats of the segments of a row, in order.
    pub segments: Vec<(String, usize)>,
    /// Keys, tombstones and narrow rows included.
    pub rows: u64,
    /// Keys that left.
    pub tombstones: u64,
    /// In key order: a power of two of them, or none where the table has no row.
    pub parts: Vec<LayerPart>,
    /// The rows that are not full; absent where none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrow: Option<NarrowRows>,
}

/// The narrow rows of a table of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NarrowRows {
    /// Names and floats of what such a row has, in order.
    pub segments: Vec<(String, usize)>,
    /// Keys.
    pub rows: u64,
    /// In key order: a power of two of them.
    pub parts: Vec<LayerPart>,
}

/// One part of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerPart {
    /// Where its rows are.
    pub file: LayerFile,
    /// Keys.
    pub rows: u64,
    /// Its first entry in the directory.
    pub first_entry: u64,
    /// Bits of a key that choose among its entries; it has `2^bits + 1` of them.
    pub bits: u32,
}

/// Called between two small pieces of work, at least every few hundred microseconds: whoever shares
/// a thread with others pauses here, and measures how long the piece took.
pub trait Pace {
    /// A piece has ended.
    fn piece(&mut self);

    /// The time since the last piece was spent waiting, for a disk or a store: nobody went without a processor.
    fn waited(&mut self) {}
}

/// Does everything at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtOnce;

impl Pace for AtOnce {
    fn piece(&mut self) {}
}

impl LayerFile {
    /// The name it has wherever it is stored.
    pub fn name(&self) -> String {
        format!("{}.arrow", self.blake3)
    }
}

impl LayerManifest {
    /// Every file, the directory last.
    pub fn files(&self) -> impl Iterator<Item = &LayerFile> {
        let parts = self.tables.iter().flat_map(|t| {
            let narrow = t.narrow.iter().flat_map(|narrow| &narrow.parts);
            t.parts.iter().chain(narrow).map(|part| &part.file)
        });
        parts.chain([&self.directory])
    }

    /// Keys of all tables, tombstones included.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|t| t.rows).sum()
    }
}

impl LayerTable {
    /// Floats of a row.
    pub fn width(&self) -> usize {
        self.segments.iter().map(|(_, dim)| dim).sum()
    }
}

impl NarrowRows {
    /// Floats of a row.
    pub fn width(&self) -> usize {
        self.segments.iter().map(|(_, dim)| dim).sum()
    }
}

/// How many parts a table with these rows is cut into. Keys are mixed, so equal ranges of them hold about
/// equal numbers.
pub fn part_count(rows: u64, width: usize) -> usize {
    if rows == 0 {
        return 0;
    }
    let bytes = rows.saturating_mul(row_bytes(width));
    let parts = bytes.div_ceil(PART_BYTES).next_power_of_two();
    usize::try_from(parts).unwrap_or(SLOTS).min(SLOTS)
}

/// Bytes of a row in a part.
fn row_bytes(width: usize) -> u64 {
    (size_of::<u64>() + size_of::<u32>() + 1 + width * size_of::<f32>()) as u64
}

/// Bits that choose among the entries of a part with this many rows.
fn entry_bits(rows: usize) -> u32 {
    let entries = (rows as u64).div_ceil(KEYS_PER_ENTRY).max(2);
    entries.next_power_of_two().trailing_zeros()
}

/// The part of a key: its first bits.
fn part_of(key: u64, parts: usize) -> usize {
    match parts.trailing_zeros() {
        0 => 0,
        bits => (key >> (u64::BITS - bits)) as usize,
    }
}

/// The entry of a key among those of its part: the next bits.
fn entry_of(key: u64, parts: usize, bits: u32) -> usize {
    ((key << parts.trailing_zeros()) >> (u64::BITS - bits)) as usize
}

#[cfg(test)]
mod tests;
