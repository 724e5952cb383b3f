//! The narrow rows of a table: rows that have only some of their floats until their key has proved
//! frequent. This module contains their memory, their creation and their growth.
//!
//! Narrow rows have slabs of their own, with strides of their own, so that the floats that a rare
//! key does not have take no memory. The top bit of an index entry says which slabs its row number
//! belongs to. Rows of both widths follow the same rules; a narrow row uses the shape of a smaller
//! table (`crate::narrow::shape`).
//!
//! The floats that a narrow row does not have read as those of the initial row of its key: in
//! training, in evaluation, and from a layer. Growth writes these same numbers, so that it changes
//! no answer.
//!
//! # Invariants
//! * An entry with the top bit set is a row of the narrow slabs, and any other entry is a row of
//!   the full ones. Tables that spill use this bit for records on disk and have no narrow rows;
//!   dense tables have no narrow rows either.
//! * Between two pushes, every narrow row has fewer pushes than make it full, unless a checkpoint
//!   has restored it: such a row grows at its next push. A full row never becomes narrow.
//! * Whether a row grows depends on its own pushes only, and so not on shards, threads or time.
//!
//! # Concurrency
//! A plain value, owned by one shard's part of a table.

mod pull;
pub(crate) mod shape;
mod sums;
mod table;

use std::ops::Range;

use zillion_device::slab::SlabBytes;
use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::narrow::shape::NarrowShape;
use crate::shape::TableShape;
use crate::table::slabs::RowSlabs;

/// The number of growing keys for which memory is kept from one push to the next.
pub(crate) const KEPT_DUE: usize = 1 << 12;

/// Returns the sum of the memory of two slabs.
pub(crate) fn sum_bytes(a: SlabBytes, b: SlabBytes) -> SlabBytes {
    SlabBytes {
        reserved: a.reserved + b.reserved,
        used: a.used + b.used,
        bookkeeping: a.bookkeeping + b.bookkeeping,
    }
}

/// The narrow rows of one shard's part of a table.
#[derive(Debug)]
pub(crate) struct Narrow {
    pub(crate) slabs: RowSlabs,
    /// The scratch memory for the part of a full gradient that a narrow row has.
    pub(crate) gradient: Vec<f32>,
    /// The keys whose rows grow at the end of the push.
    pub(crate) due: Vec<FeatureKey>,
    pub(crate) first_slot: usize,
    /// The number of narrow rows of each slot.
    pub(crate) by_slot: Vec<u32>,
}

impl Narrow {
    /// Creates the slabs without rows. Returns `None` if all rows of the table are full.
    pub(crate) fn new(shape: &TableShape, slots: &Range<usize>) -> Result<Option<Box<Self>>> {
        let Some(NarrowShape { shape, .. }) = shape.narrow.as_deref() else { return Ok(None) };
        Ok(Some(Box::new(Self {
            slabs: RowSlabs::new(shape, slots)?,
            gradient: Vec::new(),
            due: Vec::new(),
            first_slot: slots.start,
            by_slot: vec![0; slots.len()],
        })))
    }

    /// Returns the bytes that are used in addition to the rows.
    pub(crate) fn bookkeeping(&self) -> usize {
        self.by_slot.capacity() * size_of::<u32>()
            + self.due.capacity() * size_of::<FeatureKey>()
            + self.gradient.capacity() * size_of::<f32>()
    }

    /// Frees the row of a key that has been removed from the index.
    pub(crate) fn free(&mut self, key: FeatureKey, row: u32) {
        self.slabs.free(row);
        *self.of_slot(key) -= 1;
    }

    pub(crate) fn of_slot(&mut self, key: FeatureKey) -> &mut u32 {
        &mut self.by_slot[key.slot() - self.first_slot]
    }
}
