//! Feedback in memory: that of pending rows, and that which came before its impression.

use std::collections::{BTreeMap, BTreeSet};

use super::key::Key;

/// The number of bytes of memory for one joined feedback, in a tree whose nodes are half full.
pub(crate) const JOINED_BYTES: u64 = 96;
/// The number of bytes of memory for one early feedback, in two trees whose nodes are half full.
pub(crate) const EARLY_BYTES: u64 = 208;

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
    early: BTreeMap<(Key, u16), Early>,
    /// The early feedback by time.
    queue: BTreeSet<(i64, Key, u16)>,
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
        self.early.insert((key, kind), early);
        self.queue.insert((early.time, key, kind));
        true
    }

    /// Removes the early feedback of a key and returns it in the order of kinds.
    pub(crate) fn take_early(&mut self, key: Key) -> Vec<(u16, Early)> {
        let range = self.early.range((key, 0)..=(key, u16::MAX));
        let found: Vec<_> = range.map(|((_, kind), early)| (*kind, *early)).collect();
        for (kind, early) in &found {
            self.early.remove(&(key, *kind));
            self.queue.remove(&(early.time, key, *kind));
        }
        found
    }

    /// Removes the earliest early feedback if its time is at most `until`.
    pub(crate) fn expire_one(&mut self, until: i64) -> bool {
        let Some(&(time, key, kind)) = self.queue.first() else { return false };
        if time > until {
            return false;
        }
        self.queue.pop_first();
        self.early.remove(&(key, kind));
        true
    }

    pub(crate) fn all_joined(&self) -> impl Iterator<Item = (Key, u16, Joined)> {
        self.joined.iter().map(|((key, kind), joined)| (*key, *kind, *joined))
    }

    pub(crate) fn all_early(&self) -> impl Iterator<Item = (Key, u16, Early)> {
        self.early.iter().map(|((key, kind), early)| (*key, *kind, *early))
    }
}
