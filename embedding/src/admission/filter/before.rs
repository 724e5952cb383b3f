//! Blocks of a filter as they were when a snapshot began, while keys go on being counted.
//!
//! A block is kept before it changes for the first time, which is a bit of its slot; halving a slot
//! changes all of its blocks.
//!
//! # Invariants
//! * Slots are written in ascending order: those below `pending` are, and keep nothing.
//!
//! # Concurrency
//! A plain value, owned by one shard's part of a table.

use std::ops::Range;

use crate::admission::filter::Block;

/// The blocks as they were before they changed, by slot.
#[derive(Debug)]
pub(super) struct Before {
    first_slot: usize,
    /// The first slot that is not written yet.
    pending: usize,
    slots: Vec<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// A bit a block, set where it is kept; empty until one is.
    marks: Vec<u64>,
    blocks: Vec<(u32, Block)>,
}

impl Before {
    pub(super) fn new(slots: Range<usize>) -> Self {
        Self {
            first_slot: slots.start,
            pending: slots.start,
            slots: slots.map(|_| Kept::default()).collect(),
        }
    }

    /// Keeps a block that is about to change, of `blocks` in its slot.
    pub(super) fn keep(&mut self, slot: usize, number: usize, blocks: usize, block: Block) {
        if slot < self.pending {
            return;
        }
        let kept = &mut self.slots[slot - self.first_slot];
        if kept.marks.is_empty() {
            kept.marks = vec![0; blocks.div_ceil(u64::BITS as usize)];
        }
        let (word, bit) = (number / u64::BITS as usize, 1 << (number % u64::BITS as usize));
        if kept.marks[word] & bit == 0 {
            kept.marks[word] |= bit;
            kept.blocks.push((number as u32, block));
        }
    }

    /// Puts what is kept of a slot over its blocks as they are.
    pub(super) fn restore(&self, slot: usize, blocks: &mut [Block]) {
        for &(number, block) in &self.slots[slot - self.first_slot].blocks {
            blocks[number as usize] = block;
        }
    }

    /// Notes that a slot is written.
    pub(super) fn forget(&mut self, slot: usize) {
        self.slots[slot - self.first_slot] = Kept::default();
        self.pending = slot + 1;
    }

    pub(super) fn bytes(&self) -> usize {
        let kept = |kept: &Kept| {
            kept.marks.capacity() * size_of::<u64>()
                + kept.blocks.capacity() * size_of::<(u32, Block)>()
        };
        self.slots.iter().map(kept).sum::<usize>() + self.slots.capacity() * size_of::<Kept>()
    }
}
