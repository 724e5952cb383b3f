//! The translation of row numbers to addresses. Every read of a table needs this translation, so it
//! is fast: one multiplication, and one load from a list with eight bytes per chunk.

use std::ptr::NonNull;

/// The addresses of the first rows of the mapped chunks.
///
/// # Invariants
///
/// If the list has an address for the chunk of a row below `capacity`, the `stride` elements from
/// the row's address on are inside the mapping of this chunk. The slab updates the list whenever
/// its chunks change.
#[derive(Debug)]
pub(super) struct Places<T> {
    /// The address of the first row of each chunk; `None` for a chunk that was returned to the
    /// operating system.
    starts: Vec<Option<NonNull<T>>>,
    /// The number of rows that the chunks hold, including the chunks that were returned.
    capacity: usize,
    pub(super) stride: usize,
    pub(super) rows_per_chunk: usize,
    /// The value ceil(2^64 / rows_per_chunk). The high half of its product with a row number is the
    /// number of the chunk.
    reciprocal: u64,
}

// SAFETY: the addresses are those of the chunks that the slab owns, and this list never follows
// them. The slab makes `&[T]` of them from `&Slab` and `&mut [T]` from `&mut Slab`, as a `Vec<T>`
// does.
unsafe impl<T: Send> Send for Places<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Places<T> {}

impl<T> Places<T> {
    /// Creates a list without chunks. A chunk must hold at least two rows.
    pub(super) fn new(stride: usize, rows_per_chunk: usize) -> Self {
        assert!(rows_per_chunk >= 2, "a chunk holds two rows or more");
        Self {
            starts: Vec::new(),
            capacity: 0,
            stride,
            rows_per_chunk,
            // The value is below 2^64, since `rows_per_chunk` is at least two.
            reciprocal: u64::MAX / rows_per_chunk as u64 + 1,
        }
    }

    pub(super) fn bookkeeping_bytes(&self) -> usize {
        self.starts.capacity() * size_of::<Option<NonNull<T>>>()
    }

    /// Returns the number of the chunk of `row`, and the index of `row` in this chunk. The
    /// multiplication is an exact division by `rows_per_chunk` for all 32-bit numbers (Lemire,
    /// Kaser and Kurz, "Faster remainder by direct computation", 2019).
    #[inline(always)]
    pub(super) fn split(&self, row: u32) -> (usize, usize) {
        let chunk = ((u128::from(self.reciprocal) * u128::from(row)) >> 64) as usize;
        (chunk, row as usize - chunk * self.rows_per_chunk)
    }

    /// Returns the address of `row`, or `None` if the row has none.
    #[inline(always)]
    pub(super) fn address(&self, row: u32) -> Option<NonNull<T>> {
        let (chunk, index) = self.split(row);
        if row as usize >= self.capacity {
            return None;
        }
        let start = (*self.starts.get(chunk)?)?;
        // SAFETY: `row` is below `capacity` and its chunk is mapped. By the invariant the row lies
        // inside the mapping, and with it the address; no mapping is longer than isize::MAX.
        Some(unsafe { start.add(index * self.stride) })
    }

    /// Adds an entry for one more chunk, which is not mapped yet.
    pub(super) fn push(&mut self) {
        self.starts.push(None);
    }

    /// Sets the address of a chunk and its number of rows. Only the last chunk may have fewer rows
    /// than the others.
    pub(super) fn set(&mut self, chunk: usize, start: NonNull<T>, rows: usize) {
        self.starts[chunk] = Some(start);
        let is_last = chunk + 1 == self.starts.len();
        assert!(is_last || rows == self.rows_per_chunk, "a chunk with others behind it is whole");
        if is_last {
            self.capacity = chunk * self.rows_per_chunk + rows;
        }
    }

    /// Removes the address of a chunk.
    pub(super) fn unset(&mut self, chunk: usize) {
        self.starts[chunk] = None;
    }

    /// Removes the last chunk, which must have no address.
    pub(super) fn pop(&mut self) {
        self.starts.pop();
        self.capacity = self.capacity.min(self.starts.len() * self.rows_per_chunk);
    }
}
