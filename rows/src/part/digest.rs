//! The digest of the rows of a table. It does not depend on the division of the rows into files.
//!
//! The digest is a sum modulo 2^128. Its terms are the xxh3-128 hashes of the rows, of the waiting
//! keys and of the blocks of a filter. So the digests of the files of several owners can be added,
//! and two checkpoints of the same tables have the same digests, however many processes wrote them.
//! The digest finds rows that were lost, doubled or mixed up. It does not resist an attacker; the
//! BLAKE3 of a file does.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};
use zillion_feature::FeatureKey;

use crate::candidate::Candidate;
use crate::error::Error;
use crate::filter::BLOCK_WORDS;
use crate::row::{RowWeights, StoredRow};

/// The seed of the hashes of waiting keys. Rows are hashed without a seed.
const CANDIDATE_SEED: u64 = 1;
/// The seed of the hashes of the blocks of a filter.
const FILTER_SEED: u64 = 2;

/// The number of bytes of a row's metadata, shows and clicks.
const REST: usize = 24;

/// The number of hexadecimal digits of a digest.
const DIGITS: usize = 32;

/// The digest of the rows, waiting keys and filter blocks in some files of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RowDigest(u128);

impl AddAssign for RowDigest {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

impl std::iter::Sum for RowDigest {
    fn sum<I: Iterator<Item = Self>>(digests: I) -> Self {
        let mut sum = Self::default();
        digests.for_each(|digest| sum += digest);
        sum
    }
}

impl fmt::Display for RowDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl From<RowDigest> for String {
    fn from(digest: RowDigest) -> Self {
        digest.to_string()
    }
}

impl FromStr for RowDigest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        let is_legal = text.len() == DIGITS && text.chars().all(is_digit);
        let number = is_legal.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| {
            Error::misuse(format!(
                "the digest of a table is not a number of {DIGITS} hexadecimal digits in lower case; use another \
                 checkpoint"
            ))
        })
    }
}

impl TryFrom<String> for RowDigest {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

/// The sum of the hashes of rows.
#[derive(Debug, Default)]
pub(super) struct RowHasher {
    /// The memory in which the bytes of a row are gathered.
    bytes: Vec<u8>,
    sum: RowDigest,
}

impl RowHasher {
    /// Adds a row. `has_uses` says whether the table keeps shows and clicks.
    #[inline]
    pub(super) fn add(&mut self, key: FeatureKey, row: &StoredRow<'_>, has_uses: bool) {
        let weights: &[u8] = match row.weights {
            RowWeights::F32(weights) => bytemuck::cast_slice(weights),
            RowWeights::F16(bits) | RowWeights::Bf16(bits) => bytemuck::cast_slice(bits),
        };
        let state: &[u8] = bytemuck::cast_slice(row.state);
        let (after_weights, after_state) = (8 + weights.len(), 8 + weights.len() + state.len());
        if self.bytes.len() < after_state + REST {
            self.bytes.resize(after_state + REST, 0);
        }
        // Copies of a fixed length need no call of a function.
        let bytes = &mut self.bytes[..after_state + REST];
        bytes[..8].copy_from_slice(&key.0.to_le_bytes());
        bytes[8..after_weights].copy_from_slice(weights);
        bytes[after_weights..after_state].copy_from_slice(state);
        let rest = &mut bytes[after_state..];
        rest[..4].copy_from_slice(&row.meta.count.to_le_bytes());
        rest[4..12].copy_from_slice(&u64::from(row.meta.last_step).to_le_bytes());
        rest[12..16].copy_from_slice(&row.meta.dirty_epoch.to_le_bytes());
        rest[16..20].copy_from_slice(&row.used.shows.to_le_bytes());
        rest[20..REST].copy_from_slice(&row.used.clicks.to_le_bytes());
        let end = if has_uses { REST } else { REST - 8 };
        self.sum += RowDigest(xxh3_128(&bytes[..after_state + end]));
    }

    /// Returns the sum of the hashes of all rows that were added.
    pub(super) fn sum(self) -> RowDigest {
        self.sum
    }
}

/// Returns the hash of a key that waits for admission.
pub(super) fn digest_candidate(key: FeatureKey, candidate: Candidate) -> RowDigest {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&key.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&candidate.count.to_le_bytes());
    bytes[12..].copy_from_slice(&u64::from(candidate.last_step).to_le_bytes());
    RowDigest(xxh3_128_with_seed(&bytes, CANDIDATE_SEED))
}

/// Returns the hash of a block of a filter. `block` is the index of the block in its slot.
pub(super) fn digest_block(slot: usize, block: usize, words: &[u64]) -> RowDigest {
    let mut bytes = [0; 8 + BLOCK_WORDS * 8];
    bytes[..4].copy_from_slice(&(slot as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&(block as u32).to_le_bytes());
    for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    RowDigest(xxh3_128_with_seed(&bytes, FILTER_SEED))
}

#[cfg(test)]
mod tests {
    use zillion_feature::Use;

    use super::*;
    use crate::row::Meta;

    fn digest(key: u64, state: &[f32], has_uses: bool) -> RowDigest {
        let mut hasher = RowHasher::default();
        let row = StoredRow {
            weights: RowWeights::F32(&[1.0, -2.0]),
            state,
            meta: Meta { count: 3, last_step: 4, dirty_epoch: 5 },
            used: Use { shows: 6.0, clicks: 7.0 },
            is_narrow: false,
        };
        hasher.add(FeatureKey(key), &row, has_uses);
        hasher.sum()
    }

    /// Checks the hash against the hash of the documented bytes, which manifests depend on.
    #[test]
    fn the_bytes_of_a_digest_are_pinned() {
        let mut bytes = 9u64.to_le_bytes().to_vec();
        for float in [1.0f32, -2.0, 0.5] {
            bytes.extend(float.to_le_bytes());
        }
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(4u64.to_le_bytes());
        bytes.extend(5u32.to_le_bytes());
        assert_eq!(digest(9, &[0.5], false).0, xxh3_128(&bytes));
        bytes.extend(6.0f32.to_le_bytes());
        bytes.extend(7.0f32.to_le_bytes());
        assert_eq!(digest(9, &[0.5], true).0, xxh3_128(&bytes));
        let candidate = Candidate { count: 2, last_step: 7 };
        let all = [
            digest(9, &[0.5], false),
            digest_candidate(FeatureKey(1), candidate),
            digest_block(5, 6, &[7; BLOCK_WORDS]),
        ];
        assert_eq!(all.map(|digest| digest.to_string()), PINNED);
    }

    const PINNED: [&str; 3] = [
        "506b4682d30c6c04be51d1804a12c0c6",
        "3e1e517443a8e9dcc5f25fde055b4705",
        "f427a482359a6847eccdf6ea15b84bff",
    ];

    #[test]
    fn a_digest_is_a_sum_in_any_order() {
        let [a, b, c] = [1, 2, u64::MAX].map(|key| digest(key, &[], true));
        let sum = |all: &[RowDigest]| all.iter().copied().sum::<RowDigest>();
        assert_eq!(sum(&[a, b, c]), sum(&[c, a, b]));
        assert_ne!(sum(&[a, b]), sum(&[a, c]));
        let most = RowDigest(u128::MAX);
        assert_eq!(sum(&[most, RowDigest(2)]), RowDigest(1));
    }

    #[test]
    fn a_digest_is_read_from_its_text_only() {
        for digest in [RowDigest(0), RowDigest(1), RowDigest(u128::MAX)] {
            let text = digest.to_string();
            assert_eq!(text.len(), DIGITS);
            assert_eq!(text.parse::<RowDigest>().unwrap(), digest);
        }
        let (short, long) = ("0".repeat(31), "0".repeat(33));
        let (signed, capital) = (format!("+{}", "0".repeat(31)), "F".repeat(32));
        for text in ["", &short, &long, &signed, &capital, "é0000000000000000000000000000000"] {
            let error = text.parse::<RowDigest>().unwrap_err().to_string();
            assert!(error.contains("32 hexadecimal digits"), "{error}");
        }
    }
}
