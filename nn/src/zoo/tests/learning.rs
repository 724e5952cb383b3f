//! Tests of models that run. Logits and gradients are compared with the f64 reference, and the loss
//! must decrease.

use std::num::NonZeroUsize;

use zillion_device::Workers;

use super::super::{LOGITS, LOSS, PROBABILITIES, build};
use super::batch::{TestBatch, UNIQUE};
use super::reference::Reference;
use super::shapes::SMALL;
use super::spec;
use crate::optim::{DenseOptimizer, DenseOptimizerSpec};
use crate::{Executor, Mode, Params, Program, Settings, StepSeed, differentiate};

const STEP: StepSeed = StepSeed { seed: 7, step: 3 };

fn workers() -> Workers {
    Workers::new(NonZeroUsize::new(2).unwrap()).unwrap()
}

/// Returns settings with small tiles and lanes, so that even a small batch is divided.
fn settings() -> Settings {
    Settings { lanes: 3, tile_rows: 4, ..Settings::default() }
}

fn executor(text: &str, batch: &TestBatch, mode: Mode) -> Executor {
    let graph = build(&spec(text), &batch.model, mode).unwrap();
    let program = match mode {
        Mode::Train => {
            let loss = graph.output(LOSS).unwrap();
            Program::train(&differentiate(&graph, loss).unwrap(), settings())
        }
        Mode::Infer => {
            let outputs = [LOGITS, PROBABILITIES].map(|name| graph.output(name).unwrap());
            Program::infer(&graph, &outputs, settings())
        }
    };
    Executor::new(program.unwrap())
}

/// Returns parameters that differ from their initial values. This includes biases, slopes and
/// running statistics.
fn random_params(executor: &Executor, seed: u64) -> Params {
    let mut params = Params::init(&executor.program().graph().params, seed);
    for (index, (_, values)) in params.iter_mut().enumerate() {
        for (i, value) in values.iter_mut().enumerate() {
            let bits = zillion_feature::random::combine(seed + index as u64, i as u64);
            *value += 0.4 * (zillion_feature::random::unit_f32(bits as u32) - 0.4);
        }
    }
    params
}

#[test]
fn inference_gives_what_the_formulas_say() {
    for text in SMALL {
        for numeric in [0, 3] {
            let batch = TestBatch::new(11, 30, 4, numeric);
            let mut executor = executor(text, &batch, Mode::Infer);
            let params = random_params(&executor, 5);
            executor.infer(&workers(), &batch.view(), &params).unwrap();
            let output = |name| executor.named_output(name).unwrap();
            let expected = Reference::new(&batch, &params, false).logits(&spec(text));
            assert_eq!(output(LOGITS).len(), expected.len());
            for ((&logit, &probability), expected) in
                output(LOGITS).iter().zip(output(PROBABILITIES)).zip(expected)
            {
                let error = (f64::from(logit) - expected).abs();
                assert!(error < 2e-5 * (1.0 + expected.abs()), "{text}: {logit} {expected}");
                let expected = 1.0 / (1.0 + (-expected).exp());
                assert!((f64::from(probability) - expected).abs() < 1e-5, "{text}");
            }
        }
    }
}

/// Compares a few elements of each gradient, of parameters and of rows, with the slope of the
/// reference's loss.
#[test]
fn gradients_are_slopes() {
    let h = 1e-5;
    for text in SMALL {
        for numeric in [0, 3] {
            let spec = spec(text);
            let batch = TestBatch::new(12, 30, 4, numeric);
            let mut executor = executor(text, &batch, Mode::Train);
            let mut params = random_params(&executor, 6);
            let mut reference = Reference::new(&batch, &params, true);
            let mut rows = vec![f32::NAN; UNIQUE * batch.stride];
            let view = batch.view();
            executor.train(&workers(), &view, &mut params, STEP, &mut [&mut rows]).unwrap();

            let expected = reference.loss(&spec);
            let loss = f64::from(executor.loss().unwrap());
            assert!((loss - expected).abs() < 1e-5, "{text}: {loss} {expected}");

            let close = |found: f32, slope: f64| {
                (f64::from(found) - slope).abs() < 2e-5 + 1e-3 * slope.abs()
            };
            for (id, found) in executor.param_grads() {
                let name = params.specs()[id.0 as usize].name.clone();
                for i in picks(found.len()) {
                    let slope = slope(h, |by| {
                        reference.params.get_mut(&name).unwrap().1[i] += by;
                        let loss = reference.loss(&spec);
                        reference.params.get_mut(&name).unwrap().1[i] -= by;
                        loss
                    });
                    assert!(close(found[i], slope), "{text} {name}[{i}]: {} {slope}", found[i]);
                }
            }
            let trainable = params.specs().iter().filter(|param| param.trainable).count();
            assert_eq!(executor.param_grads().count(), trainable, "{text}");
            for (i, &found) in rows.iter().enumerate() {
                let slope = slope(h, |by| {
                    reference.table[i] += by;
                    let loss = reference.loss(&spec);
                    reference.table[i] -= by;
                    loss
                });
                assert!(close(found, slope), "{text} row float {i}: {found} {slope}");
            }
        }
    }
}

/// Returns at most six indices below `len`, at about equal distances.
fn picks(len: usize) -> impl Iterator<Item = usize> {
    (0..len.min(6)).map(move |pick| pick * len / len.min(6))
}

fn slope(h: f64, mut loss: impl FnMut(f64) -> f64) -> f64 {
    (loss(h) - loss(-h)) / (2.0 * h)
}

#[test]
fn every_model_learns() {
    let workers = workers();
    for text in SMALL {
        for numeric in [0, 3] {
            let mut batch = TestBatch::new(13, 60, 4, numeric);
            let mut executor = executor(text, &batch, Mode::Train);
            let mut params = Params::init(&executor.program().graph().params, 1);
            let adam = DenseOptimizerSpec::Adam { lr: 0.02, beta1: 0.9, beta2: 0.999, eps: 1e-8 };
            let mut optimizer = DenseOptimizer::new(adam, 0.0, params.specs()).unwrap();
            let mut losses = Vec::new();
            for step in 0..60 {
                let mut rows = vec![0.0; batch.table.len()];
                let seed = StepSeed { seed: 1, step };
                let view = batch.view();
                executor.train(&workers, &view, &mut params, seed, &mut [&mut rows]).unwrap();
                losses.push(executor.loss().unwrap());
                let gradient = |id| executor.param_grad(id);
                optimizer.step(&mut params, gradient, 1.0, 1.0, &workers).unwrap();
                batch.table.iter_mut().zip(&rows).for_each(|(weight, g)| *weight -= g);
            }
            let (first, last) = (losses[0], losses[losses.len() - 1]);
            assert!(last < 0.85 * first, "{text} ({numeric} numbers): {first} {last}");
        }
    }
}

#[test]
fn dropout_drops_in_training_alone() {
    let batch = TestBatch::new(14, 40, 4, 2);
    let text = "kind = 'dnn'\nhidden = [16]\ndropout = 0.5";
    let mut train = executor(text, &batch, Mode::Train);
    let mut params = random_params(&train, 8);
    let mut rows = vec![0.0; batch.table.len()];
    let mut losses = Vec::new();
    for step in [1, 2, 1] {
        let seed = StepSeed { seed: 1, step };
        train.train(&workers(), &batch.view(), &mut params, seed, &mut [&mut rows]).unwrap();
        losses.push(train.loss().unwrap());
    }
    assert_eq!(losses[0], losses[2], "a mask is a function of the step");
    assert_ne!(losses[0], losses[1]);

    let mut infer = executor(text, &batch, Mode::Infer);
    infer.infer(&workers(), &batch.view(), &params).unwrap();
    let logits = infer.named_output(LOGITS).unwrap();
    let expected = Reference::new(&batch, &params, false).logits(&spec(text));
    let same = |(&found, expected): (&f32, &f64)| (f64::from(found) - expected).abs() < 1e-5;
    assert!(logits.iter().zip(&expected).all(same));
}

#[test]
fn a_shift_moves_the_logits_of_inference_and_nothing_else() {
    let plain = TestBatch::new(3, 10, 4, 2);
    let mut shifted = TestBatch::new(3, 10, 4, 2);
    shifted.model.labels[0].logit_shift = -2.5;
    for text in SMALL {
        let trained = |batch: &TestBatch| build(&spec(text), &batch.model, Mode::Train).unwrap();
        assert_eq!(format!("{:?}", trained(&plain)), format!("{:?}", trained(&shifted)), "{text}");
        let outputs = |batch: &TestBatch| {
            let mut executor = executor(text, batch, Mode::Infer);
            let params = random_params(&executor, 1);
            executor.infer(&workers(), &batch.view(), &params).unwrap();
            [LOGITS, PROBABILITIES].map(|name| executor.named_output(name).unwrap().to_vec())
        };
        let ([before, _], [after, probabilities]) = (outputs(&plain), outputs(&shifted));
        for ((before, after), probability) in before.iter().zip(after).zip(probabilities) {
            assert_eq!(before - 2.5, after, "{text}");
            assert!((probability - 1.0 / (1.0 + (-after).exp())).abs() < 1e-6, "{text}");
        }
    }
}
