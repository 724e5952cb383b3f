//! The narrow rows of a table. A row is narrow until its key has had enough pushes, and a narrow
//! row has only some of the floats of a full row. This module contains the memory, the creation and
//! the growth of narrow rows.
//!
//! Narrow rows have separate slabs with smaller strides, so the missing floats of rare keys take no
//! memory. The top bit of an index entry says whether its row number belongs to the narrow slabs or
//! to the full slabs. Rows of both widths follow the same rules. A narrow row uses the shape of a
//! smaller table (`crate::narrow::shape`).
//!
//! Training, evaluation and layers read the floats that a narrow row does not have from the initial
//! row of its key. When a row grows, these same numbers are written, so growth does not change what
//! a lookup returns.
//!
//! # Invariants
//! * An index entry with the top bit set belongs to a row in the narrow slabs, and any other entry
//!   to a row in the full slabs. Tables that spill use this bit for records on disk and have no
//!   narrow rows. Dense tables have no narrow rows either.
//! * Between two pushes, every narrow row has fewer pushes than make it full. The only exception is
//!   a row that a checkpoint has restored: it grows at its next push. A full row never becomes
//!   narrow.
//! * Only its own pushes decide whether a row grows. Shards, threads and time have no effect.
//!
//! # Concurrency
//! The narrow rows are a plain value without locks. One shard's part of a table owns them.

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

/// The largest length of the list of growing keys whose memory is kept from one push to the next.
pub(crate) const KEPT_DUE: usize = 1 << 12;

/// Returns the sums of the memory figures of two slabs.
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
    /// The scratch memory for the part of a full gradient that applies to a narrow row.
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

    /// Returns the bytes of memory that are used in addition to the rows.
    pub(crate) fn bookkeeping(&self) -> usize {
        self.by_slot.capacity() * size_of::<u32>()
            + self.due.capacity() * size_of::<FeatureKey>()
            + self.gradient.capacity() * size_of::<f32>()
    }

    /// Frees the narrow row of a key that has been removed from the index.
    pub(crate) fn free(&mut self, key: FeatureKey, row: u32) {
        self.slabs.free(row);
        *self.of_slot(key) -= 1;
    }

    pub(crate) fn of_slot(&mut self, key: FeatureKey) -> &mut u32 {
        &mut self.by_slot[key.slot() - self.first_slot]
    }
}
