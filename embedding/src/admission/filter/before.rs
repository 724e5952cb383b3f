//! The old values of the blocks of a filter's slot that have changed since a snapshot began.
//!
//! A block is copied before its first change, and a bit of its slot marks it as copied; halving a
//! slot changes all of its blocks.

use crate::admission::before::Kept;
use crate::admission::filter::Block;

/// The old values of the blocks of one slot that have changed since a snapshot began.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// One bit for each block, set if the block is kept; empty until the first block is kept.
    marks: Vec<u64>,
    blocks: Vec<(u32, Block)>,
}

impl Changed {
    /// Keeps a copy of a block before it changes; `blocks` is the number of blocks in its slot.
    pub(super) fn keep(&mut self, number: usize, blocks: usize, block: Block) {
        if self.marks.is_empty() {
            self.marks = vec![0; blocks.div_ceil(u64::BITS as usize)];
        }
        let (word, bit) = (number / u64::BITS as usize, 1 << (number % u64::BITS as usize));
        if self.marks[word] & bit == 0 {
            self.marks[word] |= bit;
            self.blocks.push((number as u32, block));
        }
    }

    /// Overwrites the changed blocks of the slot with their kept copies.
    pub(super) fn restore(&self, blocks: &mut [Block]) {
        for &(number, block) in &self.blocks {
            blocks[number as usize] = block;
        }
    }
}

impl Kept for Changed {
    fn bytes(&self) -> usize {
        self.marks.capacity() * size_of::<u64>()
            + self.blocks.capacity() * size_of::<(u32, Block)>()
    }
}
