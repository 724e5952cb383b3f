//! How many rows and waiting keys a table may have where its memory is limited.
//!
//! Limits are turned into numbers of rows once, by a reckoning of what rows take, and decisions are made in rows:
//! what the allocator happens to hold is a matter of the number of shards, and results must not be. The reckoning
//! is an upper bound for [`RECKONED_SHARDS`] shards; each one more can add the unfilled end of a chunk in each of
//! its slabs.

use zillion_device::slab::{CHUNK_BYTES, Slab};
use zillion_feature::SLOTS;

use std::num::NonZeroUsize;

use crate::filter::FilterShape;
use crate::spec::{Admission, ByteSize, STRIDE_UNIT, TableSpec};

/// Bytes of the index a row at most, and of the count of a key that waits: see the index's own test.
pub const INDEX_BYTES: u64 = 20;
/// Bytes of an empty slot of the index.
pub const SLOT_BYTES: u64 = 32;
/// Bytes of a bucket of the index.
pub const BUCKET_BYTES: u64 = 64;

/// Shards that a set of tables has unless a job says otherwise.
pub const DEFAULT_SHARDS: NonZeroUsize = NonZeroUsize::new(8).expect("eight is not zero");

/// Shards that limits in bytes are reckoned with: what a job has unless it says otherwise.
const RECKONED_SHARDS: u64 = DEFAULT_SHARDS.get() as u64;
/// The part of a limit that exact counts of waiting keys may take.
pub const CANDIDATES_PART: u64 = 8;
/// Bytes of a shard's slabs beside their rows, and rows for which these keep a bit each.
const BOOKKEEPING_BYTES: u64 = 1024;
const BITS_ROWS: u64 = 4;
/// What a slab begins with, and what it grows by when it is large.
const PAGE: u64 = 4 << 10;
const CHUNK: u64 = CHUNK_BYTES as u64;

/// What rows of a table take.
#[derive(Clone, Copy, Debug)]
pub struct Reckoning {
    /// Bytes of a row's weights.
    weights: u64,
    /// Bytes of its state and metadata.
    companion: u64,
    /// Bytes of a staged gradient, where gradients are staged by row.
    staged: u64,
    /// Bytes of its key, where rows know theirs.
    key: u64,
    /// Bytes of a filter of waiting keys.
    filter: u64,
    /// Whether the table evicts, slot after slot.
    evicts: bool,
}

impl Reckoning {
    /// An upper bound of the memory that `rows` rows take, the index at the worst moment of its growth and a
    /// filter of waiting keys included. Exact counts of waiting keys are not: they have their own part.
    pub fn memory(&self, rows: u64) -> u64 {
        let slab = |row: u64| slab_memory(rows, row);
        let staged = if self.staged > 0 { slab(self.staged) } else { 0 };
        let bookkeeping = RECKONED_SHARDS * BOOKKEEPING_BYTES + rows / BITS_ROWS;
        let slabs = slab(self.weights) + slab(self.companion) + staged;
        // A slot whose turn it is loses up to two fifths of its rows and fills up until its next turn, so that before that it
        // has a quarter more than the average one; its buckets stay.
        let most_in_slots = if self.evicts { rows + rows.div_ceil(4) } else { rows };
        index_memory(most_in_slots) + slabs + rows * self.key + bookkeeping + self.filter
    }

    /// Rows whose memory is within a limit.
    pub fn rows_within(&self, limit: u64) -> u64 {
        rows_within(limit, |rows| self.memory(rows))
    }
}

/// An upper bound of what a slab of each shard maps for `rows` rows, over all shards: as many as there are reckoned with, or
/// fewer.
///
/// Up to a chunk a slab has half as much again as its rows are worth at most, if they lie no more than an eighth beyond their
/// number, as those of evicting tables do; a page and a row more by rounding. From there on it has chunks of one size, as many
/// as it had rows for when it had most, the last of which may have one row.
fn slab_memory(rows: u64, row: u64) -> u64 {
    let beginning = RECKONED_SHARDS * (PAGE + row);
    // Rows of a chunk take its end as well, where that is no row.
    let in_chunk = CHUNK.div_ceil((CHUNK / row).max(1));
    let most = most_in_shards(rows) * in_chunk;
    // The most shards that have filled a chunk and begun another.
    match (most / CHUNK).min(RECKONED_SHARDS) {
        0 => 3 * rows * row / 2 + beginning,
        shards => most + shards * CHUNK + beginning,
    }
}

/// The sum of the most rows that each shard has had, at whatever time, of a table that never has more than `rows`: keys are
/// mixed, so that a shard's number of them is a binomial one, and four times its deviation is beyond what is met.
fn most_in_shards(rows: u64) -> u64 {
    let in_shard = rows.div_ceil(RECKONED_SHARDS);
    (rows + RECKONED_SHARDS * 4 * in_shard.isqrt()).min(RECKONED_SHARDS * rows)
}

/// An upper bound of the index of `keys` keys: of those of a small slot most lie in a bucket that is not full.
fn index_memory(keys: u64) -> u64 {
    INDEX_BYTES * keys + SLOTS as u64 * SLOT_BYTES + BUCKET_BYTES * keys.min(SLOTS as u64)
}

/// Waiting keys of a slot whose exact counts, in all slots, are within a limit.
pub fn candidates_within(limit: u64) -> usize {
    (rows_within(limit, index_memory) / SLOTS as u64) as usize
}

/// The largest number of rows below 2³¹ whose bytes, as `bytes` says, are within a limit. `bytes` must grow with its
/// argument.
pub fn rows_within(limit: u64, bytes: impl Fn(u64) -> u64) -> u64 {
    let (mut low, mut high) = (0, 1 << 31);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if bytes(middle) <= limit { low = middle } else { high = middle }
    }
    low
}

impl TableSpec {
    /// Bytes of a row's weights in memory, padded to 16.
    pub fn weight_bytes(&self) -> usize {
        (self.layout().width() * self.dtype.bytes()).next_multiple_of(4 * STRIDE_UNIT)
    }

    /// Bytes of a row's key, where a sweep must know it to round the row.
    pub fn key_bytes(&self) -> u64 {
        if self.has_whole_table_rule() && !self.dtype.is_f32() { 8 } else { 0 }
    }

    /// Bytes that a row takes in memory, all told: weights, state and metadata, its share of the index at
    /// the worst moment of its growth, and the staged gradient where a step moves the whole table.
    /// Not counted here is what a limit in bytes reckons with where rows go: a quarter more of the index, because slots keep the
    /// buckets of their fullest moment until their turn comes.
    pub fn bytes_per_row(&self) -> u64 {
        let staged = if self.has_whole_table_rule() { self.layout().stride } else { 0 };
        let floats = 4 * (self.companion_stride() + staged) as u64;
        self.weight_bytes() as u64 + floats + self.key_bytes() + INDEX_BYTES
    }

    /// Bytes that a table of `rows` rows takes in memory on `shards` shards: [`TableSpec::bytes_per_row`], and
    /// what small tables notice: the directory of slots, a bucket of the index for the first row of each,
    /// and slabs that grow by a quarter up to a chunk and by chunks from there.
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

    /// Bytes of the index of `rows` rows, at the worst moment of its growth, with the directory of slots and a
    /// bucket for the first row of each.
    pub fn index_memory(&self, rows: u64) -> u64 {
        let slots = SLOTS as u64;
        slots * SLOT_BYTES + (INDEX_BYTES * rows).max(BUCKET_BYTES * rows.min(slots))
    }

    /// Bytes that keys take in memory while they wait to be admitted: at the worst moment of growth, and with
    /// the directory of slots and a bucket for the first key of each; or those of a filter.
    pub fn candidate_memory(&self, candidates: u64) -> u64 {
        match self.admission {
            Admission::All | Admission::Probability { .. } => 0,
            Admission::Count { .. } => self.index_memory(candidates),
            Admission::Bloom { .. } => self.filter().map_or(0, |filter| filter.bytes()),
        }
    }

    /// Bytes that a waiting key takes in a checkpoint: key, count, last step.
    pub fn checkpoint_bytes_per_candidate(&self) -> u64 {
        8 + 4 + 8
    }

    /// Bytes that a row takes in a checkpoint: key, weights, state, count, last step, dirty epoch.
    pub fn checkpoint_bytes_per_row(&self) -> u64 {
        let weights = self.dtype.bytes() * self.layout().width();
        // In a file the last step has eight bytes.
        8 + (weights + 4 * (self.state_width() + self.use_words())) as u64 + 4 + 8 + 4
    }

    /// What rows of this table take.
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

    /// Rows that a dynamic table may have by `max_rows` and `max_bytes`, if it has a limit.
    pub fn most_rows(&self) -> Option<u64> {
        if self.dense {
            return None;
        }
        let reckoning = self.reckoning();
        let within = |ByteSize(limit)| reckoning.rows_within(limit - self.for_candidates(limit));
        self.max_rows.into_iter().chain(self.max_bytes.map(within)).min()
    }

    /// Waiting keys that a slot may have where memory is limited and they are counted exactly.
    pub fn candidates_in_slot(&self) -> Option<usize> {
        let limit = self.for_candidates(self.max_bytes?.0);
        (limit > 0).then(|| candidates_within(limit))
    }

    /// The filter that waiting keys are counted in, if it is one.
    pub fn filter(&self) -> Option<FilterShape> {
        match self.admission {
            Admission::Bloom { at_least, keys, error } => {
                Some(FilterShape::new(at_least, keys, error))
            }
            _ => None,
        }
    }

    /// The part of a limit that exact counts have.
    fn for_candidates(&self, limit: u64) -> u64 {
        let counts = matches!(self.admission, Admission::Count { .. });
        if counts { limit / CANDIDATES_PART } else { 0 }
    }

    /// Whether the eviction does nothing without a limit of the table's size.
    pub fn eviction_needs_limit(&self) -> bool {
        !self.eviction.is_never() && !self.eviction.is_scheduled()
    }
}
