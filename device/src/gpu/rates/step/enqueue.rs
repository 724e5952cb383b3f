//! The launches of a step's parts.

use std::cell::Cell;

use super::super::rows::COLUMNS;
use super::Part;
use super::batch::NUMBERS;
use super::launches::Launches;
use super::model::{DIM, Layer, Model, Parameter, narrowing};
use super::products::Multiply;
use crate::gpu::device::{Gpu, Stream};
use crate::gpu::error::GpuError;
use crate::gpu::kernels::*;
use crate::gpu::launch::{Kernel, Param};
use crate::gpu::memory::Memory;

/// Returns a matrix at `memory`, from its float `first`.
fn matrix(memory: Memory, first: usize, stride: usize, cols: usize) -> Rows {
    let data = memory.address() + first as u64 * 4;
    Rows { data, stride: stride as u32, cols: cols as u32 }
}

/// A step while it is enqueued.
pub(super) struct Enqueue<'a> {
    pub(super) gpu: &'a dyn Gpu,
    pub(super) without: Option<Part>,
    pub(super) all: &'a Launches,
    pub(super) next: &'a Cell<usize>,
    pub(super) model: &'a Model,
}

impl Enqueue<'_> {
    fn launch<T: bytemuck::NoUninit>(
        &self,
        part: Part,
        stream: Stream,
        kernel: &'static Kernel,
        geometry: Geometry,
        params: &T,
    ) -> Result<(), GpuError> {
        if self.without == Some(part) {
            return Ok(());
        }
        let params = [Param::new(params)];
        self.gpu.launch(stream, &geometry.launch(kernel, &params, &[("rows", self.all.rows)]))
    }

    /// Lets `to` wait for what is on `from`.
    pub(super) fn fork(&self, from: Stream, to: Stream) -> Result<(), GpuError> {
        let event = self.all.events[self.next.replace(self.next.get() + 1)];
        self.gpu.record(event, from)?;
        self.gpu.wait(to, event)
    }

    pub(super) fn multiply(
        &self,
        part: Part,
        stream: Stream,
        product: &Multiply,
    ) -> Result<(), GpuError> {
        match product {
            _ if self.without == Some(part) => Ok(()),
            Multiply::Exact(product) => {
                let (kernel, geometry) = product.choose();
                self.launch(part, stream, kernel, geometry, product)
            }
            Multiply::Outer(outer, lanes) => {
                self.launch(part, stream, &OUTER_80X80, outer.geometry(), outer)?;
                let geometry = Geometry::elements(u64::from(lanes.size));
                self.launch(part, stream, &COMBINE_LANES, geometry, lanes)
            }
            Multiply::Library(product) => self.gpu.multiply(stream, product),
        }
    }

    /// Enqueues the rounding to bf16, if the step has products of bf16.
    pub(super) fn narrow(
        &self,
        part: Part,
        stream: Stream,
        wide: Memory,
        narrow: Memory,
    ) -> Result<(), GpuError> {
        let Some(params) = narrowing(wide, narrow) else { return Ok(()) };
        self.launch(part, stream, &NARROW, Geometry::elements(params.n / 4), &params)
    }

    fn count(&self) -> Count {
        Count::fixed(self.all.rows as u32)
    }

    /// Enqueues the input, and the parts of the logit that need no layer, in one launch.
    pub(super) fn lookup(&self, main: Stream) -> Result<(), GpuError> {
        if self.all.is_split {
            self.lookup_in_parts(main)?;
            return self.narrow(Part::Lookup, main, self.model.input, self.model.narrow_input);
        }
        let (model, gather) = (self.model, &self.all.gather);
        let [interaction, linear, of_numbers, ..] = model.columns;
        let lookup = FieldLookup {
            table: gather.table,
            slots: gather.slots,
            inverse: self.all.inverse,
            numbers: self.all.numbers.address(),
            weights: model.linear.weights.address(),
            out: model.input.address(),
            narrow: if model.narrow_input.bytes() > 0 { model.narrow_input.address() } else { 0 },
            interaction: interaction.address(),
            linear: linear.address(),
            of_numbers: of_numbers.address(),
            rows: self.count(),
            fields: COLUMNS as u32,
            dim: DIM as u32,
            number_count: NUMBERS as u32,
            table_stride: gather.table_stride,
            out_stride: model.layers[0].padded as u32,
            value_stride: self.all.rows as u32,
        };
        self.launch(Part::Lookup, main, &FIELD_LOOKUP, lookup.geometry(), &lookup)
    }

    /// Enqueues what [`Enqueue::lookup`] does by the kernels of the operations.
    fn lookup_in_parts(&self, main: Stream) -> Result<(), GpuError> {
        let (model, rows, part) = (self.model, self.all.rows, Part::Lookup);
        let padded = model.layers[0].padded;
        let [interaction, linear, of_numbers, ..] = model.columns;
        let numbers = matrix(model.input, COLUMNS * DIM, padded, NUMBERS);
        let assemble = Assemble {
            values: self.all.numbers.address(),
            out: numbers,
            rows: self.count(),
            value_stride: rows as u32,
            ..Assemble::default()
        };
        let geometry = Geometry::elements((rows * NUMBERS) as u64);
        self.launch(part, main, &ASSEMBLE, geometry, &assemble)?;
        self.launch(part, main, &GATHER, self.all.gather.geometry(), &self.all.gather)?;
        let fm = Interaction {
            x: matrix(model.input, 0, padded, COLUMNS * DIM),
            out: matrix(interaction, 0, 1, 1),
            rows: self.count(),
            dim: DIM as u32,
            ..Interaction::default()
        };
        let geometry = Geometry::half_warps(rows as u32);
        self.launch(part, main, &FM_INTERACTION, geometry, &fm)?;
        let sums = SumColumns {
            x: matrix(model.linear_values, 0, COLUMNS + 2, COLUMNS),
            out: linear.address(),
            rows: self.count(),
            out_stride: 1,
            unused: 0,
        };
        self.launch(part, main, &SUM_COLUMNS, geometry, &sums)?;
        let dot = RowDot {
            x: numbers.data,
            w: model.linear.weights.address(),
            out: of_numbers.address(),
            rows: self.count(),
            k: NUMBERS as u32,
            ldx: padded as u32,
            ldo: 1,
            ..RowDot::default()
        };
        self.launch(part, main, &ROW_DOT, geometry, &dot)
    }

    fn losses(&self) -> Loss {
        let model = self.model;
        let [.., logit, gradient] = model.columns;
        Loss {
            z: matrix(logit, 0, 1, 1),
            y: matrix(self.all.labels, 0, 1, 1),
            w: matrix(model.one, 0, 0, 1),
            out: matrix(gradient, 0, 1, 1),
            g: model.share.address(),
            tile_sums: model.tile_sums.address(),
            tiles: model.split.tiles,
            lanes: model.split.lanes,
            sum: model.loss.address(),
            rows: self.count(),
            lane_count: model.split.lane_count,
            ..Loss::default()
        }
    }

    /// Enqueues the logit, its gradient, and the gradient of the last layer.
    pub(super) fn logit(&self, main: Stream) -> Result<(), GpuError> {
        let (model, rows, part) = (self.model, self.all.rows, Part::Head);
        let last = &model.layers[model.layers.len() - 1];
        let [interaction, linear, of_numbers, of_layers, logit, gradient] = model.columns;
        let dot = RowDot {
            x: last.output.address(),
            w: model.head.weights.address(),
            bias: model.head_bias.weights.address(),
            out: of_layers.address(),
            rows: self.count(),
            k: last.units as u32,
            ldx: last.units as u32,
            ldo: 1,
            add_bias: 1,
            ..RowDot::default()
        };
        self.launch(part, main, &ROW_DOT, Geometry::half_warps(rows as u32), &dot)?;
        let mut chain = Chain {
            start: matrix(of_layers, 0, 1, 1),
            out: matrix(logit, 0, 1, 1),
            rows: self.count(),
            divisor: self.count(),
            links: 3,
            ..Chain::default()
        };
        for (link, column) in chain.link.iter_mut().zip([interaction, linear, of_numbers]) {
            let x = matrix(column, 0, 1, 1);
            *link = Link { kind: Link::BINARY, function: Function::ADD, x, ..Link::default() };
        }
        self.launch(part, main, &CHAIN, chain.geometry(), &chain)?;
        let geometry = Geometry::elements(rows as u64);
        self.launch(part, main, &LOSS_GRAD, geometry, &self.losses())?;
        if self.is_free() {
            let ranges = RangeSums::ranges(rows);
            let narrow = last.narrow[3];
            let is_narrow = narrow.bytes() > 0;
            let head = HeadGradient {
                x: matrix(last.output, 0, last.units, last.units),
                slopes: gradient.address(),
                weights: model.head.weights.address(),
                gradient: if is_narrow { 0 } else { last.gradient.address() },
                narrow: if is_narrow { narrow.address() } else { 0 },
                parts: model.head_parts[0].address(),
                rows: rows as u32,
                ranges: ranges as u32,
            };
            return self.launch(part, main, &HEAD_GRADIENT, head.geometry(), &head);
        }
        let mut chain = Chain {
            start: matrix(gradient, 0, 1, 1),
            out: matrix(last.gradient, 0, last.units, last.units),
            rows: self.count(),
            divisor: self.count(),
            links: 2,
            ..Chain::default()
        };
        chain.link[0] = Link {
            kind: Link::BINARY,
            function: Function::MUL,
            x: matrix(model.head.weights, 0, 0, last.units),
            ..Link::default()
        };
        chain.link[1] = Link {
            kind: Link::UNARY_GRAD,
            function: Function::RELU,
            x: matrix(last.output, 0, last.units, last.units),
            ..Link::default()
        };
        self.launch(part, main, &CHAIN, chain.geometry(), &chain)
    }

    pub(super) fn loss(&self, stream: Stream) -> Result<(), GpuError> {
        let geometry = Geometry::line(self.model.tiles as u32, 256);
        let losses = self.losses();
        self.launch(Part::Loss, stream, &LOSS_TILES, geometry, &losses)?;
        self.launch(Part::Loss, stream, &LOSS_SUM, Geometry::line(1, 32), &losses)
    }

    /// Returns whether the sums over rows have an order of their own, like the library's products.
    fn is_free(&self) -> bool {
        matches!(self.all.products[0].forward, Multiply::Library(_))
    }

    /// Enqueues the sums over the rows of each lane, or of each range.
    fn sum_rows(
        &self,
        stream: Stream,
        [x, g]: [Rows; 2],
        parts: Memory,
        kind: u32,
    ) -> Result<(), GpuError> {
        if self.is_free() {
            return self.sum_ranges(stream, &self.ranges([x, g], parts, kind));
        }
        let split = self.model.split;
        let sums = ColumnSums {
            x,
            g,
            masked: x,
            parts: parts.address(),
            split,
            kind,
            ..ColumnSums::default()
        };
        self.launch(Part::Sums, stream, &COLUMN_SUMS, sums.geometry(), &sums)
    }

    fn ranges(&self, [x, g]: [Rows; 2], parts: Memory, kind: u32) -> RangeSums {
        let (rows, ranges) = (self.all.rows, RangeSums::ranges(self.all.rows));
        RangeSums {
            x,
            g,
            masked: x.data,
            parts: parts.address(),
            rows: Count::fixed(rows as u32),
            ranges: ranges as u32,
            kind,
            ..RangeSums::default()
        }
    }

    fn sum_ranges(&self, stream: Stream, sums: &RangeSums) -> Result<(), GpuError> {
        self.launch(Part::Sums, stream, &RANGE_SUMS, sums.geometry(), sums)
    }

    fn combine_ranges(&self, stream: Stream, x: Rows, to: &Parameter) -> Result<(), GpuError> {
        let sums = RangeSums {
            x,
            parts: to.gradient.address(),
            rows: Count::fixed(RangeSums::ranges(self.all.rows) as u32),
            ranges: 1,
            kind: ColumnSums::PLAIN,
            ..RangeSums::default()
        };
        self.sum_ranges(stream, &sums)
    }

    /// Enqueues the addition of the sums of lanes or ranges.
    pub(super) fn combine(
        &self,
        stream: Stream,
        parts: Memory,
        to: &Parameter,
        size: usize,
    ) -> Result<(), GpuError> {
        if self.is_free() {
            return self.combine_ranges(stream, matrix(parts, 0, size, size), to);
        }
        let lanes = CombineLanes {
            parts: parts.address(),
            out: to.gradient.address(),
            split: self.model.split,
            size: size as u32,
            mean: 0,
        };
        self.launch(Part::Sums, stream, &COMBINE_LANES, Geometry::elements(size as u64), &lanes)
    }

    /// Enqueues the sums of a layer's gradient over the rows of each lane or range. With
    /// products of bf16, only a gradient that is to be masked can be summed: of type bf16.
    pub(super) fn bias_sums(
        &self,
        stream: Stream,
        layer: &Layer,
        kind: u32,
    ) -> Result<(), GpuError> {
        let gradient = matrix(layer.gradient, 0, layer.units, layer.units);
        let output = matrix(layer.output, 0, layer.units, layer.units);
        let [.., narrow_output, narrow] = layer.narrow;
        if narrow.bytes() == 0 {
            return self.sum_rows(stream, [gradient, output], layer.bias_parts, kind);
        }
        debug_assert_eq!(kind, ColumnSums::MASKED);
        let sums = RangeSums {
            narrow_x: narrow.address(),
            narrow_g: narrow_output.address(),
            masked: 0,
            narrow: narrow.address(),
            ..self.ranges([gradient, output], layer.bias_parts, RangeSums::MASKED_NARROW)
        };
        self.sum_ranges(stream, &sums)
    }

    /// Enqueues the gradients of the head, and of the last layer's bias.
    pub(super) fn head_gradients(&self, stream: Stream) -> Result<(), GpuError> {
        let model = self.model;
        let padded = model.layers[0].padded;
        let last = &model.layers[model.layers.len() - 1];
        let [.., gradient] = model.columns;
        let g = matrix(gradient, 0, 1, 1);
        let numbers = matrix(model.input, COLUMNS * DIM, padded, NUMBERS);
        let output = matrix(last.output, 0, last.units, last.units);
        let all = [
            (output, ColumnSums::WEIGHTED, &model.head),
            (numbers, ColumnSums::WEIGHTED, &model.linear),
            (g, ColumnSums::PLAIN, &model.head_bias),
        ];
        let all = all.into_iter().zip(model.head_parts);
        // The kernel of the head's gradient has summed for the head and for the last bias.
        for ((x, kind, to), parts) in all.skip(usize::from(self.is_free())) {
            self.sum_rows(stream, [x, g], parts, kind)?;
            self.combine(stream, parts, to, x.cols as usize)?;
        }
        if self.is_free() {
            let of_units = |first: usize| {
                matrix(model.head_parts[0], first * last.units, 2 * last.units, last.units)
            };
            self.combine_ranges(stream, of_units(0), &last.bias)?;
            return self.combine_ranges(stream, of_units(1), &model.head);
        }
        self.bias_sums(stream, last, ColumnSums::PLAIN)?;
        self.combine(stream, last.bias_parts, &last.bias, last.units)
    }

    pub(super) fn interaction_gradient(&self, stream: Stream) -> Result<(), GpuError> {
        let model = self.model;
        let padded = model.layers[0].padded;
        let [.., gradient] = model.columns;
        let fm = Interaction {
            x: matrix(model.input, 0, padded, COLUMNS * DIM),
            g: matrix(gradient, 0, 1, 1),
            out: matrix(model.input_gradient, 0, padded, COLUMNS * DIM),
            rows: self.count(),
            dim: DIM as u32,
            ..Interaction::default()
        };
        let geometry = Geometry::half_warps(self.all.rows as u32);
        self.launch(Part::Interaction, stream, &FM_INTERACTION_GRAD, geometry, &fm)
    }

    pub(super) fn dense(&self, stream: Stream) -> Result<(), GpuError> {
        let model = self.model;
        let update = DenseUpdate {
            pieces: model.pieces.address(),
            rules: model.rule.address(),
            piece_count: model.piece_count as u32,
            ..DenseUpdate::default()
        };
        self.launch(Part::Dense, stream, &DENSE_UPDATE, update.elements(), &update)?;
        if !self.all.is_split {
            let copies = &model.copies;
            return self.launch(Part::Dense, stream, &COPY_WEIGHTS, copies.geometry(), copies);
        }
        for layer in &model.layers {
            let params = Model::transpose(layer);
            self.launch(Part::Dense, stream, &TRANSPOSE, params.geometry(), &params)?;
            for (wide, narrow) in layer.narrowed_weights() {
                self.narrow(Part::Dense, stream, wide, narrow)?;
            }
        }
        Ok(())
    }

    pub(super) fn rows(&self, main: Stream, side: Stream) -> Result<(), GpuError> {
        let update = &self.all.update;
        let threads = RowUpdate::threads(update.width).unwrap_or(32);
        if self.all.most.long_rows > 0 {
            let (kernel, geometry) = update.long(threads, self.all.most.long_rows);
            self.launch(Part::Rows, side, kernel, geometry, update)?;
        }
        let (kernel, geometry) = update.short(threads, self.all.most.unique);
        self.launch(Part::Rows, main, kernel, geometry, update)
    }
}
