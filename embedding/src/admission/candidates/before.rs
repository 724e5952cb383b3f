//! The candidates as they were when a snapshot began, while keys are counted further.
//!
//! Before each change of a candidate, its old value is listed; only the first entry of a key is
//! used. A list is shortened to one entry for each key whenever it has doubled, so it has at most
//! twice as many entries as keys were touched.
//!
//! # Invariants
//! * Slots are written in ascending order. The slots below `pending` have been written and keep no
//!   list.
//!
//! # Concurrency
//! A plain value, owned by one shard's part of a table.

use std::ops::Range;

use zillion_feature::FeatureKey;

use zillion_rows::Candidate;

/// The number of entries that a list may have before it is shortened.
const FEWEST: usize = 64;

/// The old values of the candidates that have changed since a snapshot began, by slot.
#[derive(Debug)]
pub(super) struct Before {
    first_slot: usize,
    /// The first slot that is not written yet.
    pending: usize,
    slots: Vec<List>,
}

#[derive(Debug, Default)]
struct List {
    /// The old values in the order of the changes; `None` where the key was no candidate.
    entries: Vec<(FeatureKey, Option<Candidate>)>,
    /// The number of entries after the list was last shortened.
    shortened: usize,
}

impl List {
    /// Keeps the first entry of each key, in key order.
    fn first_of_each(entries: &mut Vec<(FeatureKey, Option<Candidate>)>) {
        entries.sort_by_key(|&(key, _)| key);
        entries.dedup_by_key(|(key, _)| *key);
    }
}

impl Before {
    pub(super) fn new(slots: Range<usize>) -> Self {
        Self {
            first_slot: slots.start,
            pending: slots.start,
            slots: slots.map(|_| List::default()).collect(),
        }
    }

    /// Adds the value that a key has before a change to the list of its slot.
    pub(super) fn note(&mut self, key: FeatureKey, was: Option<Candidate>) {
        if key.slot() < self.pending {
            return;
        }
        let list = &mut self.slots[key.slot() - self.first_slot];
        list.entries.push((key, was));
        if list.entries.len() >= FEWEST.max(2 * list.shortened) {
            List::first_of_each(&mut list.entries);
            list.shortened = list.entries.len();
        }
    }

    /// Returns a slot's candidates as they were when the snapshot began, computed from the present
    /// ones; both are in key order.
    pub(super) fn restore(
        &self,
        slot: usize,
        now: Vec<(FeatureKey, Candidate)>,
    ) -> Vec<(FeatureKey, Candidate)> {
        let mut was = self.slots[slot - self.first_slot].entries.clone();
        if was.is_empty() {
            return now;
        }
        List::first_of_each(&mut was);
        let is_untouched =
            |key: &FeatureKey| was.binary_search_by_key(key, |&(key, _)| key).is_err();
        let mut all: Vec<_> = now.into_iter().filter(|(key, _)| is_untouched(key)).collect();
        all.extend(was.iter().filter_map(|&(key, was)| Some((key, was?))));
        all.sort_unstable_by_key(|&(key, _)| key);
        all
    }

    /// Notes that a slot has been written to the snapshot.
    pub(super) fn forget(&mut self, slot: usize) {
        self.slots[slot - self.first_slot] = List::default();
        self.pending = slot + 1;
    }

    pub(super) fn bytes(&self) -> usize {
        let entries: usize = self.slots.iter().map(|list| list.entries.capacity()).sum();
        entries * size_of::<(FeatureKey, Option<Candidate>)>()
            + self.slots.capacity() * size_of::<List>()
    }
}
