//! An index without a table. The benchmark `benches/kernels.rs` compares it with a general map.

use zillion_device::DeviceError;
use zillion_feature::{FeatureKey, SLOTS};

use crate::index::{AtHome, Entry, Index};
use crate::prefetch::in_turn;

/// An index of the keys of all slots.
#[derive(Debug)]
pub struct IndexAlone(Index);

impl IndexAlone {
    /// Creates an index in which the row number of each key is its position in `keys`. A key that
    /// occurs again keeps its first position.
    ///
    /// # Errors
    /// Returns an error if there is no memory.
    pub fn of(keys: &[FeatureKey]) -> Result<Self, DeviceError> {
        let mut index = Index::new(0..SLOTS);
        for (&key, row) in keys.iter().zip(0..) {
            if index.get(key).is_none() {
                index.insert(key, Entry::full(row))?;
            }
        }
        Ok(Self(index))
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the index has no key.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Looks up each key as a pull does, and writes its row number. Returns the number of keys that
    /// the index has.
    pub fn find(&self, keys: &[FeatureKey], rows: &mut [u32]) -> usize {
        let mut found = 0;
        let done = in_turn(
            &mut found,
            keys.len(),
            |_, i| self.0.prefetch(keys[i]),
            |_, i| match self.0.get_at_home(keys[i]) {
                AtHome::Found(entry) => entry,
                AtHome::Absent => Entry::NONE,
                AtHome::Beyond => Entry::UNDECIDED,
            },
            |_, i| Ok(self.0.get(keys[i]).unwrap_or(Entry::NONE)),
            |found, i, entry| {
                rows[i] = entry.word();
                *found += usize::from(!entry.is_none());
            },
        );
        debug_assert!(done.is_ok(), "no stage fails");
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_as_in_a_table() {
        let key = FeatureKey::from_u64;
        let keys: Vec<FeatureKey> = (0..20_000).map(key).chain([key(7)]).collect();
        let index = IndexAlone::of(&keys).unwrap();
        assert_eq!(index.len(), 20_000);
        let asked: Vec<FeatureKey> = (10_000..30_000).map(key).collect();
        let mut rows = vec![0; asked.len()];
        assert_eq!(index.find(&asked, &mut rows), 10_000);
        assert!(rows[..10_000].iter().zip(10_000..).all(|(&row, expected)| row == expected));
        assert!(rows[10_000..].iter().all(|&row| row == Entry::NONE.word()));
        assert!(!index.is_empty() && index.find(&[], &mut []) == 0);
    }
}
