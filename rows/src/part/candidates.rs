//! The files of the keys that wait for admission, with their counts.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{UInt32Array, UInt64Array};
use arrow_buffer::ScalarBuffer;
use arrow_schema::{DataType, Field};
use zillion_device::Files;
use zillion_feature::FeatureKey;

use super::cut::Place;
use super::digest::{RowDigest, digest_candidate};
use super::write::write_file;
use super::{CANDIDATES, PartInfo};
use crate::candidate::Candidate;
use crate::error::Result;
use crate::shape::RowShape;

/// A verified and mapped file of candidates. The candidates are in key order.
#[derive(Debug)]
pub struct StoredCandidates {
    pub(super) slots: Range<usize>,
    pub(super) keys: ScalarBuffer<u64>,
    pub(super) counts: ScalarBuffer<u32>,
    pub(super) last_steps: ScalarBuffer<u64>,
}

impl StoredCandidates {
    /// Yields the candidates whose keys lie in `slots`.
    pub fn in_slots<'a>(
        &'a self,
        slots: &Range<usize>,
    ) -> impl Iterator<Item = (FeatureKey, Candidate)> + use<'a> {
        let before = |slot: usize| self.keys.partition_point(|&key| FeatureKey(key).slot() < slot);
        (before(slots.start)..before(slots.end)).map(|row| self.row(row))
    }

    /// Returns the slots of the file.
    pub fn slots(&self) -> Range<usize> {
        self.slots.clone()
    }

    /// Returns the digest of all candidates of the file.
    pub(super) fn digest(&self) -> RowDigest {
        let rows = (0..self.keys.len()).map(|row| self.row(row));
        rows.map(|(key, candidate)| digest_candidate(key, candidate)).sum()
    }

    /// Returns the candidate of a key, or `None` if the file does not have the key.
    pub fn find(&self, key: FeatureKey) -> Option<Candidate> {
        self.keys.binary_search(&key.0).ok().map(|row| self.row(row).1)
    }

    fn row(&self, row: usize) -> (FeatureKey, Candidate) {
        // The step was checked when the file was opened.
        let (count, last_step) = (self.counts[row], self.last_steps[row] as u32);
        (FeatureKey(self.keys[row]), Candidate { count, last_step })
    }
}

pub(super) fn candidate_fields() -> Vec<Field> {
    vec![
        Field::new("key", DataType::UInt64, false),
        Field::new("count", DataType::UInt32, false),
        Field::new("last_step", DataType::UInt64, false),
    ]
}

/// Writes and syncs one file of candidates. The candidates must be in key order. Returns the entry
/// of the file and the digest of the candidates.
pub fn write_candidates(
    files: &Files,
    folder: &Path,
    shape: &RowShape,
    place: Place,
    candidates: impl Iterator<Item = (FeatureKey, Candidate)>,
) -> Result<(PartInfo, RowDigest)> {
    let mut digest = RowDigest::default();
    let (mut keys, mut counts, mut last_steps) = (Vec::new(), Vec::new(), Vec::new());
    for (key, candidate) in candidates {
        digest += digest_candidate(key, candidate);
        keys.push(key.0);
        counts.push(candidate.count);
        last_steps.push(u64::from(candidate.last_step));
    }
    let content = (candidate_fields(), None);
    let info = write_file(files, folder, shape, (place, CANDIDATES), content, || {
        Ok(vec![
            Arc::new(UInt64Array::from(keys)),
            Arc::new(UInt32Array::from(counts)),
            Arc::new(UInt64Array::from(last_steps)),
        ])
    })?;
    Ok((info, digest))
}
