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

    /// Notes that a checkpoint begins at the end of a generation, or that the restored checkpoint
    /// ends with it.
    pub(crate) fn cut_tombstones(&mut self, generation: u32) {
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.begin(generation));
    }

    /// Notes that changes before the end of generation `oldest` are no longer needed.
    pub(crate) fn forget_tombstones(&mut self, oldest: u32) {
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.oldest = oldest);
    }

    /// Drops the entries of a slot that are no longer needed.
    pub(crate) fn trim_departed(&mut self, slot: usize) {
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.trim(slot));
    }

    /// Returns the keys of a slot whose rows were evicted between the beginning of an earlier
    /// checkpoint (the end of generation `since`) and the beginning of the open one (the end of
    /// generation `until`), ascending. A key may have come back since then; its row is then newer
    /// than `since`.
    pub(crate) fn gone_between(&self, slot: usize, since: u32, until: u32) -> Vec<u64> {
        let Some(tombstones) = &self.tombstones else { return Vec::new() };
        tombstones.gone[slot - tombstones.first_slot].keys(|cut| (since..until).contains(&cut))
    }

    pub(crate) fn tombstone_bytes(&self) -> usize {
        self.tombstones.as_ref().map_or(0, |tombstones| tombstones.bytes())
    }
}
