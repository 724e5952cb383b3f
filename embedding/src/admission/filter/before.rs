//! The blocks of a filter as they were when a snapshot began, while keys are counted further.
//!
//! A block is copied before its first change, and a bit of its slot marks it as copied; halving a
//! slot changes all of its blocks.
//!
//! # Invariants
//! * Slots are written in ascending order. The slots below `pending` have been written and keep no
//!   copies.
//!
//! # Concurrency
//! A plain value, owned by one shard's part of a table.

use std::ops::Range;

use crate::admission::filter::Block;

/// The old values of the blocks that have changed since a snapshot began, by slot.
#[derive(Debug)]
pub(super) struct Before {
    first_slot: usize,
    /// The first slot that is not written yet.
    pending: usize,
    slots: Vec<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// One bit for each block, set if the block is kept; empty until the first block is kept.
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

    /// Keeps a copy of a block before it changes; `blocks` is the number of blocks in its slot.
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

    /// Overwrites the changed blocks of a slot with their kept copies.
    pub(super) fn restore(&self, slot: usize, blocks: &mut [Block]) {
        for &(number, block) in &self.slots[slot - self.first_slot].blocks {
            blocks[number as usize] = block;
        }
    }

    /// Notes that a slot has been written to the snapshot.
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
