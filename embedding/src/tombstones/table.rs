//! Noting in a table which keys left it.

use crate::table::Table;
use crate::tombstones::Tombstones;

impl Table {
    /// From now on remembers what checkpoints of changes need, and forgets what it remembered.
    /// Tables that are written whole have none of these.
    pub(crate) fn follow_snapshots(&mut self) {
        if self.shape.has_changes() {
            self.tombstones = Some(Box::new(Tombstones::new(self.index.slots())));
        }
    }

    /// Notes that a checkpoint begins with the end of a generation, or that what was restored ends
    /// with it.
    pub(crate) fn cut_tombstones(&mut self, generation: u32) {
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.begin(generation));
    }

    /// Notes that nobody asks for what was before the end of a generation.
    pub(crate) fn forget_tombstones(&mut self, oldest: u32) {
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.oldest = oldest);
    }

    /// Drops what nobody asks for any more of a slot.
    pub(crate) fn trim_departed(&mut self, slot: usize) {
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.trim(slot));
    }

    /// Keys of a slot whose rows went between the beginning of a checkpoint, the end of generation
    /// `since`, and that of the open one, the end of generation `until`; ascending. They may have
    /// come back, and then have a row that is newer than `since`.
    pub(crate) fn gone_between(&self, slot: usize, since: u32, until: u32) -> Vec<u64> {
        let Some(tombstones) = &self.tombstones else { return Vec::new() };
        tombstones.gone[slot - tombstones.first_slot].keys(|cut| (since..until).contains(&cut))
    }

    pub(crate) fn tombstone_bytes(&self) -> usize {
        self.tombstones.as_ref().map_or(0, |tombstones| tombstones.bytes())
    }
}
