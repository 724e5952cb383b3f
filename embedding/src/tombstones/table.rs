//! The tombstones of one shard's part of a table.

use crate::table::Table;
use crate::tombstones::Tombstones;

impl Table {
    /// Begins to record tombstones for checkpoints of changes, and forgets those recorded before. A
    /// table that checkpoints write whole has no tombstones.
    pub(crate) fn follow_snapshots(&mut self) {
        if self.shape.has_changes() {
            self.tombstones = Some(Box::new(Tombstones::new(self.index.slots())));
        }
    }

    /// Returns the keys of a slot whose rows were evicted between the beginning of an earlier
    /// checkpoint (the end of generation `since`) and the beginning of the open one (the end of
    /// generation `until`), ascending. A key may have come back since then; its row is then newer
    /// than `since`.
    pub(crate) fn gone_between(&self, slot: usize, since: u32, until: u32) -> Vec<u64> {
        let Some(tombstones) = &self.tombstones else { return Vec::new() };
        tombstones.gone[slot - tombstones.first_slot].keys(|cut| (since..until).contains(&cut))
    }
}
