//! The record of one row in a log: a checksum, the key, the weights and the companion words.
//!
//! The checksum covers all bytes after it. So a record itself shows whether it is intact and which
//! key it belongs to.

use bytemuck::{cast_slice, cast_slice_mut};
use xxhash_rust::xxh3::xxh3_64;
use zillion_feature::FeatureKey;

use crate::shape::TableShape;
use zillion_rows::META_WORDS;
use zillion_rows::row::RowWeights;

const CHECKSUM: usize = 8;
const KEY: usize = 8;

/// The sizes of a table's records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordShape {
    /// The number of bytes of the weights.
    weights: usize,
    /// The number of words of the companion row.
    companion: usize,
}

/// A copy of the row of a record, in separate memory in which its numbers are aligned.
#[derive(Debug, Default)]
pub(crate) struct Thawed {
    weights: Vec<u32>,
    pub(crate) companion: Vec<u32>,
}

impl Thawed {
    /// Returns the weights in the number type of the table.
    pub(crate) fn weights(&self, shape: &TableShape) -> RowWeights<'_> {
        RowWeights::of_words(&self.weights, shape.spec.dtype, shape.width)
    }
}

impl RecordShape {
    pub(crate) fn new(shape: &TableShape) -> Self {
        let weights = shape.width * shape.spec.dtype.bytes();
        Self { weights, companion: shape.state_width + META_WORDS + shape.spec.use_words() }
    }

    /// Returns the number of bytes of a record.
    pub(crate) fn bytes(self) -> usize {
        CHECKSUM + KEY + self.weights + size_of::<u32>() * self.companion
    }

    /// Writes a row into a record. Both slices may be longer than the row, because their padding is
    /// not written.
    pub(crate) fn write(self, to: &mut [u8], key: FeatureKey, weights: &[u32], companion: &[u32]) {
        let (checksum, rest) = to.split_at_mut(CHECKSUM);
        let (stored_key, words) = rest.split_at_mut(KEY);
        stored_key.copy_from_slice(&key.0.to_le_bytes());
        let (stored_weights, stored_companion) = words.split_at_mut(self.weights);
        stored_weights.copy_from_slice(&cast_slice(weights)[..self.weights]);
        stored_companion.copy_from_slice(cast_slice(&companion[..self.companion]));
        checksum.copy_from_slice(&xxh3_64(rest).to_le_bytes());
    }

    /// Returns the key that is stored in a record.
    pub(crate) fn key(self, record: &[u8]) -> FeatureKey {
        let mut key = [0; KEY];
        key.copy_from_slice(&record[CHECKSUM..CHECKSUM + KEY]);
        FeatureKey(u64::from_le_bytes(key))
    }

    /// Compares a record with its checksum. Returns whether the record has the bytes that were
    /// written to it.
    pub(crate) fn is_whole(self, record: &[u8]) -> bool {
        record[..CHECKSUM] == xxh3_64(&record[CHECKSUM..]).to_le_bytes()
    }

    /// Returns the fault of a record that should belong to `key`, or `None` if the record has no
    /// fault.
    pub(crate) fn problem(self, record: &[u8], key: FeatureKey) -> Option<&'static str> {
        if !self.is_whole(record) {
            Some("its checksum does not match its bytes")
        } else if self.key(record) != key {
            Some("it belongs to another key")
        } else {
            None
        }
    }

    /// Copies the row of a record to two slices. Both slices may be longer than the row; their
    /// remaining words do not change.
    pub(crate) fn read(self, record: &[u8], weights: &mut [u32], companion: &mut [u32]) {
        let (stored_weights, stored_companion) = record[CHECKSUM + KEY..].split_at(self.weights);
        cast_slice_mut(weights)[..self.weights].copy_from_slice(stored_weights);
        cast_slice_mut(&mut companion[..self.companion]).copy_from_slice(stored_companion);
    }

    /// Copies the row of a record into the separate memory of `to`.
    pub(crate) fn thaw(self, record: &[u8], to: &mut Thawed) {
        to.weights.resize(self.weights.div_ceil(size_of::<u32>()), 0);
        to.companion.resize(self.companion, 0);
        self.read(record, &mut to.weights, &mut to.companion);
    }
}
