//! The pinned keys: keys whose rows are never evicted.

use std::ops::Range;

use zillion_feature::FeatureKey;
use zillion_rows::PinnedId;

/// The pinned keys of a table, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    keys: Vec<FeatureKey>,
}

impl Pinned {
    pub(crate) fn new(ids: &[PinnedId]) -> Self {
        let mut keys: Vec<FeatureKey> = ids.iter().map(PinnedId::key).collect();
        keys.sort_unstable();
        keys.dedup();
        Self { keys }
    }

    /// Returns all pinned keys of the table, in ascending order.
    pub(crate) fn keys(&self) -> &[FeatureKey] {
        &self.keys
    }

    /// Returns whether a key is pinned.
    pub(crate) fn has(&self, key: FeatureKey) -> bool {
        self.keys.binary_search(&key).is_ok()
    }

    /// Returns the pinned keys of one slot.
    pub(crate) fn of_slot(&self, slot: usize) -> &[FeatureKey] {
        let before = |slot: usize| self.keys.partition_point(|key| key.slot() < slot);
        let range: Range<usize> =
            if self.keys.is_empty() { 0..0 } else { before(slot)..before(slot + 1) };
        &self.keys[range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_keys_are_found_by_slot() {
        let ids = [PinnedId::Number(7), PinnedId::Text("a".into()), PinnedId::Number(7)];
        let pinned = Pinned::new(&ids);
        assert_eq!(pinned.keys.len(), 2);
        for id in &ids {
            assert!(pinned.of_slot(id.key().slot()).contains(&id.key()));
        }
        let all: usize = (0..zillion_feature::SLOTS).map(|slot| pinned.of_slot(slot).len()).sum();
        assert_eq!(all, 2);
        assert!(Pinned::default().of_slot(4095).is_empty());
    }
}
