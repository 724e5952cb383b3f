//! The functions of a table that begin and read its tombstones.

use crate::table::Table;
use crate::tombstones::Tombstones;

impl Table {
    /// Begins to record tombstones for checkpoints of changes. Earlier tombstones are dropped. Does
    /// nothing for a table that checkpoints write whole.
    pub(crate) fn follow_snapshots(&mut self) {
        if self.shape.has_changes() {
            self.tombstones = Some(Box::new(Tombstones::new(self.index.slots())));
        }
    }

    /// Returns, for one slot, the keys whose rows were evicted between the beginnings of two
    /// checkpoints, in ascending order. The earlier checkpoint began when generation `since` ended,
    /// and the open checkpoint began when generation `until` ended. If such a key has a row again,
    /// this row is newer than `since`.
    pub(crate) fn gone_between(&self, slot: usize, since: u32, until: u32) -> Vec<u64> {
        let Some(tombstones) = &self.tombstones else { return Vec::new() };
        tombstones.gone[slot - tombstones.first_slot].keys(|cut| (since..until).contains(&cut))
    }
}
