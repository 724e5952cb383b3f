//! The launches of a step. Their parameters are addresses and the sizes of a capacity, so a
//! recorded graph can have them.

use zillion_device::gpu::kernels::{
    Count, INITIAL_ROWS, InitialRows, MARK_ROWS, MarkRows, PULL_ROWS, PullRows, ROW_SQUARES,
    RowSquares, StoredRows, TABLE_RULES, TableRules,
};
use zillion_device::gpu::{Gpu, GpuError, Memory, Stream};

use crate::resident::block::Block;
use crate::resident::device::launch;
use crate::resident::layout::TableLists;
use crate::resident::norm::Norm;
use crate::resident::table::{ResidentTable, Swept};

/// The launches of one table.
pub(super) struct TableLaunches<'a> {
    pub(super) gpu: &'a dyn Gpu,
    pub(super) stream: Stream,
    pub(super) block: &'a Block,
    pub(super) table: &'a ResidentTable,
    pub(super) lists: &'a TableLists,
}

impl TableLaunches<'_> {
    fn most(&self) -> u32 {
        self.lists.needs.keys as u32
    }

    fn count(&self) -> Count {
        Count::at(self.block.at(self.lists.count), self.most())
    }

    fn slots(&self) -> u64 {
        self.block.at(self.lists.slots)
    }

    fn keys(&self) -> u64 {
        if self.lists.needs.reads_keys { self.block.at(self.lists.keys) } else { 0 }
    }

    fn stored(&self) -> StoredRows {
        let form = &self.table.form;
        StoredRows {
            slab: self.table.slab.address(),
            rules: self.block.at(self.lists.rules),
            stride: form.stride as u32,
            width: form.width as u32,
            rule_count: form.initial.len() as u32,
            unused: 0,
        }
    }

    /// Enqueues the initial numbers of new rows.
    pub(super) fn create(&self) -> Result<(), GpuError> {
        let (table, form) = (self.table, &self.table.form);
        if !table.creates {
            return Ok(());
        }
        let parameters = InitialRows {
            slab: table.slab.address(),
            slots: self.block.at(self.lists.new_slots),
            keys: self.block.at(self.lists.new_keys),
            segments: table.initial_segments(),
            count: Count::at(self.block.at(self.lists.new_count), self.most()),
            stride: form.stride as u32,
            width: form.width as u32,
            segment_count: form.initial.len() as u32,
            dtype: form.dtype,
        };
        let launched = (parameters.geometry(), &parameters);
        launch(self.gpu, self.stream, &INITIAL_ROWS, launched, self.most())
    }

    /// Enqueues the marks of the rows of a swept table that the batch has.
    pub(super) fn mark(&self) -> Result<(), GpuError> {
        let Some(Swept { unique_of, .. }) = &self.table.swept else { return Ok(()) };
        self.gpu.fill(self.stream, unique_of.memory(), 0xff)?;
        let parameters =
            MarkRows { slots: self.slots(), unique_of: unique_of.address(), count: self.count() };
        let launched = (parameters.geometry(), &parameters);
        launch(self.gpu, self.stream, &MARK_ROWS, launched, self.most())
    }

    /// Enqueues the copy of the batch's rows to `rows` in single precision.
    pub(super) fn pull(&self, rows: Memory) -> Result<(), GpuError> {
        let form = &self.table.form;
        let parameters = PullRows {
            rows: [self.stored(), self.stored()],
            slots: self.slots(),
            keys: self.keys(),
            segments: self.table.initial_segments(),
            parts: 0,
            out: rows.address(),
            count: self.count(),
            out_stride: form.pulled_stride as u32,
            segment_count: form.initial.len() as u32,
            part_count: 0,
            dtype: form.dtype,
        };
        let launched = (parameters.geometry(), &parameters);
        launch(self.gpu, self.stream, &PULL_ROWS, launched, self.most())
    }

    /// Enqueues the squared norms of the table's gradients, to the places of the norm that begin at
    /// `first`.
    pub(super) fn squares(
        &self,
        gradients: Memory,
        norm: &Norm,
        first: usize,
    ) -> Result<(), GpuError> {
        let (table, form) = (self.table, &self.table.form);
        let of_keys = RowSquares {
            gradients: gradients.address(),
            slab: table.slab.address(),
            slots: self.slots(),
            order: self.block.at(self.lists.order),
            unique_of: 0,
            segments: table.square_segments(),
            out: norm.square(0),
            rows: self.count(),
            gradient_stride: form.pulled_stride as u32,
            stride: form.stride as u32,
            width: form.width as u32,
            segment_count: form.squares.len() as u32,
            dtype: form.dtype,
            unused: 0,
        };
        let parameters = match &table.swept {
            Some(swept) => RowSquares {
                slots: 0,
                order: 0,
                unique_of: swept.unique_of.address(),
                out: norm.square(first),
                rows: Count::fixed(swept.rows as u32),
                ..of_keys
            },
            // Without a regulariser the host reads no weights, so a weight that is not finite has
            // no part in the norm. The gradients stand in for the weights.
            None if !form.has_l2 && !table.refuses => RowSquares {
                slab: of_keys.gradients,
                slots: 0,
                stride: of_keys.gradient_stride,
                dtype: TableRules::F32,
                ..of_keys
            },
            None => of_keys,
        };
        let launched = (parameters.geometry(), &parameters);
        launch(self.gpu, self.stream, &ROW_SQUARES, launched, parameters.rows.most)
    }

    /// Enqueues the update of the table's rows.
    pub(super) fn update(
        &self,
        gradients: Memory,
        scale: Memory,
        skip: Memory,
    ) -> Result<(), GpuError> {
        let (table, form) = (self.table, &self.table.form);
        let counters = self.block.at(self.lists.counters);
        let of_keys = TableRules {
            rows: [self.stored(), self.stored()],
            slots: self.slots(),
            sums: gradients.address(),
            unique_of: 0,
            keys: self.keys(),
            rounding: self.block.at(self.lists.rounding),
            scale: scale.address(),
            skip: skip.address(),
            nonfinite: counters,
            saturated: counters + 4,
            count: self.count(),
            width: form.width as u32,
            sum_stride: form.pulled_stride as u32,
            dtype: form.dtype,
            scratch: form.scratch(),
        };
        let parameters = match &table.swept {
            Some(swept) => TableRules {
                slots: 0,
                unique_of: swept.unique_of.address(),
                keys: swept.keys.as_ref().map_or(0, |keys| keys.address()),
                count: Count::fixed(swept.rows as u32),
                ..of_keys
            },
            None => of_keys,
        };
        let launched = (parameters.geometry(), &parameters);
        launch(self.gpu, self.stream, &TABLE_RULES, launched, parameters.count.most)
    }
}
