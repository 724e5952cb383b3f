//! How many rows and waiting keys a table may have where its memory is limited.
//!
//! Limits are turned into numbers of rows once, by a reckoning of what rows take, and decisions are made in rows:
//! what the allocator happens to hold is a matter of the number of shards, and results must not be. The reckoning
//! is an upper bound for [`RECKONED_SHARDS`] shards; each one more can add the unfilled end of a chunk in each of
//! its slabs.

use zillion_device::slab::CHUNK_BYTES;
use zillion_feature::SLOTS;

use crate::filter::FilterShape;
use crate::life::capacity::rows_within;
use crate::life::{Admission, ByteSize, Eviction};
use crate::spec::{BUCKET_BYTES, INDEX_BYTES, SLOT_BYTES, TableSpec};

/// Shards that limits in bytes are reckoned with: what a job has unless it says otherwise.
const RECKONED_SHARDS: u64 = crate::set::DEFAULT_SHARDS.get() as u64;
/// The part of a limit that exact counts of waiting keys may take.
const CANDIDATES_PART: u64 = 8;
/// Bytes of a shard's slabs beside their rows, and rows for which these keep a bit each.
const BOOKKEEPING_BYTES: u64 = 1024;
const BITS_ROWS: u64 = 4;
/// What a slab begins with, and what it grows by when it is large.
const PAGE: u64 = 4 << 10;
const CHUNK: u64 = CHUNK_BYTES as u64;

/// What rows of a table take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reckoning {
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
    pub(crate) fn memory(&self, rows: u64) -> u64 {
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
    pub(crate) fn rows_within(&self, limit: u64) -> u64 {
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
pub(crate) fn candidates_within(limit: u64) -> usize {
    (rows_within(limit, index_memory) / SLOTS as u64) as usize
}

impl TableSpec {
    /// What rows of this table take.
    pub(crate) fn reckoning(&self) -> Reckoning {
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
    pub(crate) fn candidates_in_slot(&self) -> Option<usize> {
        let limit = self.for_candidates(self.max_bytes?.0);
        (limit > 0).then(|| candidates_within(limit))
    }

    /// The filter that waiting keys are counted in, if it is one.
    pub(crate) fn filter(&self) -> Option<FilterShape> {
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

    /// The key and the reason of a setting of a key's life that does not fit the others.
    pub(crate) fn life_problem(&self) -> Option<(String, String)> {
        let problem = |key: &str, reason: &str| Some((key.to_owned(), reason.to_owned()));
        if self.dense {
            if self.max_bytes.is_some() {
                return problem(
                    "max_bytes",
                    "a dense table keeps the rows of its vocabulary and is capped by `max_rows`; use that, or set \
                     `dense = false`",
                );
            }
            if self.statistics.is_some() {
                return problem(
                    "statistics",
                    "shows and clicks say which rows may go, and a dense table keeps its rows; remove this, or set \
                     `dense = false`",
                );
            }
        }
        if !self.pinned.is_empty() && (self.dense || self.eviction.is_never()) {
            return problem(
                "pinned",
                "no row of this table is ever evicted, so that this would do nothing; set an `eviction`, or \
                 remove it",
            );
        }
        if let Some((key, reason)) = self.statistics.as_ref().and_then(|s| s.problem()) {
            return problem(&format!("statistics.{key}"), reason);
        }
        if matches!(self.eviction, Eviction::Score { .. }) && self.statistics.is_none() {
            return problem(
                "eviction",
                "a score is made of shows and clicks, which this table does not keep; set \
                 `statistics = { decay = 0.98, every_steps = 10000 }` beside it",
            );
        }
        let no_row = self.most_rows() == Some(0) && self.max_bytes.is_some();
        if no_row || self.candidates_in_slot() == Some(0) {
            let least = self.least_bytes();
            let reason = format!("is too little for a single row; give at least {least} bytes");
            return Some(("max_bytes".to_owned(), reason));
        }
        None
    }

    /// The least `max_bytes` that is of any use.
    fn least_bytes(&self) -> u64 {
        let enough = |bytes: u64| {
            let spec = Self { max_bytes: Some(ByteSize(bytes)), ..self.clone() };
            spec.most_rows() > Some(0) && spec.candidates_in_slot() != Some(0)
        };
        let mut bytes = 1 << 16;
        while !enough(bytes) && bytes < 1 << 60 {
            bytes *= 2;
        }
        bytes
    }
}
