//! One chunk: pages, and which of the rows in them are live.

use std::ptr::NonNull;

#[cfg(target_os = "linux")]
use super::CHUNK_BYTES;
use super::pages::Pages;
use crate::error::DeviceError;

/// Rows in one mapping, with a bit for each that says whether it is live.
#[derive(Debug)]
pub(super) struct Chunk {
    pages: Pages,
    row_bytes: usize,
    /// As many as fit `pages`.
    rows: usize,
    live: usize,
    /// Rows from here on have never been handed out, so that their pages are still zero.
    fresh: usize,
    /// No word below this one has a free row.
    hint: usize,
    /// Bit `i % 64` of word `i / 64`: row `i` is live. Bits at `rows` and above are zero.
    bits: Vec<u64>,
}

impl Chunk {
    /// A chunk of `bytes` bytes.
    pub(super) fn new(bytes: usize, row_bytes: usize) -> Result<Self, DeviceError> {
        let rows = bytes / row_bytes;
        Ok(Self {
            pages: Pages::zeroed(bytes)?,
            row_bytes,
            rows,
            live: 0,
            fresh: 0,
            hint: 0,
            bits: vec![0; rows.div_ceil(64)],
        })
    }

    /// The first of `bytes` bytes, which are initialised, aligned to 4 KiB at least, and mapped until the
    /// chunk grows or goes.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.pages.start()
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    pub(super) fn bookkeeping_bytes(&self) -> usize {
        self.bits.capacity() * size_of::<u64>()
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
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

    /// Hands out the lowest free row, and says whether it holds what a former owner left. The chunk must
    /// not be full.
    pub(super) fn alloc(&mut self) -> (usize, bool) {
        let word = (self.hint..self.bits.len())
            .find(|&word| self.bits[word] != u64::MAX)
            .expect("a chunk that is not full has a word with a free bit");
        self.hint = word;
        let index = word * 64 + self.bits[word].trailing_ones() as usize;
        self.bits[word] |= 1 << (index % 64);
        self.live += 1;
        let used_before = index < self.fresh;
        self.fresh = self.fresh.max(index + 1);
        (index, used_before)
    }

    /// Takes row `index` back, which must be live.
    pub(super) fn free(&mut self, index: usize) {
        self.bits[index / 64] &= !(1 << (index % 64));
        self.live -= 1;
        self.hint = self.hint.min(index / 64);
    }

    /// Grows to `bytes` bytes, more than now; returns by how many. Rows keep their content and may move.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<usize, DeviceError> {
        let grown = bytes - self.pages.bytes();
        #[cfg(target_os = "linux")]
        if bytes < CHUNK_BYTES {
            self.pages.extend(bytes)?;
        } else {
            self.move_to(Pages::zeroed(bytes)?);
        }
        #[cfg(not(target_os = "linux"))]
        self.move_to(Pages::zeroed(bytes)?);
        self.rows = bytes / self.row_bytes;
        self.bits.resize(self.rows.div_ceil(64), 0);
        Ok(grown)
    }

    /// Copies the rows to other pages.
    fn move_to(&mut self, pages: Pages) {
        let used = self.fresh * self.row_bytes;
        assert!(used <= self.pages.bytes() && used <= pages.bytes(), "rows do not fit the mapping");
        // SAFETY: both mappings hold `used` bytes (just asserted), they are distinct, and `&mut self` says
        // that nobody else uses them: slices of rows borrow the slab that owns this chunk.
        unsafe {
            let (from, to) = (self.pages.start(), pages.start());
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), used);
        }
        self.pages = pages;
    }

    /// Whether the row that was handed out last is the one at which whoever fills this chunk should make sure of the
    /// next: half-way. Such a moment comes once in a chunk's life.
    pub(super) fn is_half_full_now(&self, index: usize) -> bool {
        index + 1 == self.fresh && index == self.rows / 2
    }
}
