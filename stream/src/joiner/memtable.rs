//! The newest pending rows, in memory. They become a segment when there is no room for another row.

use std::collections::BTreeMap;

use super::record::{self, HEAD, Head, Rank};

/// The pending rows that no segment file holds yet.
#[derive(Debug)]
pub(crate) struct Memtable {
    capacity: usize,
    /// The records in the order of arrival, with those of rows that have left.
    arena: Vec<u8>,
    /// The position of each pending row's record.
    order: BTreeMap<Rank, u32>,
    live_bytes: usize,
}

impl Memtable {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, arena: Vec::new(), order: BTreeMap::new(), live_bytes: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns whether a record of this size fits without a seal or a compaction.
    pub(crate) fn has_room(&self, record_bytes: usize) -> bool {
        self.arena.len() + record_bytes <= self.capacity
    }

    /// Returns whether at least half of the records are of rows that have left.
    pub(crate) fn is_mostly_dead(&self) -> bool {
        self.live_bytes * 2 <= self.arena.len()
    }

    /// Adds a record and returns its position.
    pub(crate) fn insert(&mut self, head: &Head, row: &[u8]) -> u32 {
        if self.arena.capacity() == 0 {
            self.arena.reserve_exact(self.capacity);
        }
        let offset = self.arena.len() as u32;
        record::append(&mut self.arena, head, row);
        self.live_bytes += HEAD + row.len();
        self.order.insert(head.rank, offset);
        offset
    }

    pub(crate) fn oldest(&self) -> Option<Rank> {
        self.order.first_key_value().map(|(rank, _)| *rank)
    }

    /// Removes the oldest row and returns its record.
    pub(crate) fn pop_oldest(&mut self) -> Option<&[u8]> {
        let (_, offset) = self.order.pop_first()?;
        let bytes = record_bytes(&self.arena, offset);
        self.live_bytes -= bytes;
        if self.order.is_empty() {
            self.live_bytes = 0;
        }
        Some(&self.arena[offset as usize..offset as usize + bytes])
    }

    /// Returns the record at a position.
    pub(crate) fn record(&self, offset: u32) -> &[u8] {
        &self.arena[offset as usize..offset as usize + record_bytes(&self.arena, offset)]
    }

    /// Returns the records of all pending rows in their order.
    pub(crate) fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.order.values().map(|offset| self.record(*offset))
    }

    /// Forgets all rows and keeps the memory of their records.
    pub(crate) fn clear(&mut self) {
        self.arena.clear();
        self.order.clear();
        self.live_bytes = 0;
    }

    /// Removes the records of rows that have left. `moved` gets the head and the new position of
    /// each pending row.
    pub(crate) fn compact(&mut self, mut moved: impl FnMut(&Head, u32)) {
        let mut arena = Vec::with_capacity(self.capacity);
        for offset in self.order.values_mut() {
            let bytes = record_bytes(&self.arena, *offset);
            let record = &self.arena[*offset as usize..*offset as usize + bytes];
            *offset = arena.len() as u32;
            arena.extend_from_slice(record);
            if let Some(head) = record::head(record) {
                moved(&head, *offset);
            }
        }
        self.arena = arena;
    }
}

/// Returns the size of the record at a position of the arena.
fn record_bytes(arena: &[u8], offset: u32) -> usize {
    let row = record::head(&arena[offset as usize..]).map_or(0, |head| head.row_bytes);
    HEAD + row as usize
}
