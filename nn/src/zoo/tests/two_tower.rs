//! Tests of the model with two towers. The loss is compared with its definition, which is computed
//! from the vectors of the towers.

use std::num::NonZeroUsize;

use zillion_device::Workers;

use super::super::{ITEM, LOGITS, LOSS, USER, build};
use super::batch::{TestBatch, UNIQUE};
use super::spec;
use crate::{Executor, Inputs, Mode, Params, Program, Settings, StepSeed, differentiate};

pub(super) const SPEC: &str = "kind = 'two_tower'\nuser = ['c1', 'i1']\nitem = ['c0', 'c2', 'i0']\nhidden = [7]\n\
                    dim = 5\ntemperature = 0.5\nactivation = 'tanh'";

fn workers() -> Workers {
    Workers::new(NonZeroUsize::new(2).unwrap()).unwrap()
}

/// Returns the loss of training, and the loss by its definition. The latter is computed in f64 from
/// the vectors and scores of inference.
fn losses(text: &str, batch: &TestBatch, correction: Option<&[f32]>) -> (f64, f64) {
    let settings = Settings { lanes: 3, tile_rows: 4, ..Settings::default() };
    let spec = spec(text);
    let infer = build(&spec, &batch.model, Mode::Infer).unwrap();
    let outputs = [USER, ITEM, LOGITS].map(|name| infer.output(name).unwrap());
    let mut executor = Executor::new(Program::infer(&infer, &outputs, settings).unwrap());
    let mut params = Params::init(&infer.params, 3);
    executor.infer(&workers(), &batch.view(), &params).unwrap();
    let [user, item, score] = outputs
        .map(|id| executor.output(id).unwrap().iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());

    let graph = build(&spec, &batch.model, Mode::Train).unwrap();
    let train = differentiate(&graph, graph.output(LOSS).unwrap()).unwrap();
    let mut executor = Executor::new(Program::train(&train, settings).unwrap());
    let mut rows = vec![0.0; UNIQUE * batch.stride];
    let view = batch.view();
    let mut numeric = view.numeric.clone();
    numeric.extend(correction);
    let view = Inputs { numeric, ..view };
    let seed = StepSeed { seed: 1, step: 1 };
    executor.train(&workers(), &view, &mut params, seed, &mut [&mut rows]).unwrap();
    let found = f64::from(executor.loss().unwrap());

    let dim = user.len() / batch.rows;
    let dot = |i: usize, j: usize| -> f64 {
        (0..dim).map(|k| user[i * dim + k] * item[j * dim + k]).sum::<f64>() / 0.5
    };
    let id = |row: usize| batch.columns[0].inverse[row];
    let c = |row: usize| correction.map_or(0.0, |c| f64::from(c[row]));
    let (mut sum, mut total) = (0.0, 0.0);
    for (i, score) in score.into_iter().enumerate() {
        assert!((dot(i, i) - score).abs() < 1e-5);
        let others = (0..batch.rows).filter(|&j| j == i || id(j) != id(i));
        let all: f64 = others.map(|j| (dot(i, j) - c(j)).exp()).sum();
        let weight = f64::from(batch.weight[i] * batch.labels[i]);
        sum += weight * (all.ln() - (dot(i, i) - c(i)));
        total += weight;
    }
    (found, sum / total)
}

#[test]
fn the_loss_is_a_softmax_over_the_items_of_the_batch() {
    let batch = TestBatch::new(31, 37, 4, 2);
    let shares: Vec<f32> = (0..37).map(|row| -1.0 - (row % 5) as f32).collect();
    for (extra, correction) in [
        ("", Some(&shares[..])),
        ("\nnormalise = false", Some(&shares[..])),
        ("\nsampling_correction = false", None),
    ] {
        let (found, expected) = losses(&format!("{SPEC}{extra}"), &batch, correction);
        assert!((found - expected).abs() < 1e-5, "{extra}: {found} {expected}");
    }
    // Without labels, every row counts.
    let mut all = TestBatch::new(31, 37, 4, 2);
    all.labels.fill(1.0);
    let (labelled, _) = losses(SPEC, &all, Some(&shares));
    all.model.labels.clear();
    let (found, expected) = losses(SPEC, &all, Some(&shares));
    assert!((found - expected).abs() < 1e-5 && found == labelled, "{found} {expected} {labelled}");
}

#[test]
fn a_batch_of_one_item_or_of_no_positive_has_no_loss() {
    let mut batch = TestBatch::new(32, 9, 4, 2);
    let shares = [-1.0; 9];
    batch.labels.fill(0.0);
    assert_eq!(losses(SPEC, &batch, Some(&shares)).0, 0.0);
    // All rows have the same item, so each row is compared only with itself.
    batch.labels.fill(1.0);
    let first = batch.columns[0].inverse[0];
    let one = (0..9).all(|row| batch.columns[0].inverse[row] == first);
    assert!(!one, "the batch has several items");
    let (found, expected) = losses(SPEC, &batch, Some(&shares));
    assert!((found - expected).abs() < 1e-5 && found > 0.1, "{found} {expected}");
}

#[test]
fn features_that_do_not_fit_are_refused_by_name() {
    let batch = TestBatch::new(33, 5, 4, 2);
    let refused =
        |text: &str| build(&spec(text), &batch.model, Mode::Train).unwrap_err().to_string();
    for (from, to, message) in [
        ("user = ['c1', 'i1']", "user = ['c1', 'i7']", "\"i1\" is in neither tower"),
        ("user = ['c1', 'i1']", "user = ['c1', 'i1', 'c2']", "\"c2\" is named 2 times"),
        ("user = ['c1', 'i1']", "user = []", "names no feature"),
        ("user = ['c1', 'i1']", "user = ['c1', 'i1', 'x']", "unknown feature \"x\""),
        ("dim = 5", "dim = 5\nitem_id = 'c1'", "is not in the item's tower"),
        ("item = ['c0', 'c2', 'i0']", "item = ['i0', 'c0', 'c2']", "has no single id in each row"),
    ] {
        assert!(SPEC.contains(from), "{from}");
        let found = refused(&SPEC.replacen(from, to, 1));
        assert!(found.contains(message), "{message}: {found}");
    }
}
