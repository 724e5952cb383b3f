//! The tracking of changed keys in one shard's part of a table.

use crate::changes::{AHEAD, Changed, Changes};
use crate::error::Result;
use crate::index::Entry;
use crate::spill::Thawed;
use crate::table::Table;
use std::collections::VecDeque;
use zillion_feature::FeatureKey;

impl Table {
    /// Returns the changes of this table, if they are tracked.
    pub(crate) fn changes(&self) -> Option<&Changes> {
        self.changes.as_ref()
    }

    pub(crate) fn changes_mut(&mut self) -> Option<&mut Changes> {
        self.changes.as_mut()
    }

    /// Begins to list changes. Rows that have this dirty epoch already are listed now, in one pass
    /// over the table, because no later push or eviction will list them.
    pub(crate) fn track_changes(&mut self, epoch: u32) -> Result<()> {
        let is_whole = self.shape.swept;
        let open = Changed::nothing();
        let mut changes =
            Changes { epoch, is_whole, is_given_up: false, open, sealed: VecDeque::new() };
        let mut thawed = Thawed::default();
        for slot in self.index.slots() {
            let entries: Vec<(FeatureKey, Entry)> = self.index.slot_entries(slot).collect();
            let cold = self.cold_rows(&entries)?;
            for (i, &(key, entry)) in entries.iter().enumerate() {
                if let Some(&(_, soon)) = entries.get(i + AHEAD) {
                    self.prefetch_companion(soon);
                }
                let meta = if self.is_cold(entry) {
                    self.thaw(&cold, key, entry, &mut thawed)?;
                    self.shape.meta(&thawed.companion)
                } else {
                    self.meta_of(entry)
                };
                if meta.dirty_epoch == epoch {
                    changes.note(key);
                }
            }
        }
        self.changes = Some(changes);
        Ok(())
    }
}
