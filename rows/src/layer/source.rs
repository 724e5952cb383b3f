//! The rows of a version as a [`RowSource`] that reads the layers of the version.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer};

use super::Layer;
use super::merge::merged;
use super::part::{Found, LayerRow, Place, TableRows, WholeRow};
use crate::error::{Error, Result};
use crate::layout::TableLayout;
use crate::shape::RowShape;
use crate::source::{LookupReport, RowSource, lookup_tables};
use crate::spec::TableSpec;

/// The largest number of layers of a version whose layers are merged.
pub const MAX_LAYERS: usize = 4;

/// The largest number of layers of a source, which a version can have until its layers are merged.
/// A lookup of an unknown key searches all of them, which takes up to two cache misses a layer.
pub const MAX_OPEN_LAYERS: usize = 2 * MAX_LAYERS;

/// The number of keys that are looked up together, so that their cache misses overlap.
const BLOCK: usize = 32;

/// The smallest number of keys of a table for which a lookup uses all workers.
const SHARED_KEYS: usize = 4096;

/// A source of the rows of one version. A clone is cheap and uses the same mapped files.
#[derive(Clone, Debug)]
pub struct LayerSource {
    layouts: Arc<[TableLayout]>,
    shapes: Arc<[RowShape]>,
    /// The layers, oldest first.
    layers: Vec<Layer>,
    workers: Arc<Workers>,
}

impl LayerSource {
    /// Creates a source of `layers`, oldest first. `specs` declare the row that an unknown key
    /// reads; their optimizers do not matter.
    ///
    /// # Errors
    /// Returns an error if there are more than [`MAX_OPEN_LAYERS`] layers, or if a spec is not
    /// valid.
    pub fn new(specs: &[TableSpec], layers: Vec<Layer>, workers: Arc<Workers>) -> Result<Self> {
        if layers.len() > MAX_OPEN_LAYERS {
            let reason = format!(
                "the version has {} layers, but a lookup searches at most {MAX_OPEN_LAYERS}; merge \
                 some of the layers first",
                layers.len()
            );
            return Err(Error::misuse(reason));
        }
        let shapes = specs.iter().cloned().map(RowShape::new).collect::<Result<Vec<_>>>()?;
        let layouts: Vec<_> = shapes.iter().map(|s| s.layout.clone()).collect();
        Ok(Self { layouts: layouts.into(), shapes: shapes.into(), layers, workers })
    }

    /// Returns whether a lookup can read one of the address ranges. The ranges are those of mapped
    /// files that have lost pages. Records in memory do not lose any.
    pub fn overlaps(&self, ranges: &[Range<usize>]) -> bool {
        self.layers.iter().any(|layer| !layer.has_records() && layer.overlaps(ranges))
    }

    /// Returns the layers, oldest first.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns all floats of a row that a layer holds. The missing floats of a narrow row come from
    /// the initial row of its key.
    pub fn whole<'a>(&self, table: usize, key: FeatureKey, row: LayerRow<'a>) -> Cow<'a, [f32]> {
        match self.shapes.get(table) {
            Some(shape) if row.weights.len() < shape.width => {
                let mut whole = vec![0.0; shape.stride()];
                fill_narrow(shape, key, &row.weights, &mut whole);
                whole.truncate(shape.width);
                Cow::Owned(whole)
            }
            _ => row.weights,
        }
    }

    /// Yields every row of a table in key order. Removed keys are left out. If several layers have
    /// a key, only the newest row is yielded.
    pub fn rows_of(&self, table: usize) -> impl Iterator<Item = (FeatureKey, LayerRow<'_>)> {
        merged(self.layers.iter(), table).filter_map(|(key, found)| match found {
            Found::Row(row) => Some((key, row)),
            Found::Tombstone => None,
        })
    }

    /// Yields the same rows as [`LayerSource::rows_of`], each with all its floats.
    pub fn whole_rows_of(&self, table: usize) -> impl Iterator<Item = (FeatureKey, WholeRow<'_>)> {
        self.rows_of(table).map(move |(key, row)| {
            let count = row.count;
            (key, WholeRow { weights: self.whole(table, key, row), count })
        })
    }

    /// Returns the row that a key reads if no layer has the key, or `None` if there is no table
    /// with this index.
    pub fn default_row(&self, table: usize, key: FeatureKey) -> Option<Vec<f32>> {
        let shape = self.shapes.get(table)?;
        let mut row = vec![0.0; shape.stride()];
        fill_unknown(shape, key, &mut row);
        row.truncate(shape.width);
        Some(row)
    }

    /// Writes the rows of `keys` to `out`, and returns the number of keys that have no row.
    fn read(&self, table: usize, keys: &[FeatureKey], out: &mut [f32]) -> u64 {
        let shape = &self.shapes[table];
        let stride = shape.stride();
        let mut missing = 0;
        let blocks = keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK * stride));
        for (keys, out) in blocks {
            missing += self.read_block(shape, table, keys, out);
        }
        missing
    }

    /// Reads the rows of one block of keys, from the newest layer to the oldest. A key that is
    /// found in one layer is not searched in older layers. Returns the number of keys that have no
    /// row.
    fn read_block(
        &self,
        shape: &RowShape,
        table: usize,
        keys: &[FeatureKey],
        out: &mut [f32],
    ) -> u64 {
        // Each key that is not found yet has one bit.
        let mut open: u64 = if keys.len() == 64 { u64::MAX } else { (1 << keys.len()) - 1 };
        let mut places: [(u8, Option<Place>); BLOCK] = [(0, None); BLOCK];
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let rows: &TableRows = &layer.tables[table];
            if rows.is_empty() {
                continue;
            }
            each_bit(open, |i| rows.prefetch_entry(keys[i]));
            each_bit(open, |i| rows.prefetch_keys(keys[i]));
            each_bit(open, |i| {
                if let Some(place) = rows.locate(keys[i]) {
                    rows.prefetch_row(place);
                    places[i] = (index as u8, Some(place));
                    open &= !(1 << i);
                }
            });
            if open == 0 {
                break;
            }
        }
        let mut missing = 0;
        let targets = out.chunks_exact_mut(shape.stride());
        for ((&key, target), &(layer, place)) in keys.iter().zip(targets).zip(&places) {
            // A source may have no layers, and then no place.
            let rows = |place| self.layers[usize::from(layer)].tables[table].weights_at(place);
            match place.and_then(rows) {
                Some(weights) if weights.len() < shape.width => {
                    fill_narrow(shape, key, &weights.to_floats(), target);
                }
                Some(weights) => {
                    weights.widen(&mut target[..shape.width]);
                    target[shape.width..].fill(0.0);
                }
                None => {
                    missing += 1;
                    fill_unknown(shape, key, target);
                }
            }
        }
        missing
    }

    /// Does the same as [`LayerSource::read`], with all workers if there are many keys.
    fn read_shared(&self, table: usize, keys: &[FeatureKey], out: &mut [f32]) -> u64 {
        let threads = self.workers.threads();
        if keys.len() < SHARED_KEYS || threads == 1 {
            return self.read(table, keys, out);
        }
        // Each thread gets a few shares, so that an interrupted thread does not hold up the others.
        let share = keys.len().div_ceil(threads * 4).next_multiple_of(BLOCK);
        let stride = self.shapes[table].stride();
        let mut shares: Vec<(&[FeatureKey], &mut [f32], u64)> = keys
            .chunks(share)
            .zip(out.chunks_mut(share * stride))
            .map(|(keys, out)| (keys, out, 0))
            .collect();
        self.workers.for_each_mut(&mut shares, |_, (keys, out, missing)| {
            *missing = self.read(table, keys, out);
        });
        shares.iter().map(|(_, _, missing)| missing).sum()
    }
}

/// Writes the initial row of a key, including the padding. Then replaces the floats that the narrow
/// row of the key has.
#[cold]
fn fill_narrow(shape: &RowShape, key: FeatureKey, weights: &[f32], target: &mut [f32]) {
    shape.fill_initial(key, target);
    shape.layout.spread(weights, target);
    shape.spec.published.round(&shape.layout, &mut target[..shape.width]);
}

/// Writes the row that an unknown key reads, including the padding. It is rounded like the rows of
/// the version.
fn fill_unknown(shape: &RowShape, key: FeatureKey, target: &mut [f32]) {
    shape.fill_unknown(key, target);
    shape.spec.published.round(&shape.layout, &mut target[..shape.width]);
}

/// Calls `each` with the position of every bit that is set, in ascending order.
#[inline(always)]
fn each_bit(mut bits: u64, mut each: impl FnMut(usize)) {
    while bits != 0 {
        each(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

impl RowSource for LayerSource {
    fn tables(&self) -> &[TableLayout] {
        &self.layouts
    }

    fn lookup(&mut self, plan: &LookupPlan, rows: &mut RowBuffer) -> Result<LookupReport> {
        lookup_tables(&self.layouts, plan, rows, |index, table, rows| {
            self.read_shared(index, &table.keys, &mut rows.values)
        })
    }
}
