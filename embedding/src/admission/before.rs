//! The old values of counts that have changed since a snapshot began, by slot.
//!
//! # Invariants
//! * Slots are written in ascending order. The slots below `pending` have been written and keep
//!   nothing.
//!
//! # Concurrency
//! A plain value, owned by one shard's part of a table.

use std::ops::Range;

/// The values that each slot keeps for a snapshot.
#[derive(Debug)]
pub(crate) struct Before<T> {
    first_slot: usize,
    /// The first slot that is not written yet.
    pending: usize,
    slots: Vec<T>,
}

/// The values that one slot keeps for a snapshot.
pub(crate) trait Kept: Default {
    /// Returns the bytes that the values take outside of `self`.
    fn bytes(&self) -> usize;
}

impl<T: Kept> Before<T> {
    pub(super) fn new(slots: Range<usize>) -> Self {
        let (first_slot, pending) = (slots.start, slots.start);
        Self { first_slot, pending, slots: slots.map(|_| T::default()).collect() }
    }

    /// Returns the values that a slot keeps.
    pub(super) fn slot(&self, slot: usize) -> &T {
        &self.slots[slot - self.first_slot]
    }

    /// Returns the values that a slot keeps, for more of them. Returns `None` if the slot has been
    /// written.
    pub(super) fn pending(&mut self, slot: usize) -> Option<&mut T> {
        (slot >= self.pending).then(|| &mut self.slots[slot - self.first_slot])
    }

    /// Notes that a slot has been written to the snapshot, and drops its values.
    pub(super) fn forget(&mut self, slot: usize) {
        self.slots[slot - self.first_slot] = T::default();
        self.pending = slot + 1;
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.iter().map(T::bytes).sum::<usize>() + self.slots.capacity() * size_of::<T>()
    }
}
