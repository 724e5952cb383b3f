//! All that a step launches, and the order of it on three streams.

use std::cell::Cell;

use super::super::Timer;
use super::super::rows::{COLUMN_BITS, COLUMNS};
use super::Part;
use super::batch::{Batches, NUMBERS};
use super::enqueue::Enqueue;
use super::model::{DIM, Model, STRIDE};
use super::products::Multiply;
use crate::gpu::device::{Event, Gpu, Stream};
use crate::gpu::error::GpuError;
use crate::gpu::kernels::{
    ColumnSums, Count, Gather, GatherJob, GradientSource, RowClasses, RowPart, RowRule, RowUpdate,
};
use crate::gpu::memory::Memory;
use crate::gpu::product::Precision;

/// The products of a layer.
pub(super) struct LayerProducts {
    pub(super) forward: Multiply,
    input: Multiply,
    weight: Multiply,
}

/// All that a step launches.
pub(super) struct Launches {
    pub(super) products: Vec<LayerProducts>,
    pub(super) gather: Gather,
    /// The address of the unique rows of the fields.
    pub(super) inverse: u64,
    /// Whether the lookup, and the copies of weights, have a launch for each operation.
    pub(super) is_split: bool,
    pub(super) update: RowUpdate,
    pub(super) most: RowClasses,
    pub(super) rows: usize,
    pub(super) numbers: Memory,
    pub(super) labels: Memory,
    pub(super) streams: [Stream; 3],
    pub(super) events: Vec<Event>,
}

impl Launches {
    /// Prepares the launches for batches that are copied to `current`.
    pub(super) fn new(
        timer: &mut Timer<'_>,
        batches: &Batches,
        model: &Model,
        current: Memory,
        library: Option<Precision>,
    ) -> Result<Self, GpuError> {
        let (rows, at) = (batches.rows, batches.places);
        let gather = lookup(timer, batches, model, current)?;
        let update = row_update(timer, batches, model, current)?;
        let products = layer_products(rows, model, library);
        let gpu = timer.gpu;
        let streams = [timer.stream, gpu.create_stream()?, gpu.create_stream()?];
        for all in &products {
            all.forward.prepare(gpu, streams[0])?;
            all.input.prepare(gpu, streams[0])?;
            all.weight.prepare(gpu, streams[1])?;
        }
        let mut events = Vec::new();
        for _ in 0..8 + model.layers.len() {
            events.push(gpu.create_event(false)?);
        }
        Ok(Self {
            products,
            gather,
            inverse: current.address() + at.inverse as u64,
            is_split: false,
            update,
            most: batches.most,
            rows,
            numbers: current.part(at.numbers, rows * NUMBERS * 4)?,
            labels: current.part(at.labels, rows * 4)?,
            streams,
            events,
        })
    }

    /// Enqueues a step, or a step without one of its parts.
    pub(super) fn enqueue(
        &self,
        gpu: &dyn Gpu,
        model: &Model,
        without: Option<Part>,
    ) -> Result<(), GpuError> {
        let next = Cell::new(0);
        let go = Enqueue { gpu, without, all: self, next: &next, model };
        let [main, weights, long] = self.streams;
        go.lookup(main)?;
        for products in &self.products {
            go.multiply(Part::Forward, main, &products.forward)?;
        }
        go.logit(main)?;
        go.fork(main, long)?;
        go.loss(long)?;
        go.fork(main, weights)?;
        go.head_gradients(weights)?;
        for index in (1..model.layers.len()).rev() {
            let (layer, before) = (&model.layers[index], &model.layers[index - 1]);
            go.multiply(Part::Weights, weights, &self.products[index].weight)?;
            go.multiply(Part::Inputs, main, &self.products[index].input)?;
            debug_assert_eq!(layer.inputs, before.units);
            go.bias_sums(main, before, ColumnSums::MASKED)?;
            go.fork(main, weights)?;
            go.combine(weights, before.bias_parts, &before.bias, before.units)?;
        }
        go.multiply(Part::Weights, weights, &self.products[0].weight)?;
        go.interaction_gradient(main)?;
        go.multiply(Part::Inputs, main, &self.products[0].input)?;
        go.fork(main, weights)?;
        go.fork(main, long)?;
        go.dense(weights)?;
        go.rows(main, long)?;
        go.fork(weights, main)?;
        go.fork(long, main)
    }
}

/// Returns the launch that looks the rows of a batch up, the vectors and the linear weights.
fn lookup(
    timer: &mut Timer<'_>,
    batches: &Batches,
    model: &Model,
    current: Memory,
) -> Result<Gather, GpuError> {
    let (rows, at) = (batches.rows, batches.places);
    let place = |place: usize| current.address() + place as u64;
    let mut jobs = Vec::new();
    for column in 0..COLUMNS {
        let job = GatherJob {
            inverse: place(at.inverse + column * rows * 4),
            out: model.input.address() + (column * DIM * 4) as u64,
            out_stride: model.layers[0].padded as u32,
            dim: DIM as u32,
            kind: GatherJob::COPY,
            ..GatherJob::default()
        };
        let out = model.linear_values.address() + (column * 4) as u64;
        let (offset, out_stride) = (DIM as u32, (COLUMNS + 2) as u32);
        jobs.push(job);
        jobs.push(GatherJob { out, out_stride, offset, dim: 1, ..job });
    }
    // Vectors first, so that neighbouring threads have units of the same kind.
    jobs.sort_by_key(|job| job.offset);
    let units = GatherJob::units(&jobs, model.slab.address(), STRIDE as u32);
    Ok(Gather {
        table: model.slab.address(),
        slots: place(at.slots),
        jobs: timer.upload(&jobs)?.address(),
        units: timer.upload(&units)?.address(),
        rows: Count::fixed(rows as u32),
        unit_count: units.len() as u32,
        table_stride: STRIDE as u32,
    })
}

/// Returns the launch that sums the gradients of the rows of a batch up and updates them.
fn row_update(
    timer: &mut Timer<'_>,
    batches: &Batches,
    model: &Model,
    current: Memory,
) -> Result<RowUpdate, GpuError> {
    let at = batches.places;
    let place = |place: usize| current.address() + place as u64;
    let [.., logit_gradient] = model.columns;
    let vector = |column: usize| GradientSource {
        gradient: model.input_gradient.address() + (column * DIM * 4) as u64,
        stride: model.layers[0].padded as u32,
        ..GradientSource::default()
    };
    let mut sources: Vec<GradientSource> = (0..COLUMNS).map(vector).collect();
    let linear = GradientSource {
        gradient: logit_gradient.address(),
        stride: 1,
        ..GradientSource::default()
    };
    sources.extend([linear; COLUMNS]);
    let width = DIM as u32 + 1;
    let rule = RowRule {
        kind: RowRule::ROWWISE_ADAGRAD,
        end: width,
        state: width,
        lr: 0.02,
        eps: 1e-8,
        ..RowRule::default()
    };
    let parts = [RowPart { begin: 0, end: DIM as u32 }, RowPart { begin: DIM as u32, end: width }];
    Ok(RowUpdate {
        slab: model.slab.address(),
        slots: place(at.slots),
        sources: timer.upload(&sources)?.address(),
        parts: timer.upload(&parts)?.address(),
        starts: place(at.starts),
        occurrences: place(at.occurrences),
        classes: place(at.classes),
        rules: timer.upload(&[rule])?.address(),
        nonfinite: timer.upload(&[0u32])?.address(),
        stride: STRIDE as u32,
        width,
        part_count: 2,
        gathers: COLUMNS as u32,
        gather_bits: COLUMN_BITS,
        rule_count: 1,
        ..RowUpdate::default()
    })
}

/// Returns the products of all layers.
fn layer_products(rows: usize, model: &Model, library: Option<Precision>) -> Vec<LayerProducts> {
    let mut products = Vec::new();
    for (index, layer) in model.layers.iter().enumerate() {
        let (input, to, accumulate, columns) = match index {
            0 => (model.input, model.input_gradient, true, COLUMNS * DIM),
            _ => {
                let before = &model.layers[index - 1];
                let is_narrow = library == Some(Precision::Bf16);
                let to = if is_narrow { before.narrow[3] } else { before.gradient };
                (before.output, to, false, before.units)
            }
        };
        let input = match (library, index) {
            (Some(Precision::Bf16), 0) => model.narrow_input,
            (Some(Precision::Bf16), _) => model.layers[index - 1].narrow[2],
            _ => input,
        };
        let is_last = index + 1 == model.layers.len();
        products.push(LayerProducts {
            forward: Multiply::forward(library, rows, layer, input, is_last),
            input: Multiply::input(library, rows, layer, to, columns, accumulate),
            weight: Multiply::weight(library, rows, layer, input, model),
        });
    }
    products
}
