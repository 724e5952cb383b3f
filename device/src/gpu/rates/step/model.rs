//! The memory of a step: parameters with their state, the table, and what a batch is computed into.

use super::super::Timer;
use super::super::rows::COLUMNS;
use super::batch::{Batches, NUMBERS, unit_of};
use crate::gpu::error::GpuError;
use crate::gpu::kernels::{
    COPY_WEIGHTS, CopyWeights, DensePiece, DenseRule, Narrow, RangeSums, Split, Transpose,
    WeightCopy,
};
use crate::gpu::memory::Memory;

/// The dimension of a table's vectors. A linear weight and the state follow them.
pub(super) const DIM: usize = 16;
/// The distance of two rows of the table in floats.
pub(super) const STRIDE: usize = 32;
/// The number of floats of a piece of a parameter.
const PIECE: usize = 16 * 1024;
/// The number of steps whose rules and losses have a place.
pub(super) const RING: usize = 4096;

/// The sizes of a step.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) units: Vec<usize>,
    /// The number of rows of a tile and the number of lanes.
    pub(super) tile: usize,
    pub(super) lanes: usize,
}

/// A dense parameter with its state and its gradient.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) weights: Memory,
    pub(super) states: [Memory; 2],
    pub(super) gradient: Memory,
    /// The floats that the optimizer updates.
    pub(super) n: usize,
    pub(super) initial: Vec<f32>,
}

/// A layer with what it computes.
#[derive(Debug)]
pub(super) struct Layer {
    /// The number of inputs, and the same with the columns of padding.
    pub(super) inputs: usize,
    pub(super) padded: usize,
    pub(super) units: usize,
    pub(super) weight: Parameter,
    pub(super) transposed: Memory,
    pub(super) bias: Parameter,
    pub(super) output: Memory,
    pub(super) gradient: Memory,
    pub(super) bias_parts: Memory,
    /// Copies of type bf16 of the weight, its transpose, the output and the gradient.
    pub(super) narrow: [Memory; 4],
    pub(super) narrow_bias: Memory,
}

impl Layer {
    /// Returns the weight, its transpose and the bias with their copies of type bf16.
    pub(super) fn narrowed_weights(&self) -> [(Memory, Memory); 3] {
        [
            (self.weight.weights, self.narrow[0]),
            (self.transposed, self.narrow[1]),
            (self.bias.weights, self.narrow_bias),
        ]
    }
}

/// Returns the copies of the weights and the biases of all layers that products read.
fn weight_copies(layers: &[Layer]) -> Vec<WeightCopy> {
    let mut copies = Vec::new();
    for layer in layers {
        let [narrow, narrow_transposed, ..] = layer.narrow;
        let is_narrow = narrow.bytes() > 0;
        let units = layer.units as u32;
        let weight = WeightCopy {
            weight: layer.weight.weights.address(),
            transposed: layer.transposed.address(),
            rows: layer.padded as u32,
            cols: units,
            ldi: units,
            lds: units,
            ldo: layer.padded as u32,
            col_end: units,
            row_end: layer.padded as u32,
            ..WeightCopy::default()
        };
        if !is_narrow {
            copies.push(weight);
            continue;
        }
        let (narrow, narrow_transposed) = (narrow.address(), narrow_transposed.address());
        copies.push(WeightCopy { transposed: 0, narrow, narrow_transposed, ..weight });
        let (weight, narrow) = (layer.bias.weights.address(), layer.narrow_bias.address());
        copies.push(WeightCopy {
            weight,
            narrow,
            rows: 1,
            cols: units,
            ldi: units,
            lds: units,
            col_end: units,
            row_end: 1,
            ..WeightCopy::default()
        });
    }
    copies
}

/// Returns the rounding of all floats of `wide`, if there is memory for it.
pub(super) fn narrowing(wide: Memory, narrow: Memory) -> Option<Narrow> {
    let n = narrow.bytes() as u64 / 2;
    (n > 0).then(|| Narrow { x: wide.address(), out: narrow.address(), n })
}

/// All memory of a step.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) layers: Vec<Layer>,
    pub(super) head: Parameter,
    pub(super) head_bias: Parameter,
    pub(super) linear: Parameter,
    pub(super) slab: Memory,
    block: Vec<f32>,
    pub(super) input: Memory,
    pub(super) narrow_input: Memory,
    pub(super) input_gradient: Memory,
    pub(super) linear_values: Memory,
    /// Columns: the interaction, the sum of linear weights, the linear part of numbers, the last
    /// layer, the logit, and the gradient of the logit.
    pub(super) columns: [Memory; 6],
    pub(super) split: Split,
    pub(super) tiles: usize,
    pub(super) outer_parts: Memory,
    pub(super) head_parts: [Memory; 3],
    pub(super) tile_sums: Memory,
    pub(super) loss: Memory,
    pub(super) one: Memory,
    pub(super) share: Memory,
    pub(super) rule: Memory,
    pub(super) rules: Memory,
    pub(super) ring: Memory,
    pub(super) pieces: Memory,
    pub(super) piece_count: usize,
    /// The launch that makes all copies of weights.
    pub(super) copies: CopyWeights,
}

fn parameter(
    timer: &mut Timer<'_>,
    n: usize,
    stored: usize,
    scale: f32,
    seed: u64,
) -> Result<Parameter, GpuError> {
    let mut initial: Vec<f32> = (0..n as u64).map(|i| scale * unit_of(seed << 48 | i)).collect();
    initial.resize(stored, 0.0);
    Ok(Parameter {
        weights: timer.allocate(stored * 4)?,
        states: [timer.allocate(stored * 4)?, timer.allocate(stored * 4)?],
        gradient: timer.allocate(stored * 4)?,
        n,
        initial,
    })
}

/// Returns the rule of Adam in a step, which is counted from 1.
pub(super) fn adam(step: usize) -> DenseRule {
    let (beta1, beta2, rate) = (0.9f64, 0.999f64, 1e-3f64);
    let t = step as i32;
    DenseRule {
        kind: DenseRule::ADAM,
        rate: (rate / (1.0 - beta1.powi(t))) as f32,
        eps: 1e-8,
        kept: 1.0,
        a: beta2 as f32,
        b: (1.0 - beta1) as f32,
        c: (1.0 - beta2) as f32,
        d: (1.0 - beta2.powi(t)).sqrt() as f32,
        ..DenseRule::default()
    }
}

/// Cuts parameters into the pieces that the blocks of a launch update.
fn cut_pieces<'p>(parameters: impl Iterator<Item = &'p Parameter>) -> Vec<DensePiece> {
    let mut pieces = Vec::new();
    for one in parameters {
        for begin in (0..one.n).step_by(PIECE) {
            let skip = 4 * begin as u64;
            pieces.push(DensePiece {
                weights: one.weights.address() + skip,
                first: one.states[0].address() + skip,
                second: one.states[1].address() + skip,
                gradient: one.gradient.address() + skip,
                n: PIECE.min(one.n - begin) as u32,
                rule: 0,
            });
        }
    }
    pieces
}

/// Returns the initial floats of some rows of the table.
fn initial_rows(rows: usize) -> Vec<f32> {
    let mut block = vec![0.0; rows * STRIDE];
    for (row, floats) in block.chunks_mut(STRIDE).enumerate() {
        for (i, x) in floats[..=DIM].iter_mut().enumerate() {
            *x = 0.02 * unit_of(1 << 62 | (row * STRIDE + i) as u64);
        }
    }
    block
}

impl Model {
    /// Allocates all memory. [`Model::reset`] fills it.
    pub(super) fn new(
        timer: &mut Timer<'_>,
        batches: &Batches,
        sizes: &Sizes,
        is_narrow: bool,
    ) -> Result<Self, GpuError> {
        let (rows, lanes) = (batches.rows, sizes.lanes);
        let count = rows.div_ceil(sizes.tile);
        let tiles: Vec<u32> =
            (0..=count).map(|tile| (tile * sizes.tile).min(rows) as u32).collect();
        let ends: Vec<u32> = (0..=lanes).map(|lane| (lane * count / lanes) as u32).collect();
        let split = Split {
            tiles: timer.upload(&tiles)?.address(),
            lanes: timer.upload(&ends)?.address(),
            lane_count: lanes as u32,
            unused: 0,
        };
        let narrow = |timer: &mut Timer<'_>, count: usize| match is_narrow {
            true => timer.allocate(count * 2),
            false => Ok(Memory::NULL),
        };
        let parts = lanes.max(RangeSums::ranges(rows));
        let mut layers: Vec<Layer> = Vec::new();
        let mut inputs = COLUMNS * DIM + NUMBERS;
        let first_padded = inputs.next_multiple_of(4);
        let mut outer = 0;
        for (index, &units) in sizes.units.iter().enumerate() {
            let padded = inputs.next_multiple_of(4);
            let scale = (6.0 / inputs as f32).sqrt();
            let seed = 2 * index as u64 + 1;
            layers.push(Layer {
                inputs,
                padded,
                units,
                weight: parameter(timer, inputs * units, padded * units, scale, seed)?,
                transposed: timer.allocate(padded * units * 4)?,
                bias: parameter(timer, units, units, 0.0, seed + 1)?,
                output: timer.allocate(rows * units * 4)?,
                gradient: timer.allocate(rows * units * 4)?,
                bias_parts: timer.allocate(parts * units * 4)?,
                narrow: [
                    narrow(timer, padded * units)?,
                    narrow(timer, padded * units)?,
                    narrow(timer, rows * units)?,
                    narrow(timer, rows * units)?,
                ],
                narrow_bias: narrow(timer, units)?,
            });
            outer = outer.max(lanes * padded * units * 4);
            inputs = units;
        }
        let head = parameter(timer, inputs, inputs, (6.0 / inputs as f32).sqrt(), 100)?;
        let head_bias = parameter(timer, 1, 4, 0.0, 101)?;
        let linear = parameter(timer, NUMBERS, 16, 0.1, 102)?;
        let of_layers = layers.iter().flat_map(|layer| [&layer.weight, &layer.bias]);
        let pieces = cut_pieces(of_layers.chain([&head, &head_bias, &linear]));
        let mut weights = weight_copies(&layers);
        let copies = CopyWeights::new(&mut weights);
        let copies = CopyWeights { copies: timer.upload(&weights)?.address(), ..copies };
        let rules: Vec<DenseRule> = (1..=RING).map(adam).collect();
        let block = initial_rows(batches.table_rows.min(65_536));
        let mut column = || timer.allocate(rows * 4);
        let columns = [column()?, column()?, column()?, column()?, column()?, column()?];
        Ok(Self {
            head_parts: [
                timer.allocate(2 * parts * inputs * 4)?,
                timer.allocate(parts * 16 * 4)?,
                timer.allocate(parts * 4)?,
            ],
            layers,
            head,
            head_bias,
            linear,
            slab: timer.allocate(batches.table_rows * STRIDE * 4)?,
            block,
            input: timer.allocate(rows * first_padded * 4)?,
            narrow_input: narrow(timer, rows * first_padded)?,
            input_gradient: timer.allocate(rows * first_padded * 4)?,
            linear_values: timer.allocate(rows * (COLUMNS + 2) * 4)?,
            columns,
            split,
            tiles: count,
            outer_parts: timer.allocate(outer)?,
            tile_sums: timer.allocate(count * 4)?,
            loss: timer.upload(&[0f32])?,
            one: timer.upload(&[1f32])?,
            share: timer.upload(&[1.0 / rows as f32])?,
            rule: timer.upload(&rules[..1])?,
            rules: timer.upload(&rules)?,
            ring: timer.allocate(RING * 4)?,
            piece_count: pieces.len(),
            pieces: timer.upload(&pieces)?,
            copies,
        })
    }

    /// Returns all dense parameters in the order of their pieces.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let of_layers = self.layers.iter().flat_map(|layer| [&layer.weight, &layer.bias]);
        of_layers.chain([&self.head, &self.head_bias, &self.linear])
    }

    /// Returns the launch that writes a layer's weight in the other order.
    pub(super) fn transpose(layer: &Layer) -> Transpose {
        Transpose {
            input: layer.weight.weights.address(),
            out: layer.transposed.address(),
            rows: layer.padded as u32,
            cols: layer.units as u32,
            ldi: layer.units as u32,
            ldo: layer.padded as u32,
        }
    }

    /// Gives all memory its first values.
    pub(super) fn reset(&self, timer: &Timer<'_>) -> Result<(), GpuError> {
        let (gpu, stream) = (timer.gpu, timer.stream);
        for one in self.parameters() {
            gpu.upload(stream, one.weights, bytemuck::cast_slice(&one.initial))?;
            for memory in one.states.into_iter().chain([one.gradient]) {
                gpu.fill(stream, memory, 0)?;
            }
        }
        let block = self.block.len() * 4;
        gpu.upload(stream, self.slab.part(0, block)?, bytemuck::cast_slice(&self.block))?;
        let first = self.slab.part(0, block)?;
        let mut at = block;
        while at < self.slab.bytes() {
            let bytes = block.min(self.slab.bytes() - at);
            gpu.copy(stream, self.slab.part(at, bytes)?, first.part(0, bytes)?)?;
            at += bytes;
        }
        for memory in [self.input, self.input_gradient, self.linear_values, self.ring] {
            gpu.fill(stream, memory, 0)?;
        }
        let all = [crate::gpu::launch::Param::new(&self.copies)];
        gpu.launch(stream, &self.copies.geometry().launch(&COPY_WEIGHTS, &all, &[]))?;
        gpu.synchronize(stream)
    }

    /// Returns a digest of all weights, states and rows of the table.
    pub(super) fn digest(&self, timer: &Timer<'_>) -> Result<u64, GpuError> {
        const PART: usize = 64 << 20;
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        let mut bytes = vec![0u8; PART];
        let all = self.parameters().flat_map(|one| [one.weights, one.states[0], one.states[1]]);
        for memory in all.chain([self.slab]) {
            for at in (0..memory.bytes()).step_by(PART) {
                let part = &mut bytes[..PART.min(memory.bytes() - at)];
                timer.gpu.download(timer.stream, part, memory.part(at, part.len())?)?;
                for word in part.chunks(8) {
                    let mut whole = [0; 8];
                    whole[..word.len()].copy_from_slice(word);
                    digest = (digest ^ u64::from_le_bytes(whole)).wrapping_mul(0x0100_0000_01b3);
                    digest ^= digest >> 29;
                }
            }
        }
        Ok(digest)
    }
}
