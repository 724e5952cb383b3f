//! The memory of a table, and the counters of its events.

use serde::Serialize;

/// The events of one table, counted since the set was created. Each counter is exported as a
/// metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// The number of keys that training looked up.
    pub pulled: u64,
    /// The number of looked-up keys that the table did not have.
    pub missing: u64,
    /// The number of rows that were created, by pushes and prefills.
    pub created: u64,
    /// The number of created rows whose keys had to be admitted first.
    pub admitted: u64,
    /// The number of gradients for keys that were not admitted yet.
    pub waiting: u64,
    /// The number of rows that were evicted, on schedule or to make room.
    pub evicted: u64,
    /// The number of evicted rows that made room in a table at its limit.
    pub displaced: u64,
    /// The number of keys whose counts were dropped before they were admitted.
    pub lapsed: u64,
    /// The number of gradients for keys that got no row because the table was at its limit.
    pub refused_full: u64,
    /// The number of gradients for keys that a dense table does not have.
    pub refused: u64,
    /// The number of gradients that were dropped because a number in them was not finite.
    pub nonfinite: u64,
    /// The number of weights that a push would have made larger than their type can hold, and that
    /// were set to the largest number of the type.
    pub saturated: u64,
    /// The number of gradients that were applied or staged.
    pub pushed: u64,
    /// The number of applied gradients for narrow rows; the floats that such a row lacks were
    /// dropped.
    pub narrow_gradients: u64,
    /// The number of narrow rows that became full.
    pub grown: u64,
}

impl Counters {
    /// Adds the counters of another shard or table.
    pub fn add(&mut self, other: Self) {
        self.pulled += other.pulled;
        self.missing += other.missing;
        self.created += other.created;
        self.admitted += other.admitted;
        self.waiting += other.waiting;
        self.evicted += other.evicted;
        self.displaced += other.displaced;
        self.lapsed += other.lapsed;
        self.refused_full += other.refused_full;
        self.refused += other.refused;
        self.nonfinite += other.nonfinite;
        self.saturated += other.saturated;
        self.pushed += other.pushed;
        self.narrow_gradients += other.narrow_gradients;
        self.grown += other.grown;
    }

    /// Returns the events that were counted after `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            pulled: self.pulled - before.pulled,
            missing: self.missing - before.missing,
            created: self.created - before.created,
            admitted: self.admitted - before.admitted,
            waiting: self.waiting - before.waiting,
            evicted: self.evicted - before.evicted,
            displaced: self.displaced - before.displaced,
            lapsed: self.lapsed - before.lapsed,
            refused_full: self.refused_full - before.refused_full,
            refused: self.refused - before.refused,
            nonfinite: self.nonfinite - before.nonfinite,
            saturated: self.saturated - before.saturated,
            pushed: self.pushed - before.pushed,
            narrow_gradients: self.narrow_gradients - before.narrow_gradients,
            grown: self.grown - before.grown,
        }
    }
}

/// The statistics of one table, summed over all its shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableStatistics {
    /// The name of the table.
    pub table: String,
    /// The number of rows.
    pub rows: u64,
    /// The number of rows that are narrow until they have been pushed often enough.
    pub narrow_rows: u64,
    /// The number of keys that wait to be admitted.
    pub candidates: u64,
    /// The bytes of weights in rows.
    pub payload_bytes: u64,
    /// The bytes of optimizer state and metadata in rows.
    pub state_bytes: u64,
    /// The bytes of the index at its present size.
    pub index_bytes: u64,
    /// The bytes of the candidates' counts.
    pub candidate_bytes: u64,
    /// The bytes of gradients that are kept by row (in tables with whole-table rules).
    pub staged_bytes: u64,
    /// The bytes of the lists of changed keys, if changes are tracked.
    pub change_bytes: u64,
    /// The bytes of rows and candidates that are kept as they were, and of parts that are being
    /// written, while a checkpoint is taken beside training.
    pub snapshot_bytes: u64,
    /// The bytes that are reserved and not in a row: ends of chunks, alignment.
    pub slack_bytes: u64,
    /// The statistics of spilling; present if rows may leave memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillStatistics>,
    /// The counters of the table's events.
    pub counters: Counters,
}

impl TableStatistics {
    /// Returns the sum of all bytes that the table has in memory.
    pub fn total_bytes(&self) -> u64 {
        self.payload_bytes
            + self.state_bytes
            + self.index_bytes
            + self.candidate_bytes
            + self.staged_bytes
            + self.change_bytes
            + self.snapshot_bytes
            + self.slack_bytes
            + self.spill.map_or(0, |spill| spill.buffer_bytes)
    }

    /// Adds another shard's part of the same table.
    pub(crate) fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.narrow_rows += other.narrow_rows;
        self.candidates += other.candidates;
        self.payload_bytes += other.payload_bytes;
        self.state_bytes += other.state_bytes;
        self.index_bytes += other.index_bytes;
        self.candidate_bytes += other.candidate_bytes;
        self.staged_bytes += other.staged_bytes;
        self.change_bytes += other.change_bytes;
        self.snapshot_bytes += other.snapshot_bytes;
        self.slack_bytes += other.slack_bytes;
        if let Some(spill) = &other.spill {
            self.spill.get_or_insert_default().add(spill);
        }
        self.counters.add(other.counters);
    }
}

/// The statistics of a table that spills. Bytes and operations are those of the disk, not of the
/// page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpillStatistics {
    /// The number of rows in memory.
    pub hot_rows: u64,
    /// The number of rows in the file.
    pub cold_rows: u64,
    /// The number of rows that the table may have in memory between two steps.
    pub budget_rows: u64,
    /// The bytes that rows may take in memory, as configured.
    pub budget_bytes: u64,
    /// The bytes of the file.
    pub disk_bytes: u64,
    /// The bytes of the file that hold live rows.
    pub live_bytes: u64,
    /// The bytes of memory for data on its way to or from the file.
    pub buffer_bytes: u64,
    /// The number of rows that were read from the file because a plan needed them.
    pub brought_in: u64,
    /// The number of rows whose reading had begun before their plan was looked up.
    pub ahead: u64,
    /// The number of rows that were written to the file to free memory.
    pub spilled: u64,
    /// The number of rows that compaction wrote again, so that their segment could be reused.
    pub compacted: u64,
    /// The number of reads.
    pub reads: u64,
    /// The number of bytes that were read.
    pub read_bytes: u64,
    /// The number of writes.
    pub writes: u64,
    /// The number of bytes that were written.
    pub written_bytes: u64,
    /// The number of shards whose file goes through the page cache, because the file system does
    /// not support direct I/O.
    pub cached_files: u64,
}

impl SpillStatistics {
    /// Adds another shard's part of the same table.
    pub(crate) fn add(&mut self, other: &Self) {
        self.hot_rows += other.hot_rows;
        self.cold_rows += other.cold_rows;
        self.budget_rows += other.budget_rows;
        self.budget_bytes += other.budget_bytes;
        self.disk_bytes += other.disk_bytes;
        self.live_bytes += other.live_bytes;
        self.buffer_bytes += other.buffer_bytes;
        self.brought_in += other.brought_in;
        self.ahead += other.ahead;
        self.spilled += other.spilled;
        self.compacted += other.compacted;
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
        self.cached_files += other.cached_files;
    }
}
