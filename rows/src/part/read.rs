//! The opened files of a checkpoint, and the search for the row of a key.

use std::ops::Range;
use std::path::Path;

use arrow_buffer::ScalarBuffer;
use zillion_device::Workers;
use zillion_feature::{FeatureKey, Use};

use super::candidates::StoredCandidates;
use super::cut::{Cut, listed_cut, needed};
use super::digest::{RowDigest, RowHasher};
use super::open::Opening;
use super::search::search;
use super::{CANDIDATES, ListedParts, PartInfo, TableParts};
use crate::error::Result;
use crate::row::{Meta, RowWeights, StoredRow};
use crate::shape::RowShape;

/// A verified and mapped part with the columns of its rows.
#[derive(Debug)]
pub(super) struct StoredPart {
    pub(super) slots: Range<usize>,
    pub(super) width: usize,
    pub(super) state_width: usize,
    pub(super) keys: ScalarBuffer<u64>,
    pub(super) weights: StoredWeights,
    pub(super) state: ScalarBuffer<f32>,
    pub(super) counts: ScalarBuffer<u32>,
    pub(super) last_steps: ScalarBuffer<u64>,
    pub(super) dirty_epochs: ScalarBuffer<u32>,
    /// The shows and clicks; absent if the table does not keep them.
    pub(super) uses: Option<(ScalarBuffer<f32>, ScalarBuffer<f32>)>,
    /// Whether the rows are narrow.
    pub(super) is_narrow: bool,
}

/// The weights of all rows of a part, one row after another, in the number type of the table.
#[derive(Debug)]
pub(super) enum StoredWeights {
    F32(ScalarBuffer<f32>),
    F16(ScalarBuffer<u16>),
    Bf16(ScalarBuffer<u16>),
}

impl StoredPart {
    /// Returns the range of rows whose keys lie in `slots`.
    pub(super) fn rows_in(&self, slots: &Range<usize>) -> Range<usize> {
        let before = |slot: usize| self.keys.partition_point(|&key| FeatureKey(key).slot() < slot);
        before(slots.start)..before(slots.end)
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn key(&self, row: usize) -> FeatureKey {
        FeatureKey(self.keys[row])
    }

    pub(super) fn weights(&self, row: usize) -> RowWeights<'_> {
        let row = row * self.width..(row + 1) * self.width;
        match &self.weights {
            StoredWeights::F32(all) => RowWeights::F32(&all[row]),
            StoredWeights::F16(all) => RowWeights::F16(&all[row]),
            StoredWeights::Bf16(all) => RowWeights::Bf16(&all[row]),
        }
    }

    pub(super) fn stored(&self, row: usize) -> StoredRow<'_> {
        StoredRow {
            weights: self.weights(row),
            state: &self.state[row * self.state_width..(row + 1) * self.state_width],
            meta: Meta {
                count: self.counts[row],
                // The step was checked when the part was opened.
                last_step: self.last_steps[row] as u32,
                dirty_epoch: self.dirty_epochs[row],
            },
            used: self.uses.as_ref().map_or_else(Use::default, |(shows, clicks)| Use {
                shows: shows[row],
                clicks: clicks[row],
            }),
            is_narrow: self.is_narrow,
        }
    }

    /// Returns the digest of the rows in `rows`.
    pub(super) fn digest(&self, rows: Range<usize>) -> RowDigest {
        let mut hasher = RowHasher::default();
        for row in rows {
            hasher.add(self.key(row), &self.stored(row), self.uses.is_some());
        }
        hasher.sum()
    }

    /// Returns the index of a key's row, found by interpolation, or `None` if the part does not
    /// have the key.
    pub(super) fn find(&self, key: FeatureKey) -> Option<usize> {
        search(key, &self.slots, self.keys.len(), |row| self.keys[row])
    }
}

/// The columns that a reader needs from a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Only the weights. The job may have other optimizers than the checkpoint.
    Weights,
    /// The weights and the optimizer state. The job must have the optimizers of the checkpoint.
    State,
}

/// Opens and verifies the candidates of the tables that have files of candidates. Only the files
/// with slots of `owned[i]` are opened for the table with the entry `tables[i]`.
pub fn open_candidates(
    workers: &Workers,
    folder: &Path,
    shapes: &[&RowShape],
    tables: &[&TableParts],
    owned: &[Range<usize>],
) -> Result<Vec<Vec<StoredCandidates>>> {
    let listed = |table: usize| tables[table].candidates.as_ref();
    let files = listed_files(folder, shapes, owned, CANDIDATES, listed)?;
    let need = Need::State;
    open_files(workers, files, |table, info, slots| {
        let opening = Opening { path: folder.join(&info.file), shape: shapes[table], need };
        opening.open_candidates(info, slots)
    })
}

/// Checks the list of the files of one kind for each table, and returns the files that have slots
/// of `owned`. `listed` returns the list of a table.
pub(super) fn listed_files<'a>(
    folder: &Path,
    shapes: &[&RowShape],
    owned: &[Range<usize>],
    kind: &str,
    listed: impl Fn(usize) -> Option<&'a ListedParts>,
) -> Result<Vec<Cut<'a>>> {
    let files = shapes.iter().zip(owned).enumerate().map(|(table, (shape, owned))| {
        let Some(listed) = listed(table) else { return Ok(Cut::new()) };
        let cut = listed_cut(folder, shape.name(), kind, &listed.parts, listed.rows)?;
        Ok(needed(&cut, owned))
    });
    files.collect()
}

/// Opens the files of every table with `open`. The workers share the files.
pub(super) fn open_files<T: Send>(
    workers: &Workers,
    tables: Vec<Cut<'_>>,
    open: impl Fn(usize, &PartInfo, Range<usize>) -> Result<T> + Sync,
) -> Result<Vec<Vec<T>>> {
    let parts = |(table, files): (usize, &Cut<'_>)| {
        (0..files.len()).map(move |part| (table, part)).collect::<Vec<_>>()
    };
    let jobs: Vec<(usize, usize)> = tables.iter().enumerate().flat_map(parts).collect();
    let opened = workers.map(jobs.len(), |job| {
        let (table, part) = jobs[job];
        let (info, slots) = &tables[table][part];
        open(table, info, slots.clone())
    });
    let mut by_table: Vec<Vec<T>> = tables.iter().map(|_| Vec::new()).collect();
    for ((table, _), part) in jobs.into_iter().zip(opened) {
        by_table[table].push(part?);
    }
    Ok(by_table)
}
