//! The frequency of each item in the training data. A retrieval model corrects its scores by the
//! frequencies, and the popularity baseline ranks items by them.
//!
//! Items are counted in a first pass over the data, and the counts do not change later. Counts that
//! grow during training would be poor at the beginning. The counts of a table would also include
//! other features of the same table, for example histories. (If a first pass is too expensive and
//! no other feature uses the items' table, a job can set `train.item_counts = "table"`.) The
//! checkpoint holds the counts. So a resumed run does not count again, and an evaluation has the
//! frequencies for the baseline.

use std::collections::HashMap;
use std::path::Path;

use zillion_feature::{FeatureKey, MixedHasher};

use crate::error::{Error, Result};

/// The name of the file in a checkpoint.
pub(crate) const FILE: &str = "frequencies";
const MAGIC: &[u8; 16] = b"zillion-freq  1\n";

/// The number of times that each item occurs in the training data.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Frequencies {
    counts: HashMap<FeatureKey, u64, MixedHasher>,
    total: u64,
}

impl Frequencies {
    pub(crate) fn new(counts: impl IntoIterator<Item = (FeatureKey, u64)>) -> Self {
        let counts: HashMap<_, _, _> = counts.into_iter().collect();
        let total = counts.values().sum();
        Self { counts, total }
    }

    /// Returns the number of times that an item occurs in the training data.
    pub(crate) fn count(&self, item: FeatureKey) -> u64 {
        self.counts.get(&item).copied().unwrap_or_default()
    }

    /// Fills `shares` with the natural logarithm of each item's share of all rows. For an item
    /// without a count, the count 1 is used.
    pub(crate) fn log_shares(&self, items: &[FeatureKey], shares: &mut Vec<f32>) {
        let total = (self.total.max(1) as f64).ln();
        shares.clear();
        shares.extend(items.iter().map(|&i| ((self.count(i).max(1) as f64).ln() - total) as f32));
    }

    /// Returns the bytes of the file: the magic, then the key and the count of each item as
    /// little-endian `u64`, sorted by key.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut sorted: Vec<(u64, u64)> = self.counts.iter().map(|(k, &n)| (k.0, n)).collect();
        sorted.sort_unstable();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(
            sorted.iter().flat_map(|&(key, n)| [key.to_le_bytes(), n.to_le_bytes()]).flatten(),
        );
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self> {
        let refused = |problem: &str| Error::Checkpoint {
            path: path.to_owned(),
            problem: problem.to_owned(),
        };
        let body =
            bytes.strip_prefix(MAGIC).ok_or_else(|| refused("it does not begin with its magic"))?;
        let (pairs, rest) = body.as_chunks::<16>();
        if !rest.is_empty() {
            return Err(refused("it is truncated"));
        }
        let number = |half: &[u8]| half.try_into().map(u64::from_le_bytes).unwrap_or_default();
        let pairs = pairs.iter().map(|p| (FeatureKey(number(&p[..8])), number(&p[8..])));
        Ok(Self::new(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_back_and_a_cut_one_does_not() {
        let counts = (0..50).map(|i| (FeatureKey::from_i64(i), i as u64 % 7 + 1));
        let frequencies = Frequencies::new(counts);
        let bytes = frequencies.to_bytes();
        let path = Path::new("frequencies");
        assert_eq!(Frequencies::from_bytes(&bytes, path).unwrap(), frequencies);
        assert!(Frequencies::from_bytes(&bytes[..bytes.len() - 1], path).is_err());
        assert!(Frequencies::from_bytes(&bytes[1..], path).is_err());
    }

    #[test]
    fn shares_are_of_all_rows() {
        let (a, b, c) = (FeatureKey(1), FeatureKey(2), FeatureKey(3));
        let frequencies = Frequencies::new([(a, 3), (b, 1)]);
        let mut shares = Vec::new();
        frequencies.log_shares(&[b, a, c], &mut shares);
        let found: Vec<f32> = shares.iter().map(|s| s.exp()).collect();
        let close = |(a, b): (&f32, f32)| (a - b).abs() < 1e-6;
        assert!(found.iter().zip([0.25, 0.75, 0.25]).all(close), "{found:?}");
    }
}
