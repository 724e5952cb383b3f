//! Feedback in memory: that of pending rows, and that which came before its impression.

use std::collections::BTreeMap;

use super::key::Key;

/// The number of bytes of memory for one joined feedback, in a tree whose nodes are half full.
pub(crate) const JOINED_BYTES: u64 = 96;
/// The number of bytes of memory for one early feedback, in two trees whose nodes are half full.
pub(crate) const EARLY_BYTES: u64 = 224;

/// A kind of feedback and its value, for example a click, or seconds of watching.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeedbackValue {
    /// The kind, as the job numbers them.
    pub kind: u16,
    /// The value, for example 1 for a click.
    pub value: f32,
}

/// The feedback of a pending row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Joined {
    pub(crate) value: f32,
    /// The weight with which the row was emitted before the first feedback came; 0 if it was not.
    pub(crate) first_weight: f32,
}

/// The feedback whose impression has not come yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Early {
    pub(crate) value: f32,
    pub(crate) time: i64,
}

/// All feedback in memory. The order of everything follows from the contents.
#[derive(Debug, Default)]
pub(crate) struct FeedbackStore {
    joined: BTreeMap<(Key, u16), Joined>,
    /// The early feedback with its number of arrival.
    early: BTreeMap<(Key, u16), (Early, u64)>,
    /// The early feedback by time, and by arrival at equal times. An order of keys would depend on
    /// their hashes.
    queue: BTreeMap<(i64, u64), (Key, u16)>,
    /// The number of the next arrival.
    arrivals: u64,
}

impl FeedbackStore {
    /// Returns the most bytes of memory that the feedback needs.
    pub(crate) fn bytes(&self) -> u64 {
        self.joined.len() as u64 * JOINED_BYTES + self.early_bytes()
    }

    /// Returns the most bytes of memory that early feedback needs.
    pub(crate) fn early_bytes(&self) -> u64 {
        self.early.len() as u64 * EARLY_BYTES
    }

    /// Returns the numbers of joined and of early feedback.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.joined.len() as u64, self.early.len() as u64)
    }

    /// Adds feedback to a pending row. Returns `false` if this kind is known.
    pub(crate) fn join(&mut self, key: Key, kind: u16, joined: Joined) -> bool {
        let is_new = !self.joined.contains_key(&(key, kind));
        if is_new {
            self.joined.insert((key, kind), joined);
        }
        is_new
    }

    /// Returns the joined feedback of a row in the order of kinds.
    pub(crate) fn of(&self, key: Key) -> impl Iterator<Item = (u16, Joined)> {
        self.joined.range((key, 0)..=(key, u16::MAX)).map(|((_, kind), joined)| (*kind, *joined))
    }

    /// Removes the joined feedback of a row and adds it to `out` in the order of kinds.
    pub(crate) fn take(&mut self, key: Key, out: &mut Vec<FeedbackValue>) {
        let start = out.len();
        out.extend(self.of(key).map(|(kind, Joined { value, .. })| FeedbackValue { kind, value }));
        for FeedbackValue { kind, .. } in &out[start..] {
            self.joined.remove(&(key, *kind));
        }
    }

    /// Keeps feedback without an impression. Returns `false` if this key and kind are known.
    pub(crate) fn keep_early(&mut self, key: Key, kind: u16, early: Early) -> bool {
        if self.early.contains_key(&(key, kind)) {
            return false;
        }
        self.early.insert((key, kind), (early, self.arrivals));
        self.queue.insert((early.time, self.arrivals), (key, kind));
        self.arrivals += 1;
        true
    }

    /// Removes the early feedback of a key and returns it in the order of kinds.
    pub(crate) fn take_early(&mut self, key: Key) -> Vec<(u16, Early)> {
        let range = self.early.range((key, 0)..=(key, u16::MAX));
        let kinds: Vec<u16> = range.map(|((_, kind), _)| *kind).collect();
        let mut found = Vec::new();
        for kind in kinds {
            if let Some((early, arrival)) = self.early.remove(&(key, kind)) {
                self.queue.remove(&(early.time, arrival));
                found.push((kind, early));
            }
        }
        found
    }

    /// Removes the earliest early feedback if its time is at most `until`.
    pub(crate) fn expire_one(&mut self, until: i64) -> bool {
        if self.queue.first_key_value().is_none_or(|((time, _), _)| *time > until) {
            return false;
        }
        self.evict_one().is_some()
    }

    /// Removes the earliest early feedback, and at equal times the first that came. Returns its key
    /// and kind.
    pub(crate) fn evict_one(&mut self) -> Option<(Key, u16)> {
        let (_, evicted) = self.queue.pop_first()?;
        self.early.remove(&evicted);
        Some(evicted)
    }

    pub(crate) fn all_joined(&self) -> impl Iterator<Item = (Key, u16, Joined)> {
        self.joined.iter().map(|((key, kind), joined)| (*key, *kind, *joined))
    }

    /// Returns all early feedback by time, and by arrival at equal times.
    pub(crate) fn all_early(&self) -> impl Iterator<Item = (Key, u16, Early)> {
        self.queue.values().filter_map(|(key, kind)| {
            let (early, _) = self.early.get(&(*key, *kind))?;
            Some((*key, *kind, *early))
        })
    }
}
