//! The allocation of places in one range of the device's memory.

/// The number of bytes to which places are aligned. It is the alignment of allocations.
pub(crate) const ALIGNMENT: usize = 256;

/// A range of the device's memory from which places are taken one after the other. With the base 0,
/// the arena only measures how many bytes a plan takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arena {
    base: u64,
    bytes: usize,
}

impl Arena {
    /// Creates an arena at an address that is a multiple of [`ALIGNMENT`].
    pub(crate) fn new(base: u64) -> Self {
        Self { base, bytes: 0 }
    }

    /// Returns the address of the next `bytes` bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> u64 {
        let start = self.bytes.next_multiple_of(ALIGNMENT);
        self.bytes = start + bytes;
        self.base + start as u64
    }

    /// Returns the number of bytes that were taken, with the gaps between them.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives all places back, so that they can be taken again.
    pub(crate) fn clear(&mut self) {
        self.bytes = 0;
    }
}
