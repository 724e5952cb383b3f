//! The keys of a table's batches. Some ids are drawn uniformly, some are drawn by Zipf's law, and
//! some never occur again. A few keys are special.

use zillion_feature::FeatureKey;

use crate::chance::Chance;

/// The first id of the ids that are used only once.
const FRESH: u64 = 1 << 40;

/// The stream of keys of one table.
#[derive(Debug)]
pub(crate) struct Keys {
    /// The exclusive upper bound of the ids that can occur again.
    ids: u64,
    /// The number of ids that have been used once and will not be used again.
    fresh: u64,
    /// The number of keys in ten that are drawn uniformly. The next field is the number of keys in
    /// ten that are drawn by Zipf's law. All other keys are new.
    evenly: u64,
    zipf: u64,
}

impl Keys {
    pub(crate) fn new(chance: &mut Chance, ids: u64) -> Self {
        let (evenly, zipf) = chance.pick(&[(10, 0), (5, 4), (0, 10), (2, 5), (1, 2), (0, 1)]);
        Self { ids, fresh: FRESH, evenly, zipf }
    }

    /// Returns the keys of one batch. A key can occur several times.
    pub(crate) fn batch(&mut self, chance: &mut Chance, count: u64) -> Vec<FeatureKey> {
        (0..count).map(|_| self.next(chance)).collect()
    }

    /// Returns the key of an id that can occur again.
    pub(crate) fn known(id: u64) -> FeatureKey {
        FeatureKey::from_u64(id)
    }

    fn next(&mut self, chance: &mut Chance) -> FeatureKey {
        match chance.below(200) {
            0 => return FeatureKey(0),
            1 => return FeatureKey(u64::MAX),
            // These keys lie in one slot, which becomes fuller than others.
            2..10 => return FeatureKey(9 << 52 | chance.below(100)),
            _ => {}
        }
        match chance.below(10) {
            kind if kind < self.evenly => Self::known(chance.below(self.ids)),
            // An even distribution of the logarithm is Zipf's law with exponent one.
            kind if kind < self.evenly + self.zipf => {
                Self::known((self.ids as f64).powf(chance.unit()) as u64 - 1)
            }
            _ => {
                self.fresh += 1;
                FeatureKey::from_u64(self.fresh)
            }
        }
    }
}
