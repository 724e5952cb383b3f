//! The exact step on the emulated device against the same step on the processor, by bits.

use super::batch::{Batches, HostBatch, NUMBERS};
use super::model::{DIM, STRIDE, Sizes, adam};
use super::*;
use crate::gpu::emulated::{Emulated, EmulatedOptions};
use crate::gpu::kernels::DenseRule;
use crate::gpu::rates::rows::{COLUMN_BITS, COLUMNS};
use crate::matmul::{Epilogue, Right, Scratch, View, linear, outer_product};
use crate::simd::{dot, math, sum};

const ROWS: usize = 64;
const TABLE_ROWS: u64 = COLUMNS as u64 * 40;
const TILE: usize = 12;
const LANES: usize = 3;
const STEPS: usize = 4;

/// A dense parameter on the host.
#[derive(Clone, Debug, PartialEq)]
struct Dense {
    weights: Vec<f32>,
    states: [Vec<f32>; 2],
    n: usize,
}

impl Dense {
    fn update(&mut self, rule: &DenseRule, gradient: &[f32]) {
        let [first, second] = &mut self.states;
        for (i, &g) in gradient.iter().enumerate().take(self.n) {
            first[i] += rule.b * (g - first[i]);
            second[i] = rule.a * second[i] + rule.c * (g * g);
            let denominator = second[i].sqrt() / rule.d + rule.eps;
            let w = self.weights[i];
            self.weights[i] = w * rule.kept - rule.rate * first[i] / denominator;
        }
    }
}

/// All that a step changes, on the host: weight and bias of each layer, then the head, its bias and
/// the linear part.
#[derive(Clone, Debug, PartialEq)]
struct Host {
    dense: Vec<Dense>,
    slab: Vec<f32>,
}

/// Returns the ranges of rows of the tiles of each lane.
fn lanes() -> Vec<Vec<std::ops::Range<usize>>> {
    let count = ROWS.div_ceil(TILE);
    let tile = |tile: usize| tile * TILE..((tile + 1) * TILE).min(ROWS);
    (0..LANES)
        .map(|lane| (lane * count / LANES..(lane + 1) * count / LANES).map(tile).collect())
        .collect()
}

/// Adds what each lane has summed, in the order of lanes.
fn combine(parts: Vec<Vec<f32>>) -> Vec<f32> {
    let add = |mut all: Vec<f32>, part: Vec<f32>| {
        all.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        all
    };
    parts.into_iter().reduce(add).unwrap_or_default()
}

/// Returns the sums of `cols` columns over the rows.
fn column_sums(cols: usize, term: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let of_lane = |tiles: &Vec<std::ops::Range<usize>>| {
        let mut sums = vec![0.0f32; cols];
        for row in tiles.iter().cloned().flatten() {
            sums.iter_mut().enumerate().for_each(|(col, sum)| *sum += term(row, col));
        }
        sums
    };
    combine(lanes().iter().map(of_lane).collect())
}

/// Returns the gradient of a weight.
fn weight_gradient(x: &[f32], [inputs, padded]: [usize; 2], g: &[f32], units: usize) -> Vec<f32> {
    let of_lane = |tiles: &Vec<std::ops::Range<usize>>| {
        let mut out = vec![0.0; inputs * units];
        for (index, tile) in tiles.iter().enumerate() {
            let x = View::new(&x[tile.start * padded..], tile.len(), inputs, padded);
            let g = View::new(&g[tile.start * units..], tile.len(), units, units);
            outer_product(x, g, index > 0, &mut out, units, &mut Scratch::default());
        }
        out
    };
    combine(lanes().iter().map(of_lane).collect())
}

impl Host {
    /// Runs a step and returns its loss.
    fn step(&mut self, batch: &HostBatch, units: &[usize], rule: &DenseRule) -> f32 {
        let planned = &batch.planned;
        let first = COLUMNS * DIM + NUMBERS;
        let padded: Vec<usize> = std::iter::once(first)
            .chain(units.iter().copied())
            .map(|inputs| inputs.next_multiple_of(4))
            .collect();
        let mut input = vec![0.0f32; ROWS * padded[0]];
        let mut interaction = vec![0.0f32; ROWS];
        let mut logits = vec![0.0f32; ROWS];
        let [head, head_bias, of_numbers] = [0, 1, 2].map(|i| &self.dense[2 * units.len() + i]);
        for row in 0..ROWS {
            let to = &mut input[row * padded[0]..][..first];
            let mut linear_weights = [0.0; COLUMNS];
            for column in 0..COLUMNS {
                let slot = planned.slots[planned.inverse[column][row] as usize] as usize;
                let from = &self.slab[slot * STRIDE..];
                to[column * DIM..][..DIM].copy_from_slice(&from[..DIM]);
                linear_weights[column] = from[DIM];
            }
            for column in 0..NUMBERS {
                to[COLUMNS * DIM + column] = batch.numbers[column * ROWS + row];
            }
            let mut totals = [0.0f32; DIM];
            for (k, total) in totals.iter_mut().enumerate() {
                let (mut sum, mut squares) = (0.0f32, 0.0f32);
                for v in to.chunks_exact(DIM).take(COLUMNS).map(|vector| vector[k]) {
                    sum += v;
                    squares += v * v;
                }
                *total = sum * sum - squares;
            }
            interaction[row] = 0.5 * sum(&totals);
            logits[row] = sum(&linear_weights);
        }
        let mut outputs: Vec<Vec<f32>> = Vec::new();
        for (index, &units) in units.iter().enumerate() {
            let (x, k) = match index {
                0 => (&input, first),
                _ => (&outputs[index - 1], padded[index]),
            };
            let mut out = vec![0.0; ROWS * units];
            linear(
                View::new(x, ROWS, k, padded[index]),
                Right::Plain(View::new(&self.dense[2 * index].weights, k, units, units)),
                Epilogue {
                    accumulate: false,
                    bias: Some(&self.dense[2 * index + 1].weights),
                    relu: true,
                },
                &mut out,
                units,
            );
            outputs.push(out);
        }
        let last = units.len() - 1;
        let width = units[last];
        let share = 1.0 / ROWS as f32;
        let mut slopes = vec![0.0f32; ROWS];
        for row in 0..ROWS {
            let numbers = &input[row * padded[0] + COLUMNS * DIM..][..NUMBERS];
            let of_layers = dot(&outputs[last][row * width..][..width], &head.weights[..width])
                + head_bias.weights[0];
            let linear = logits[row];
            logits[row] = of_layers
                + interaction[row]
                + linear
                + dot(numbers, &of_numbers.weights[..NUMBERS]);
            slopes[row] = share * 1.0 * (math::sigmoid(logits[row]) - batch.labels[row]);
        }
        let loss_of = |row: usize| {
            let (z, y) = (logits[row], batch.labels[row]);
            f64::from(z.max(0.0) - z * y + math::ln_1p(math::exp(-z.abs())))
        };
        let of_tile = |tile: &std::ops::Range<usize>| tile.clone().map(loss_of).sum::<f64>() as f32;
        let add = |a: f32, b: f32| a + b;
        let loss = lanes()
            .iter()
            .filter_map(|tiles| tiles.iter().map(of_tile).reduce(add))
            .reduce(add)
            .unwrap_or(0.0);

        let mut gradients = vec![Vec::new(); self.dense.len()];
        let base = 2 * units.len();
        let output = |row: usize, col: usize| outputs[last][row * width + col];
        gradients[base] = column_sums(width, |row, col| slopes[row] * output(row, col));
        gradients[base + 1] = column_sums(1, |row, _| slopes[row]);
        gradients[base + 2] = column_sums(NUMBERS, |row, col| {
            slopes[row] * input[row * padded[0] + COLUMNS * DIM + col]
        });
        let mut g: Vec<f32> = (0..ROWS * width)
            .map(|i| {
                let g = slopes[i / width] * head.weights[i % width];
                if outputs[last][i] > 0.0 { g } else { 0.0 }
            })
            .collect();
        let mut input_gradient = vec![0.0f32; ROWS * padded[0]];
        for index in (0..units.len()).rev() {
            let width = units[index];
            let (x, k) = match index {
                0 => (&input, first),
                _ => (&outputs[index - 1], padded[index]),
            };
            gradients[2 * index] = weight_gradient(x, [k, padded[index]], &g, width);
            gradients[2 * index + 1] = column_sums(width, |row, col| g[row * width + col]);
            let columns = if index == 0 { COLUMNS * DIM } else { k };
            let weights = &self.dense[2 * index].weights;
            let turned: Vec<f32> =
                (0..width * columns).map(|i| weights[i % columns * width + i / columns]).collect();
            if index == 0 {
                for (row, slope) in slopes.iter().enumerate() {
                    for k in 0..DIM {
                        let at = |column: usize| row * padded[0] + column * DIM + k;
                        let mut sum = 0.0f32;
                        (0..COLUMNS).for_each(|column| sum += input[at(column)]);
                        for column in 0..COLUMNS {
                            input_gradient[at(column)] = slope * (sum - input[at(column)]);
                        }
                    }
                }
            }
            let mut before = vec![0.0; ROWS * columns];
            let (out, out_row, accumulate) = match index {
                0 => (&mut input_gradient, padded[0], true),
                _ => (&mut before, columns, false),
            };
            linear(
                View::packed(&g, ROWS, width),
                Right::Plain(View::packed(&turned, width, columns)),
                Epilogue { accumulate, bias: None, relu: false },
                out,
                out_row,
            );
            if index > 0 {
                for (g, &y) in before.iter_mut().zip(&outputs[index - 1]) {
                    *g = if y > 0.0 { *g } else { 0.0 };
                }
                g = before;
            }
        }
        for (one, gradient) in self.dense.iter_mut().zip(&gradients) {
            one.update(rule, gradient);
        }
        for (unique, &slot) in planned.slots.iter().enumerate() {
            let mut sums = [0.0f32; DIM + 1];
            let range = planned.starts[unique] as usize..planned.starts[unique + 1] as usize;
            for &occurrence in &planned.occurrences[range] {
                let row = (occurrence >> COLUMN_BITS) as usize;
                let column = (occurrence & ((1 << COLUMN_BITS) - 1)) as usize;
                for (k, sum) in sums[..DIM].iter_mut().enumerate() {
                    *sum += input_gradient[row * padded[0] + column * DIM + k];
                }
                sums[DIM] += slopes[row];
            }
            let mut parts = [0.0f32; 8];
            sums.iter().enumerate().for_each(|(i, x)| parts[i % 8] += x * x);
            let [a, b, c, d, e, f, g, h] = parts;
            let squares = ((a + e) + (c + g)) + ((b + f) + (d + h));
            let row = &mut self.slab[slot as usize * STRIDE..][..DIM + 2];
            row[DIM + 1] += squares / (DIM + 1) as f32;
            let step = 0.02 / (row[DIM + 1].sqrt() + 1e-8);
            row.iter_mut().zip(sums).for_each(|(w, g)| *w -= step * g);
        }
        loss
    }
}

impl Step<'_> {
    fn floats(&self, memory: Memory) -> Vec<f32> {
        let mut values = vec![0f32; memory.bytes() / 4];
        let to = bytemuck::cast_slice_mut(&mut values);
        self.timer.gpu.download(self.timer.stream, to, memory).expect("a download");
        values
    }

    fn host(&self) -> Host {
        let of = |one: &model::Parameter| Dense {
            weights: self.floats(one.weights),
            states: one.states.map(|state| self.floats(state)),
            n: one.n,
        };
        Host {
            dense: self.model.parameters().map(of).collect(),
            slab: self.floats(self.model.slab),
        }
    }
}

#[test]
fn the_exact_step_has_the_bits_of_the_processor() {
    let batches = Batches::new(ROWS, TABLE_ROWS, [2, 6]);
    assert!(batches.most.long_rows > 0 && batches.most.medium_rows > 0, "{:?}", batches.most);
    let sizes = Sizes { units: vec![32, 32], tile: TILE, lanes: LANES };
    let mut seen = Vec::new();
    for seed in 0..4 {
        let gpu = Emulated::new(EmulatedOptions::seeded(seed));
        let mut step = Step::new(&gpu, &batches, &sizes, None).expect("a step");
        step.launches.is_split = seed % 2 == 1;
        let mut host = step.host();
        let losses: Vec<f32> = (0..STEPS)
            .map(|number| {
                let batch = &batches.all[number % batches.all.len()];
                host.step(batch, &sizes.units, &adam(number + 1))
            })
            .collect();
        for graph in [None, Some(step.capture(None).expect("a graph"))] {
            step.model.reset(&step.timer).expect("a reset");
            let before = gpu.counters();
            (0..STEPS).try_for_each(|number| step.enqueue(number, graph)).expect("steps");
            let after = gpu.counters();
            assert_eq!(after.host_waits, before.host_waits);
            assert_eq!(after.allocations, before.allocations);
            let got = step.host();
            for (index, (got, expected)) in got.dense.iter().zip(&host.dense).enumerate() {
                let at = got.weights.iter().zip(&expected.weights).position(|(a, b)| a != b);
                assert_eq!(at, None, "seed {seed}, parameter {index}");
                assert_eq!(got, expected, "seed {seed}, parameter {index}");
            }
            let at = got.slab.iter().zip(&host.slab).position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(at, None, "seed {seed}: a float of the table");
            assert_eq!(step.losses().expect("losses")[..STEPS], losses, "seed {seed}");
            seen.push(step.model.digest(&step.timer).expect("a digest"));
        }
        assert_ne!(losses[0], losses[STEPS - 1]);
        step.timer.free().expect("free memory");
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
}

#[test]
fn a_part_of_the_step_can_be_left_out() {
    let batches = Batches::new(ROWS, TABLE_ROWS, [2, 6]);
    let sizes = Sizes { units: vec![32, 32], tile: TILE, lanes: LANES };
    let gpu = Emulated::new(EmulatedOptions::seeded(1));
    let step = Step::new(&gpu, &batches, &sizes, None).expect("a step");
    let launches = |without: Option<Part>| {
        let before = gpu.counters().launches;
        let graph = step.capture(without).expect("a graph");
        step.timer.gpu.free_graph(graph).expect("a free graph");
        gpu.counters().launches - before
    };
    let whole = launches(None);
    let left_out = Part::ALL.map(|(part, _)| whole - launches(Some(part)));
    assert!(left_out.iter().all(|&count| count > 0), "{left_out:?}");
    assert_eq!(left_out.iter().sum::<u64>(), whole, "each launch belongs to one part");
}

#[test]
fn steps_of_the_library_follow_the_exact_step() {
    let batches = Batches::new(ROWS, TABLE_ROWS, [2, 6]);
    let sizes = Sizes { units: vec![32, 32], tile: TILE, lanes: LANES };
    let gpu = Emulated::new(EmulatedOptions::seeded(2));
    let run_as = |library: Option<Precision>, is_split: bool| {
        let mut step = Step::new(&gpu, &batches, &sizes, library).expect("a step");
        step.launches.is_split = is_split;
        let graph = step.capture(None).expect("a graph");
        step.model.reset(&step.timer).expect("a reset");
        (0..STEPS).try_for_each(|number| step.enqueue(number, Some(graph))).expect("steps");
        let losses = step.losses().expect("losses")[..STEPS].to_vec();
        let slab = step.floats(step.model.slab);
        step.timer.free().expect("free memory");
        (losses, slab)
    };
    // Launches for several operations change no bit.
    let run = |library: Option<Precision>| {
        let all = run_as(library, false);
        assert!(all == run_as(library, true), "{library:?}");
        all
    };
    let (losses, slab) = run(None);
    for (precision, most) in
        [(Precision::F32, 1e-5), (Precision::Tf32, 2e-3), (Precision::Bf16, 1e-2)]
    {
        let (got, got_slab) = run(Some(precision));
        for (got, exact) in got.iter().zip(&losses) {
            assert!(((got - exact) / exact).abs() < most, "{precision:?}: {got} and {exact}");
        }
        // Rows move by up to the learning rate of 0.02 in a step, whatever the gradient is.
        let squares =
            |of: &dyn Fn(usize) -> f32| (0..slab.len()).map(of).map(|x| x * x).sum::<f32>();
        let distance = (squares(&|i| got_slab[i] - slab[i]) / squares(&|i| slab[i])).sqrt();
        assert!(distance < 10.0 * most, "{precision:?}: {distance}");
    }
}
