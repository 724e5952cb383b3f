//! Tests of labels of classes: scores and losses against their definitions, gradients against
//! finite differences, and the bits of a GPU.

use std::num::NonZeroUsize;

use zillion_device::Workers;

use super::super::{LOGITS, LOSS, LabelInput, PROBABILITIES, Task, build, find_output_bias};
use super::batch::{TestBatch, UNIQUE};
use super::shapes::SMALL;
use super::spec;
use crate::zoo::LossSpec;
use crate::{Executor, Mode, Params, Program, Settings, StepSeed, differentiate};

/// The number of classes. The rows of the test batch have so many linear weights.
const CLASSES: usize = 4;
const STEP: StepSeed = StepSeed { seed: 7, step: 3 };

fn workers(threads: usize) -> Workers {
    Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

fn settings() -> Settings {
    Settings { lanes: 3, tile_rows: 4, ..Settings::default() }
}

fn label() -> LabelInput {
    let classes = (0..CLASSES).map(|class| format!("stars={class}")).collect();
    LabelInput { classes, loss: LossSpec::Softmax {}, .."stars".into() }
}

/// Creates a batch whose label has four classes that depend on the ids.
pub(super) fn batch(seed: u64, rows: usize, numeric: usize) -> TestBatch {
    let mut batch = TestBatch::new(seed, rows, 4, numeric);
    batch.model.labels = vec![label()];
    let ids = batch.columns[0].inverse.iter().zip(&batch.columns[2].inverse);
    batch.labels = ids.map(|(a, b)| ((a + 2 * b) % CLASSES as u32) as f32).collect();
    batch.weight[0] = 0.0;
    batch
}

/// Returns the models that learn one label.
pub(super) fn models() -> impl Iterator<Item = &'static str> {
    SMALL.into_iter().filter(|text| spec(text).model().learns_classes())
}

fn train(text: &str, batch: &TestBatch) -> Executor {
    let graph = build(&spec(text), &batch.model, Mode::Train).unwrap();
    let loss = graph.output(LOSS).unwrap();
    Executor::new(Program::train(&differentiate(&graph, loss).unwrap(), settings()).unwrap())
}

fn random_params(executor: &Executor) -> Params {
    let mut params = Params::init(&executor.program().graph().params, 5);
    for (index, (_, values)) in params.iter_mut().enumerate() {
        for (i, value) in values.iter_mut().enumerate() {
            let bits = zillion_feature::random::combine(5 + index as u64, i as u64);
            *value += 0.4 * (zillion_feature::random::unit_f32(bits as u32) - 0.4);
        }
    }
    params
}

/// Runs a step and returns its loss and the gradients of the rows.
fn step(executor: &mut Executor, batch: &TestBatch, params: &Params, threads: usize) -> Vec<f32> {
    let mut rows = vec![f32::NAN; UNIQUE * batch.stride];
    let mut params = params.clone();
    executor.train(&workers(threads), &batch.view(), &mut params, STEP, &mut [&mut rows]).unwrap();
    rows
}

#[test]
fn losses_are_cross_entropies_of_the_softmax() {
    for text in models() {
        let batch = batch(11, 30, 3);
        let mut executor = train(text, &batch);
        let params = random_params(&executor);
        step(&mut executor, &batch, &params, 2);
        let tasks = Task::of_classes(0, &label().classes);
        let scores: Vec<Vec<f32>> = tasks
            .iter()
            .enumerate()
            .map(|(index, task)| {
                executor.named_output(&task.output(LOGITS, index)).unwrap().to_vec()
            })
            .collect();
        let (mut sum, mut total) = (0.0, 0.0);
        for (row, (&label, &weight)) in batch.labels.iter().zip(&batch.weight).enumerate() {
            let logarithm = |class: usize| f64::from(scores[class][row]);
            let all: f64 = (0..CLASSES).map(|class| logarithm(class).exp()).sum();
            assert!((all - 1.0).abs() < 1e-5, "{text}: {all}");
            let weight = f64::from(weight);
            sum -= weight * logarithm(label as usize);
            total += weight;
        }
        let loss = f64::from(executor.loss().unwrap());
        assert!((loss - sum / total).abs() < 1e-5, "{text}: {loss} {}", sum / total);
        // The probabilities of the graph for inference are those of the logarithms.
        if text.contains("batch_norm") || text.contains("dice") {
            continue;
        }
        let graph = build(&spec(text), &batch.model, Mode::Infer).unwrap();
        let output = graph.output(PROBABILITIES).unwrap();
        let mut executor = Executor::new(Program::infer(&graph, &[output], settings()).unwrap());
        executor.infer(&workers(2), &batch.view(), &params).unwrap();
        let found = executor.named_output(PROBABILITIES).unwrap();
        for (at, &probability) in found.iter().enumerate() {
            let expected = f64::from(scores[at % CLASSES][at / CLASSES]).exp();
            assert!((f64::from(probability) - expected).abs() < 1e-5, "{text}");
        }
    }
}

#[test]
fn gradients_of_classes_are_slopes() {
    let h = 1e-2f32;
    for text in models().filter(|text| !text.contains("batch_norm") && !text.contains("dice")) {
        let mut batch = batch(12, 30, 3);
        let mut executor = train(text, &batch);
        let params = random_params(&executor);
        let rows = step(&mut executor, &batch, &params, 2);
        let grads: Vec<_> = executor.param_grads().map(|(id, grad)| (id, grad.to_vec())).collect();
        let close = |found: f32, slope: f32| (found - slope).abs() < 2e-3 + 2e-2 * slope.abs();
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
                assert!(close(found[i], slope), "{text} {name}[{i}]: {} {slope}", found[i]);
            }
        }
        for i in (0..rows.len()).step_by(7) {
            let [up, down] = [h, -h].map(|by| {
                batch.table[i] += by;
                step(&mut executor, &batch, &params, 1);
                batch.table[i] -= by;
                executor.loss().unwrap()
            });
            let slope = (up - down) / (2.0 * h);
            assert!(close(rows[i], slope), "{text} row float {i}: {} {slope}", rows[i]);
        }
    }
}

#[test]
fn steps_of_classes_have_the_same_bits_for_any_threads() {
    for text in ["kind = 'deepfm'\nhidden = [7, 5]", "kind = 'lr'"] {
        let batch = batch(13, 50, 3);
        let results = [1, 2, 3].map(|threads| {
            let mut executor = train(text, &batch);
            let params = random_params(&executor);
            let rows = step(&mut executor, &batch, &params, threads);
            let mut bits = vec![executor.loss().unwrap().to_bits()];
            bits.extend(rows.iter().map(|x| x.to_bits()));
            bits.extend(executor.param_grads().flat_map(|(_, g)| g.iter().map(|x| x.to_bits())));
            bits
        });
        assert!(results[0] == results[1] && results[0] == results[2], "{text}");
    }
}

/// Computes the scores of a factorisation machine by its definition: for each class the linear
/// weights, the numbers, the bias, and the weighted products of all pairs of vectors.
#[test]
fn a_factorisation_machine_has_weights_for_each_class() {
    let batch = batch(14, 9, 2);
    let mut executor = train("kind = 'fm'", &batch);
    let params = random_params(&executor);
    step(&mut executor, &batch, &params, 1);
    let value = |name: &str| {
        let at = params.specs().iter().position(|spec| spec.name == name).unwrap();
        params.iter().nth(at).unwrap().1.to_vec()
    };
    let (bias, numeric, matrix) =
        (value("wide.bias"), value("wide.numeric.weight"), value("fm.weight"));
    for row in 0..batch.rows {
        // The pooled row of each of the three columns.
        let pooled: Vec<Vec<f64>> = batch
            .columns
            .iter()
            .map(|column| {
                let (start, end) = match &column.offsets {
                    Some(offsets) => (offsets[row] as usize, offsets[row + 1] as usize),
                    None => (row, row + 1),
                };
                let count = if column.offsets.is_some() { (end - start).max(1) } else { 1 };
                let mut sum = vec![0.0; batch.stride];
                for &id in &column.inverse[start..end] {
                    let floats = &batch.table[id as usize * batch.stride..][..batch.stride];
                    sum.iter_mut()
                        .zip(floats)
                        .for_each(|(s, &x)| *s += f64::from(x) / count as f64);
                }
                sum
            })
            .collect();
        let scores: Vec<f64> = (0..CLASSES)
            .map(|class| {
                let mut z = f64::from(bias[class]);
                z += pooled.iter().map(|x| x[4 + class]).sum::<f64>();
                for (index, column) in batch.numeric.iter().enumerate() {
                    z += f64::from(column[row]) * f64::from(numeric[index * CLASSES + class]);
                }
                for d in 0..4 {
                    let pairs = pooled[0][d] * pooled[1][d]
                        + pooled[0][d] * pooled[2][d]
                        + pooled[1][d] * pooled[2][d];
                    z += pairs * f64::from(matrix[d * CLASSES + class]);
                }
                z
            })
            .collect();
        let total = scores.iter().map(|z| z.exp()).sum::<f64>().ln();
        for (index, task) in Task::of_classes(0, &label().classes).iter().enumerate() {
            let found = executor.named_output(&task.output(LOGITS, index)).unwrap()[row];
            assert!((f64::from(found) - (scores[index] - total)).abs() < 1e-5, "{row} {index}");
        }
    }
}

#[test]
fn each_class_has_an_output_bias_of_its_own() {
    for text in models() {
        let batch = batch(15, 9, 2);
        let graph = build(&spec(text), &batch.model, Mode::Train).unwrap();
        let tasks = Task::of_classes(0, &label().classes);
        for (index, task) in tasks.iter().enumerate() {
            let score = graph.output(&task.output(LOGITS, index)).unwrap();
            let found = find_output_bias(&graph, score);
            let (param, element) = found.unwrap_or_else(|| panic!("{text} has no bias"));
            assert_eq!((element, graph.param(param).cols), (index, CLASSES), "{text}");
        }
    }
}

#[test]
fn models_of_several_towers_refuse_classes_by_name() {
    for text in [
        "kind = 'mmoe'",
        "kind = 'shared_bottom'",
        "kind = 'two_tower'\nuser = ['c0']\nitem = ['c2']",
    ] {
        let batch = batch(16, 9, 0);
        let error = build(&spec(text), &batch.model, Mode::Train).unwrap_err().to_string();
        assert!(error.contains("cannot learn label `stars`, which has classes"), "{error}");
    }
    let mut batch = batch(16, 9, 0);
    batch.model.labels.push("click".into());
    let error = build(&spec("kind = 'lr'"), &batch.model, Mode::Train).unwrap_err().to_string();
    assert!(error.contains("lr learns one label"), "{error}");
}
