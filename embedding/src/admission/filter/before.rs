//! The old contents of the blocks of one slot of a filter that have changed since a snapshot began.
//!
//! A block is copied before its first change, and one bit marks it as copied. The halving of a slot
//! changes all of its blocks.

use crate::admission::before::Kept;
use crate::admission::filter::Block;

/// The old contents of the blocks of one slot that have changed since a snapshot began.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// One bit for each block of the slot. The bit is set if a copy of the block is kept. The list
    /// is empty until the first block is copied.
    marks: Vec<u64>,
    blocks: Vec<(u32, Block)>,
}

impl Changed {
    /// Keeps a copy of the block with index `number` before it changes. `blocks` is the number of
    /// blocks in its slot.
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

    /// Overwrites the changed blocks of the slot with their old contents.
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
