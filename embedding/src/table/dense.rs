//! The additional state of a table with a fixed vocabulary: the runs of rows of its slots, and the
//! staged gradients.
//!
//! # Invariants
//! * Rows are numbered in key order from 0, without gaps. `starts` has the first row of each slot.
//! * The staged gradient of a row is zero if the row is not in `touched`. No row is in `touched`
//!   twice.

use std::ops::Range;

use zillion_device::slab::Slab;
use zillion_feature::FeatureKey;

use crate::error::{Error, Result};
use crate::index::{Entry, Index};
use crate::table::Table;
use crate::table::push::is_finite;

/// The additional state of one shard's part of a dense table.
#[derive(Debug)]
pub(crate) struct Dense {
    first_slot: usize,
    /// The first row of each slot in slot order, followed by the number of all rows.
    starts: Vec<u32>,
    pub(crate) staged: Option<Staged>,
    /// The keys by row number. A sweep fills this list when it first needs the keys, because the
    /// random bits of rounding depend on the key.
    keys: Vec<FeatureKey>,
}

/// The staged gradients by row number, kept until a sweep applies them.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) gradients: Slab<f32>,
    /// The numbers of the rows with a staged gradient, in the order of staging.
    pub(crate) touched: Vec<u32>,
    /// Whether each row has a staged gradient, by row number.
    pub(crate) is_touched: Vec<bool>,
    /// The numbers of the rows whose gradient was dropped because it is not finite. Their pushes
    /// count.
    pub(crate) dropped: Vec<u32>,
    /// The number of staged gradients.
    pub(crate) staged: u64,
    /// The number of gradients of keys that the table does not have.
    pub(crate) refused: u64,
}

impl Staged {
    fn new(stride: usize, rows: usize) -> Result<Self> {
        let mut gradients = Slab::new(stride)?;
        for _ in 0..rows {
            gradients.alloc()?;
        }
        Ok(Self {
            gradients,
            touched: Vec::new(),
            is_touched: vec![false; rows],
            dropped: Vec::new(),
            staged: 0,
            refused: 0,
        })
    }

    /// Drops the staged gradients of all rows.
    pub(crate) fn clear(&mut self) {
        for row in self.touched.drain(..) {
            self.gradients.row_mut(row).fill(0.0);
            self.is_touched[row as usize] = false;
        }
        self.dropped.clear();
        (self.staged, self.refused) = (0, 0);
    }
}

impl Dense {
    pub(crate) fn new(slots: Range<usize>) -> Self {
        Self {
            first_slot: slots.start,
            starts: vec![0; slots.len() + 1],
            staged: None,
            keys: Vec::new(),
        }
    }

    /// Returns the slots of this shard.
    pub(crate) fn slots(&self) -> Range<usize> {
        self.first_slot..self.first_slot + self.starts.len() - 1
    }

    /// Returns the rows of a slot, in key order.
    pub(crate) fn slot_rows(&self, slot: usize) -> Range<u32> {
        let i = slot - self.first_slot;
        self.starts[i]..self.starts[i + 1]
    }

    pub(crate) fn rows(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Lists the keys by row number. Does nothing if they are listed already.
    pub(crate) fn list_keys(&mut self, index: &Index) {
        if self.keys.is_empty() {
            self.keys = vec![FeatureKey(0); self.rows() as usize];
            for slot in index.slots() {
                for (key, entry) in index.slot_entries(slot) {
                    self.keys[entry.row() as usize] = key;
                }
            }
        }
    }

    /// Returns the staged gradients and the keys by row number. The staged gradients are created at
    /// the first call. The keys are empty if they have not been listed.
    pub(crate) fn staging(&mut self, stride: usize) -> Result<(&mut Staged, &[FeatureKey])> {
        let staged = match self.staged.take() {
            Some(staged) => staged,
            None => Staged::new(stride, self.rows() as usize)?,
        };
        Ok((self.staged.insert(staged), &self.keys))
    }

    /// Computes the run of rows of each slot again. The caller must call this function after it has
    /// added rows in key order.
    pub(crate) fn renumber(&mut self, index: &Index) {
        let mut next = 0;
        for (start, slot) in self.starts.iter_mut().zip(index.slots()) {
            *start = next;
            next += index.slot_len(slot) as u32;
        }
        if let Some(end) = self.starts.last_mut() {
            *end = next;
        }
        self.staged = None;
        self.keys = Vec::new();
    }

    pub(crate) fn bytes(&self) -> usize {
        let staged = self.staged.as_ref().map_or(0, |s| {
            s.gradients.bytes().reserved
                + s.gradients.bytes().bookkeeping
                + s.touched.capacity() * size_of::<u32>()
                + s.is_touched.capacity()
        });
        let keys = self.keys.capacity() * size_of::<FeatureKey>();
        staged + keys + self.starts.capacity() * size_of::<u32>()
    }
}

impl Table {
    /// Adds an initial row for each of `keys` that has no row. The keys must belong to this shard's
    /// slots, and be in ascending order and without duplicates.
    pub(crate) fn prefill(&mut self, keys: &[FeatureKey], epoch: u32) -> Result<()> {
        if self.dense.is_none() {
            return Err(Error::NotDense { table: self.shape.name().to_owned() });
        }
        let is_new = |key: &&FeatureKey| self.index.get(**key).is_none();
        let new: Vec<FeatureKey> = keys.iter().filter(is_new).copied().collect();
        if new.is_empty() {
            return Ok(());
        }
        if self.rows() == 0 {
            for &key in &new {
                self.create(key, epoch)?;
            }
        } else {
            self.merge(&new, epoch)?;
        }
        self.finish_restoring();
        Ok(())
    }

    /// Adds keys to a table that already has rows. Rows are numbered in key order, so the table is
    /// rebuilt.
    fn merge(&mut self, new: &[FeatureKey], epoch: u32) -> Result<()> {
        let slots = self.index.slots();
        let mut merged = Self::new(self.shape.clone(), slots.clone())?;
        merged.counters = self.counters;
        let added = new;
        let mut new = new.iter().copied().peekable();
        let mut outcome = Ok(());
        for slot in slots {
            self.for_each_in_slot(slot, |key, stored| {
                let result = (|| {
                    while let Some(before) = new.next_if(|n| *n < key) {
                        merged.create(before, epoch)?;
                    }
                    merged.restore_row(key, stored)
                })();
                if outcome.is_ok() {
                    outcome = result;
                }
            })?;
        }
        outcome?;
        for key in new {
            merged.create(key, epoch)?;
        }
        merged.changes = self.changes.take();
        merged.snapshot = self.snapshot.take();
        if let Some(changes) = &mut merged.changes {
            added.iter().for_each(|&key| changes.note(key));
        }
        *self = merged;
        Ok(())
    }

    /// Adds the gradients of `keys` to the staged gradients of their rows, for a sweep, which also
    /// counts them. Gradients are dropped as in [`Table::push`].
    pub(crate) fn stage(&mut self, keys: &[FeatureKey], gradients: &[f32]) -> Result<()> {
        let (stride, width) = (self.shape.stride(), self.shape.width);
        let Some(dense) = &mut self.dense else {
            return Err(Error::NotDense { table: self.shape.name().to_owned() });
        };
        let (staged, _) = dense.staging(stride)?;
        for (&key, gradient) in keys.iter().zip(gradients.chunks_exact(stride)) {
            let Some(row) = self.index.get(key).map(Entry::row) else {
                staged.refused += 1;
                continue;
            };
            if !is_finite(gradient, width) {
                staged.dropped.push(row);
                continue;
            }
            staged.staged += 1;
            if !std::mem::replace(&mut staged.is_touched[row as usize], true) {
                staged.touched.push(row);
            }
            let sums = staged.gradients.row_mut(row);
            for (sum, &g) in sums[..width].iter_mut().zip(gradient) {
                *sum += g;
            }
        }
        Ok(())
    }

    /// Drops the staged gradients of the table, if there are any.
    pub(crate) fn discard(&mut self) {
        if let Some(staged) = self.dense.as_mut().and_then(|dense| dense.staged.as_mut()) {
            staged.clear();
        }
    }
}
