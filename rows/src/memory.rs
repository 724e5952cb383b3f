//! The calculation of the memory that the rows and the waiting keys of a table take, and of the
//! number of rows that fit into a limit.
//!
//! A limit in bytes is converted once into a number of rows, by an estimate of the memory of rows.
//! All later decisions use the number of rows. Results must not depend on the number of shards, but
//! the memory that the allocator holds depends on it. The estimate is an upper bound for
//! [`RECKONED_SHARDS`] shards. Each further shard can add the unfilled end of a chunk in each of
//! its slabs.

use zillion_device::slab::{CHUNK_BYTES, Slab};
use zillion_feature::SLOTS;

use std::num::NonZeroUsize;

use crate::filter::FilterShape;
use crate::spec::{Admission, ByteSize, STRIDE_UNIT, TableSpec};

/// The largest number of bytes of the index for one row, or for the count of one waiting key. A
/// test of the index checks this bound.
pub const INDEX_BYTES: u64 = 20;
/// The number of bytes of an empty slot of the index.
pub const SLOT_BYTES: u64 = 32;
/// The number of bytes of a bucket of the index.
pub const BUCKET_BYTES: u64 = 64;

/// The number of shards of a set of tables if a job does not set it.
pub const DEFAULT_SHARDS: NonZeroUsize = NonZeroUsize::new(8).expect("eight is not zero");

/// The number of shards for which limits in bytes are computed. It is the default number of shards.
const RECKONED_SHARDS: u64 = DEFAULT_SHARDS.get() as u64;
/// The number by which a limit in bytes is divided to get the part for the exact counts of waiting
/// keys.
pub const CANDIDATES_PART: u64 = 8;
/// The number of bytes that the slabs of a shard take in addition to their rows.
const BOOKKEEPING_BYTES: u64 = 1024;
/// The number of rows that one byte of the bit maps of the slabs covers.
const BITS_ROWS: u64 = 4;
/// The number of bytes that a slab has at the beginning.
const PAGE: u64 = 4 << 10;
/// The number of bytes by which a large slab grows.
const CHUNK: u64 = CHUNK_BYTES as u64;

/// The sizes from which the memory of the rows of a table is computed.
#[derive(Clone, Copy, Debug)]
pub struct Reckoning {
    /// The number of bytes of a row's weights.
    weights: u64,
    /// The number of bytes of a row's optimizer state and metadata.
    companion: u64,
    /// The number of bytes of a row's staged gradient; 0 if gradients are not staged by row.
    staged: u64,
    /// The number of bytes of a row's key; 0 if the keys need not be listed by row.
    key: u64,
    /// The number of bytes of the filter of waiting keys.
    filter: u64,
    /// Whether the table evicts rows. Slots are then visited in turns.
    evicts: bool,
}

impl Reckoning {
    /// Returns an upper bound of the memory of `rows` rows in bytes. It includes the index at the
    /// worst moment of its growth and the filter of waiting keys. Exact counts of waiting keys have
    /// a separate share of the limit and are not included.
    pub fn memory(&self, rows: u64) -> u64 {
        let slab = |row: u64| slab_memory(rows, row);
        let staged = if self.staged > 0 { slab(self.staged) } else { 0 };
        let bookkeeping = RECKONED_SHARDS * BOOKKEEPING_BYTES + rows / BITS_ROWS;
        let slabs = slab(self.weights) + slab(self.companion) + staged;
        // A slot loses up to two fifths of its rows in its turn, and fills up until its next turn.
        // So before its turn it has up to a quarter more rows than the average slot. Its buckets
        // stay.
        let most_in_slots = if self.evicts { rows + rows.div_ceil(4) } else { rows };
        index_memory(most_in_slots) + slabs + rows * self.key + bookkeeping + self.filter
    }

    /// Returns the largest number of rows whose memory is within a limit.
    pub fn rows_within(&self, limit: u64) -> u64 {
        rows_within(limit, |rows| self.memory(rows))
    }
}

/// Returns an upper bound of the bytes that the slabs of all shards map for `rows` rows of `row`
/// bytes each.
///
/// Let `r` be the number of rows of a shard. A slab below the size of a chunk maps at most 1.5
/// times the bytes of `r` rows if its row numbers are below 1.125 times `r` (as in tables that
/// evict). Rounding adds at most one page and one row. A larger slab maps whole chunks, enough for
/// the largest number of rows that it ever had. The last chunk may hold a single row.
fn slab_memory(rows: u64, row: u64) -> u64 {
    // A spec is checked with its limits, so its rows may still be empty here.
    let row = row.max(1);
    let beginning = RECKONED_SHARDS * (PAGE + row);
    // The bytes of a row include its share of the end of a chunk, where no whole row fits.
    let in_chunk = CHUNK.div_ceil((CHUNK / row).max(1));
    let most = most_in_shards(rows) * in_chunk;
    // The largest number of shards that have filled a chunk and begun another chunk.
    match (most / CHUNK).min(RECKONED_SHARDS) {
        0 => 3 * rows * row / 2 + beginning,
        shards => most + shards * CHUNK + beginning,
    }
}

/// Returns an upper bound of the sum, over all shards, of the largest number of rows that the shard
/// ever had. The table never has more than `rows` rows. Keys are mixed, so the number of rows of a
/// shard has a binomial distribution. The bound allows for four standard deviations, which are not
/// exceeded in practice.
fn most_in_shards(rows: u64) -> u64 {
    let in_shard = rows.div_ceil(RECKONED_SHARDS);
    (rows + RECKONED_SHARDS * 4 * in_shard.isqrt()).min(RECKONED_SHARDS * rows)
}

/// Returns an upper bound of the bytes of an index of `keys` keys. The bound includes one bucket
/// per slot for buckets that are not full.
fn index_memory(keys: u64) -> u64 {
    INDEX_BYTES * keys + SLOTS as u64 * SLOT_BYTES + BUCKET_BYTES * keys.min(SLOTS as u64)
}

/// Returns the largest number of waiting keys per slot for which the exact counts of all slots take
/// at most `limit` bytes together.
pub fn candidates_within(limit: u64) -> usize {
    (rows_within(limit, index_memory) / SLOTS as u64) as usize
}

/// Returns the largest number of rows below 2³¹ for which `bytes` returns at most `limit`. `bytes`
/// must not decrease when the number of rows grows.
pub fn rows_within(limit: u64, bytes: impl Fn(u64) -> u64) -> u64 {
    let (mut low, mut high) = (0, 1 << 31);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if bytes(middle) <= limit { low = middle } else { high = middle }
    }
    low
}

impl TableSpec {
    /// Returns the number of bytes of a row's weights in memory, rounded up to a multiple of 16.
    pub fn weight_bytes(&self) -> usize {
        (self.layout().width() * self.dtype.bytes()).next_multiple_of(4 * STRIDE_UNIT)
    }

    /// Returns the number of bytes of a row's key in memory: 8 if a sweep needs the key to round
    /// the row, else 0.
    pub fn key_bytes(&self) -> u64 {
        if self.has_whole_table_rule() && !self.dtype.is_f32() { 8 } else { 0 }
    }

    /// Returns the number of bytes that a row takes in memory. The number includes its weights,
    /// optimizer state and metadata, its share of the index at the worst moment of growth, and the
    /// staged gradient if a step updates the whole table.
    ///
    /// If rows are evicted, a limit in bytes counts 25 % more for the index, because a slot keeps
    /// the buckets of its fullest moment until its next turn.
    pub fn bytes_per_row(&self) -> u64 {
        let staged = if self.has_whole_table_rule() { self.layout().stride } else { 0 };
        let floats = 4 * (self.companion_stride() + staged) as u64;
        self.weight_bytes() as u64 + floats + self.key_bytes() + INDEX_BYTES
    }

    /// Returns the number of bytes that a table of `rows` rows takes in memory on `shards` shards.
    /// In addition to [`TableSpec::bytes_per_row`], it counts three overheads that matter in small
    /// tables: the directory of slots, the index bucket for the first row of each slot, and the
    /// unused ends of slabs. Slabs grow by a quarter up to the size of a chunk, and by chunks after
    /// that.
    pub fn memory(&self, rows: u64, shards: usize) -> u64 {
        let index = self.index_memory(rows);
        let shards = shards.max(1) as u64;
        let slab = |row_bytes: usize| {
            shards * Slab::<f32>::mapped_bytes(rows.div_ceil(shards) as usize, row_bytes) as u64
        };
        let staged = if self.has_whole_table_rule() { slab(4 * self.layout().stride) } else { 0 };
        let rows_in_slabs = slab(self.weight_bytes()) + slab(4 * self.companion_stride());
        index + rows_in_slabs + staged + rows * self.key_bytes()
    }

    /// Returns the number of bytes of the index of `rows` rows at the worst moment of its growth,
    /// including the directory of slots and a bucket for the first row of each slot.
    pub fn index_memory(&self, rows: u64) -> u64 {
        let slots = SLOTS as u64;
        slots * SLOT_BYTES + (INDEX_BYTES * rows).max(BUCKET_BYTES * rows.min(slots))
    }

    /// Returns the number of bytes that `candidates` waiting keys take in memory. If keys are
    /// counted exactly, this is the size of the counts at the worst moment of their growth, with
    /// the directory of slots and a bucket for the first key of each slot. If keys are counted in a
    /// filter, it is the size of the filter.
    pub fn candidate_memory(&self, candidates: u64) -> u64 {
        match self.admission {
            Admission::All | Admission::Probability { .. } => 0,
            Admission::Count { .. } => self.index_memory(candidates),
            Admission::Bloom { .. } => self.filter().map_or(0, |filter| filter.bytes()),
        }
    }

    /// Returns the number of bytes that a waiting key takes in a checkpoint: its key, count and
    /// last step.
    pub fn checkpoint_bytes_per_candidate(&self) -> u64 {
        8 + 4 + 8
    }

    /// Returns the number of bytes that a row takes in a checkpoint: its key, weights, optimizer
    /// state, count, last step and dirty epoch.
    pub fn checkpoint_bytes_per_row(&self) -> u64 {
        let weights = self.dtype.bytes() * self.layout().width();
        // In a file the last step has eight bytes.
        8 + (weights + 4 * (self.state_width() + self.use_words())) as u64 + 4 + 8 + 4
    }

    /// Returns the sizes from which the memory of this table's rows is computed.
    pub fn reckoning(&self) -> Reckoning {
        Reckoning {
            weights: self.weight_bytes() as u64,
            companion: 4 * self.companion_stride() as u64,
            staged: if self.has_whole_table_rule() { 4 * self.layout().stride as u64 } else { 0 },
            key: self.key_bytes(),
            filter: self.filter().map_or(0, |filter| filter.bytes()),
            evicts: !self.dense && !self.eviction.is_never(),
        }
    }

    /// Returns the number of rows to which `max_rows` and `max_bytes` limit a dynamic table, or
    /// `None` if the table is dense or has no limit.
    pub fn most_rows(&self) -> Option<u64> {
        if self.dense {
            return None;
        }
        let reckoning = self.reckoning();
        let within = |ByteSize(limit)| reckoning.rows_within(limit - self.for_candidates(limit));
        self.max_rows.into_iter().chain(self.max_bytes.map(within)).min()
    }

    /// Returns the largest number of waiting keys of a slot, or `None` if memory is not limited or
    /// keys are not counted exactly.
    pub fn candidates_in_slot(&self) -> Option<usize> {
        let limit = self.for_candidates(self.max_bytes?.0);
        (limit > 0).then(|| candidates_within(limit))
    }

    /// Returns the shape of the filter in which waiting keys are counted, or `None` if the
    /// admission uses no filter.
    pub fn filter(&self) -> Option<FilterShape> {
        match self.admission {
            Admission::Bloom { at_least, keys, error } => {
                Some(FilterShape::new(at_least, keys, error))
            }
            _ => None,
        }
    }

    /// Returns the share of a limit in bytes that exact counts may take.
    fn for_candidates(&self, limit: u64) -> u64 {
        let counts = matches!(self.admission, Admission::Count { .. });
        if counts { limit / CANDIDATES_PART } else { 0 }
    }

    /// Returns whether the eviction does nothing unless the size of the table is limited.
    pub fn eviction_needs_limit(&self) -> bool {
        !self.eviction.is_never() && !self.eviction.is_scheduled()
    }
}
