//! One chunk of a slab: its pages, and the set of its live rows.

use std::ptr::NonNull;

#[cfg(target_os = "linux")]
use super::CHUNK_BYTES;
use super::pages::Pages;
use super::{LINE_BYTES, Notice, PREFETCH_BYTES, growth};
use crate::error::DeviceError;
use crate::prefetch::prefetch_line_write;

/// The number of free rows that are prefetched ahead of their allocation.
const LEAD: usize = 8;
/// The largest number of words of bits that are searched for a free row to prefetch. If free rows
/// are rarer than that, few of them are allocated, and prefetching would save little.
const MOST_WORDS_SEARCHED: usize = 32;

/// A mapping of rows, with one bit per row that is set for live rows.
#[derive(Debug)]
pub(super) struct Chunk {
    pages: Pages,
    row_bytes: usize,
    /// The number of rows that fit `pages`.
    rows: usize,
    live: usize,
    /// The index of the first row that has never been allocated. The pages of this row and of all
    /// later rows are still zero.
    fresh: usize,
    /// The index of a word of bits. All words before it have no free row.
    hint: usize,
    /// The index of the last free row that was prefetched, for the first write of its next owner.
    prefetched: usize,
    /// The number of free rows that were prefetched and have not been allocated yet.
    lead: usize,
    /// The live bits: bit `i % 64` of word `i / 64` is set if row `i` is live. Bits from `rows` on
    /// are zero.
    bits: Vec<u64>,
}

impl Chunk {
    /// Creates a chunk of `bytes` bytes.
    pub(super) fn new(bytes: usize, row_bytes: usize) -> Result<Self, DeviceError> {
        let rows = bytes / row_bytes;
        Ok(Self {
            pages: Pages::zeroed(bytes)?,
            row_bytes,
            rows,
            live: 0,
            fresh: 0,
            hint: 0,
            prefetched: 0,
            lead: 0,
            bits: vec![0; rows.div_ceil(64)],
        })
    }

    /// Returns the address of the first byte. All bytes are initialised. They are aligned to at
    /// least 4 KiB, and stay mapped until the chunk grows, shrinks or is dropped.
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

    /// Returns the number of live rows.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    pub(super) fn is_live(&self, index: usize) -> bool {
        index < self.rows && self.bits[index / 64] & (1 << (index % 64)) != 0
    }

    /// Allocates the lowest free row. Returns its index, and whether the row may hold the data of a
    /// former owner. The chunk must not be full.
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
        if used_before {
            self.prefetch_ahead(index);
        }
        (index, used_before)
    }

    /// Prefetches rows that will be allocated soon after the row `index` and that had former
    /// owners. Such rows are scattered, and a new owner writes to its row at once.
    fn prefetch_ahead(&mut self, index: usize) {
        self.lead = self.lead.saturating_sub(1);
        // Each call prefetches at most two rows, so that the first allocations in a chunk do not
        // wait for all of the lead.
        for _ in 0..2 {
            if self.lead >= LEAD {
                break;
            }
            let Some(next) = self.free_from(self.prefetched.max(index) + 1) else { break };
            (self.prefetched, self.lead) = (next, self.lead + 1);
            let start = self.start().as_ptr().cast_const().wrapping_add(next * self.row_bytes);
            for offset in (0..self.row_bytes.min(PREFETCH_BYTES)).step_by(LINE_BYTES) {
                prefetch_line_write(start.wrapping_add(offset));
            }
        }
    }

    /// Returns the first free row, from `index` on, that had a former owner. Returns `None` if
    /// there is no such row nearby.
    fn free_from(&self, index: usize) -> Option<usize> {
        let first = index / 64;
        let mut word = first;
        let mut free = !self.bits.get(word)? & (u64::MAX << (index % 64));
        while free == 0 {
            word += 1;
            if word * 64 >= self.fresh || word > first + MOST_WORDS_SEARCHED {
                return None;
            }
            free = !self.bits[word];
        }
        Some(word * 64 + free.trailing_zeros() as usize).filter(|&row| row < self.fresh)
    }

    /// Frees row `index`, which must be live.
    pub(super) fn free(&mut self, index: usize) {
        self.bits[index / 64] &= !(1 << (index % 64));
        self.live -= 1;
        self.hint = self.hint.min(index / 64);
        // The freed row may be allocated before the rows that were prefetched.
        (self.prefetched, self.lead) = (0, 0);
    }

    /// Grows the chunk to `bytes` bytes. Returns the number of added bytes. Rows keep their
    /// contents, but their addresses may change.
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
        let words = self.rows.div_ceil(64);
        self.bits.reserve_exact(words - self.bits.len());
        self.bits.resize(words, 0);
        Ok(grown)
    }

    /// Returns whether the chunk has so few rows that it may shrink.
    #[inline(always)]
    pub(super) fn is_sparse(&self) -> bool {
        growth::is_sparse(self.live, self.rows)
    }

    /// Returns unneeded memory to the operating system (see [`growth::shrunk_bytes`]). Returns the
    /// number of bytes that were returned. The addresses of the rows change.
    pub(super) fn shrink(&mut self) -> Result<usize, DeviceError> {
        let before = self.pages.bytes();
        let end = self.end();
        let Some(bytes) = growth::shrunk_bytes(before, self.live, end, self.row_bytes) else {
            return Ok(0);
        };
        let pages = Pages::zeroed(bytes)?;
        // The memory after the last live row is not copied. It is new memory again.
        self.fresh = end;
        self.move_to(pages);
        self.rows = bytes / self.row_bytes;
        self.bits.truncate(self.rows.div_ceil(64));
        self.bits.shrink_to_fit();
        (self.prefetched, self.lead) = (0, 0);
        Ok(before - bytes)
    }

    /// Returns the number of the last live row plus one.
    fn end(&self) -> usize {
        let last = self.bits.iter().rposition(|&word| word != 0);
        last.map_or(0, |word| 64 * (word + 1) - self.bits[word].leading_zeros() as usize)
    }

    /// Copies the rows to other pages.
    fn move_to(&mut self, pages: Pages) {
        let used = self.fresh * self.row_bytes;
        assert!(used <= self.pages.bytes() && used <= pages.bytes(), "rows do not fit the mapping");
        // SAFETY: both mappings hold `used` bytes (just asserted) and are distinct. `&mut self`
        // guarantees that no other code uses them: slices of rows borrow the slab that owns this
        // chunk.
        unsafe {
            let (from, to) = (self.pages.start(), pages.start());
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), used);
        }
        self.pages = pages;
    }

    /// Returns the notice about the next chunk that must be sent after the allocation of row
    /// `index`, or `None` if no notice is due. The row must have had no former owner.
    #[inline(always)]
    pub(super) fn notice(&self, index: usize) -> Option<Notice> {
        Notice::for_remaining(self.rows - index, self.rows - index - 1, self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetched_rows_are_the_next_to_be_allocated() {
        let mut chunk = Chunk::new(4096, 16).unwrap();
        (0..200).for_each(|_| _ = chunk.alloc());
        let free = [3, 64, 65, 100, 127, 128, 190];
        free.iter().for_each(|&row| chunk.free(row));
        assert_eq!(chunk.free_from(0), Some(3));
        assert_eq!(chunk.free_from(66), Some(100));
        assert_eq!(chunk.free_from(191), None, "rows that nobody had are in order anyway");
        let handed: Vec<usize> = free
            .iter()
            .map(|_| {
                let (row, _) = chunk.alloc();
                // The prefetched row comes after the allocated row, and never after the last free
                // row.
                assert!(
                    chunk.lead == 0 || chunk.prefetched > row && chunk.prefetched <= 190,
                    "{chunk:?}"
                );
                row
            })
            .collect();
        assert_eq!(handed, free);
        assert_eq!(chunk.alloc(), (200, false));
    }
}
