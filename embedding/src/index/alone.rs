//! An index without a table, for the benchmark that holds it against a general map (`benches/kernels.rs`).

use zillion_device::DeviceError;
use zillion_feature::{FeatureKey, SLOTS};

use super::{AtHome, Index};

/// Keys that are asked for before they are looked at: a pull's block.
const BLOCK: usize = 16;
/// What a key that is not there reads as.
const ABSENT: u32 = u32::MAX;

/// An index of all slots.
#[derive(Debug)]
pub struct IndexAlone(Index);

impl IndexAlone {
    /// The keys, each with its place as row number. A key that comes again keeps its first place.
    ///
    /// # Errors
    /// Where there is no memory.
    pub fn of(keys: &[FeatureKey]) -> Result<Self, DeviceError> {
        let mut index = Index::new(0..SLOTS);
        for (&key, row) in keys.iter().zip(0..) {
            if index.get(key).is_none() {
                index.insert(key, row)?;
            }
        }
        Ok(Self(index))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Writes the rows of keys as a pull finds them, a block ahead; returns how many keys are there.
    pub fn find(&self, keys: &[FeatureKey], rows: &mut [u32]) -> usize {
        let ask = |block: &[FeatureKey]| block.iter().for_each(|&key| self.0.prefetch(key));
        keys.chunks(BLOCK).take(1).for_each(ask);
        let mut found = 0;
        for (i, (block, rows)) in keys.chunks(BLOCK).zip(rows.chunks_mut(BLOCK)).enumerate() {
            keys.chunks(BLOCK).skip(i + 1).take(1).for_each(ask);
            let mut is_beyond = false;
            for (row, &key) in rows.iter_mut().zip(block) {
                *row = match self.0.get_at_home(key) {
                    AtHome::Row(row) => row,
                    AtHome::Absent => ABSENT,
                    AtHome::Beyond => {
                        is_beyond = true;
                        // No row has this number, nor the one above it.
                        ABSENT - 1
                    }
                };
            }
            if is_beyond {
                for (row, &key) in rows.iter_mut().zip(block).filter(|(row, _)| **row == ABSENT - 1)
                {
                    *row = self.0.get(key).unwrap_or(ABSENT);
                }
            }
            found += rows.iter().filter(|&&row| row != ABSENT).count();
        }
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
        assert!(rows[10_000..].iter().all(|&row| row == ABSENT));
        assert!(!index.is_empty() && index.find(&[], &mut []) == 0);
    }
}
