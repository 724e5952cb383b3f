//! The rows of a version as a [`RowSource`] that reads the layers of the version.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::simd::vectorised;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer};

use super::Layer;
use super::block::{BLOCK, Open};
use super::merge::merged;
use super::part::{Found, LayerRow, TableRows, WholeRow};
use super::weights::PackedWeights;
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

/// The smallest number of keys of a table for which a lookup uses all workers.
const SHARED_KEYS: usize = 4096;

/// The number of keys of which the share of a worker is a multiple.
const LEAST_SHARE: usize = 32;

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

    /// Returns a source of some of the layers, oldest first, for the same tables.
    pub fn of_layers(&self, layers: Vec<Layer>) -> Self {
        Self { layers, ..self.clone() }
    }

    /// Writes the rows of `keys` to `out`, one after the other at the stride of the table, with the
    /// bits of a lookup. Returns the number of different keys that have no row.
    ///
    /// # Errors
    /// Returns an error if there is no table with this index, or if `out` has another size.
    pub fn read_rows(&self, table: usize, keys: &[FeatureKey], out: &mut [f32]) -> Result<u64> {
        let wanted = self.shapes.get(table).map(|shape| shape.stride() * keys.len());
        if wanted != Some(out.len()) {
            let reason = format!(
                "{} keys of table {table} were asked for, with a buffer of {} floats; give the \
                 index of a table, and as many floats as the rows have",
                keys.len(),
                out.len()
            );
            return Err(Error::misuse(reason));
        }
        Ok(self.read_shared(table, keys, out))
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

    /// Writes the rows of `keys` to `out`, and adds the keys that have no row to `missing`.
    fn read(&self, table: usize, keys: &[FeatureKey], out: &mut [f32], missing: &mut Missing) {
        let shape = &self.shapes[table];
        let blocks = keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK * shape.stride()));
        for (keys, out) in blocks {
            vectorised(
                #[inline(always)]
                || self.read_block(shape, table, keys, out, missing),
            );
        }
    }

    /// Reads the rows of one block of keys, from the newest layer to the oldest. A key that is
    /// found in one layer is not searched in older layers.
    #[inline(always)]
    fn read_block(
        &self,
        shape: &RowShape,
        table: usize,
        keys: &[FeatureKey],
        out: &mut [f32],
        missing: &mut Missing,
    ) {
        let mut open = Open::all(keys.len());
        let mut target = Target { shape, keys, out, missing };
        for layer in self.layers.iter().rev() {
            let rows: &TableRows = &layer.tables[table];
            if !rows.is_empty() {
                rows.lookup(
                    keys,
                    &mut open,
                    #[inline(always)]
                    |at, weights| target.write(at, weights),
                );
            }
            if open.count() == 0 {
                return;
            }
        }
        open.iter().for_each(|at| target.write_unknown(at));
    }

    /// Writes the rows of `keys` to `out`, with all workers if there are many keys. Returns the
    /// number of different keys that have no row.
    fn read_shared(&self, table: usize, keys: &[FeatureKey], out: &mut [f32]) -> u64 {
        let threads = self.workers.threads();
        let mut missing = Missing::new();
        if keys.len() < SHARED_KEYS || threads == 1 {
            self.read(table, keys, out, &mut missing);
            return count_different(missing);
        }
        // Each thread gets a few shares, so that an interrupted thread does not hold up the others.
        let share = keys.len().div_ceil(threads * 4).next_multiple_of(LEAST_SHARE);
        let stride = self.shapes[table].stride();
        let mut shares: Vec<(&[FeatureKey], &mut [f32], Missing)> = keys
            .chunks(share)
            .zip(out.chunks_mut(share * stride))
            .map(|(keys, out)| (keys, out, Missing::new()))
            .collect();
        self.workers.for_each_mut(&mut shares, |_, (keys, out, missing)| {
            self.read(table, keys, out, missing);
        });
        for (_, _, more) in &mut shares {
            missing.append(more);
        }
        count_different(missing)
    }
}

/// The rows of a block of keys, which a lookup writes.
struct Target<'a> {
    shape: &'a RowShape,
    keys: &'a [FeatureKey],
    /// The floats of the rows, in the order of the keys.
    out: &'a mut [f32],
    missing: &'a mut Missing,
}

impl Target<'_> {
    /// Writes the row of the key at the position `at`. `weights` are those of a layer, or `None` if
    /// the row was removed.
    #[inline(always)]
    fn write(&mut self, at: usize, weights: Option<PackedWeights<'_>>) {
        let (stride, width) = (self.shape.stride(), self.shape.width);
        let Some(weights) = weights else { return self.write_unknown(at) };
        let target = &mut self.out[at * stride..][..stride];
        match weights {
            weights if weights.len() < width => {
                fill_narrow(self.shape, self.keys[at], &weights.to_floats(), target);
            }
            PackedWeights::F32(weights) => copy_row(weights, target),
            weights => {
                weights.widen(&mut target[..width]);
                target[width..].fill(0.0);
            }
        }
    }

    fn write_unknown(&mut self, at: usize) {
        let stride = self.shape.stride();
        self.missing.push(self.keys[at]);
        fill_unknown(self.shape, self.keys[at], &mut self.out[at * stride..][..stride]);
    }
}

/// The keys of a lookup that have no row, once for each time they occur in the lookup.
type Missing = Vec<FeatureKey>;

/// Returns the number of different keys.
fn count_different(mut keys: Missing) -> u64 {
    keys.sort_unstable();
    keys.dedup();
    keys.len() as u64
}

/// Copies the weights of a row, and zeroes the padding behind them. Both are done in pieces of a
/// fixed size, because a call of memcpy or memset costs more than these few bytes.
#[inline(always)]
fn copy_row(weights: &[f32], target: &mut [f32]) {
    const QUAD: usize = 4;
    let padding = target.len() - weights.len();
    match target.last_chunk_mut::<QUAD>() {
        // The weights among these floats are overwritten below.
        Some(end) if padding <= QUAD => *end = [0.0; QUAD],
        _ => target[weights.len()..].fill(0.0),
    }
    let (from, from_rest) = weights.as_chunks::<16>();
    let (to, to_rest) = target[..weights.len()].as_chunks_mut::<16>();
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    for (to, &from) in to_rest.iter_mut().zip(from_rest) {
        *to = from;
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
