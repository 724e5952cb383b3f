//! Tests of batch norm against numbers that were computed by hand. These numbers equal the results
//! of torch's `BatchNorm1d`.

use zillion_nn::{
    Executor, GraphBuilder, GraphInputs, Inputs, Mode, Params, Program, Settings, differentiate,
};

use crate::check::{SEED, workers};

const X: [f32; 3] = [1.0, 2.0, 4.0];

fn inputs(x: &[f32]) -> Inputs<'_> {
    Inputs { rows: x.len(), numeric: vec![x], ..Inputs::default() }
}

fn graph(mode: Mode) -> (zillion_nn::Graph, zillion_nn::NodeId, zillion_nn::NodeId) {
    let known = GraphInputs { numeric: vec!["x".into()], ..GraphInputs::default() };
    let mut b = GraphBuilder::new(known, mode);
    let x = b.numeric("x", &[0]).unwrap();
    let y = b.batch_norm("norm", x).unwrap();
    let loss = b.sum_rows("sum", y).unwrap();
    b.output("y", y).unwrap();
    (b.finish(), y, loss)
}

fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 1e-6, "{found:?} for {expected:?}");
    }
}

#[test]
fn training_uses_batch_statistics_and_moves_running_ones() {
    let (graph, y, loss) = graph(Mode::Train);
    let train = differentiate(&graph, loss).unwrap();
    let mut params = Params::init(&graph.params, 0);
    params.value_mut(params.find("norm.weight").unwrap())[0] = 2.0;
    params.value_mut(params.find("norm.bias").unwrap())[0] = 0.5;
    for lanes in [1, 2, 3] {
        let mut params = params.clone();
        let settings = Settings { lanes, tile_rows: 1, ..Settings::default() };
        let mut executor = Executor::new(Program::train(&train, settings).unwrap());
        executor.train(&workers(1), &inputs(&X), &mut params, SEED, &mut []).unwrap();
        // Mean 7/3, biased variance 14/9: (x − 7/3) / √(14/9 + 1e-5) · 2 + 1/2.
        close(executor.output(y).unwrap(), &[-1.638_083, -0.034_521, 3.172_604]);
        // 0.1 · 7/3, and 0.9 + 0.1 · 7/3 with the unbiased variance 7/3.
        close(params.get("norm.running_mean").unwrap(), &[0.233_333_3]);
        close(params.get("norm.running_var").unwrap(), &[1.133_333_3]);
    }
}

#[test]
fn inference_normalises_by_the_running_statistics() {
    let (graph, y, _) = graph(Mode::Infer);
    let mut params = Params::init(&graph.params, 0);
    params.value_mut(params.find("norm.running_mean").unwrap())[0] = 1.0;
    params.value_mut(params.find("norm.running_var").unwrap())[0] = 4.0;
    let mut executor = Executor::new(Program::infer(&graph, &[y], Settings::default()).unwrap());
    executor.infer(&workers(1), &inputs(&X), &params).unwrap();
    // (x − 1) / √(4 + 1e-5).
    close(executor.output(y).unwrap(), &[0.0, 0.499_999_4, 1.499_998_1]);
    close(params.get("norm.running_mean").unwrap(), &[1.0]);
}

#[test]
fn a_column_far_from_zero_keeps_its_variance() {
    let (graph, y, loss) = graph(Mode::Train);
    let train = differentiate(&graph, loss).unwrap();
    let mut params = Params::init(&graph.params, 0);
    let x: Vec<f32> = (0..1000).map(|i| 10_000.0 + (i % 2) as f32).collect();
    let mut executor = Executor::new(Program::train(&train, Settings::default()).unwrap());
    executor.train(&workers(2), &inputs(&x), &mut params, SEED, &mut []).unwrap();
    for (i, y) in executor.output(y).unwrap().iter().enumerate() {
        let expected = if i % 2 == 0 { -1.0 } else { 1.0 };
        // One ulp of 10,000 is 0.001.
        assert!((y - expected).abs() < 5e-3, "{y} at {i}");
    }
}

#[test]
fn one_row_is_normalised_to_its_shift() {
    let (graph, y, loss) = graph(Mode::Train);
    let train = differentiate(&graph, loss).unwrap();
    let mut params = Params::init(&graph.params, 0);
    let mut executor = Executor::new(Program::train(&train, Settings::default()).unwrap());
    executor.train(&workers(1), &inputs(&[3.0]), &mut params, SEED, &mut []).unwrap();
    close(executor.output(y).unwrap(), &[0.0]);
    close(params.get("norm.running_var").unwrap(), &[0.9]);
}
