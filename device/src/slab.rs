//! The slab, which is the memory of an embedding table. It consists of rows of one fixed size, and
//! a row is accessed by its number.
//!
//! A slab grows by chunks of 2 MiB. Each chunk is aligned, and the slab asks the kernel to make it
//! one huge page. So access to a random row costs one cache miss and almost no address translation.
//! The first chunk has 4 KiB at first and grows by a quarter each time, because a model may have a
//! thousand small tables. The lowest free row is allocated first, so the live rows stay close
//! together. A chunk without live rows is returned to the operating system.
//!
//! # Invariants
//!
//! * A row number is below 2^32 and stays the same until the row is freed. The address of a row
//!   changes only while the first chunk grows or shrinks.
//! * `alloc` returns a row of zeros.
//! * Freeing a row that is not live panics, because otherwise one row could have two owners.
//! * At most one chunk without live rows stays mapped. So a table whose size is near the end of a
//!   chunk does not map and unmap the chunk repeatedly. An empty slab has no such chunk.
//!   [`Slab::bytes`] counts mapped bytes.
//! * If only the first chunk has rows, its size is at most 1.5 times the bytes of its rows. This
//!   holds if the last row number is at most 1.125 times the number of rows (see `growth`).
//!
//! # Concurrency
//!
//! The slab has no locks: methods with `&self` read, and methods with `&mut self` write. A shard
//! owns its slabs.

mod chunk;
mod growth;
mod pages;
mod places;
mod reserve;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use bytemuck::Pod;

use crate::error::DeviceError;
use crate::prefetch::{prefetch_line_read, prefetch_line_write};
use chunk::Chunk;
pub(crate) use pages::Pages;
use places::Places;
pub(crate) use reserve::Notice;
pub use reserve::reserve_bytes;

/// The size of a chunk in bytes. It is one huge page on x86-64, and on aarch64 with 4 KiB pages.
pub const CHUNK_BYTES: usize = 2 << 20;
/// The initial size in bytes of the first chunk, which is a page, unless a row is larger.
const FIRST_BYTES: usize = 4 << 10;
/// The largest size of a row in bytes. A chunk must hold at least two rows, because the division by
/// multiplication needs this.
pub const MAX_ROW_BYTES: usize = CHUNK_BYTES / 2;
/// The number of bytes of a cache line, the unit in which processors move memory.
const LINE_BYTES: usize = 64;
/// The largest number of bytes of a row that are prefetched. The sequential prefetch of the
/// processor adds the rest.
const PREFETCH_BYTES: usize = 512;

/// The memory of a slab, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabBytes {
    /// The number of bytes mapped for rows.
    pub reserved: usize,
    /// The number of bytes in live rows.
    pub used: usize,
    /// The number of bytes of lists and bit maps, in addition to the rows.
    pub bookkeeping: usize,
}

/// A slab of rows with `stride` elements of `T`, as the module describes.
#[derive(Debug)]
pub struct Slab<T: Pod> {
    /// The addresses of the rows in `chunks`. They change whenever `chunks` changes.
    places: Places<T>,
    /// The chunks by number; `None` for a chunk that was returned to the operating system.
    chunks: Vec<Option<Chunk>>,
    /// The numbers of the chunks that are not full, including the chunks that are `None`.
    open: BTreeSet<u32>,
    /// The number of the chunk without live rows that stays mapped; `None` if there is none.
    spare: Option<u32>,
    live: usize,
    reserved: usize,
    /// The number of this slab among the slabs of a group whose sizes grow at the same pace.
    place: usize,
}

impl<T: Pod> Slab<T> {
    /// Creates an empty slab, which maps nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if a row of `stride` elements has no bytes or more than [`MAX_ROW_BYTES`].
    pub fn new(stride: usize) -> Result<Self, DeviceError> {
        const { assert!(align_of::<T>() <= FIRST_BYTES, "pages are aligned to 4 KiB") };
        let bytes = stride.saturating_mul(size_of::<T>());
        if bytes == 0 || bytes > MAX_ROW_BYTES {
            return Err(DeviceError::RowSize { bytes, limit: MAX_ROW_BYTES });
        }
        Ok(Self {
            places: Places::new(stride, CHUNK_BYTES / bytes),
            chunks: Vec::new(),
            open: BTreeSet::new(),
            spare: None,
            live: 0,
            reserved: 0,
            place: 0,
        })
    }

    /// Returns the slab with the number `place` among the slabs of a group whose sizes grow at the
    /// same pace. At a certain size, the first chunk of a slab becomes a whole chunk, which
    /// requires a copy. Different numbers give different sizes, so the slabs of a group do not all
    /// copy at the same time.
    #[must_use]
    pub fn staggered(self, place: usize) -> Self {
        Self { place, ..self }
    }

    /// Returns the number of elements of a row.
    pub fn stride(&self) -> usize {
        self.places.stride
    }

    /// Returns the number of live rows.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns whether there are no live rows.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the memory of this slab in bytes.
    pub fn bytes(&self) -> SlabBytes {
        let maps: usize = self.chunks.iter().flatten().map(Chunk::bookkeeping_bytes).sum();
        SlabBytes {
            reserved: self.reserved,
            used: self.live * self.row_bytes(),
            bookkeeping: maps
                + self.places.bookkeeping_bytes()
                + self.chunks.capacity() * size_of::<Option<Chunk>>()
                + self.open.len() * size_of::<u32>(),
        }
    }

    /// Returns whether `row` is allocated.
    pub fn is_live(&self, row: u32) -> bool {
        let (number, index) = self.places.split(row);
        matches!(self.chunks.get(number), Some(Some(chunk)) if chunk.is_live(index))
    }

    /// Returns the elements of `row`.
    ///
    /// # Panics
    ///
    /// Panics if `row` is not in a mapped chunk. If `row` is in a mapped chunk and not live, its
    /// old contents are returned. The index above this slab knows which rows are live.
    #[inline(always)]
    pub fn row(&self, row: u32) -> &[T] {
        let Some(start) = self.places.address(row) else { panic_absent(row) };
        // SAFETY: `places` gives addresses of rows that lie whole inside a mapping of `chunks`. The
        // memory is initialised (the kernel zeroes it), aligned for T (to 4 KiB, and rows are
        // multiples of the size of T), and holds valid T (any bits are, T: Pod). It stays while
        // `self` is borrowed: code that unmaps or writes takes `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.places.stride) }
    }

    /// Returns the elements of `row` for writing.
    ///
    /// # Panics
    ///
    /// Panics if `row` is not in a mapped chunk.
    #[inline(always)]
    pub fn row_mut(&mut self, row: u32) -> &mut [T] {
        let Some(start) = self.places.address(row) else { panic_absent(row) };
        // SAFETY: as in `row`, and `&mut self` makes this the only reference into the slab.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.places.stride) }
    }

    /// Prefetches the cache lines of `row` for a read. Does nothing if there is no such row.
    #[inline(always)]
    pub fn prefetch(&self, row: u32) {
        self.for_each_line(row, prefetch_line_read);
    }

    /// Prefetches the cache lines of `row` for a write. Does nothing if there is no such row.
    #[inline(always)]
    pub fn prefetch_mut(&self, row: u32) {
        self.for_each_line(row, prefetch_line_write);
    }

    /// Allocates the lowest free row, filled with zeros.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system has no memory, or if there are 2^32 rows.
    pub fn alloc(&mut self) -> Result<u32, DeviceError> {
        let number = match self.open.first() {
            Some(&number) => number,
            None => self.extend()?,
        };
        if self.chunks[number as usize].is_none() {
            self.map_chunk(number as usize)?;
        }
        let chunk = self.chunks[number as usize].as_mut().expect("mapped above");
        let (index, used_before) = chunk.alloc();
        if chunk.is_full() {
            self.open.remove(&number);
        }
        if self.spare == Some(number) {
            self.spare = None;
        }
        if !used_before
            && chunk.bytes() == CHUNK_BYTES
            && let Some(notice) = chunk.notice(index)
        {
            notice.send();
        }
        self.live += 1;
        let row = (number as usize * self.places.rows_per_chunk + index) as u32;
        if used_before {
            self.row_mut(row).fill(T::zeroed());
        }
        Ok(row)
    }

    /// Frees `row`, whose number can then be allocated again.
    ///
    /// # Panics
    ///
    /// Panics if `row` is not live.
    pub fn free(&mut self, row: u32) {
        let (number, index) = self.places.split(row);
        let chunk = self.chunks.get_mut(number).and_then(Option::as_mut);
        let chunk = chunk.filter(|chunk| chunk.is_live(index));
        let chunk = chunk.unwrap_or_else(|| panic!("row {row} is freed but not live"));
        let number = number as u32;
        if chunk.is_full() {
            self.open.insert(number);
        }
        chunk.free(index);
        let emptied = chunk.is_empty();
        self.live -= 1;
        if self.live == 0 {
            self.clear();
            return;
        }
        if emptied {
            // Of two chunks without rows, the lower one is kept, because it is filled next.
            let spare = self.spare.map_or(number, |spare| spare.min(number));
            if let Some(former) = self.spare {
                self.release(former.max(number) as usize);
            }
            self.spare = Some(spare);
        }
        if let Some(first) = &self.chunks[0]
            && first.len() == self.live
            && first.is_sparse()
        {
            self.shrink_first();
        }
    }

    /// Frees every row and returns all memory.
    pub fn clear(&mut self) {
        self.places = Places::new(self.places.stride, self.places.rows_per_chunk);
        self.chunks = Vec::new();
        self.open.clear();
        self.spare = None;
        self.live = 0;
        self.reserved = 0;
    }

    /// Returns the largest number of bytes that a slab has mapped, if it has `rows` rows of
    /// `row_bytes` bytes and no row was freed. Returns zero if a row is larger than a chunk, which
    /// no slab supports.
    pub fn mapped_bytes(rows: usize, row_bytes: usize) -> usize {
        growth::most_mapped_bytes(rows, row_bytes)
    }

    /// Returns the number of bytes of a row.
    fn row_bytes(&self) -> usize {
        self.places.stride * size_of::<T>()
    }

    #[inline(always)]
    fn for_each_line(&self, row: u32, hint: impl Fn(*const u8)) {
        let Some(start) = self.places.address(row) else { return };
        let start = start.as_ptr().cast::<u8>();
        hint(start);
        let bytes = self.row_bytes().min(PREFETCH_BYTES);
        let mut offset = LINE_BYTES;
        while offset < bytes {
            hint(start.wrapping_add(offset));
            offset += LINE_BYTES;
        }
    }

    /// Adds memory if every chunk is full. Returns the number of a chunk that has room.
    fn extend(&mut self) -> Result<u32, DeviceError> {
        let row_bytes = self.row_bytes();
        if let [Some(first)] = self.chunks.as_mut_slice()
            && first.bytes() < CHUNK_BYTES
        {
            self.reserved +=
                first.grow(growth::grown_bytes(first.bytes(), row_bytes, self.place))?;
            self.places.set(0, first.start().cast(), first.rows());
            self.open.insert(0);
            // The present chunk is whole, or its next size is a whole chunk. So the next chunk will
            // be needed.
            if growth::grown_bytes(first.bytes(), row_bytes, self.place) == CHUNK_BYTES {
                Notice::Announce.send();
            }
            return Ok(0);
        }
        let number = self.chunks.len();
        // Every row of the new chunk must have a number.
        if (number + 1) * self.places.rows_per_chunk > u32::MAX as usize {
            return Err(DeviceError::TooManyRows { rows: self.live as u64 });
        }
        self.chunks.push(None);
        self.places.push();
        self.open.insert(number as u32);
        Ok(number as u32)
    }

    /// Shrinks the first chunk, which must be the only chunk with rows, to the size of its rows.
    #[cold]
    fn shrink_first(&mut self) {
        if let Some(spare) = self.spare.take() {
            self.release(spare as usize);
        }
        let [Some(first)] = self.chunks.as_mut_slice() else { return };
        // If there is no memory for the move, the chunk stays unchanged. The next call of `free`
        // tries again.
        if let Ok(given) = first.shrink()
            && given > 0
        {
            self.reserved -= given;
            self.places.set(0, first.start().cast(), first.rows());
        }
    }

    /// Maps chunk `number`, which must be `None`.
    fn map_chunk(&mut self, number: usize) -> Result<(), DeviceError> {
        let bytes = if self.chunks.len() == 1 {
            growth::first_bytes(self.row_bytes())
        } else {
            CHUNK_BYTES
        };
        let chunk = Chunk::new(bytes, self.row_bytes())?;
        self.reserved += chunk.bytes();
        self.places.set(number, chunk.start().cast(), chunk.rows());
        self.chunks[number] = Some(chunk);
        Ok(())
    }

    /// Returns chunk `number`, which must have no live rows, to the operating system.
    fn release(&mut self, number: usize) {
        self.places.unset(number);
        if let Some(chunk) = self.chunks[number].take() {
            self.reserved -= chunk.bytes();
        }
        while let Some(None) = self.chunks.last() {
            self.chunks.pop();
            self.places.pop();
            self.open.remove(&(self.chunks.len() as u32));
        }
    }
}

/// Panics because a row number is outside of the slab, or in a chunk that was returned to the
/// operating system.
#[cold]
#[inline(never)]
fn panic_absent(row: u32) -> ! {
    panic!("row {row} has no place in this slab")
}
