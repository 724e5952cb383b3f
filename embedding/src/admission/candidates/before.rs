//! The candidates of a slot as they were when a snapshot began, while keys are counted further.
//!
//! Before each change of a candidate, its old value is listed; only the first entry of a key is
//! used. A list is shortened to one entry for each key whenever it has doubled, so it has at most
//! twice as many entries as keys were touched.

use zillion_feature::FeatureKey;
use zillion_rows::Candidate;

use crate::admission::before::Kept;

/// The number of entries that a list may have before it is shortened.
const FEWEST: usize = 64;

/// The old values of the candidates of one slot that have changed since a snapshot began.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// The old values in the order of the changes; `None` if the key was no candidate.
    entries: Vec<(FeatureKey, Option<Candidate>)>,
    /// The number of entries after the list was last shortened.
    shortened: usize,
}

/// Keeps the first entry of each key, in key order.
fn keep_first(entries: &mut Vec<(FeatureKey, Option<Candidate>)>) {
    entries.sort_by_key(|&(key, _)| key);
    entries.dedup_by_key(|(key, _)| *key);
}

impl Changed {
    /// Adds the value that a key has before a change to the list.
    pub(super) fn note(&mut self, key: FeatureKey, was: Option<Candidate>) {
        self.entries.push((key, was));
        if self.entries.len() >= FEWEST.max(2 * self.shortened) {
            keep_first(&mut self.entries);
            self.shortened = self.entries.len();
        }
    }

    /// Returns the slot's candidates as they were when the snapshot began, computed from the
    /// present ones; both are in key order.
    pub(super) fn restore(
        &self,
        now: Vec<(FeatureKey, Candidate)>,
    ) -> Vec<(FeatureKey, Candidate)> {
        if self.entries.is_empty() {
            return now;
        }
        let mut was = self.entries.clone();
        keep_first(&mut was);
        let is_untouched =
            |key: &FeatureKey| was.binary_search_by_key(key, |&(key, _)| key).is_err();
        let mut all: Vec<_> = now.into_iter().filter(|(key, _)| is_untouched(key)).collect();
        all.extend(was.iter().filter_map(|&(key, was)| Some((key, was?))));
        all.sort_unstable_by_key(|&(key, _)| key);
        all
    }
}

impl Kept for Changed {
    fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(FeatureKey, Option<Candidate>)>()
    }
}
