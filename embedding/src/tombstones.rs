//! The tombstones of a table. They are the keys that a checkpoint of changes needs in addition to
//! the keys of the rows in memory.
//!
//! The snapshot generation of a row tells whether the row has changed since an earlier checkpoint.
//! But two kinds of keys have no row in memory: keys whose rows were evicted, and keys whose rows
//! were changed and then spilled. Both kinds are listed, by slot. For spilled rows, the alternative
//! would be to read the whole file, which is too slow.
//!
//! # Invariants
//! * Let the base be the oldest checkpoint on which the next checkpoint of changes may be based.
//!   Every key whose row was evicted since the base began is listed. Its entry has the last
//!   generation that had ended with the beginning of a checkpoint. The evicted row may have been
//!   created after the base began.
//! * Every row on disk that changed after the base began is listed with its generation. Its key may
//!   be in memory again.
//! * Each time the length of a list has doubled, the list is shortened to the entries that are
//!   still needed.
//!
//! # Concurrency
//! The tombstones are a plain value without locks. One shard's part of a table owns them.

mod table;

use std::ops::Range;

use zillion_feature::FeatureKey;

/// The number of entries below which a list is never shortened.
pub(crate) const FEWEST: usize = 64;

/// The tombstones of one shard's part of a table, by slot: keys whose rows were evicted, and keys
/// whose rows were spilled.
#[derive(Debug)]
pub(crate) struct Tombstones {
    pub(crate) first_slot: usize,
    /// The generation that ended when the newest checkpoint began; `None` if no checkpoint has
    /// begun yet.
    pub(crate) cut: Option<u32>,
    /// The generation whose later changes are all still needed.
    pub(crate) oldest: u32,
    pub(crate) gone: Vec<List>,
    pub(crate) spilled: Vec<List>,
}

/// A list of keys, each with a generation.
#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) entries: Vec<(u64, u32)>,
    /// The number of entries that were left when the list was last shortened.
    pub(crate) shortened: usize,
}

impl List {
    pub(crate) fn push(
        &mut self,
        key: FeatureKey,
        generation: u32,
        shorten: impl FnOnce(&mut Vec<(u64, u32)>),
    ) {
        self.entries.push((key.0, generation));
        if self.entries.len() >= FEWEST.max(2 * self.shortened) {
            self.shorten(shorten);
        }
    }

    pub(crate) fn shorten(&mut self, shorten: impl FnOnce(&mut Vec<(u64, u32)>)) {
        shorten(&mut self.entries);
        self.shortened = self.entries.len();
        if self.entries.capacity() > FEWEST.max(4 * self.shortened) {
            self.entries.shrink_to_fit();
        }
    }

    /// Returns the keys whose generation satisfies the condition `generations`, in ascending order
    /// and without duplicates.
    pub(crate) fn keys(&self, generations: impl Fn(u32) -> bool) -> Vec<u64> {
        let mut keys: Vec<u64> = self
            .entries
            .iter()
            .filter(|(_, generation)| generations(*generation))
            .map(|&(key, _)| key)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// Keeps the entries whose generation is at least `oldest`, without duplicates.
pub(crate) fn shorten_gone(entries: &mut Vec<(u64, u32)>, oldest: u32) {
    entries.retain(|&(_, cut)| cut >= oldest);
    entries.sort_unstable();
    entries.dedup();
}

/// Keeps only the newest entry of each key, and only if its generation is later than `oldest`.
pub(crate) fn shorten_spilled(entries: &mut Vec<(u64, u32)>, oldest: u32) {
    entries.retain(|&(_, generation)| generation > oldest);
    entries.sort_unstable_by(|a, b| b.cmp(a));
    entries.dedup_by_key(|&mut (key, _)| key);
}

impl Tombstones {
    pub(crate) fn new(slots: Range<usize>) -> Self {
        let lists = || slots.clone().map(|_| List::default()).collect();
        let (gone, spilled) = (lists(), lists());
        Self { first_slot: slots.start, cut: None, oldest: 0, gone, spilled }
    }

    /// Records that a checkpoint begins. `generation` has ended with its beginning.
    pub(crate) fn begin(&mut self, generation: u32) {
        if self.cut.replace(generation).is_none() {
            self.oldest = generation;
        }
    }

    /// Lists a key whose row is evicted.
    pub(crate) fn note_gone(&mut self, key: FeatureKey) {
        let (Some(cut), oldest) = (self.cut, self.oldest) else { return };
        let list = &mut self.gone[key.slot() - self.first_slot];
        list.push(key, cut, |entries| shorten_gone(entries, oldest));
    }

    /// Lists a key whose row is spilled. The row changed last in `generation`.
    pub(crate) fn note_spilled(&mut self, key: FeatureKey, generation: u32) {
        let oldest = self.oldest;
        if self.cut.is_some() && generation > oldest {
            let list = &mut self.spilled[key.slot() - self.first_slot];
            list.push(key, generation, |entries| shorten_spilled(entries, oldest));
        }
    }

    /// Drops the entries of a slot that are no longer needed.
    pub(crate) fn trim(&mut self, slot: usize) {
        let (at, oldest) = (slot - self.first_slot, self.oldest);
        self.gone[at].shorten(|entries| shorten_gone(entries, oldest));
        self.spilled[at].shorten(|entries| shorten_spilled(entries, oldest));
    }

    /// Returns, for one slot, the keys whose rows were spilled and may have changed after the end
    /// of generation `since`, in ascending order.
    pub(crate) fn spilled_since(&self, slot: usize, since: u32) -> Vec<u64> {
        self.spilled[slot - self.first_slot].keys(|generation| generation > since)
    }

    pub(crate) fn bytes(&self) -> usize {
        let lists = self.gone.iter().chain(&self.spilled);
        let entries: usize = lists.map(|list| list.entries.capacity()).sum();
        entries * size_of::<(u64, u32)>() + 2 * self.gone.capacity() * size_of::<List>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_stay_as_long_as_what_they_tell() {
        let mut tombstones = Tombstones::new(7..9);
        let key = |i: u64| FeatureKey(8 << 52 | i);
        tombstones.note_gone(key(1));
        tombstones.note_spilled(key(1), 9);
        assert!(tombstones.gone[1].entries.is_empty() && tombstones.spilled[1].entries.is_empty());
        tombstones.begin(3);
        for _ in 0..1000 {
            (0..10).for_each(|i| tombstones.note_gone(key(i)));
            (0..10).for_each(|i| tombstones.note_spilled(key(i), 4 + i as u32 % 2));
            tombstones.note_spilled(key(11), 3);
        }
        assert!(tombstones.gone[1].entries.len() <= FEWEST);
        assert!(tombstones.spilled[1].entries.len() <= FEWEST);
        let keys = |ids: Range<u64>| ids.map(|i| key(i).0).collect::<Vec<_>>();
        assert_eq!(tombstones.spilled_since(8, 3), keys(0..10));
        assert_eq!(tombstones.spilled_since(8, 4).len(), 5);
        tombstones.begin(5);
        tombstones.note_gone(key(2));
        tombstones.note_gone(key(20));
        assert_eq!(tombstones.gone[1].keys(|cut| (3..5).contains(&cut)), keys(0..10));
        assert_eq!(tombstones.gone[1].keys(|cut| (5..6).contains(&cut)), [key(2).0, key(20).0]);
        tombstones.oldest = 5;
        tombstones.trim(8);
        assert_eq!(tombstones.gone[1].entries.len(), 2);
        assert!(tombstones.spilled[1].entries.is_empty());
        assert!(tombstones.bytes() < 10_000);
    }
}
