//! The old values of the candidates of a slot. With them, a snapshot can write the candidates as
//! they were when it began, while training counts more keys.
//!
//! Before each change of a candidate, its old value is added to a list. Only the first entry of a
//! key is used. Each time the length of a list has doubled, the list is shortened to one entry for
//! each key. So a list has at most twice as many entries as the slot has changed keys.

use zillion_feature::FeatureKey;
use zillion_rows::Candidate;

use crate::admission::before::Kept;

/// The number of entries below which a list is never shortened.
const FEWEST: usize = 64;

/// The old values of the candidates of one slot that have changed since a snapshot began.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// The old values in the order of the changes. An old value is `None` if the key was not a
    /// candidate.
    entries: Vec<(FeatureKey, Option<Candidate>)>,
    /// The number of entries that were left when the list was last shortened.
    shortened: usize,
}

/// Keeps only the first entry of each key, and sorts the entries by key.
fn keep_first(entries: &mut Vec<(FeatureKey, Option<Candidate>)>) {
    entries.sort_by_key(|&(key, _)| key);
    entries.dedup_by_key(|(key, _)| *key);
}

impl Changed {
    /// Adds the old value of a key to the list, before the value changes.
    pub(super) fn note(&mut self, key: FeatureKey, was: Option<Candidate>) {
        self.entries.push((key, was));
        if self.entries.len() >= FEWEST.max(2 * self.shortened) {
            keep_first(&mut self.entries);
            self.shortened = self.entries.len();
        }
    }

    /// Returns the slot's candidates as they were when the snapshot began. `now` are the present
    /// candidates. Both lists are in key order.
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
