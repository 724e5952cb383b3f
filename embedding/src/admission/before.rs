//! The old values of counts that have changed since a snapshot began. Each slot keeps its own
//! values.
//!
//! # Invariants
//! * Slots are written in ascending order. The slots below `pending` have been written and keep no
//!   values.
//!
//! # Concurrency
//! The old values are a plain value without locks. One shard's part of a table owns it.

use std::ops::Range;

/// The old values of all slots, kept for a snapshot.
#[derive(Debug)]
pub(crate) struct Before<T> {
    first_slot: usize,
    /// The first slot that has not been written to the snapshot.
    pending: usize,
    slots: Vec<T>,
}

/// The old values of one slot, kept for a snapshot.
pub(crate) trait Kept: Default {
    /// Returns the bytes of memory that the values take in addition to the size of `self`.
    fn bytes(&self) -> usize;
}

impl<T: Kept> Before<T> {
    pub(super) fn new(slots: Range<usize>) -> Self {
        let (first_slot, pending) = (slots.start, slots.start);
        Self { first_slot, pending, slots: slots.map(|_| T::default()).collect() }
    }

    /// Returns the old values of a slot.
    pub(super) fn slot(&self, slot: usize) -> &T {
        &self.slots[slot - self.first_slot]
    }

    /// Returns the old values of a slot for writing, or `None` if the slot has been written
    /// already.
    pub(super) fn pending(&mut self, slot: usize) -> Option<&mut T> {
        (slot >= self.pending).then(|| &mut self.slots[slot - self.first_slot])
    }

    /// Records that a slot has been written to the snapshot, and drops its values.
    pub(super) fn forget(&mut self, slot: usize) {
        self.slots[slot - self.first_slot] = T::default();
        self.pending = slot + 1;
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.iter().map(T::bytes).sum::<usize>() + self.slots.capacity() * size_of::<T>()
    }
}
