//! The block of memory in which a batch is uploaded, with a fixed place for each part.
//!
//! The places depend only on the capacity, so the launches of all batches read the same addresses.
//! The numbers of rows are a part of the block too.

use zillion_device::gpu::Pinned;
use zillion_device::gpu::kernels::RowClasses;

use crate::error::Result;
use crate::gpu::arena::Arena;
use crate::gpu::cut::Cut;
use crate::gpu::row_plan::{Occurrences, RowPlan};
use crate::gpu::sizes::{Form, Sizes};
use crate::gpu::sources::Sources;
use crate::graph::shape::Dim;
use crate::inputs::Inputs;
use crate::lowered::Lowered;
use crate::ops::StepSeed;

/// The offsets of the lists of a [`CutPart`](crate::gpu::cut::CutPart) in the block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutPlaces {
    pub(crate) dim: Dim,
    pub(crate) tiles: usize,
    pub(crate) blocks: usize,
    pub(crate) block_lanes: usize,
}

/// The offsets of the parts of a sparse column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnPlaces {
    pub(crate) inverse: usize,
    pub(crate) offsets: Option<usize>,
    pub(crate) weights: Option<usize>,
}

/// The offsets of the parts of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TablePlaces {
    /// The numbers of unique rows, as the row kernels read them.
    pub(crate) classes: usize,
    /// Whether a node reads the rows.
    pub(crate) is_read: bool,
    pub(crate) rows: usize,
    /// The unique row at each place of the row kernels.
    pub(crate) places: usize,
    pub(crate) starts: usize,
    pub(crate) occurrences: usize,
}

/// The offsets of all parts of a batch in its block, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct BatchPlaces {
    /// The number of bytes of the block.
    pub(crate) bytes: usize,
    /// The number of bytes in front of the rows of tables. The host has only these if the rows stay
    /// on the device.
    pub(crate) bytes_without_rows: usize,
    /// The number of rows of the batch, then the number of values of each column.
    pub(crate) counts: usize,
    pub(crate) seed: usize,
    pub(crate) lanes: usize,
    pub(crate) cuts: Vec<CutPlaces>,
    /// The numeric columns that are read, one after the other.
    pub(crate) numeric: usize,
    /// The number of floats from one numeric column to the next.
    pub(crate) numeric_stride: usize,
    pub(crate) labels: Vec<Option<usize>>,
    pub(crate) masks: Vec<Option<usize>>,
    pub(crate) weight: Option<usize>,
    pub(crate) columns: Vec<Option<ColumnPlaces>>,
    pub(crate) tables: Vec<TablePlaces>,
}

impl BatchPlaces {
    /// Lays the block out for batches of up to `most`.
    pub(crate) fn new(
        lowered: &Lowered,
        sources: &Sources,
        cut: &Cut,
        most: &Sizes,
        form: &Form,
    ) -> Self {
        let mut block = Arena::new(0);
        let mut take = |count: usize, size: usize| block.take(count * size) as usize;
        let counts = take(1 + most.values.len(), 4);
        let seed = take(2, 8);
        let lanes = take(cut.lanes.len().max(lowered.settings.lanes + 1), 4);
        let cuts = cut.parts.iter().map(|part| CutPlaces {
            dim: part.dim,
            tiles: take(most.tiles + 1, 4),
            blocks: take(most.blocks + 1, 4),
            block_lanes: take(lowered.settings.lanes + 1, 4),
        });
        let cuts = cuts.collect();
        let numeric_stride = most.rows.next_multiple_of(4);
        let numeric = take(sources.numeric.len() * numeric_stride, 4);
        let labels = (0..lowered.graph.inputs.labels.len())
            .map(|label| sources.labels.contains(&label).then(|| take(most.rows, 4)));
        let labels = labels.collect();
        let masks = form.masked.iter().enumerate().map(|(label, &masked)| {
            (masked && sources.masks.contains(&label)).then(|| take(most.rows, 1))
        });
        let masks = masks.collect();
        let weight = (form.sample_weights && sources.weight).then(|| take(most.rows, 4));
        let columns = most.values.iter().enumerate().map(|(column, &values)| {
            // Operations on lists read the offsets of columns whose rows no node looks up.
            let is_read = lowered.columns_read[column]
                || lowered.value_columns.contains(&column)
                || lowered.single_columns.contains(&column);
            is_read.then(|| ColumnPlaces {
                inverse: take(values, 4),
                offsets: form.lists[column].then(|| take(most.rows + 1, 4)),
                weights: form.weighted[column].then(|| take(values, 4)),
            })
        });
        let columns = columns.collect();
        let tables = most.unique.iter().enumerate().map(|(table, &unique)| TablePlaces {
            classes: take(1, size_of::<RowClasses>()),
            is_read: sources.tables[table],
            rows: 0,
            places: take(unique, 4),
            starts: take(unique + 1, 4),
            occurrences: take(most.occurrences[table], 4),
        });
        let mut tables: Vec<TablePlaces> = tables.collect();
        let bytes_without_rows = block.bytes();
        for (table, places) in tables.iter_mut().enumerate() {
            let rows = if places.is_read { most.unique[table] } else { 0 };
            places.rows = block.take(4 * rows * form.strides[table]) as usize;
        }
        Self {
            bytes: block.bytes(),
            bytes_without_rows,
            counts,
            seed,
            lanes,
            cuts,
            numeric,
            numeric_stride,
            labels,
            masks,
            weight,
            columns,
            tables,
        }
    }

    /// Writes a batch, without the rows of its tables, to the pinned copy of the block.
    pub(crate) fn write(
        &self,
        to: &mut Pinned,
        sources: &Sources,
        cut: &Cut,
        inputs: &Inputs<'_>,
        seed: StepSeed,
    ) -> Result<()> {
        to.write(self.counts, &[inputs.rows as u32])?;
        for (column, view) in inputs.columns.iter().enumerate() {
            to.write(self.counts + 4 * (1 + column), &[view.inverse.len() as u32])?;
        }
        to.write(self.seed, &[seed.seed, seed.step])?;
        to.write(self.lanes, &cut.lanes)?;
        for (places, part) in self.cuts.iter().zip(&cut.parts) {
            to.write(places.tiles, &part.tiles)?;
            to.write(places.blocks, &part.blocks)?;
            to.write(places.block_lanes, &part.block_lanes)?;
        }
        for (index, &column) in sources.numeric.iter().enumerate() {
            let at = self.numeric + 4 * index * self.numeric_stride;
            to.write(at, inputs.numeric[column])?;
        }
        for (label, view) in inputs.labels.iter().enumerate() {
            if let Some(at) = self.labels[label] {
                to.write(at, view.values)?;
            }
            if let (Some(at), Some(mask)) = (self.masks[label], view.mask) {
                to.write(at, mask)?;
            }
        }
        if let (Some(at), Some(weight)) = (self.weight, inputs.weight) {
            to.write(at, weight)?;
        }
        for (places, view) in self.columns.iter().zip(&inputs.columns) {
            let Some(places) = places else { continue };
            to.write(places.inverse, view.inverse)?;
            if let (Some(at), Some(offsets)) = (places.offsets, view.offsets) {
                to.write(at, offsets)?;
            }
            if let (Some(at), Some(weights)) = (places.weights, view.weights) {
                to.write(at, weights)?;
            }
        }
        Ok(())
    }

    /// Writes the seed of a step, and the numeric columns from the index `late_from` on, to a block
    /// that has the rest of the batch.
    pub(crate) fn write_late(
        &self,
        to: &mut Pinned,
        (late_from, sources): (usize, &Sources),
        inputs: &Inputs<'_>,
        seed: StepSeed,
    ) -> Result<()> {
        to.write(self.seed, &[seed.seed, seed.step])?;
        for (index, &column) in sources.numeric.iter().enumerate() {
            if column >= late_from {
                let at = self.numeric + 4 * index * self.numeric_stride;
                to.write(at, inputs.numeric[column])?;
            }
        }
        Ok(())
    }

    /// Writes the rows of the tables that a node reads to the pinned copy of the block.
    pub(crate) fn write_rows(&self, to: &mut Pinned, inputs: &Inputs<'_>) -> Result<()> {
        let tables = self.tables.iter().zip(&inputs.tables);
        for (places, view) in tables.filter(|(places, _)| places.is_read) {
            to.write(places.rows, view.values)?;
        }
        Ok(())
    }

    /// Writes the occurrences of the rows of a table to the pinned copy of the block.
    pub(crate) fn write_occurrences(
        &self,
        to: &mut Pinned,
        plan: &RowPlan,
        occurrences: &Occurrences,
    ) -> Result<()> {
        let places = &self.tables[plan.table];
        to.write(places.classes, &[occurrences.classes])?;
        to.write(places.places, &occurrences.rows)?;
        to.write(places.starts, &occurrences.starts)?;
        to.write(places.occurrences, &occurrences.list)?;
        Ok(())
    }
}
