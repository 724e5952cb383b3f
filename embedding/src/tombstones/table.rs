//! Noting in a table which keys left it.

use crate::table::Table;
use crate::tombstones::Departed;

impl Table {
    /// From now on remembers what checkpoints of changes need, and forgets what it remembered.
    /// Tables that are written whole have none of these.
    pub(crate) fn follow_snapshots(&mut self) {
        if self.shape.has_changes() {
            self.departed = Some(Box::new(Departed::new(self.index.slots())));
        }
    }

    /// Notes that a checkpoint begins with the end of an era, or that what was restored ends with
    /// it.
    pub(crate) fn cut_departed(&mut self, era: u32) {
        self.departed.iter_mut().for_each(|departed| departed.begin(era));
    }

    /// Notes that nobody asks for what was before the end of an era.
    pub(crate) fn forget_departed(&mut self, oldest: u32) {
        self.departed.iter_mut().for_each(|departed| departed.oldest = oldest);
    }

    /// Drops what nobody asks for any more of a slot.
    pub(crate) fn trim_departed(&mut self, slot: usize) {
        self.departed.iter_mut().for_each(|departed| departed.trim(slot));
    }

    /// Keys of a slot whose rows went between the beginning of a checkpoint, the end of era
    /// `since`, and that of the open one, the end of era `until`; ascending. They may have come
    /// back, and then have a row that is newer than `since`.
    pub(crate) fn gone_between(&self, slot: usize, since: u32, until: u32) -> Vec<u64> {
        let Some(departed) = &self.departed else { return Vec::new() };
        departed.gone[slot - departed.first_slot].keys(|cut| (since..until).contains(&cut))
    }

    pub(crate) fn departed_bytes(&self) -> usize {
        self.departed.as_ref().map_or(0, |departed| departed.bytes())
    }
}
