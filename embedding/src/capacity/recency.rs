//! The LRU stack distance of a lookup: the number of other keys that were looked up since the last
//! lookup of the same key (Mattson et al. 1970). It is computed by a Fenwick tree over the order of
//! lookups.
//!
//! Every key holds the place of its last lookup in this order, and the tree counts the held places.
//! When all places have been used, the held places are renumbered from 1 without changing their
//! order. So the memory grows with the number of keys and not with the number of lookups.

/// The number of free places that renumbering leaves for each key.
const ROOM: usize = 3;
/// The smallest number of places in the tree.
const LEAST: usize = 1 << 10;

/// The places of the last lookups of all keys, in the order of time, counted by a Fenwick tree.
#[derive(Debug)]
pub(super) struct Recency {
    /// The Fenwick tree over the places, which begin at 1.
    tree: Vec<u32>,
    /// The place of the next lookup.
    next: usize,
    held: u32,
}

impl Recency {
    pub(super) fn new() -> Self {
        Self { tree: vec![0; LEAST + 1], next: 1, held: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.tree.len() * size_of::<u32>()
    }

    /// Returns whether [`Recency::renumber`] must be called before the next lookup.
    pub(super) fn is_full(&self) -> bool {
        self.next == self.tree.len()
    }

    /// Records the first lookup of a key and returns its place.
    pub(super) fn record_first(&mut self) -> u32 {
        let place = self.next;
        self.add(place, 1);
        self.next += 1;
        self.held += 1;
        place as u32
    }

    /// Records another lookup of the key whose last lookup is at `place`. Returns the number of
    /// other keys that were looked up since then, and the new place.
    pub(super) fn record_again(&mut self, place: u32) -> (u32, u32) {
        let since = self.held - self.up_to(place as usize);
        self.add(place as usize, u32::MAX);
        self.held -= 1;
        (since, self.record_first())
    }

    /// Renumbers the places of all keys from 1, in the same order. `places` must contain all places
    /// to keep; all other places become free.
    pub(super) fn renumber<'a>(&mut self, places: impl Iterator<Item = &'a mut u32>) {
        let mut held: Vec<&mut u32> = places.collect();
        held.sort_unstable();
        let length = (held.len() * (1 + ROOM)).max(LEAST) + 1;
        self.tree.clear();
        self.tree.resize(length, 0);
        for (at, place) in held.iter_mut().enumerate() {
            **place = at as u32 + 1;
            self.tree[at + 1] = 1;
        }
        for at in 1..length {
            let up = at + (at & at.wrapping_neg());
            if up < length {
                self.tree[up] += self.tree[at];
            }
        }
        self.next = held.len() + 1;
        self.held = held.len() as u32;
    }

    fn add(&mut self, place: usize, amount: u32) {
        let mut at = place;
        while let Some(count) = self.tree.get_mut(at) {
            *count = count.wrapping_add(amount);
            at += at & at.wrapping_neg();
        }
    }

    fn up_to(&self, place: usize) -> u32 {
        let (mut at, mut sum) = (place, 0u32);
        while at > 0 {
            sum = sum.wrapping_add(self.tree[at]);
            at -= at & at.wrapping_neg();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn distances_are_those_of_a_list(lookups in prop::collection::vec(0u32..60, 0..4000)) {
            let mut recency = Recency::new();
            let mut places: BTreeMap<u32, u32> = BTreeMap::new();
            // The ids, with the most recent at the end.
            let mut list: Vec<u32> = Vec::new();
            for id in lookups {
                if recency.is_full() {
                    recency.renumber(places.values_mut());
                }
                let at = list.iter().position(|&other| other == id);
                let expected = at.map(|at| (list.len() - at - 1) as u32);
                list.retain(|&other| other != id);
                list.push(id);
                let found = match places.get(&id) {
                    Some(&place) => {
                        let (since, place) = recency.record_again(place);
                        places.insert(id, place);
                        Some(since)
                    }
                    None => {
                        places.insert(id, recency.record_first());
                        None
                    }
                };
                prop_assert_eq!(found, expected);
            }
        }
    }
}
