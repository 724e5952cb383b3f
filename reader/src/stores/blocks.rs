//! The blocks of the objects of one bucket that are kept in memory.
//!
//! A block is an aligned part of an object. Neighbouring blocks are requested together. A block
//! that is requested ahead and one that a reader waits for are the same, so no byte is requested
//! twice at the same time.
//!
//! # Invariants
//! * The blocks that have arrived hold at most `limit` bytes. If a new block does not fit, the
//!   blocks leave that were read least recently, and after them those that were not read yet.
//! * The blocks that were requested ahead and not read yet are at most half of that. A request
//!   ahead beyond it is left out, and the reader requests the block when it needs it. Blocks that
//!   were requested ahead and then not needed leave after a time, which is counted in uses.
//! * A request that fails leaves no block behind, so a later read tries again.
//!
//! # Concurrency
//! One lock protects the table of blocks. It is held for the lookup of a few blocks, never while a
//! request is in progress. The bytes of a block arrive through a cell that is set once.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use zillion_store::{Bucket, Object};

/// The largest number of bytes of a block.
const BLOCK_BYTES: u64 = 256 << 10;

/// A block of an object: the number of the object in this process, and the index of the block.
type BlockId = (u64, u64);

/// The bytes of a block or the text of its failure, when they have arrived.
type Cell = Arc<OnceLock<Result<Bytes, String>>>;

/// The blocks of one bucket.
pub(super) struct Blocks {
    bucket: Bucket,
    block_bytes: u64,
    /// The largest number of blocks that one request reads.
    blocks_of_request: u64,
    limit: u64,
    table: Arc<Mutex<Table>>,
}

/// An object as the table of blocks knows it.
pub(super) struct Numbered<'a> {
    pub(super) number: u64,
    pub(super) object: &'a Arc<Object>,
}

#[derive(Default)]
struct Table {
    blocks: HashMap<BlockId, Slot>,
    /// The blocks in the order in which they leave: those that were read before those that were
    /// not, and then by the time of their last use.
    by_use: BTreeMap<(bool, u64), BlockId>,
    /// The number of uses so far, which serves as the time.
    uses: u64,
    /// The number of bytes of all blocks, arrived or requested.
    bytes: u64,
    /// The number of bytes of the blocks that were requested ahead and not read yet.
    unread: u64,
}

struct Slot {
    cell: Cell,
    bytes: u64,
    used: u64,
    is_read: bool,
}

impl Slot {
    /// Returns the place of the block in the order in which blocks leave.
    fn order(&self) -> (bool, u64) {
        (!self.is_read, self.used)
    }
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl Blocks {
    pub(super) fn new(bucket: Bucket) -> Self {
        let range_bytes = bucket.range_bytes() as u64;
        let block_bytes = range_bytes.min(BLOCK_BYTES);
        let limit = bucket.cache_bytes() as u64;
        let blocks_of_request = (range_bytes / block_bytes).max(1);
        Self { bucket, block_bytes, blocks_of_request, limit, table: Arc::default() }
    }

    pub(super) fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Returns the number of bytes that a reader may request ahead in all.
    pub(super) fn ahead_limit(&self) -> u64 {
        self.limit / 2
    }

    /// Returns the number of bytes of one request.
    pub(super) fn request_bytes(&self) -> u64 {
        self.block_bytes * self.blocks_of_request
    }

    /// Begins to read the blocks of a range that are not in memory. Does less if too many blocks
    /// were requested ahead and not read yet.
    pub(super) fn read_ahead(&self, of: &Numbered<'_>, range: Range<u64>) {
        let mut wanted = Vec::new();
        let mut table = lock(&self.table);
        for index in self.indices(&range) {
            let bytes = self.bytes_of(of, index);
            if table.blocks.contains_key(&(of.number, index)) {
                continue;
            }
            if table.unread + bytes > self.ahead_limit() {
                table.drop_unneeded(4 * self.limit / self.block_bytes);
                break;
            }
            wanted.push((index, table.insert((of.number, index), bytes, false, self.limit)));
        }
        drop(table);
        self.request(of, wanted);
    }

    /// Returns the bytes of a range, and waits until they have arrived.
    ///
    /// # Errors
    /// Returns an error if the store does not deliver a block.
    pub(super) fn read(&self, of: &Numbered<'_>, range: Range<u64>) -> io::Result<Bytes> {
        let cells = self.take(of, &range);
        let first = range.start / self.block_bytes * self.block_bytes;
        let mut bytes = Vec::new();
        for (start, cell) in (first..).step_by(self.block_bytes as usize).zip(&cells) {
            let block = match cell.wait() {
                Ok(block) => block,
                Err(reason) => return Err(io::Error::other(reason.clone())),
            };
            let from = range.start.saturating_sub(start) as usize;
            let to = block.len().min((range.end - start) as usize);
            let part = block.get(from..to).ok_or(io::ErrorKind::UnexpectedEof)?;
            if cells.len() == 1 {
                return Ok(block.slice_ref(part));
            }
            if bytes.is_empty() {
                bytes.reserve_exact((range.end - range.start) as usize);
            }
            bytes.extend_from_slice(part);
        }
        Ok(bytes.into())
    }

    /// Returns the cells of the blocks of a range, and requests the blocks that are not in memory.
    fn take(&self, of: &Numbered<'_>, range: &Range<u64>) -> Vec<Cell> {
        let (mut cells, mut wanted) = (Vec::new(), Vec::new());
        let mut table = lock(&self.table);
        for index in self.indices(range) {
            let cell = table.touch((of.number, index)).unwrap_or_else(|| {
                let bytes = self.bytes_of(of, index);
                let cell = table.insert((of.number, index), bytes, true, self.limit);
                wanted.push((index, cell.clone()));
                cell
            });
            cells.push(cell);
        }
        drop(table);
        self.request(of, wanted);
        cells
    }

    fn indices(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.block_bytes..range.end.div_ceil(self.block_bytes)
    }

    fn bytes_of(&self, of: &Numbered<'_>, index: u64) -> u64 {
        self.block_bytes.min(of.object.bytes.saturating_sub(index * self.block_bytes))
    }

    /// Requests blocks, which are sorted by their indices. Neighbours share a request.
    fn request(&self, of: &Numbered<'_>, wanted: Vec<(u64, Cell)>) {
        let mut wanted = wanted.into_iter().peekable();
        while let Some((first, cell)) = wanted.next() {
            let mut cells = vec![cell];
            let is_next = |&(index, _): &(u64, Cell), count: usize| index == first + count as u64;
            while (cells.len() as u64) < self.blocks_of_request
                && let Some((_, cell)) = wanted.next_if(|next| is_next(next, cells.len()))
            {
                cells.push(cell);
            }
            let start = first * self.block_bytes;
            let end = of.object.bytes.min(start + cells.len() as u64 * self.block_bytes);
            let arrival = Arrival {
                number: of.number,
                first,
                cells,
                block_bytes: self.block_bytes as usize,
                table: self.table.clone(),
            };
            self.bucket.read_then(of.object, start..end, move |answer| match answer {
                Ok(bytes) => arrival.succeed(&bytes),
                Err(error) => arrival.fail(&error.to_string()),
            });
        }
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// Marks a block as read now, and returns its cell. Returns `None` if the block is not here.
    fn touch(&mut self, id: BlockId) -> Option<Cell> {
        let slot = self.blocks.get_mut(&id)?;
        self.by_use.remove(&slot.order());
        self.uses += 1;
        slot.used = self.uses;
        if !slot.is_read {
            slot.is_read = true;
            self.unread -= slot.bytes;
        }
        self.by_use.insert(slot.order(), id);
        Some(slot.cell.clone())
    }

    /// Adds a block that is being requested. Blocks that were used least recently leave if the
    /// bytes exceed the limit.
    fn insert(&mut self, id: BlockId, bytes: u64, is_read: bool, limit: u64) -> Cell {
        while self.bytes + bytes > limit {
            let Some(&first) = self.by_use.values().find(|id| self.has_arrived(id)) else { break };
            self.remove(first);
        }
        let cell = Cell::default();
        self.uses += 1;
        let slot = Slot { cell: cell.clone(), bytes, used: self.uses, is_read };
        self.by_use.insert(slot.order(), id);
        self.blocks.insert(id, slot);
        self.bytes += bytes;
        if !is_read {
            self.unread += bytes;
        }
        cell
    }

    fn has_arrived(&self, id: &BlockId) -> bool {
        self.blocks.get(id).is_some_and(|slot| slot.cell.get().is_some())
    }

    /// Removes the blocks that were requested ahead more than `age` uses ago and not read since.
    fn drop_unneeded(&mut self, age: u64) {
        while let Some((&(_, used), &id)) = self.by_use.range((true, 0)..).next()
            && used + age < self.uses
            && self.has_arrived(&id)
        {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: BlockId) {
        let Some(slot) = self.blocks.remove(&id) else { return };
        self.by_use.remove(&slot.order());
        self.bytes -= slot.bytes;
        if !slot.is_read {
            self.unread -= slot.bytes;
        }
    }
}

/// The blocks that one request fills. If the request ends without an answer, they fail.
struct Arrival {
    number: u64,
    first: u64,
    cells: Vec<Cell>,
    block_bytes: usize,
    table: Arc<Mutex<Table>>,
}

impl Arrival {
    fn succeed(&self, bytes: &Bytes) {
        for (cell, block) in self.cells.iter().zip(bytes.chunks(self.block_bytes)) {
            // A copy, because a part of the large buffer would keep all of it in memory.
            let block = match self.cells.len() {
                1 => bytes.clone(),
                _ => Bytes::copy_from_slice(block),
            };
            // The cell of a block that left the table before is still read by the readers that
            // wait for it.
            let _ = cell.set(Ok(block));
        }
    }

    fn fail(&self, reason: &str) {
        let mut table = lock(&self.table);
        for (index, cell) in (self.first..).zip(&self.cells) {
            let id = (self.number, index);
            if table.blocks.get(&id).is_some_and(|slot| Arc::ptr_eq(&slot.cell, cell)) {
                table.remove(id);
            }
            let _ = cell.set(Err(reason.to_owned()));
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if self.cells.iter().any(|cell| cell.get().is_none()) {
            self.fail("the connection to the store was closed before the answer came");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert_arrived(table: &mut Table, id: BlockId, is_read: bool) {
        let cell = table.insert(id, 10, is_read, 40);
        let _ = cell.set(Ok(Bytes::new()));
    }

    #[test]
    fn the_least_recently_used_blocks_leave() {
        let mut table = Table::default();
        for index in 0..4 {
            insert_arrived(&mut table, (0, index), true);
        }
        assert!(table.touch((0, 0)).is_some());
        insert_arrived(&mut table, (0, 4), true);
        insert_arrived(&mut table, (1, 0), true);
        assert_eq!(table.bytes, 40);
        let mut left: Vec<BlockId> = table.blocks.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [(0, 0), (0, 3), (0, 4), (1, 0)]);
        assert!(table.touch((0, 1)).is_none());
    }

    #[test]
    fn blocks_that_were_read_leave_first() {
        let mut table = Table::default();
        insert_arrived(&mut table, (0, 0), false);
        for index in 1..9 {
            insert_arrived(&mut table, (0, index), true);
        }
        assert!(table.blocks.contains_key(&(0, 0)));
        assert_eq!((table.bytes, table.unread), (40, 10));
        table.drop_unneeded(100);
        assert!(table.blocks.contains_key(&(0, 0)));
        table.drop_unneeded(5);
        assert!(!table.blocks.contains_key(&(0, 0)));
        assert_eq!((table.bytes, table.unread), (30, 0));
    }

    #[test]
    fn blocks_in_progress_stay() {
        let mut table = Table::default();
        let pending = table.insert((0, 0), 40, false, 40);
        insert_arrived(&mut table, (0, 1), true);
        assert!(table.blocks.contains_key(&(0, 0)));
        assert_eq!(table.unread, 40);
        let _ = pending.set(Ok(Bytes::new()));
        insert_arrived(&mut table, (0, 2), true);
        assert!(!table.blocks.contains_key(&(0, 0)));
        assert_eq!((table.bytes, table.unread), (10, 0));
    }

    #[test]
    fn a_request_without_an_answer_fails_its_blocks() {
        let table: Arc<Mutex<Table>> = Arc::default();
        let cell = lock(&table).insert((7, 2), 10, true, 40);
        let arrival = Arrival {
            number: 7,
            first: 2,
            cells: vec![cell.clone()],
            block_bytes: 10,
            table: table.clone(),
        };
        drop(arrival);
        assert!(cell.wait().is_err());
        assert_eq!(lock(&table).bytes, 0);
    }
}
