//! The tracking of changed rows in a set of tables. With it, the cost of a delta is proportional to
//! the number of changes.
//!
//! The tables of the shards list the keys. This file decides for how long the lists are kept. It
//! decides by sums over all shards, so the number of shards does not affect whether a delta can be
//! written.

use crate::changes::tracking::Tracking;
use zillion_device::Workers;

use crate::error::Result;
use crate::set::{TableSet, each};

/// The number of keys that the lists of a table may always hold, even if the table has fewer rows.
/// So many keys take 8 MiB.
pub(crate) const FEWEST_KEYS: u64 = 1 << 20;

impl TableSet {
    /// Begins to list the keys whose rows change, for [`TableSet::write_delta`]. The lists of at
    /// most `epochs` ended epochs are kept. The oldest lists are also dropped if the lists of a
    /// table hold more keys than the table has rows (and more than a million). A delta from such an
    /// old epoch would cost as much as a comparison of all rows. Tracking costs one pass over the
    /// rows now, and 8 bytes for each change.
    ///
    /// Changes before the end of the current epoch are not known. If changes are tracked already,
    /// the call only replaces `epochs`.
    ///
    /// # Errors
    /// Returns an error if rows on disk cannot be read.
    pub fn track_changes(&mut self, workers: &Workers, epochs: usize) -> Result<()> {
        self.track_changes_with(workers, epochs, FEWEST_KEYS)
    }

    /// Begins to list changed keys as [`TableSet::track_changes`] does. The lists of a table may
    /// always hold `fewest` keys.
    pub(crate) fn track_changes_with(
        &mut self,
        workers: &Workers,
        epochs: usize,
        fewest: u64,
    ) -> Result<()> {
        match &mut self.tracking {
            Some(tracking) => {
                tracking.epochs = epochs;
                self.trim_changes();
                Ok(())
            }
            None => {
                let reach = vec![self.generations.now(); self.shapes.len()];
                self.tracking = Some(Tracking { epochs, fewest, reach });
                self.begin_lists(workers)
            }
        }
    }

    /// Begins new lists after the tables were restored, if changes are tracked.
    pub(crate) fn begin_lists(&mut self, workers: &Workers) -> Result<()> {
        let Some(tracking) = &mut self.tracking else { return Ok(()) };
        let generation = self.generations.now();
        tracking.reach.fill(generation);
        each(workers, &mut self.shards, |_, shard| {
            shard.tables.iter_mut().try_for_each(|table| table.track_changes(generation))
        })
    }

    /// Returns whether all changes after the end of an epoch are known.
    pub fn knows_changes_since(&self, epoch: u32) -> bool {
        let generation = self.generations.last_of(epoch);
        self.tracking.as_ref().is_some_and(|t| t.reach.iter().all(|&reach| reach <= generation))
    }

    /// Seals the lists of the generation that has just ended.
    pub(crate) fn seal_changes(&mut self) {
        if self.tracking.is_some() {
            let next = self.generations.now();
            let changes = self.tables_mut().filter_map(|table| table.changes.as_mut());
            changes.for_each(|changes| changes.seal(next));
            self.trim_changes();
        }
    }

    /// Drops the oldest lists until the number of lists and the number of their keys are within the
    /// limits.
    pub(crate) fn trim_changes(&mut self) {
        let Some(Tracking { epochs, fewest, reach }) = &mut self.tracking else { return };
        for (table, reach) in reach.iter_mut().enumerate() {
            let rows = self.shards.iter().map(|shard| shard.tables[table].rows()).sum::<u64>();
            loop {
                let (mut listed, mut sealed) = (0, 0);
                for changes in self.shards.iter().filter_map(|s| s.tables[table].changes.as_ref()) {
                    listed += changes.listed();
                    let oldest =
                        changes.oldest().map(|generation| self.generations.epoch_of(generation));
                    sealed =
                        oldest.map_or(0, |oldest| (self.generations.epoch() - oldest) as usize);
                }
                if listed <= rows.max(*fewest) && sealed <= *epochs {
                    break;
                }
                let shards = self.shards.iter_mut();
                for changes in shards.filter_map(|shard| shard.tables[table].changes.as_mut()) {
                    *reach = changes.drop_oldest();
                }
            }
        }
    }
}
