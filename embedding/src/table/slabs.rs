//! The two slabs that hold all rows of one width.
//!
//! # Invariants
//! * Row `r` of the weight slab and row `r` of the companion slab belong to the same key, or both
//!   are free. This holds because both slabs get the same calls and hand out the lowest free
//!   number.

use std::ops::Range;

use zillion_device::slab::Slab;
use zillion_rows::row::{StoredRow, floats_mut};

use crate::error::Result;
use crate::shape::TableShape;
use crate::table::weights::WeightSlab;

/// The slab of weights and the slab of companion rows, for rows of one width.
#[derive(Debug)]
pub(crate) struct RowSlabs {
    pub(crate) weights: WeightSlab,
    pub(crate) companion: Slab<u32>,
    /// The rows that were freed or have moved, in order, if a device has copies of rows; else
    /// `None`.
    gone: Option<Vec<Gone>>,
}

/// The end of a row's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The row was freed, or belongs to no key any more.
    Freed(u32),
    /// The row has another number now.
    Moved {
        /// The number of the row before the move.
        from: u32,
        /// The number of the row after the move.
        to: u32,
    },
}

impl RowSlabs {
    /// Creates slabs without rows, for one shard's part of a table.
    pub(crate) fn new(shape: &TableShape, slots: &Range<usize>) -> Result<Self> {
        // The shards have equally many slots, or one more, so this is the number of the shard. In a
        // process that holds a part of the slots, two shards may get the same number.
        let len = slots.len().max(1);
        let shard = (slots.start + len / 2) / len;
        Ok(Self {
            weights: WeightSlab::new(shape, shard)?,
            companion: Slab::new(shape.companion_stride)?.staggered(shard),
            gone: None,
        })
    }

    /// Begins to list the rows that are freed or move.
    pub(crate) fn follow_rows(&mut self) {
        self.gone.get_or_insert_default();
    }

    /// Returns the rows that were freed or have moved since the last call, in order.
    pub(crate) fn take_gone(&mut self) -> Vec<Gone> {
        self.gone.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Ends the list of rows that are freed or move.
    pub(crate) fn forget_rows(&mut self) {
        self.gone = None;
    }

    /// Returns the number of rows in use.
    pub(crate) fn len(&self) -> usize {
        self.weights.len()
    }

    /// Allocates a row of zeros and returns its number.
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
        self.give_back(row);
        self.note_unused(row);
    }

    /// Lists a row that belongs to no key any more. The row may stay allocated.
    pub(crate) fn note_unused(&mut self, row: u32) {
        if let Some(gone) = &mut self.gone {
            gone.push(Gone::Freed(row));
        }
    }

    fn give_back(&mut self, row: u32) {
        self.weights.free(row);
        self.companion.free(row);
    }

    #[inline(always)]
    pub(crate) fn prefetch_mut(&self, row: u32) {
        self.weights.prefetch_mut(row);
        self.companion.prefetch_mut(row);
    }

    /// Writes the values that a checkpoint stored into a row.
    pub(crate) fn restore(&mut self, row: u32, shape: &TableShape, stored: StoredRow<'_>) {
        self.weights.restore(row, stored.weights);
        let companion = self.companion.row_mut(row);
        floats_mut(&mut companion[..shape.state_width]).copy_from_slice(stored.state);
        shape.set_meta(companion, stored.meta);
        shape.set_used(companion, stored.used);
    }

    /// Moves a row to the lowest free number, if this number is below its own. Returns the new
    /// number of the row, or `None` if it was not moved.
    pub(crate) fn move_down(&mut self, row: u32) -> Result<Option<u32>> {
        let to = self.allocate()?;
        if to > row {
            self.give_back(to);
            return Ok(None);
        }
        self.weights.copy_row(row, to);
        let companion = self.companion.row(row).to_vec();
        self.companion.row_mut(to).copy_from_slice(&companion);
        self.give_back(row);
        if let Some(gone) = &mut self.gone {
            gone.push(Gone::Moved { from: row, to });
        }
        Ok(Some(to))
    }
}
