//! The admission of keys: the common interface of the counts and random draws that decide when a
//! key gets a row.
//!
//! # Concurrency
//! An admission is a plain value without locks. One shard's part of a table owns it.

mod before;
pub(crate) mod candidates;
pub(crate) mod filter;
mod table;

use std::ops::Range;

use zillion_feature::FeatureKey;

use crate::admission::before::Before;
use crate::admission::candidates::Candidates;
use crate::admission::filter::Filter;
use crate::eviction::clock::Moment;
use crate::shape::TableShape;
use zillion_rows::{Admission, is_drawn};

/// The admission of one shard's part of a table.
#[derive(Debug)]
pub(crate) enum KeyAdmission {
    /// An exact count of the occurrences of each key.
    Counts(Candidates),
    /// An approximate count in a Bloom filter.
    Filter(Filter),
    /// A random draw for each occurrence.
    Draw { p: f64, seed: u64 },
}

impl KeyAdmission {
    /// Creates the admission of the keys in `slots`. Returns `None` if every key gets a row at
    /// once.
    pub(crate) fn new(shape: &TableShape, slots: Range<usize>) -> Option<Self> {
        Some(match shape.spec.admission {
            Admission::All => return None,
            Admission::Count { at_least } => {
                Self::Counts(Candidates::new(slots, at_least, shape.candidates_in_slot))
            }
            Admission::Bloom { .. } => Self::Filter(Filter::new(slots, shape.filter?)),
            Admission::Probability { p } => Self::Draw { p, seed: shape.spec.seed },
        })
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, key: FeatureKey) {
        match self {
            Self::Counts(candidates) => candidates.prefetch(key),
            Self::Filter(filter) => filter.prefetch(key),
            Self::Draw { .. } => {}
        }
    }

    /// Counts `times` occurrences of a key without a row at a moment. Returns `true` if the key is
    /// admitted: the caller must then create its row.
    pub(crate) fn admit(&mut self, key: FeatureKey, times: u32, at: Moment) -> bool {
        match self {
            Self::Counts(candidates) => candidates.admit(key, times, at.now),
            Self::Filter(filter) => filter.admit(key, times),
            Self::Draw { p, seed } => is_drawn(*p, *seed, key.0, at.step, times),
        }
    }

    /// Returns whether [`KeyAdmission::admit`] would return `true`.
    pub(crate) fn would_admit(&self, key: FeatureKey, times: u32, step: u32) -> bool {
        match self {
            Self::Counts(candidates) => candidates.would_admit(key, times),
            Self::Filter(filter) => filter.would_admit(key, times),
            Self::Draw { p, seed } => is_drawn(*p, *seed, key.0, step, times),
        }
    }

    /// Returns the exact counts, or `None` if the admission does not count exactly.
    pub(crate) fn counts(&self) -> Option<&Candidates> {
        if let Self::Counts(candidates) = self { Some(candidates) } else { None }
    }

    /// Returns the exact counts for writing, or `None` if the admission does not count exactly.
    pub(crate) fn counts_mut(&mut self) -> Option<&mut Candidates> {
        if let Self::Counts(candidates) = self { Some(candidates) } else { None }
    }

    /// Returns the filter, or `None` if the admission does not use one.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        if let Self::Filter(filter) = self { Some(filter) } else { None }
    }

    /// Returns the filter for writing, or `None` if the admission does not use one.
    pub(crate) fn filter_mut(&mut self) -> Option<&mut Filter> {
        if let Self::Filter(filter) = self { Some(filter) } else { None }
    }

    /// Begins a snapshot of the present counts. From this call on, an old value is kept before it
    /// changes.
    pub(crate) fn begin_snapshot(&mut self) {
        match self {
            Self::Counts(candidates) => candidates.begin_snapshot(),
            Self::Filter(filter) => filter.begin_snapshot(),
            Self::Draw { .. } => {}
        }
    }

    /// Records that the counts of a slot have been written to the snapshot.
    pub(crate) fn slot_written(&mut self, slot: usize) {
        match self {
            Self::Counts(candidates) => candidates.before.iter_mut().for_each(|b| b.forget(slot)),
            Self::Filter(filter) => filter.before.iter_mut().for_each(|b| b.forget(slot)),
            Self::Draw { .. } => {}
        }
    }

    /// Ends the snapshot and frees the counts that were kept for it.
    pub(crate) fn end_snapshot(&mut self) {
        match self {
            Self::Counts(candidates) => candidates.before = None,
            Self::Filter(filter) => filter.before = None,
            Self::Draw { .. } => {}
        }
    }

    /// Returns the bytes that are kept for a snapshot.
    pub(crate) fn snapshot_bytes(&self) -> usize {
        match self {
            Self::Counts(candidates) => candidates.before.as_ref().map_or(0, Before::bytes),
            Self::Filter(filter) => filter.before.as_ref().map_or(0, Before::bytes),
            Self::Draw { .. } => 0,
        }
    }

    /// Returns the number of candidates that are counted exactly. A filter does not store keys, so
    /// this number is 0 for a filter.
    pub(crate) fn len(&self) -> usize {
        self.counts().map_or(0, Candidates::len)
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Counts(candidates) => candidates.bytes(),
            Self::Filter(filter) => filter.bytes(),
            Self::Draw { .. } => 0,
        }
    }

    /// Drops the candidates of one slot that were last seen before `oldest`, and returns their
    /// number.
    pub(crate) fn evict(&mut self, slot: usize, oldest: u32) -> u64 {
        self.counts_mut().map_or(0, |c| c.evict(slot, oldest))
    }

    /// Returns the number of candidates that were dropped because their slot had too many
    /// candidates. Resets this number to 0.
    pub(crate) fn take_lapsed(&mut self) -> u64 {
        self.counts_mut().map_or(0, |c| std::mem::take(&mut c.lapsed))
    }
}
