//! The assignment of virtual slots to shards.

use std::num::NonZeroUsize;
use std::ops::Range;

use crate::key::SLOTS;

/// A division of the slots into contiguous ranges of nearly equal size. Each shard owns one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMap {
    shards: usize,
}

impl ShardMap {
    /// Returns a division into `shards` shards. If there are fewer slots than shards, returns one
    /// shard for each slot.
    pub fn new(shards: NonZeroUsize) -> Self {
        Self { shards: shards.get().min(SLOTS) }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Returns the slots that a shard owns. The range is empty if `shard` is not below
    /// [`ShardMap::shards`].
    pub fn range(&self, shard: usize) -> Range<usize> {
        let bound = |s: usize| s.min(self.shards) * SLOTS / self.shards;
        bound(shard)..bound(shard + 1)
    }

    /// Returns the shard that owns a slot.
    pub fn shard_of(&self, slot: usize) -> usize {
        // This is the inverse of `range`: the last shard whose first slot is not above `slot`.
        ((slot + 1) * self.shards).div_ceil(SLOTS) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_exactly_the_owner_whose_range_holds_it() {
        for shards in [1, 2, 3, 5, 7, 8, 63, 1000, 4096, 9999] {
            let map = ShardMap::new(NonZeroUsize::new(shards).unwrap());
            let mut next = 0;
            for shard in 0..map.shards() {
                let range = map.range(shard);
                assert_eq!(range.start, next);
                assert!(!range.is_empty());
                next = range.end;
                for slot in range {
                    assert_eq!(map.shard_of(slot), shard, "{shards} shards, slot {slot}");
                }
            }
            assert_eq!(next, SLOTS);
        }
    }
}
