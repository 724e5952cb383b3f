//! The keys that a table is asked for: some evenly, some by Zipf's law, some that never come again,
//! and the odd ones.

use zillion_feature::FeatureKey;

use crate::chance::Chance;

/// Where ids begin that no other kind of key has.
const FRESH: u64 = 1 << 40;

/// The stream of one table.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Ids that come again are below this.
    ids: u64,
    /// Ids that have come and will not again.
    fresh: u64,
    /// Of ten keys, those that are drawn evenly, and those by Zipf's law. The others are new.
    evenly: u64,
    zipf: u64,
}

impl Keys {
    pub(crate) fn new(chance: &mut Chance, ids: u64) -> Self {
        let (evenly, zipf) = chance.pick(&[(10, 0), (5, 4), (0, 10), (2, 5), (1, 2), (0, 1)]);
        Self { ids, fresh: FRESH, evenly, zipf }
    }

    /// The keys of one batch, with repetitions.
    pub(crate) fn batch(&mut self, chance: &mut Chance, count: u64) -> Vec<FeatureKey> {
        (0..count).map(|_| self.next(chance)).collect()
    }

    /// The key of an id that comes again.
    pub(crate) fn known(id: u64) -> FeatureKey {
        FeatureKey::from_u64(id)
    }

    fn next(&mut self, chance: &mut Chance) -> FeatureKey {
        match chance.below(200) {
            0 => return FeatureKey(0),
            1 => return FeatureKey(u64::MAX),
            // A slot that is fuller than others.
            2..10 => return FeatureKey(9 << 52 | chance.below(100)),
            _ => {}
        }
        match chance.below(10) {
            kind if kind < self.evenly => Self::known(chance.below(self.ids)),
            // Evenly in the logarithm is Zipf's law with exponent one.
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
