//! The reading of a plan's rows, for training and for evaluation.
//!
//! Reading changes no table. So a phase gives threads pieces of some hundred or thousand keys
//! instead of whole shards. With eight whole shards, the last shard would leave the other threads
//! without work.

use zillion_device::Workers;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId};

use crate::error::Result;
use crate::set::TableSet;
use crate::shard::Shard;
use crate::table::found_rows::{FoundBuffers, FoundRows};
use crate::table::pull::Absent;
use zillion_rows::LookupReport;
use zillion_rows::shape_rows;

/// The number of pieces per thread into which the keys of a plan are divided. With small pieces, an
/// interrupted thread delays the phase little. [`MOST_KEYS`] and [`LEAST_KEYS`] limit the size of a
/// piece.
const SHARES: usize = 8;
/// The largest number of keys of a piece.
const MOST_KEYS: usize = 2048;
/// The smallest number of keys of a piece. The first cache lines of a piece cannot be prefetched,
/// and should be a small share of all lines.
const LEAST_KEYS: usize = 256;

/// A run of the keys of a plan that belong to one table in one shard.
struct Run<'a> {
    shard: usize,
    table: TableId,
    keys: &'a [FeatureKey],
}

/// A part of a run's keys, with the buffers into which their rows are read.
struct Piece<'a> {
    run: usize,
    keys: &'a [FeatureKey],
    rows: &'a mut [f32],
    counts: Option<&'a mut [u32]>,
    /// The buffers for the index entries that are found; `None` if no push of the same keys can
    /// follow.
    known: Option<FoundBuffers<'a>>,
    /// The number of keys without a row, or the error of the read. It is set after the piece has
    /// been read.
    missing: Result<u64>,
}

impl TableSet {
    /// Returns the number of keys that a table does not have.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`] if the table is unknown.
    pub fn count_unknown(&self, table: TableId, keys: &[FeatureKey]) -> Result<u64> {
        self.shape(table)?;
        let unknown = |key: &&FeatureKey| !self.owner(table.index(), key.slot()).has(**key);
        Ok(keys.iter().filter(unknown).count() as u64)
    }

    /// Reads the plan's rows for training. An unknown key reads as its initial row, and the call
    /// creates no row. The call gives `rows` the shape of the plan.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`](crate::Error::Mismatch) if the plan does not fit these tables.
    pub fn pull(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        want_counts: bool,
        rows: &mut RowBuffer,
    ) -> Result<()> {
        self.begin_read(workers, plan, want_counts, rows)?;
        let runs = self.runs(plan);
        let begin = |run: &Run<'_>| {
            self.shards[run.shard].tables[run.table.index()].begin_pull(run.keys.len())
        };
        let mut known: Vec<FoundRows> = runs.iter().map(begin).collect();
        let rooms = known.iter_mut().map(|known| Some(known.room()));
        let missing = self.read(workers, &runs, rows, rooms, Absent::Initial)?;
        for ((run, known), missing) in runs.iter().zip(known).zip(missing) {
            let table = &mut self.shards[run.shard].tables[run.table.index()];
            table.end_pull(known, run.keys.len(), missing);
        }
        Ok(())
    }

    /// Reads the plan's rows for evaluation. An unknown key reads as the row that its table
    /// declares for unknown keys. The call does not change the counters of training.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`](crate::Error::Mismatch) if the plan does not fit these tables.
    pub fn lookup(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        rows: &mut RowBuffer,
    ) -> Result<LookupReport> {
        self.begin_read(workers, plan, false, rows)?;
        let runs = self.runs(plan);
        let nowhere = runs.iter().map(|_| None);
        let missing = self.read(workers, &runs, rows, nowhere, Absent::Declared)?;
        let mut report = LookupReport { missing: vec![0; self.shapes.len()] };
        for (run, missing) in runs.iter().zip(missing) {
            report.missing[run.table.index()] += missing;
        }
        Ok(report)
    }

    /// Checks a plan, gives the buffer the shape of the plan, and reads the rows from disk that are
    /// not in memory.
    fn begin_read(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        want_counts: bool,
        rows: &mut RowBuffer,
    ) -> Result<()> {
        shape_rows(&self.layouts, plan, rows)?;
        for table in &mut rows.tables {
            let unique = table.rows();
            match (&mut table.counts, want_counts) {
                (Some(counts), true) => counts.resize(unique, 0),
                (counts, true) => *counts = Some(vec![0; unique]),
                (counts, false) => *counts = None,
            }
        }
        self.begin_lookup(workers, plan)
    }

    /// Returns the runs of the plan's keys, in the order of the plan's tables and of the shards.
    /// The runs of one table follow each other in the order of its rows in a buffer.
    fn runs<'a>(&self, plan: &'a LookupPlan) -> Vec<Run<'a>> {
        let mut runs = Vec::with_capacity(plan.tables.len() * self.shards.len());
        for planned in &plan.tables {
            let ranges = planned.shard_ranges(&self.map).into_iter().enumerate();
            runs.extend(ranges.map(|(shard, range)| Run {
                shard,
                table: planned.table,
                keys: &planned.keys[range],
            }));
        }
        runs
    }

    /// Reads all runs in one phase. `rooms` has the buffers for the index entries of each run.
    /// Returns the number of keys without a row for each run, or the first error.
    fn read<'a>(
        &self,
        workers: &Workers,
        runs: &[Run<'a>],
        rows: &'a mut RowBuffer,
        rooms: impl Iterator<Item = Option<FoundBuffers<'a>>>,
        absent: Absent,
    ) -> Result<Vec<u64>> {
        let shards: &[Shard] = &self.shards;
        let keys = runs.iter().map(|run| run.keys.len()).sum::<usize>();
        let most = keys.div_ceil(workers.threads() * SHARES).clamp(LEAST_KEYS, MOST_KEYS);
        let mut pieces = pieces(runs, shards.len(), rows, rooms, most);
        let offsets = offsets(&pieces, most);
        workers.for_each_part(&mut pieces, &offsets, |_, part| {
            for piece in part {
                let Run { shard, table, .. } = runs[piece.run];
                let table = &shards[shard].tables[table.index()];
                let (counts, known) = (piece.counts.take(), piece.known.take());
                piece.missing = table.read(piece.keys, piece.rows, counts, known, absent);
            }
        });
        let mut missing = vec![0; runs.len()];
        for piece in pieces {
            missing[piece.run] += piece.missing?;
        }
        Ok(missing)
    }
}

/// Divides runs into pieces of at most `most` keys. Divides the buffer `rows` and the buffers
/// `rooms` for index entries in the same way. There are `shards` runs for each table.
fn pieces<'a>(
    runs: &[Run<'a>],
    shards: usize,
    rows: &'a mut RowBuffer,
    rooms: impl Iterator<Item = Option<FoundBuffers<'a>>>,
    most: usize,
) -> Vec<Piece<'a>> {
    let keys = runs.iter().map(|run| run.keys.len()).sum::<usize>();
    let mut pieces = Vec::with_capacity(runs.len() + keys / most);
    let mut runs = runs.iter().zip(rooms).enumerate();
    for table in &mut rows.tables {
        let mut values = table.values.as_mut_slice();
        let mut counts = table.counts.as_deref_mut();
        for (run, (&Run { keys, .. }, mut room)) in runs.by_ref().take(shards) {
            for keys in keys.chunks(most) {
                let (rows, values_left) =
                    std::mem::take(&mut values).split_at_mut(keys.len() * table.stride);
                values = values_left;
                let counts = counts.as_mut().and_then(|left| left.split_off_mut(..keys.len()));
                let known = room.as_mut().map(|room| room.split_off_first(keys.len()));
                pieces.push(Piece { run, keys, rows, counts, known, missing: Ok(0) });
            }
        }
        debug_assert!(values.is_empty() && counts.is_none_or(|left| left.is_empty()));
    }
    debug_assert!(runs.next().is_none());
    pieces
}

/// Returns the boundaries of groups of pieces. A thread takes one group at a time, and a group can
/// have several small pieces.
fn offsets(pieces: &[Piece<'_>], most: usize) -> Vec<usize> {
    let mut offsets = vec![0];
    let mut keys = 0;
    for (at, piece) in pieces.iter().enumerate() {
        if keys + piece.keys.len() > most {
            offsets.push(at);
            keys = 0;
        }
        keys += piece.keys.len();
    }
    if !pieces.is_empty() {
        offsets.push(pieces.len());
    }
    offsets
}
