//! Tests of the products of layers. Packed weights must be the weights of the current run, and the
//! result of a row must not depend on other rows.

use zillion_device::matmul::bf16::Instructions;
use zillion_nn::{
    DenseType, Executor, Graph, GraphBuilder, GraphInputs, Inputs, LabelView, Mode, PackedParams,
    Params, Passes, Program, Settings, StepSeed, TrainGraph, differentiate,
};

use crate::check::{params_of, workers};
use crate::data::Numbers;

const NUMBERS: usize = 21;

/// Returns the kinds of products of this machine: the exact ones, and those of bf16 by each set of
/// instructions.
fn kinds() -> impl Iterator<Item = Option<Instructions>> {
    std::iter::once(None).chain(Instructions::list().map(Some))
}

/// Builds a model with two hidden layers. The first layer is so wide that its weight has several
/// panels.
fn model(mode: Mode) -> Graph {
    let numeric = (0..NUMBERS).map(|i| format!("n{i}")).collect();
    let inputs = GraphInputs { numeric, labels: vec!["label".into()], ..GraphInputs::default() };
    let mut b = GraphBuilder::new(inputs, mode);
    let all: Vec<usize> = (0..NUMBERS).collect();
    let mut h = b.numeric("numbers", &all).unwrap();
    for (layer, width) in [75, 19].into_iter().enumerate() {
        h = b.linear(&format!("mlp.{layer}"), h, width).unwrap();
        h = b.relu(&format!("mlp.{layer}.relu"), h).unwrap();
    }
    let logit = b.linear("logit", h, 1).unwrap();
    b.output("logit", logit).unwrap();
    b.bce_with_logits("loss", logit, 0).unwrap();
    b.finish()
}

fn columns(rows: usize) -> Vec<Vec<f32>> {
    let mut numbers = Numbers::new(5);
    (0..NUMBERS).map(|_| (0..rows).map(|_| numbers.signed()).collect()).collect()
}

fn inputs<'a>(
    columns: &'a [Vec<f32>],
    labels: &'a [f32],
    rows: std::ops::Range<usize>,
) -> Inputs<'a> {
    Inputs {
        rows: rows.len(),
        numeric: columns.iter().map(|values| &values[rows.clone()]).collect(),
        labels: vec![LabelView { values: &labels[rows], mask: None }],
        ..Inputs::default()
    }
}

#[test]
fn a_row_scores_the_same_in_a_batch_of_any_size() {
    // The whole batch is so large that its weights are packed. The weights of the other batches are
    // not packed.
    let rows = 1500;
    let graph = model(Mode::Infer);
    let params = params_of(&graph, 3);
    let logit = graph.output("logit").unwrap();
    let program = Program::infer(&graph, &[logit], Settings::default()).unwrap();
    let (columns, labels) = (columns(rows), vec![0.0; rows]);
    for kind in kinds() {
        let mut executor = Executor::with_products(program.clone(), kind);
        let mut score = |range: std::ops::Range<usize>| -> Vec<u32> {
            executor.infer(&workers(2), &inputs(&columns, &labels, range), &params).unwrap();
            executor.output(logit).unwrap().iter().map(|score| score.to_bits()).collect()
        };
        let all = score(0..rows);
        for range in [0..1, 7..8, 100..103, 255..513, 0..300, 300..1400] {
            assert_eq!(score(range.clone()), all[range.clone()], "{kind:?} {range:?}");
        }
        assert_eq!(score(0..rows), all);
    }
}

#[test]
fn weights_that_were_packed_once_give_the_same_scores() {
    let graph = model(Mode::Infer);
    let logit = graph.output("logit").unwrap();
    let program = Program::infer(&graph, &[logit], Settings::default()).unwrap();
    let mut executor = Executor::new(program.clone());
    let mut pieces = 0;
    for seed in [3, 4] {
        let params = params_of(&graph, seed);
        let packed = PackedParams::new(&program, &params, &mut || pieces += 1);
        assert!(packed.bytes() >= 4 * (21 * 75 + 75 * 19), "{} bytes", packed.bytes());
        let packed = std::sync::Arc::new(packed);
        for rows in [1, 8, 63, 64, 100, 257, 1500] {
            let (columns, labels) = (columns(rows), vec![0.0; rows]);
            let inputs = inputs(&columns, &labels, 0..rows);
            let mut score = |packed: Option<_>, threads| -> Vec<u32> {
                executor.set_packed(packed);
                executor.infer(&workers(threads), &inputs, &params).unwrap();
                executor.output(logit).unwrap().iter().map(|score| score.to_bits()).collect()
            };
            let expected = score(None, 1);
            for threads in [1, 2, 5] {
                assert_eq!(score(Some(packed.clone()), threads), expected, "{rows} rows");
            }
        }
        executor.release();
    }
    assert!(pieces >= 4, "a loader can pause between panels");
}

/// Returns the scores of a model whose layers are wide enough for 8-bit integers.
fn wide_scores(dense: DenseType, rows: std::ops::Range<usize>, threads: usize) -> Vec<f32> {
    let graph = wide_model();
    let params = params_of(&graph, 3);
    let logit = graph.output("logit").unwrap();
    let program = Program::infer(&graph, &[logit], Settings::default()).unwrap();
    let packed = PackedParams::with_type(dense, &program, &params, &mut || ());
    assert_eq!(packed.dense(), dense);
    let mut executor = Executor::new(program);
    executor.set_packed(Some(std::sync::Arc::new(packed)));
    let (columns, labels) = (wide_columns(600), vec![0.0; 600]);
    executor.infer(&workers(threads), &inputs(&columns, &labels, rows), &params).unwrap();
    executor.output(logit).unwrap().to_vec()
}

const WIDE: usize = 45;

fn wide_model() -> Graph {
    let numeric = (0..WIDE).map(|i| format!("n{i}")).collect();
    let inputs = GraphInputs { numeric, labels: vec!["label".into()], ..GraphInputs::default() };
    let mut b = GraphBuilder::new(inputs, Mode::Infer);
    let mut h = b.numeric("numbers", &(0..WIDE).collect::<Vec<_>>()).unwrap();
    for (layer, width) in [75, 40, 20].into_iter().enumerate() {
        h = b.linear(&format!("mlp.{layer}"), h, width).unwrap();
        h = b.relu(&format!("mlp.{layer}.relu"), h).unwrap();
    }
    let logit = b.linear("logit", h, 1).unwrap();
    b.output("logit", logit).unwrap();
    b.finish()
}

fn wide_columns(rows: usize) -> Vec<Vec<f32>> {
    let mut numbers = Numbers::new(6);
    (0..WIDE).map(|_| (0..rows).map(|_| numbers.signed()).collect()).collect()
}

#[test]
fn rounded_scores_are_near_those_of_floats_and_do_not_depend_on_the_batch() {
    let exact = wide_scores(DenseType::F32, 0..600, 1);
    for dense in [DenseType::Bf16, DenseType::Int8] {
        if !dense.is_available() {
            continue;
        }
        let rounded = wide_scores(dense, 0..600, 1);
        let errors: Vec<f32> = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).collect();
        let spread = exact.iter().fold(0.0f32, |most, score| most.max(score.abs()));
        let worst = errors.iter().fold(0.0f32, |most, &error| most.max(error));
        assert!(worst > 0.0 && worst < 0.03 * spread, "{dense}: {worst} of {spread}");
        let bits = |scores: &[f32]| scores.iter().map(|score| score.to_bits()).collect::<Vec<_>>();
        for (rows, threads) in [(0..600, 2), (0..1, 1), (7..8, 1), (100..103, 1), (255..513, 5)] {
            let part = wide_scores(dense, rows.clone(), threads);
            assert_eq!(bits(&part), bits(&rounded[rows.clone()]), "{dense} {rows:?}");
        }
    }
}

#[test]
fn a_step_multiplies_by_the_weights_of_its_step() {
    let graph = model(Mode::Train);
    let train = differentiate(&graph, graph.find("loss").unwrap()).unwrap();
    let program = Program::train(&train, Settings::default()).unwrap();
    for kind in kinds() {
        multiply_by_the_weights_of_each_step(&train, &program, kind);
    }
}

fn multiply_by_the_weights_of_each_step(
    train: &TrainGraph,
    program: &Program,
    kind: Option<Instructions>,
) {
    let mut kept = Executor::with_products(program.clone(), kind);
    let mut params = Params::init(&train.graph.params, 1);
    let pool = workers(2);
    for (step, rows) in [40, 1500, 40, 1100, 300].into_iter().enumerate() {
        let (columns, labels) = (columns(rows), vec![1.0; rows]);
        let inputs = inputs(&columns, &labels, 0..rows);
        let mut run = |executor: &mut Executor| -> Vec<Vec<u32>> {
            let seed = StepSeed { seed: 1, step: step as u64 };
            executor.train(&pool, &inputs, &mut params, seed, &mut []).unwrap();
            let bits = |grad: &[f32]| grad.iter().map(|g| g.to_bits()).collect();
            executor.param_grads().map(|(_, grad)| bits(grad)).collect()
        };
        let fresh = run(&mut Executor::with_products(program.clone(), kind));
        assert_eq!(run(&mut kept), fresh, "{kind:?} step {step}");
        assert!(fresh.iter().any(|grad| grad.iter().any(|&bits| bits != 0)));
        for (_, values) in params.iter_mut() {
            values.iter_mut().for_each(|value| *value = 0.9 * *value + 0.01);
        }
    }
}

#[test]
fn gradients_of_bf16_are_near_the_exact_ones() {
    let graph = model(Mode::Train);
    let train = differentiate(&graph, graph.find("loss").unwrap()).unwrap();
    let params = Params::init(&train.graph.params, 1);
    let rows = 1100;
    let (columns, labels) = (columns(rows), vec![1.0; rows]);
    let inputs = inputs(&columns, &labels, 0..rows);
    let run = |kind, threads, settings| -> Vec<Vec<f32>> {
        let mut executor = Executor::with_products(Program::train(&train, settings).unwrap(), kind);
        assert_eq!(executor.instructions(), kind);
        let mut params = params.clone();
        let seed = StepSeed { seed: 1, step: 0 };
        executor.train(&workers(threads), &inputs, &mut params, seed, &mut []).unwrap();
        executor.param_grads().map(|(_, grad)| grad.to_vec()).collect()
    };
    let exact = run(None, 1, Settings::default());
    for set in Instructions::list() {
        let narrow = run(Some(set), 1, Settings::default());
        for threads in [2, 5] {
            assert!(run(Some(set), threads, Settings::default()) == narrow, "{set}");
        }
        // The passes join an activation to its product. Without them it is separate.
        let plain = Settings { passes: Passes::NONE, ..Settings::default() };
        assert!(run(Some(set), 2, plain) == narrow, "{set} without passes");
        for (grad, exact) in narrow.iter().zip(&exact) {
            let norm = |values: &mut dyn Iterator<Item = f32>| {
                values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
            };
            let apart = norm(&mut grad.iter().zip(exact).map(|(a, b)| a - b));
            let size = norm(&mut exact.iter().copied());
            // Three products follow each other, and each factor is rounded by 2⁻⁹ at most.
            assert!(apart <= size * 6.0 * f64::exp2(-8.0), "{set}: {apart} of {size}");
        }
        // Both gradients of a hidden layer come from products of bf16.
        assert!(narrow.iter().zip(&exact).filter(|(a, b)| a != b).count() >= 4, "{set}");
    }
}
