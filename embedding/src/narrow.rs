//! Rows that are narrow until their key has shown that it is frequent: where they lie, how they
//! come and grow.
//!
//! Narrow rows have slabs of their own, with strides of their own, so that what a rare key does not
//! have takes no memory. The top bit of an index entry says which slabs its row number is of. Rows
//! of both widths go through the same rules, narrow ones by the shape of the smaller table that
//! they are (`crate::narrow`).
//!
//! What a narrow row does not have reads as the initial row of its key: in training, in evaluation,
//! and from a layer. Growing writes these same numbers, so that no answer changes by it.
//!
//! # Invariants
//! * An entry with the top bit is a row of the narrow slabs, and any other of the full ones. Tables
//!   that spill use this bit for records and have no narrow rows; dense tables neither.
//! * Between two pushes no narrow row has as many pushes as make it full, unless a checkpoint has
//!   brought it: those grow at their next push. Growth goes one way.
//! * Whether a row grows is a matter of its own pushes, and so not of shards, threads or time.
//!
//! # Concurrency
//! A plain value, owned by one shard's part of a table.

mod pull;
pub(crate) mod shape;
mod sums;
mod table;

use std::ops::Range;

use zillion_device::slab::{Slab, SlabBytes};
use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::narrow::shape::NarrowShape;
use crate::shape::TableShape;
use crate::table::weights::WeightSlab;
use crate::table::weights::shard_with;

/// Keys that grow in a push for which memory is kept until the next.
pub(crate) const KEPT_DUE: usize = 1 << 12;

/// The memory of two slabs.
pub(crate) fn both(a: SlabBytes, b: SlabBytes) -> SlabBytes {
    SlabBytes {
        reserved: a.reserved + b.reserved,
        used: a.used + b.used,
        bookkeeping: a.bookkeeping + b.bookkeeping,
    }
}

/// The narrow rows of one shard's part of a table.
#[derive(Debug)]
pub(crate) struct Narrow {
    pub(crate) weights: WeightSlab,
    pub(crate) companion: Slab<u32>,
    /// The floats of its key's gradient that a narrow row has.
    pub(crate) gradient: Vec<f32>,
    /// Keys whose rows grow at the end of the push.
    pub(crate) due: Vec<FeatureKey>,
    pub(crate) first_slot: usize,
    /// Rows of each slot.
    pub(crate) by_slot: Vec<u32>,
}

impl Narrow {
    /// No rows yet; `None` where the rows of the table are all full.
    pub(crate) fn new(shape: &TableShape, slots: &Range<usize>) -> Result<Option<Box<Self>>> {
        let Some(NarrowShape { shape, .. }) = shape.narrow.as_deref() else { return Ok(None) };
        let shard = shard_with(slots);
        Ok(Some(Box::new(Self {
            weights: WeightSlab::new(shape, shard)?,
            companion: Slab::new(shape.companion_stride)?.staggered(shard),
            gradient: Vec::new(),
            due: Vec::new(),
            first_slot: slots.start,
            by_slot: vec![0; slots.len()],
        })))
    }

    pub(crate) fn len(&self) -> usize {
        self.weights.len()
    }

    /// Bytes beside the rows.
    pub(crate) fn bookkeeping(&self) -> usize {
        self.by_slot.capacity() * size_of::<u32>()
            + self.due.capacity() * size_of::<FeatureKey>()
            + self.gradient.capacity() * size_of::<f32>()
    }

    /// A row of zeros in both slabs, of a key of this shard.
    pub(crate) fn allocate(&mut self) -> Result<u32> {
        let row = self.weights.alloc()?;
        match self.companion.alloc() {
            Ok(twin) => debug_assert_eq!(row, twin, "both slabs hand out the lowest free row"),
            Err(e) => {
                self.weights.free(row);
                return Err(e.into());
            }
        }
        Ok(row)
    }

    pub(crate) fn free(&mut self, row: u32) {
        self.weights.free(row);
        self.companion.free(row);
    }

    pub(crate) fn of_slot(&mut self, key: FeatureKey) -> &mut u32 {
        &mut self.by_slot[key.slot() - self.first_slot]
    }
}
