//! The memory of a table, and the counters of its events.

use serde::{Deserialize, Serialize};

/// The numbers of events of one table since the set was created. Each counter is exported as a
/// metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The number of keys that training looked up.
    pub pulled: u64,
    /// The number of keys that training looked up and the table did not have.
    pub missing: u64,
    /// The number of rows that were created, by pushes and prefills.
    pub created: u64,
    /// The number of created rows whose keys had to wait for admission.
    pub admitted: u64,
    /// The number of gradients that were dropped because their keys were not admitted yet.
    pub waiting: u64,
    /// The number of rows that were evicted, on schedule or to make room.
    pub evicted: u64,
    /// The number of evicted rows that made room in a table at its limit.
    pub displaced: u64,
    /// The number of candidates whose counts were dropped before the candidates were admitted.
    pub lapsed: u64,
    /// The number of gradients that were dropped because their keys were new and the table was at
    /// its limit.
    pub refused_full: u64,
    /// The number of gradients that were dropped because a dense table does not have their keys.
    pub refused: u64,
    /// The number of gradients of rows that were dropped because a number in them, or the norm of
    /// their step, was not finite. The pushes of their keys count.
    pub nonfinite: u64,
    /// The number of weights that a push set to the largest number of their type, because the
    /// computed weights were larger.
    pub saturated: u64,
    /// The number of gradients that were applied.
    pub pushed: u64,
    /// The number of gradients that were applied to narrow rows. The part of such a gradient for
    /// floats that the row lacks was dropped.
    pub narrow_gradients: u64,
    /// The number of narrow rows that became full.
    pub grown: u64,
}

/// Calls `$change` with each of the named fields of two values.
macro_rules! with_fields {
    ($left:expr, $right:expr, $change:expr; $($field:ident)+) => {
        $($change(&mut $left.$field, $right.$field);)+
    };
}

fn sum(to: &mut u64, from: u64) {
    *to += from;
}

impl Counters {
    /// Adds the counters of another shard or table.
    pub fn add(&mut self, other: Self) {
        self.change(other, sum);
    }

    /// Returns the numbers of events since the counters had the values `before`.
    pub(crate) fn since(mut self, before: Self) -> Self {
        self.change(before, |counter, before| *counter -= before);
        self
    }

    /// Calls `change` with each counter and the same counter of `other`.
    fn change(&mut self, other: Self, change: impl Fn(&mut u64, u64)) {
        with_fields!(self, other, change;
            pulled missing created admitted waiting evicted displaced lapsed refused_full refused
            nonfinite saturated pushed narrow_gradients grown);
    }
}

/// The memory and the counters of one table, summed over all its shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatistics {
    /// The name of the table.
    pub table: String,
    /// The number of rows of the table.
    pub rows: u64,
    /// The number of narrow rows.
    pub narrow_rows: u64,
    /// The number of keys that wait to be admitted.
    pub candidates: u64,
    /// The bytes of memory that the weights of all rows take.
    pub payload_bytes: u64,
    /// The bytes of memory that the optimizer state and the metadata of all rows take.
    pub state_bytes: u64,
    /// The bytes of memory that the index takes now.
    pub index_bytes: u64,
    /// The bytes of the candidates' counts.
    pub candidate_bytes: u64,
    /// The bytes of gradients that are staged by row, in tables with whole-table rules.
    pub staged_bytes: u64,
    /// The bytes of the lists of changed keys, if changes are tracked.
    pub change_bytes: u64,
    /// The bytes that an open snapshot takes: old contents of rows and candidates, and parts that
    /// are being written.
    pub snapshot_bytes: u64,
    /// The bytes of memory that are reserved and hold no row: the ends of chunks, alignment and
    /// free rows.
    pub slack_bytes: u64,
    /// The statistics of spilling; `None` if the table does not spill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillStatistics>,
    /// The counters of the table's events.
    pub counters: Counters,
}

impl TableStatistics {
    /// Returns the number of bytes of memory that the table takes in total.
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

    /// Adds the part of the same table in another shard or on another server.
    pub fn add(&mut self, other: &Self) {
        with_fields!(self, other, sum;
            rows narrow_rows candidates payload_bytes state_bytes index_bytes candidate_bytes
            staged_bytes change_bytes snapshot_bytes slack_bytes);
        if let Some(spill) = &other.spill {
            self.spill.get_or_insert_default().add(spill);
        }
        self.counters.add(other.counters);
    }
}

/// The statistics of a table that spills. Bytes and operations are counted at the file, and not in
/// the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The bytes of the buffers for data that is being read from the file or written to it.
    pub buffer_bytes: u64,
    /// The number of rows that were read from the file because a plan needed them.
    pub brought_in: u64,
    /// The number of rows whose read began before their plan was looked up, because the plan was
    /// announced.
    pub ahead: u64,
    /// The number of rows that were written to the file to free memory.
    pub spilled: u64,
    /// The number of rows that compaction has written again to free their segment.
    pub compacted: u64,
    /// The number of reads of the file.
    pub reads: u64,
    /// The number of bytes that were read from the file.
    pub read_bytes: u64,
    /// The number of writes to the file.
    pub writes: u64,
    /// The number of bytes that were written to the file.
    pub written_bytes: u64,
    /// The number of shards whose file uses the page cache, because the file system does not
    /// support direct I/O.
    pub cached_files: u64,
}

impl SpillStatistics {
    /// Adds another shard's part of the same table.
    pub(crate) fn add(&mut self, other: &Self) {
        with_fields!(self, other, sum;
            hot_rows cold_rows budget_rows budget_bytes disk_bytes live_bytes buffer_bytes
            brought_in ahead spilled compacted reads read_bytes writes written_bytes cached_files);
    }
}
