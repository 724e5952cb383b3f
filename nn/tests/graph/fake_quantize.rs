//! Tests of quantisation-aware training: the gradients are those of a model whose rounded inputs
//! and weights are taken as they are, computed by brute force in `f64`.

use zillion_device::matmul::{View, fake_quantize_columns, fake_quantize_rows};
use zillion_nn::{
    Executor, Graph, GraphBuilder, GraphInputs, Inputs, LabelView, Mode, Params, Program, Settings,
    StepSeed, differentiate, fake_quantize,
};

use crate::check::{params_of, workers};
use crate::data::Numbers;

/// The numbers of columns: of the input, of two rounded layers and of the last layer.
const SIZES: [usize; 4] = [45, 40, 20, 1];
const ROWS: usize = 70;

fn model() -> Graph {
    let numeric = (0..SIZES[0]).map(|i| format!("n{i}")).collect();
    let inputs = GraphInputs { numeric, labels: vec!["label".into()], ..GraphInputs::default() };
    let mut b = GraphBuilder::new(inputs, Mode::Train);
    let mut h = b.numeric("numbers", &(0..SIZES[0]).collect::<Vec<_>>()).unwrap();
    for (layer, width) in SIZES[1..3].iter().enumerate() {
        h = b.linear(&format!("mlp.{layer}"), h, *width).unwrap();
        h = b.relu(&format!("mlp.{layer}.relu"), h).unwrap();
    }
    let logit = b.linear("logit", h, 1).unwrap();
    b.bce_with_logits("loss", logit, 0).unwrap();
    b.finish()
}

/// Returns numbers of which few are far larger than the others, so that most are rounded a lot.
fn uneven(numbers: &mut Numbers, count: usize) -> Vec<f32> {
    (0..count).map(|_| numbers.signed()).map(|x| if x.abs() > 0.9 { 20.0 * x } else { x }).collect()
}

fn columns() -> Vec<Vec<f32>> {
    let mut numbers = Numbers::new(9);
    (0..SIZES[0]).map(|_| uneven(&mut numbers, ROWS)).collect()
}

fn uneven_params(graph: &Graph) -> Params {
    let mut params = params_of(graph, 3);
    let mut numbers = Numbers::new(11);
    for (_, values) in params.iter_mut().filter(|(_, values)| values.len() > SIZES[2]) {
        values.copy_from_slice(&uneven(&mut numbers, values.len()));
        values.iter_mut().for_each(|value| *value *= 0.1);
    }
    params
}

/// Returns the gradients of the executor for the parameters in their order.
fn gradients(graph: &Graph, threads: usize) -> Vec<Vec<f32>> {
    let train = differentiate(graph, graph.find("loss").unwrap()).unwrap();
    let mut executor = Executor::new(Program::train(&train, Settings::default()).unwrap());
    let (columns, labels) = (columns(), vec![1.0; ROWS]);
    let inputs = Inputs {
        rows: ROWS,
        numeric: columns.iter().map(Vec::as_slice).collect(),
        labels: vec![LabelView { values: &labels, mask: None }],
        ..Inputs::default()
    };
    let mut params = uneven_params(graph);
    let seed = StepSeed { seed: 1, step: 0 };
    executor.train(&workers(threads), &inputs, &mut params, seed, &mut []).unwrap();
    executor.param_grads().map(|(_, grad)| grad.to_vec()).collect()
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn round_rows(values: &[f64], columns: usize) -> Vec<f64> {
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    let mut out = vec![0.0; values.len()];
    fake_quantize_rows(View::packed(&values, ROWS, columns), &mut out, columns);
    widen(&out)
}

fn round_columns(values: &[f32], rows: usize, columns: usize) -> Vec<f64> {
    let mut out = vec![0.0; values.len()];
    fake_quantize_columns(View::packed(values, rows, columns), &mut out, columns);
    widen(&out)
}

/// Computes the gradients of all parameters by the definition: in the order of the parameters,
/// weight and bias of each layer.
fn brute_force(graph: &Graph) -> Vec<Vec<f64>> {
    let params = uneven_params(graph);
    let values: Vec<&[f32]> = params.iter().map(|(_, values)| values).collect();
    let columns = columns();
    let mut x: Vec<f64> =
        (0..ROWS).flat_map(|row| columns.iter().map(move |c| f64::from(c[row]))).collect();
    // The rounded inputs, the rounded weights and the results of the layers.
    let mut layers = Vec::new();
    for layer in 0..3 {
        let (inner, width) = (SIZES[layer], SIZES[layer + 1]);
        let (weight, bias) = (values[2 * layer], values[2 * layer + 1]);
        let (input, weight) = match layer {
            2 => (x.clone(), widen(weight)),
            _ => (round_rows(&x, inner), round_columns(weight, inner, width)),
        };
        let element = |row: usize, j: usize| {
            let products = (0..inner).map(|p| input[row * inner + p] * weight[p * width + j]);
            let sum = products.sum::<f64>() + f64::from(bias[j]);
            if layer < 2 { sum.max(0.0) } else { sum }
        };
        let out: Vec<f64> = (0..ROWS)
            .flat_map(|row| (0..width).map(move |j| (row, j)))
            .map(|(r, j)| element(r, j))
            .collect();
        layers.push((input, weight, out.clone()));
        x = out;
    }
    let mut g: Vec<f64> =
        x.iter().map(|logit| (1.0 / (1.0 + (-logit).exp()) - 1.0) / ROWS as f64).collect();
    let mut gradients = vec![Vec::new(); 6];
    for layer in (0..3).rev() {
        let (inner, width) = (SIZES[layer], SIZES[layer + 1]);
        let (input, weight, out) = &layers[layer];
        if layer < 2 {
            g.iter_mut().zip(out).for_each(|(g, &out)| *g = if out > 0.0 { *g } else { 0.0 });
        }
        let sum = |of: &dyn Fn(usize) -> f64| (0..ROWS).map(of).sum::<f64>();
        for p in 0..inner {
            for j in 0..width {
                let of = |row: usize| input[row * inner + p] * g[row * width + j];
                gradients[2 * layer].push(sum(&of));
            }
        }
        gradients[2 * layer + 1] = (0..width).map(|j| sum(&|row| g[row * width + j])).collect();
        let back = |row: usize, p: usize| {
            (0..width).map(|j| g[row * width + j] * weight[p * width + j]).sum::<f64>()
        };
        g = (0..ROWS)
            .flat_map(|row| (0..inner).map(move |p| (row, p)))
            .map(|(r, p)| back(r, p))
            .collect();
    }
    gradients
}

/// Returns the distance of two vectors, relative to the length of the second.
fn distance(found: &[f32], wanted: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let apart = norm(&mut found.iter().zip(wanted).map(|(&a, b)| f64::from(a) - b));
    apart / norm(&mut wanted.iter().copied())
}

#[test]
fn gradients_go_straight_through_the_rounding() {
    let plain = model();
    let rounded = fake_quantize(&plain).unwrap().unwrap();
    let wanted = brute_force(&plain);
    let found = gradients(&rounded, 1);
    let unrounded = gradients(&plain, 1);
    assert_eq!(found.len(), 6);
    for (number, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        // A result of the first layer may be rounded to a neighbouring integer, because its sum is
        // of single precision.
        assert!(distance(found, wanted) < 2e-3, "{number}: {}", distance(found, wanted));
    }
    // The rounding shows, so that the comparison would find a gradient without it.
    assert!(distance(&unrounded[0], &wanted[0]) > 0.02);
    assert!(distance(&unrounded[2], &wanted[2]) > 0.02);
    for threads in [2, 5] {
        assert!(gradients(&rounded, threads) == found, "{threads} threads");
    }
}

#[test]
fn small_layers_are_not_rounded() {
    let numeric = (0..40).map(|i| format!("n{i}")).collect();
    let inputs = GraphInputs { numeric, labels: vec!["label".into()], ..GraphInputs::default() };
    let mut b = GraphBuilder::new(inputs, Mode::Train);
    let x = b.numeric("numbers", &(0..40).collect::<Vec<_>>()).unwrap();
    let h = b.linear("mlp", x, 15).unwrap();
    let logit = b.linear("logit", h, 1).unwrap();
    b.bce_with_logits("loss", logit, 0).unwrap();
    assert_eq!(fake_quantize(&b.finish()).unwrap(), None);
}
