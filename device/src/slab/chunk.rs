//! One chunk: pages, and which of the rows in them are live.

use std::ptr::NonNull;

#[cfg(target_os = "linux")]
use super::CHUNK_BYTES;
use super::pages::Pages;
use super::{LINE_BYTES, Notice, PREFETCH_BYTES, growth};
use crate::error::DeviceError;
use crate::prefetch::line_for_writing;

/// Free rows that are asked for before they are handed out.
const LEAD: usize = 8;
/// Words of bits that are looked through for one: where free rows are rarer than that, nobody takes many.
const FARTHEST: usize = 32;

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
    /// The last free row that was asked for, to be written when it is handed out.
    asked: usize,
    /// Free rows that were asked for and not handed out yet.
    lead: usize,
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
            asked: 0,
            lead: 0,
            bits: vec![0; rows.div_ceil(64)],
        })
    }

    /// The first of `bytes` bytes, which are initialised, aligned to 4 KiB at least, and mapped until the
    /// chunk grows, shrinks or goes.
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

    /// Live rows.
    pub(super) fn len(&self) -> usize {
        self.live
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
        if used_before {
            self.ask_ahead(index);
        }
        (index, used_before)
    }

    /// Asks for the lines of rows that will be handed out soon after row `index`, where others had them before: they lie
    /// here and there, and who makes a row writes to it at once.
    fn ask_ahead(&mut self, index: usize) {
        self.lead = self.lead.saturating_sub(1);
        // Two at a time, so that the first few of a chunk do not wait for all of its lead.
        for _ in 0..2 {
            if self.lead >= LEAD {
                break;
            }
            let Some(next) = self.free_from(self.asked.max(index) + 1) else { break };
            (self.asked, self.lead) = (next, self.lead + 1);
            let start = self.start().as_ptr().cast_const().wrapping_add(next * self.row_bytes);
            for offset in (0..self.row_bytes.min(PREFETCH_BYTES)).step_by(LINE_BYTES) {
                line_for_writing(start.wrapping_add(offset));
            }
        }
    }

    /// The first free row from `index` on that others had before, where it is not far.
    fn free_from(&self, index: usize) -> Option<usize> {
        let first = index / 64;
        let mut word = first;
        let mut free = !self.bits.get(word)? & (u64::MAX << (index % 64));
        while free == 0 {
            word += 1;
            if word * 64 >= self.fresh || word > first + FARTHEST {
                return None;
            }
            free = !self.bits[word];
        }
        Some(word * 64 + free.trailing_zeros() as usize).filter(|&row| row < self.fresh)
    }

    /// Takes row `index` back, which must be live.
    pub(super) fn free(&mut self, index: usize) {
        self.bits[index / 64] &= !(1 << (index % 64));
        self.live -= 1;
        self.hint = self.hint.min(index / 64);
        // It may be handed out before those that were asked for.
        (self.asked, self.lead) = (0, 0);
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
        let words = self.rows.div_ceil(64);
        self.bits.reserve_exact(words - self.bits.len());
        self.bits.resize(words, 0);
        Ok(grown)
    }

    /// Whether it may shrink.
    #[inline(always)]
    pub(super) fn is_sparse(&self) -> bool {
        growth::is_sparse(self.live, self.rows)
    }

    /// Gives memory back that its rows are not worth (see [`growth::smaller`]); returns how many bytes. The rows move.
    pub(super) fn shrink(&mut self) -> Result<usize, DeviceError> {
        let before = self.pages.bytes();
        let end = self.end();
        let Some(bytes) = growth::smaller(before, self.live, end, self.row_bytes) else {
            return Ok(0);
        };
        let pages = Pages::zeroed(bytes)?;
        // What lies behind the last row that lives is not taken along: it is new again.
        self.fresh = end;
        self.move_to(pages);
        self.rows = bytes / self.row_bytes;
        self.bits.truncate(self.rows.div_ceil(64));
        self.bits.shrink_to_fit();
        (self.asked, self.lead) = (0, 0);
        Ok(before - bytes)
    }

    /// One more than the last row that lives.
    fn end(&self) -> usize {
        let last = self.bits.iter().rposition(|&word| word != 0);
        last.map_or(0, |word| 64 * (word + 1) - self.bits[word].leading_zeros() as usize)
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

    /// What there is to say of the next chunk when row `index` has been handed out that nobody had before.
    #[inline(always)]
    pub(super) fn notice(&self, index: usize) -> Option<Notice> {
        Notice::when(self.rows - index, self.rows - index - 1, self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_what_will_be_handed_out() {
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
                // Ahead of the row, and never beyond the last that is free.
                assert!(chunk.lead == 0 || chunk.asked > row && chunk.asked <= 190, "{chunk:?}");
                row
            })
            .collect();
        assert_eq!(handed, free);
        assert_eq!(chunk.alloc(), (200, false));
    }
}
