//! The layers of versions: the read-only form of tables, in which versions are published and
//! served.
//!
//! A layer holds the rows of one version. A base has every row. A delta has the rows that were
//! written since the parent version, and tombstones for removed keys. Each table of a layer is
//! divided by key into *parts*, whose number is a power of two. A part is an Arrow IPC file with
//! one uncompressed record batch, without nulls, and with the columns `key` (u64, ascending),
//! `weights` (a fixed-size list of f32: all segments of a row), `count` (u32: the number of pushes
//! of the row) and `tombstone` (u8: 1 for a removed key). Any Arrow tool can open it. If a version
//! publishes its rows in a smaller number type ([`RowType`]), the column `weights` has this type,
//! and rows of int8 have a column `scale` behind it. A part with many zeros leaves them out: it has
//! a column `mask` before the weights, whose bits say which weights of a row are stored.
//!
//! If rows grow, the narrow rows have parts of their own, whose column `weights` has the width of a
//! narrow row. Tombstones are stored with the full rows. A reader takes the missing floats of a
//! narrow row from the initial row of its key, which the version's description of the table
//! defines. Each key of a layer has either a full row or a narrow row, never both.
//!
//! One more file, the *directory*, makes it possible to find a key without reading the whole part.
//! The first bits of a key select its part. If the directory uses `n` bits in a part, the next `n`
//! bits of the key are the number of its entry. Entry `b` holds the index of the first row in the
//! part whose key has an entry number of at least `b`. Keys are mixed, so about four keys share an
//! entry on average. A lookup reads one cache line of the directory, one cache line of the keys,
//! and the row itself. Crafted ids can put many keys into one entry. Such an entry is searched by
//! halving.
//!
//! A layer may also list the keys whose rows were used most ([`HotTable`]).
//!
//! If the tables are on several servers, each server writes the parts of its own keys and a
//! directory of these parts. The parts of one table are then in several directories. A layer of one
//! writer has one directory.
//!
//! The files of a small delta are stored as one file, the *pack*, which is mapped as a whole (see
//! [`pack_layer`]). A base keeps its files apart: each is fetched, hashed and replaced by itself,
//! and any Arrow tool opens it.
//!
//! The name of a file is the BLAKE3 hash of its bytes. So a file that exists under its name is
//! complete, and two writers of the same rows write the same file. A store needs no other identity
//! for the file.
//!
//! # Invariants
//! * The bytes of a layer depend only on the rows that were written and on the number of parts that
//!   the writer was given.
//! * A reader checks every index into a mapped file before it uses the index. So a damaged file
//!   gives a wrong row or no row, and never a fault.

mod block;
mod checkpoint;
mod difference;
mod hot;
mod last_uses;
mod merge;
mod name;
mod open;
mod owners;
mod pack;
mod part;
mod records;
mod schemas;
mod source;
mod sparse;
mod sparsity;
mod throttled;
mod verify;
mod weights;
mod write;

use serde::{Deserialize, Serialize};
use zillion_feature::SLOTS;

use crate::row_type::RowType;

pub use checkpoint::layer_of_checkpoint;
pub use difference::difference;
pub use hot::{HotKey, HotTable};
pub use merge::merge_layers;
pub use name::deserialize_hash;
pub use open::{Layer, Places};
pub use owners::LayerCut;
pub use pack::{LayerPack, MAX_PACKED_BYTES, OpenPack, pack_layer};
pub use part::{Found, LayerRow, WholeRow};
pub use source::{LayerSource, MAX_LAYERS, MAX_OPEN_LAYERS};
pub use sparsity::Sparsity;
pub use verify::verify_layer;
pub use write::LayerWriter;

/// The version of the file format, which the metadata of every file contain. Directories and parts
/// with f32 weights have it.
const FORMAT: &str = "1";

/// The version of the file format of parts with weights of another type.
const TYPED_FORMAT: &str = "2";

/// The version of the file format of parts that leave out the weights that are zero.
const SPARSE_FORMAT: &str = "3";

/// The largest number of bytes of the rows of a part. A part that has only one slot may be larger.
/// A writer holds one part in memory.
pub const PART_BYTES: u64 = 32 << 20;

/// The mean number of keys that share an entry of the directory.
const KEYS_PER_ENTRY: u64 = 4;

/// The entry of one file of a layer in the manifest. The name of the file is `<blake3>.arrow`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerFile {
    /// The BLAKE3 hash of the file, in hexadecimal.
    #[serde(deserialize_with = "deserialize_hash")]
    pub blake3: String,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// The list of the files of a layer, which is the section about rows in a version's manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerManifest {
    /// The entries of the tables, in the order of the schema.
    pub tables: Vec<LayerTable>,
    /// The file with the directory of all parts, or of the parts of the first writer.
    pub directory: LayerFile,
    /// The files with the directories of the other writers; empty if one writer has written the
    /// layer. A program of a version without this field refuses a manifest that has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_directories: Vec<LayerFile>,
    /// The files with the hot keys, one of each writer that lists some; empty if none does. A
    /// program of a version without this field refuses a manifest that has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hot: Vec<LayerFile>,
}

/// The entry of one table in the manifest of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTable {
    /// The name of the table.
    pub table: String,
    /// The names and dimensions of the segments of a row, in order.
    pub segments: Vec<(String, usize)>,
    /// The number type of the weights. A program of a version without this field refuses a manifest
    /// that has it.
    #[serde(default, skip_serializing_if = "RowType::is_f32")]
    pub row_type: RowType,
    /// The number of keys, including tombstones and narrow rows.
    pub rows: u64,
    /// The number of tombstones: keys that were removed from the table.
    pub tombstones: u64,
    /// The number of finite weights that are beyond the largest number of the type f16, and became
    /// this number; absent if there are none. A program of a version without this field refuses a
    /// manifest that has it. A merge of layers does not count them again.
    #[serde(default, skip_serializing_if = "is_none")]
    pub clamped: u64,
    /// The parts in key order. Their number is a power of two, or 0 if the table has no row.
    pub parts: Vec<LayerPart>,
    /// The narrow rows; absent if every row is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrow: Option<NarrowRows>,
}

/// The entry of a table's narrow rows in the manifest of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NarrowRows {
    /// The names and dimensions of the segments of a narrow row, in order.
    pub segments: Vec<(String, usize)>,
    /// The number of narrow rows.
    pub rows: u64,
    /// The parts in key order. Their number is a power of two.
    pub parts: Vec<LayerPart>,
}

/// The entry of one part of a table in the manifest of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerPart {
    /// The file that holds the rows.
    pub file: LayerFile,
    /// The number of keys in the file.
    pub rows: u64,
    /// The index in the directory of the part's first entry, counted from 0.
    pub first_entry: u64,
    /// The number of bits of a key that choose a directory entry of the part. The part has `2^bits
    /// + 1` entries.
    pub bits: u32,
    /// The index of the directory with the entries of the part: 0 for
    /// [`directory`](LayerManifest::directory), and 1 for the first one of
    /// [`more_directories`](LayerManifest::more_directories).
    #[serde(default, skip_serializing_if = "is_first")]
    pub directory: u32,
    /// The number of weights that the file stores, if it leaves out those that are zero; absent if
    /// it stores all weights. A program of a version without this field refuses a manifest that has
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<u64>,
}

/// Returns whether the index of a directory is that of the first one, which is not written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_first(directory: &u32) -> bool {
    *directory == 0
}

/// Returns whether a number of weights is zero, which is not written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// A throttle for long work on a thread, which leaves time to the other work of the machine.
///
/// The caller must call [`Throttle::piece`] after each small piece of work, at least every few
/// hundred microseconds. The implementer measures the time of each piece, and pauses for the time
/// that other work needs.
pub trait Throttle {
    /// Records the end of a piece of work, and pauses if necessary.
    fn piece(&mut self);

    /// Records that the thread has waited for a disk or a store since the last piece, and has not
    /// used a processor.
    fn waited(&mut self) {}

    /// Returns whether the caller wants the work to end early, with an error.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// A throttle that never pauses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unthrottled;

impl Throttle for Unthrottled {
    fn piece(&mut self) {}
}

impl LayerFile {
    /// Returns the name of the file in any store.
    pub fn name(&self) -> String {
        format!("{}.arrow", self.blake3)
    }
}

impl LayerManifest {
    /// Yields the files of all parts, then the files of the directories, and then those of the hot
    /// keys.
    pub fn files(&self) -> impl Iterator<Item = &LayerFile> {
        let parts = self.tables.iter().flat_map(LayerTable::all_parts).map(|part| &part.file);
        parts.chain(self.directories()).chain(&self.hot)
    }

    /// Yields the files of the directories, in the order of their indices.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &LayerFile> {
        [&self.directory].into_iter().chain(&self.more_directories)
    }

    /// Returns the number of keys in all tables together, including tombstones.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|t| t.rows).sum()
    }

    /// Returns the number of tombstones in all tables together.
    pub fn tombstones(&self) -> u64 {
        self.tables.iter().map(|t| t.tombstones).sum()
    }
}

impl LayerTable {
    /// Yields the parts with full rows, and then those with narrow rows.
    pub fn all_parts(&self) -> impl Iterator<Item = &LayerPart> {
        self.parts.iter().chain(self.narrow.iter().flat_map(|narrow| &narrow.parts))
    }

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

/// Returns the number of parts for a table of `rows` rows with `width` floats each. Keys are mixed,
/// so equal ranges of keys have about equal numbers of rows.
pub fn part_count(rows: u64, width: usize) -> usize {
    if rows == 0 {
        return 0;
    }
    let bytes = rows.saturating_mul(row_bytes(width));
    let parts = bytes.div_ceil(PART_BYTES).next_power_of_two();
    usize::try_from(parts).unwrap_or(SLOTS).min(SLOTS)
}

/// Returns the version of the file format of a part with weights of this type. `is_sparse` says
/// whether the part leaves out zeros.
fn part_format(row_type: RowType, is_sparse: bool) -> &'static str {
    match (is_sparse, row_type) {
        (true, _) => SPARSE_FORMAT,
        (false, RowType::F32) => FORMAT,
        (false, _) => TYPED_FORMAT,
    }
}

/// Returns the number of bytes of a row in a part, if its weights are f32. The cut into parts is
/// the same for all number types.
fn row_bytes(width: usize) -> u64 {
    (size_of::<u64>() + size_of::<u32>() + 1 + width * size_of::<f32>()) as u64
}

/// Returns the number of bits of a key that select a directory entry, in a part with this many
/// rows.
fn entry_bits(rows: usize) -> u32 {
    let entries = (rows as u64).div_ceil(KEYS_PER_ENTRY).max(2);
    entries.next_power_of_two().trailing_zeros()
}

/// Returns the index of the part that a key belongs to, out of `parts` parts. The index is the
/// number in the first bits of the key.
fn part_of(key: u64, parts: usize) -> usize {
    match parts.trailing_zeros() {
        0 => 0,
        bits => (key >> (u64::BITS - bits)) as usize,
    }
}

/// Returns the index of a key's directory entry in its part. The first bits of the key select the
/// part, and the index is the number in the next `bits` bits.
fn entry_of(key: u64, parts: usize, bits: u32) -> usize {
    ((key << parts.trailing_zeros()) >> (u64::BITS - bits)) as usize
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
