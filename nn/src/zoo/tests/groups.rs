//! Tests of losses that compare the rows of groups: against all pairs in f64, against finite
//! differences, and over tiles and threads.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions};

use super::super::{LOGITS, LOSS, build};
use super::batch::{TestBatch, UNIQUE};
use super::spec;
use crate::zoo::LossSpec;
use crate::{Executor, GpuExecutor, Mode, Params, Program, Settings, StepSeed, differentiate};

const STEP: StepSeed = StepSeed { seed: 7, step: 3 };
const LOSSES: [LossSpec; 2] = [LossSpec::Pairwise {}, LossSpec::Listwise {}];
const MODEL: &str = "kind = 'deepfm'\nhidden = [7, 5]\nactivation = 'tanh'";

/// Creates a batch whose groups have 1, 2, 3, .. rows, with a row of weight 0 and a weight of 2.
fn batch(seed: u64, rows: usize, loss: LossSpec) -> TestBatch {
    let mut batch = TestBatch::new(seed, rows, 4, 2);
    batch.model.labels[0].loss = loss;
    let mut groups = Vec::new();
    for number in 0.. {
        let rest = rows - groups.len();
        if rest == 0 {
            break;
        }
        groups.extend(std::iter::repeat_n(number as f32, (number % 9 + 1).min(rest)));
    }
    batch.numeric.push(groups);
    batch.weight[rows / 3] = 2.0;
    batch.weight[rows / 2] = 0.0;
    batch.labels[rows / 2] = f32::NAN;
    batch
}

fn train(batch: &TestBatch, settings: Settings) -> Executor {
    let graph = build(&spec(MODEL), &batch.model, Mode::Train).unwrap();
    let loss = graph.output(LOSS).unwrap();
    Executor::new(Program::train(&differentiate(&graph, loss).unwrap(), settings).unwrap())
}

fn small() -> Settings {
    Settings { lanes: 3, tile_rows: 4, ..Settings::default() }
}

fn params(executor: &Executor) -> Params {
    let mut params = Params::init(&executor.program().graph().params, 5);
    for (index, (_, values)) in params.iter_mut().enumerate() {
        for (i, value) in values.iter_mut().enumerate() {
            let bits = zillion_feature::random::combine(5 + index as u64, i as u64);
            *value += 0.6 * (zillion_feature::random::unit_f32(bits as u32) - 0.4);
        }
    }
    params
}

fn step(executor: &mut Executor, batch: &TestBatch, params: &Params, threads: usize) -> Vec<f32> {
    let workers = Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap();
    let mut rows = vec![f32::NAN; UNIQUE * batch.stride];
    let mut params = params.clone();
    executor.train(&workers, &batch.view(), &mut params, STEP, &mut [&mut rows]).unwrap();
    rows
}

/// Computes the loss by its definition, from all pairs of rows.
fn brute_force(batch: &TestBatch, scores: &[f32], loss: LossSpec) -> f64 {
    let groups = batch.numeric.last().unwrap();
    let weight = |row: usize| f64::from(batch.weight[row]);
    let (mut sum, mut total) = (0.0, 0.0);
    for i in (0..batch.rows).filter(|&i| weight(i) > 0.0 && batch.labels[i] == 1.0) {
        let group = (0..batch.rows).filter(|&j| groups[j] == groups[i] && weight(j) > 0.0);
        let of = |row: usize| f64::from(scores[row]);
        if loss == (LossSpec::Pairwise {}) {
            for j in group.filter(|&j| batch.labels[j] == 0.0) {
                sum += weight(i) * weight(j) * (1.0 + (of(j) - of(i)).exp()).ln();
                total += weight(i) * weight(j);
            }
        } else {
            let all: f64 = group.map(|j| weight(j) * of(j).exp()).sum();
            sum += weight(i) * (all.ln() - of(i));
            total += weight(i);
        }
    }
    sum / total
}

#[test]
fn losses_of_groups_are_those_of_all_pairs() {
    for loss in LOSSES {
        for rows in [1, 5, 40, 130] {
            let batch = batch(31, rows, loss);
            let mut executor = train(&batch, small());
            let params = params(&executor);
            step(&mut executor, &batch, &params, 2);
            let scores = executor.named_output(LOGITS).unwrap();
            let expected = brute_force(&batch, scores, loss);
            let found = f64::from(executor.loss().unwrap());
            // Without a pair, the loss is 0.
            let expected = if expected.is_nan() { 0.0 } else { expected };
            assert!((found - expected).abs() < 1e-5, "{loss:?} {rows}: {found} {expected}");
        }
    }
}

#[test]
fn gradients_of_groups_are_slopes() {
    let h = 1e-2f32;
    for loss in LOSSES {
        let mut batch = batch(32, 40, loss);
        let mut executor = train(&batch, small());
        let params = params(&executor);
        let rows = step(&mut executor, &batch, &params, 2);
        let grads: Vec<_> = executor.param_grads().map(|(id, g)| (id, g.to_vec())).collect();
        let close = |found: f32, slope: f32| (found - slope).abs() < 1e-3 + 2e-2 * slope.abs();
        for (id, found) in grads {
            let name = params.specs()[id.0 as usize].name.clone();
            for i in (0..found.len()).step_by(found.len().div_ceil(5)) {
                let [up, down] = [h, -h].map(|by| {
                    let mut moved = params.clone();
                    moved.value_mut(id)[i] += by;
                    step(&mut executor, &batch, &moved, 1);
                    executor.loss().unwrap()
                });
                let slope = (up - down) / (2.0 * h);
                assert!(close(found[i], slope), "{loss:?} {name}[{i}]: {} {slope}", found[i]);
                // The same number added to all scores changes nothing.
                assert!(name != "output.bias" || found[i].abs() < 1e-6, "{}", found[i]);
            }
        }
        for i in (0..rows.len()).step_by(3) {
            let [up, down] = [h, -h].map(|by| {
                batch.table[i] += by;
                step(&mut executor, &batch, &params, 1);
                batch.table[i] -= by;
                executor.loss().unwrap()
            });
            let slope = (up - down) / (2.0 * h);
            assert!(close(rows[i], slope), "{loss:?} row float {i}: {} {slope}", rows[i]);
        }
    }
}

#[test]
fn losses_of_groups_have_the_same_bits_for_any_threads() {
    for loss in LOSSES {
        let batch = batch(33, 150, loss);
        let results = [1, 2, 3].map(|threads| {
            let mut executor = train(&batch, small());
            let params = params(&executor);
            let rows = step(&mut executor, &batch, &params, threads);
            let mut bits = vec![executor.loss().unwrap().to_bits()];
            bits.extend(rows.iter().map(|x| x.to_bits()));
            bits.extend(executor.param_grads().flat_map(|(_, g)| g.iter().map(|x| x.to_bits())));
            bits
        });
        assert!(results[0] == results[1] && results[0] == results[2], "{loss:?}");
    }
}

#[test]
fn a_device_refuses_losses_of_groups_by_the_node() {
    for loss in LOSSES {
        let batch = batch(34, 20, loss);
        let graph = build(&spec(MODEL), &batch.model, Mode::Train).unwrap();
        let train = differentiate(&graph, graph.output(LOSS).unwrap()).unwrap();
        let program = Program::train(&train, small()).unwrap();
        let device = Arc::new(Emulated::new(EmulatedOptions::seeded(1)));
        let error = GpuExecutor::new(program, device).unwrap_err().to_string();
        assert!(error.contains("loss") && error.contains("kernel"), "{error}");
    }
}
