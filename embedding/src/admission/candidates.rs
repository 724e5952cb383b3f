//! The candidates of a table: keys that have been seen and do not have a row yet, with an exact
//! count of their occurrences.
//!
//! A candidate is an entry of the same cache-line buckets that rows use (see [`Index`]). All keys
//! of a slot have the slot's number in their top twelve bits, so the index stores a count in these
//! bits instead. A row's entry has the number of the row; a candidate's entry has the step in which
//! its key was last seen. A candidate takes 12.8 bytes in a full bucket and at most 18 bytes while
//! the slots grow, plus its share of the free memory between the slots. Ten million candidates take
//! less than 200 MB.
//!
//! # Concurrency
//! The candidates are a plain value without locks. One shard's part of a table owns it.

mod before;

use std::ops::Range;

use zillion_feature::{FeatureKey, SLOTS};
use zillion_rows::Candidate;
use zillion_rows::candidate::LARGEST_THRESHOLD;

use crate::admission::before::Before;
use crate::admission::candidates::before::Changed;
use crate::index::{Counted, Index};

/// The number of bits of a count. An entry stores the count in place of the slot's number.
const COUNT_BITS: u32 = SLOTS.trailing_zeros();
/// The position of the lowest bit of a count in a stored key.
const SHIFT: u32 = u64::BITS - COUNT_BITS;
const KEY_BITS: u64 = (1 << SHIFT) - 1;

const _: () = assert!(LARGEST_THRESHOLD == 1 << COUNT_BITS, "a count has the bits of a slot");

/// The candidates of one shard's part of a table, with exact counts.
#[derive(Debug)]
pub(crate) struct Candidates {
    /// The number of occurrences at which a key is admitted.
    at_least: u32,
    /// The index of the candidates. It maps a key, with its count in the top bits, to the step in
    /// which the key was last seen.
    index: Index<Counted>,
    /// The old values of the candidates that have changed since a snapshot began; `None` if no
    /// snapshot is being written.
    pub(super) before: Option<Before<Changed>>,
    /// The largest number of candidates that a slot may have; `None` if there is no limit.
    pub(crate) most: Option<usize>,
    /// The number of candidates that were dropped because their slot had too many candidates. It
    /// does not include drops that were reported.
    pub(crate) lapsed: u64,
}

fn stored(key: FeatureKey, count: u32) -> u64 {
    key.0 & KEY_BITS | u64::from(count) << SHIFT
}

/// Returns the candidate that an entry of the index stands for.
fn candidate(word: u64, last_step: u32) -> Candidate {
    Candidate { count: (word >> SHIFT) as u32, last_step }
}

impl Candidates {
    /// Creates an empty set of candidates for the slots in `slots`. A key is admitted at occurrence
    /// number `at_least`, which must be at most [`LARGEST_THRESHOLD`]. A slot has at most `most`
    /// candidates, or any number of candidates if `most` is `None`.
    pub(crate) fn new(slots: Range<usize>, at_least: u32, most: Option<usize>) -> Self {
        debug_assert!(at_least <= LARGEST_THRESHOLD, "a count has twelve bits");
        Self { at_least, index: Index::new(slots), before: None, most, lapsed: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Returns the number of candidates of one slot.
    pub(crate) fn slot_len(&self, slot: usize) -> usize {
        self.index.slot_len(slot)
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, key: FeatureKey) {
        self.index.prefetch(key);
    }

    /// Counts `times` more occurrences of a key without a row. Returns `true` if the key now has
    /// enough occurrences. In this case the key is no longer a candidate, and the caller must
    /// create its row.
    pub(crate) fn admit(&mut self, key: FeatureKey, times: u32, step: u32) -> bool {
        if let Some((word, last_step)) = self.index.entry(key) {
            let was = candidate(word, last_step);
            self.note(key, Some(was));
            let count = was.count.saturating_add(times);
            if count < self.at_least {
                self.index.set(key, stored(key, count), step);
                return false;
            }
            self.index.remove(key);
            // If all keys of a slot are admitted, the slot drops no candidates for age, and would
            // keep the memory of its largest size. So the slot is tidied each time the number of
            // its candidates has halved.
            let left = self.index.slot_len(key.slot());
            if left == 0 || left.is_power_of_two() {
                self.index.tidy(key.slot());
            }
            return true;
        }
        if times >= self.at_least {
            return true;
        }
        if self.most.is_some_and(|most| self.index.slot_len(key.slot()) >= most) {
            self.make_room(key.slot());
        }
        self.note(key, None);
        self.index.insert_tagged(key, stored(key, times), step);
        false
    }

    /// Drops an eighth of a slot's candidates, but at least one. The dropped candidates are those
    /// that were last seen the longest time ago.
    fn make_room(&mut self, slot: usize) {
        let mut entries = self.in_slot(slot);
        entries.sort_by_key(|&(_, candidate)| candidate.last_step);
        let goes = entries.len().div_ceil(8);
        self.drop_candidates(slot, &entries[..goes]);
        self.lapsed += goes as u64;
    }

    /// Drops the candidates `gone` of a slot.
    fn drop_candidates(&mut self, slot: usize, gone: &[(FeatureKey, Candidate)]) {
        for &(key, candidate) in gone {
            self.note(key, Some(candidate));
            self.index.remove(key);
        }
        if !gone.is_empty() {
            self.index.tidy(slot);
        }
    }

    /// Keeps the old value of a key before it changes, if a snapshot needs the value. `was` is the
    /// old value, or `None` if the key was not a candidate.
    fn note(&mut self, key: FeatureKey, was: Option<Candidate>) {
        if let Some(changed) = self.before.as_mut().and_then(|before| before.pending(key.slot())) {
            changed.note(key, was);
        }
    }

    /// Returns whether [`Candidates::admit`] would return `true`.
    pub(crate) fn would_admit(&self, key: FeatureKey, times: u32) -> bool {
        let before = self.index.entry(key).map_or(0, |(word, step)| candidate(word, step).count);
        before.saturating_add(times) >= self.at_least
    }

    /// Adds a candidate from a checkpoint. The key must not be present, and the count must fit into
    /// its bits.
    pub(crate) fn restore(&mut self, key: FeatureKey, candidate: Candidate) {
        self.index.insert_tagged(key, stored(key, candidate.count), candidate.last_step);
    }

    /// Returns the candidate of a key, or `None` if the key has no count.
    pub(crate) fn find(&self, key: FeatureKey) -> Option<Candidate> {
        self.index.entry(key).map(|(word, last_step)| candidate(word, last_step))
    }

    /// Returns the candidates of one slot, in key order.
    pub(crate) fn in_slot(&self, slot: usize) -> Vec<(FeatureKey, Candidate)> {
        let mut entries: Vec<_> = self.slot_entries(slot).collect();
        entries.sort_unstable_by_key(|&(key, _)| key);
        entries
    }

    /// Returns the candidates of one slot, in no particular order.
    fn slot_entries(&self, slot: usize) -> impl Iterator<Item = (FeatureKey, Candidate)> {
        let top = (slot as u64) << SHIFT;
        self.index.slot_entries(slot).map(move |(word, last_step)| {
            (FeatureKey(word.0 & KEY_BITS | top), candidate(word.0, last_step))
        })
    }

    /// Begins a snapshot of the present candidates.
    pub(crate) fn begin_snapshot(&mut self) {
        self.before = Some(Before::new(self.index.slots()));
    }

    /// Returns the candidates that one slot had when the snapshot began, in key order. The slot
    /// must not have been written yet.
    pub(crate) fn before_in_slot(&self, slot: usize) -> Vec<(FeatureKey, Candidate)> {
        let now = self.in_slot(slot);
        match &self.before {
            Some(before) => before.slot(slot).restore(now),
            None => now,
        }
    }

    /// Drops the candidates of one slot that were last seen before `oldest`, and returns their
    /// number.
    pub(crate) fn evict(&mut self, slot: usize, oldest: u32) -> u64 {
        let gone: Vec<_> = self.slot_entries(slot).filter(|(_, c)| c.last_step < oldest).collect();
        self.drop_candidates(slot, &gone);
        gone.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_million_candidates_are_cheap() {
        let mut candidates = Candidates::new(0..64, 3, None);
        let (mut id, mut worst) = (0u64, 0.0f64);
        while candidates.len() < 100_000 {
            id += 1;
            let key = FeatureKey::from_u64(id);
            if key.slot() < 64 {
                assert!(!candidates.admit(key, 1, 1));
            }
            if candidates.len() > 30_000 {
                worst = worst.max(candidates.bytes() as f64 / candidates.len() as f64);
            }
        }
        assert!(worst < 28.0, "{worst} bytes a candidate, with what is free between the slots");
    }

    #[test]
    fn candidates_that_are_let_in_leave_no_memory_behind() {
        let mut candidates = Candidates::new(0..64, 2, None);
        let fresh = candidates.bytes();
        let keys: Vec<FeatureKey> =
            (0..).map(FeatureKey::from_u64).filter(|key| key.slot() < 64).take(20_000).collect();
        for &key in &keys {
            assert!(!candidates.admit(key, 1, 1));
        }
        let full = candidates.bytes();
        let (most, rest) = keys.split_at(18_000);
        assert!(most.iter().all(|&key| candidates.admit(key, 1, 2)));
        assert!(candidates.bytes() * 3 < full, "{} bytes of {full}", candidates.bytes());
        assert!(rest.iter().all(|&key| candidates.admit(key, 1, 3)));
        assert_eq!((candidates.len(), candidates.bytes()), (0, fresh));
    }

    #[test]
    fn a_slot_with_too_many_candidates_forgets_the_oldest() {
        let mut candidates = Candidates::new(0..1, 3, Some(16));
        for step in 0..100u32 {
            assert!(!candidates.admit(FeatureKey(step.into()), 1, step + 1));
            // A key that comes in every step is not forgotten.
            assert!(!candidates.admit(FeatureKey(1 << 40), 0, step + 1));
            assert!(candidates.len() <= 16);
        }
        assert_eq!(candidates.len() as u64 + candidates.lapsed, 101);
        let oldest = candidates.in_slot(0)[0].0;
        assert!(oldest.0 >= 84, "{oldest:?}");
        assert!(candidates.would_admit(FeatureKey(99), 2));
        assert!(!candidates.would_admit(FeatureKey(1), 2));
    }

    proptest! {
        #[test]
        fn candidates_are_counted_exactly(
            at_least in prop_oneof![1u32..6, Just(LARGEST_THRESHOLD)],
            seen in prop::collection::vec((0u64..40, 0u64..3, 1u32..4, any::<bool>()), 0..300),
        ) {
            let mut candidates = Candidates::new(0..SLOTS, at_least, None);
            let mut model: BTreeMap<FeatureKey, Candidate> = BTreeMap::new();
            for (step, (low, slot, times, rare)) in seen.into_iter().enumerate() {
                let (step, key) = (step as u32 + 1, FeatureKey(slot << 61 | low));
                let before = model.get(&key).map_or(0, |c| c.count);
                let admitted = before + times >= at_least;
                prop_assert_eq!(candidates.would_admit(key, times), admitted);
                prop_assert_eq!(candidates.admit(key, times, step), admitted);
                match admitted {
                    true => drop(model.remove(&key)),
                    false => {
                        model.insert(key, Candidate { count: before + times, last_step: step });
                    }
                }
                if rare {
                    let oldest = step.saturating_sub(20);
                    let gone = candidates.evict(key.slot(), oldest);
                    let was = model.len();
                    model.retain(|k, c| k.slot() != key.slot() || c.last_step >= oldest);
                    prop_assert_eq!(gone, (was - model.len()) as u64);
                }
                prop_assert_eq!(candidates.len(), model.len());
            }
            let all: Vec<_> = (0..SLOTS).flat_map(|slot| candidates.in_slot(slot)).collect();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }
}
