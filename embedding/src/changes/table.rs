//! The tracking of changed keys in one shard's part of a table.

use crate::changes::{Changed, Changes};
use crate::error::Result;
use crate::index::Entry;
use crate::table::Table;
use std::collections::VecDeque;
use zillion_feature::FeatureKey;

impl Table {
    /// Begins to list the changed keys of the table. Rows that already have the dirty epoch `epoch`
    /// are listed now, in one pass over the table, because no later push or eviction would list
    /// them.
    pub(crate) fn track_changes(&mut self, epoch: u32) -> Result<()> {
        let open = Changed::nothing();
        let mut changes = Changes { epoch, is_given_up: false, open, sealed: VecDeque::new() };
        for slot in self.index.slots() {
            let entries: Vec<(FeatureKey, Entry)> = self.index.slot_entries(slot).collect();
            self.for_each_row(&entries, |key, stored| {
                if stored.meta.dirty_epoch == epoch {
                    changes.note(key);
                }
            })?;
        }
        self.changes = Some(changes);
        Ok(())
    }
}
