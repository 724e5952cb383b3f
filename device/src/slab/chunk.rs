//! One chunk: rows in pages, and which of them are live.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::pages::Pages;
use crate::error::DeviceError;

/// Rows in one mapping, with a bit for each that says whether it is live.
#[derive(Debug)]
pub(super) struct Chunk<T> {
    pages: Pages,
    /// Elements per row.
    stride: usize,
    /// As many as fit `pages`: `rows * stride` elements are inside of the mapping.
    rows: usize,
    live: usize,
    /// Rows from here on have never been handed out, so that their pages are still zero.
    fresh: usize,
    /// No word below this one has a free row.
    hint: usize,
    /// Bit `i % 64` of word `i / 64`: row `i` is live. Bits at `rows` and above are zero.
    bits: Vec<u64>,
    element: PhantomData<T>,
}

impl<T: Pod> Chunk<T> {
    /// A chunk of `bytes` bytes for rows of `stride` elements.
    pub(super) fn new(bytes: usize, stride: usize) -> Result<Self, DeviceError> {
        const { assert!(align_of::<T>() <= 4096, "pages are aligned to 4 KiB") };
        let rows = bytes / (stride * size_of::<T>());
        Ok(Self {
            pages: Pages::new(bytes)?,
            stride,
            rows,
            live: 0,
            fresh: 0,
            hint: 0,
            bits: vec![0; rows.div_ceil(64)],
            element: PhantomData,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    pub(super) fn bookkeeping_bytes(&self) -> usize {
        self.bits.capacity() * size_of::<u64>()
    }

    pub(super) fn is_full(&self) -> bool {
        self.live == self.rows
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(super) fn is_live(&self, index: usize) -> bool {
        index < self.rows && self.bits[index / 64] & (1 << (index % 64)) != 0
    }

    /// Where row `index` begins (or would begin); only a number.
    #[inline(always)]
    pub(super) fn address(&self, index: usize) -> *const u8 {
        self.pages.start().as_ptr().wrapping_add(index * self.stride * size_of::<T>())
    }

    /// The elements of row `index`. Panics outside of the chunk.
    #[inline(always)]
    pub(super) fn row(&self, index: usize) -> &[T] {
        self.assert_inside(index);
        // SAFETY: the elements [index * stride, (index + 1) * stride) lie inside of the mapping (`index`
        // is below `rows`, just asserted, and `rows * stride` elements fit by construction), which is initialised (the kernel zeroes it), aligned for T (to 4 KiB, and offsets
        // are multiples of the size of T), holds valid T (T: Pod, any bits), and lives as long as `self`.
        // Writing needs `&mut self`.
        unsafe {
            let start = self.pages.start().cast::<T>().add(index * self.stride);
            std::slice::from_raw_parts(start.as_ptr(), self.stride)
        }
    }

    /// The elements of row `index`, to write. Panics outside of the chunk.
    #[inline(always)]
    pub(super) fn row_mut(&mut self, index: usize) -> &mut [T] {
        self.assert_inside(index);
        // SAFETY: as in `row`, and `&mut self` makes the reference the only one.
        unsafe {
            let start = self.pages.start().cast::<T>().add(index * self.stride);
            std::slice::from_raw_parts_mut(start.as_ptr(), self.stride)
        }
    }

    /// Hands out the lowest free row, zeroed. The chunk must not be full.
    pub(super) fn alloc(&mut self) -> usize {
        let word = (self.hint..self.bits.len())
            .find(|&word| self.bits[word] != u64::MAX)
            .expect("a chunk that is not full has a word with a free bit");
        self.hint = word;
        let index = word * 64 + self.bits[word].trailing_ones() as usize;
        self.bits[word] |= 1 << (index % 64);
        self.live += 1;
        if index < self.fresh {
            self.row_mut(index).fill(T::zeroed());
        } else {
            self.fresh = index + 1;
        }
        index
    }

    /// Takes row `index` back, which must be live.
    pub(super) fn free(&mut self, index: usize) {
        self.bits[index / 64] &= !(1 << (index % 64));
        self.live -= 1;
        self.hint = self.hint.min(index / 64);
    }

    /// Moves to a mapping of `bytes` bytes, more than now; returns by how many it grew.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<usize, DeviceError> {
        let pages = Pages::new(bytes)?;
        let used = self.fresh * self.stride * size_of::<T>();
        assert!(used <= self.pages.bytes() && used <= bytes, "rows do not fit the mapping");
        // SAFETY: both mappings hold `used` bytes (just asserted), they are distinct, and `&mut self` says
        // that nobody else uses them.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.pages.start().as_ptr(),
                pages.start().as_ptr(),
                used,
            );
        }
        let grown = bytes - self.pages.bytes();
        self.pages = pages;
        self.rows = bytes / (self.stride * size_of::<T>());
        self.bits.resize(self.rows.div_ceil(64), 0);
        Ok(grown)
    }

    /// The bound that the unsafe blocks rely on.
    #[inline(always)]
    fn assert_inside(&self, index: usize) {
        assert!(index < self.rows, "row outside of its chunk");
    }
}
