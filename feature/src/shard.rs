//! The assignment of virtual slots to shards.

use std::num::NonZeroUsize;
use std::ops::Range;

use crate::key::SLOTS;

/// A division of the slots into contiguous ranges. Each shard owns one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMap {
    shards: usize,
    /// The first slot of the range that the shards divide evenly.
    start: usize,
    /// The number of slots of this range. It is at least the number of shards.
    length: usize,
}

impl ShardMap {
    /// Returns a division of all slots into `shards` shards of nearly equal size. If there are
    /// fewer slots than shards, returns one shard for each slot.
    pub fn new(shards: NonZeroUsize) -> Self {
        Self::within(0..SLOTS, shards)
    }

    /// Returns a division for a process that holds the rows of `slots`, which its shards divide
    /// evenly. The first shard also owns the slots before the range, and the last shard the slots
    /// after it, so every slot has an owner. If the range has fewer slots than shards, returns one
    /// shard for each of its slots, and one shard for an empty range.
    pub fn within(slots: Range<usize>, shards: NonZeroUsize) -> Self {
        let start = slots.start.min(SLOTS - 1);
        let length = slots.end.min(SLOTS).saturating_sub(start).max(1);
        Self { shards: shards.get().min(length), start, length }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Returns the slots that a shard owns. The range is empty if `shard` is not below
    /// [`ShardMap::shards`].
    pub fn range(&self, shard: usize) -> Range<usize> {
        let bound = |shard: usize| match shard {
            0 => 0,
            shard if shard >= self.shards => SLOTS,
            shard => self.start + shard * self.length / self.shards,
        };
        bound(shard)..bound(shard + 1)
    }

    /// Returns the shard that owns a slot.
    pub fn shard_of(&self, slot: usize) -> usize {
        // This is the inverse of `range`: the last shard whose first slot is not above `slot`.
        let slot = slot.clamp(self.start, self.start + self.length - 1) - self.start;
        ((slot + 1) * self.shards).div_ceil(self.length) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(shards: usize) -> NonZeroUsize {
        NonZeroUsize::new(shards).unwrap()
    }

    fn check(map: ShardMap) {
        let mut next = 0;
        for shard in 0..map.shards() {
            let range = map.range(shard);
            assert_eq!(range.start, next);
            assert!(!range.is_empty());
            next = range.end;
            for slot in range {
                assert_eq!(map.shard_of(slot), shard, "{map:?}, slot {slot}");
            }
        }
        assert_eq!(next, SLOTS);
        assert!(map.range(map.shards()).is_empty());
    }

    #[test]
    fn every_slot_has_exactly_the_owner_whose_range_holds_it() {
        for shards in [1, 2, 3, 5, 7, 8, 63, 1000, 4096, 9999] {
            check(ShardMap::new(number(shards)));
            for slots in [0..SLOTS, 0..64, 64..1344, 1344..SLOTS, 4032..SLOTS, 100..107, 7..7] {
                check(ShardMap::within(slots, number(shards)));
            }
        }
    }

    #[test]
    fn the_slots_of_a_process_are_divided_evenly() {
        let map = ShardMap::within(1024..3072, number(8));
        let ranges: Vec<Range<usize>> = (0..8).map(|shard| map.range(shard)).collect();
        assert_eq!((ranges[0].clone(), ranges[7].clone()), (0..1280, 2816..SLOTS));
        assert!(ranges[1..7].iter().all(|range| range.len() == 256));
        assert_eq!(ShardMap::new(number(3)), ShardMap::within(0..SLOTS, number(3)));
        assert_eq!(ShardMap::within(100..107, number(8)).shards(), 7);
        assert_eq!(ShardMap::within(7..7, number(8)).shards(), 1);
    }
}
