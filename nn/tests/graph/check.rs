//! The comparison of a graph with the reference. The executor's values are compared node by node.
//! Its gradients are compared with central differences of the reference.

use std::num::NonZeroUsize;

use zillion_device::Workers;
use zillion_nn::{
    Dim, Executor, Graph, GraphBuilder, Mode, NodeId, Op, ParamId, ParamInit, Params, Program,
    Result, Settings, Shape, StepSeed, TrainGraph, differentiate,
};

use crate::compare;
use crate::data::{Data, Numbers, graph_inputs};
use crate::reference::{Point, evaluate, value};

pub(crate) const SEED: StepSeed = StepSeed { seed: 7, step: 3 };

pub(crate) fn workers(threads: usize) -> Workers {
    Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

/// The results of a training step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) loss: f32,
    pub(crate) grads: Vec<(ParamId, Vec<f32>)>,
    pub(crate) row_grads: Vec<Vec<f32>>,
    pub(crate) outputs: Vec<Vec<f32>>,
    pub(crate) params: Params,
}

/// Returns parameters that are far from their initial values, so that no value is exactly zero or
/// one.
pub(crate) fn params_of(graph: &Graph, seed: u64) -> Params {
    let mut params = Params::init(&graph.params, seed);
    let mut numbers = Numbers::new(seed ^ 0x5eed);
    let running_var: Vec<bool> =
        graph.params.iter().map(|p| p.name.ends_with("running_var")).collect();
    for ((_, values), positive) in params.iter_mut().zip(running_var) {
        for v in values {
            *v = if positive { 1.5 + numbers.signed() } else { 0.7 * numbers.signed() };
        }
    }
    params
}

pub(crate) fn point_of(params: &Params, data: &Data) -> Point {
    let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect();
    Point {
        params: params.iter().map(|(_, v)| wide(v)).collect(),
        tables: data.tables.iter().map(|t| wide(&t.values)).collect(),
    }
}

pub(crate) fn train_step(
    train: &TrainGraph,
    data: &Data,
    params: &Params,
    settings: Settings,
    workers: &Workers,
) -> Step {
    let mut executor = Executor::new(Program::train(train, settings).unwrap());
    let mut params = params.clone();
    // The step runs twice, because the old contents of the buffers must not change the second
    // result.
    let mut steps: Vec<Step> = (0..2)
        .map(|_| {
            let mut row_grads: Vec<Vec<f32>> =
                data.tables.iter().map(|t| vec![f32::NAN; t.values.len()]).collect();
            let mut slices: Vec<&mut [f32]> = row_grads.iter_mut().map(Vec::as_mut_slice).collect();
            let mut params_of_step = params.clone();
            executor
                .train(workers, &data.inputs(), &mut params_of_step, SEED, &mut slices)
                .unwrap();
            Step {
                loss: executor.loss().unwrap(),
                grads: executor.param_grads().map(|(p, g)| (p, g.to_vec())).collect(),
                row_grads,
                outputs: train
                    .graph
                    .outputs
                    .iter()
                    .map(|&(_, id)| executor.output(id).unwrap().to_vec())
                    .collect(),
                params: params_of_step,
            }
        })
        .collect();
    params = steps[0].params.clone();
    let last = steps.pop().unwrap();
    assert_eq!(bits(&last), bits(&steps[0]), "a second run differs");
    assert_eq!(params, last.params);
    last
}

/// Returns the bits of all numbers of a step.
pub(crate) fn bits(step: &Step) -> Vec<u32> {
    let grads = step.grads.iter().flat_map(|(_, g)| g);
    let params = step.params.iter().flat_map(|(_, v)| v);
    std::iter::once(&step.loss)
        .chain(grads)
        .chain(step.row_grads.iter().flatten())
        .chain(step.outputs.iter().flatten())
        .chain(params)
        .map(|v| v.to_bits())
        .collect()
}

/// Builds the sum `Σ y ∘ c`, with coefficients `c` that do not depend on y. The gradient of this
/// loss is used to test the gradient of `y`.
pub(crate) fn weighted_sum(b: &mut GraphBuilder, y: NodeId) -> Result<NodeId> {
    let Shape { cols, .. } = b.shape(y);
    let weighted = match b.shape(y).const_len() {
        Some(len) => {
            let init = ParamInit::Uniform { low: -1.0, high: 1.0 };
            let (_, c) = b.param("coefficients", (len / cols, cols), init, false)?;
            b.mul("weighted", y, c)?
        }
        None => {
            let columns: Vec<usize> = (0..cols).map(|j| j % 16).collect();
            let mut c = b.numeric("coefficients", &columns)?;
            if let Dim::Values(column) = b.shape(y).rows {
                c = b.repeat("coefficients.repeated", c, column)?;
            }
            b.mul("weighted", y, c)?
        }
    };
    let by_row = b.sum_columns("weighted.columns", weighted)?;
    b.sum_rows("weighted.sum", by_row)
}

/// The result of a check.
pub(crate) struct Outcome {
    /// The largest value of any node of the graph.
    pub(crate) largest: f64,
    /// The number of elements whose gradient was compared.
    pub(crate) compared: usize,
    /// The number of elements at a kink, where the derivative does not exist.
    pub(crate) kinks: usize,
}

/// Checks the values and gradients of the node that `build` creates, on `rows` rows. The node can
/// have any shape.
pub(crate) fn check(
    rows: usize,
    seed: u64,
    tolerance: f64,
    build: impl Fn(&mut GraphBuilder) -> Result<NodeId>,
) -> Outcome {
    check_on(&Data::new(rows, seed), seed, tolerance, build)
}

/// Checks the values and gradients of the node that `build` creates on the given rows.
pub(crate) fn check_on(
    data: &Data,
    seed: u64,
    tolerance: f64,
    build: impl Fn(&mut GraphBuilder) -> Result<NodeId>,
) -> Outcome {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let y = build(&mut b).unwrap();
    let loss = weighted_sum(&mut b, y).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish();
    let params = params_of(&graph, seed);
    let point = point_of(&params, data);
    let workers = workers(2);
    let settings = Settings { lanes: 3, tile_rows: 4, ..Settings::default() };

    // Compare the values, node by node.
    let expected = evaluate(&graph, graph.nodes.len(), data, &point, SEED);
    let largest = expected.iter().flat_map(|m| &m.values).fold(0.0, |a: f64, v| a.max(v.abs()));
    if !largest.is_finite() || largest > 1e3 {
        return Outcome { largest, compared: 0, kinks: 0 };
    }
    let close = |a: f32, b: f64| (f64::from(a) - b).abs() <= tolerance * (1.0 + largest);
    let ids = (0..graph.nodes.len() as u32).map(NodeId);
    let all: Vec<NodeId> =
        ids.filter(|&id| !matches!(graph.node(id).op, Op::Rows { .. } | Op::Collect)).collect();
    let mut forward = Executor::new(Program::infer(&graph, &all, settings).unwrap());
    forward.infer(&workers, &data.inputs(), &params).unwrap();
    compare::compare_values(&forward, &all, data, &params);
    // Inference has no step, so it uses the masks of step 0 of seed 0.
    let unseeded = evaluate(&graph, graph.nodes.len(), data, &point, StepSeed::default());
    for &id in &all {
        let (found, wanted) = (forward.output(id).unwrap(), &unseeded[id.0 as usize].values);
        assert_eq!(found.len(), wanted.len());
        for (i, (&a, &b)) in found.iter().zip(wanted).enumerate() {
            assert!(close(a, b), "value {i} of {}: {a} for {b}\n{graph}", graph.node(id).name);
        }
    }

    let train = differentiate(&graph, loss).unwrap();
    let step = train_step(&train, data, &params, settings, &workers);
    compare::compare_step(&train, data, &params, settings, &step);
    let y_expected = &expected[y.0 as usize];
    for (i, (&a, &b)) in step.outputs[0].iter().zip(&y_expected.values).enumerate() {
        assert!(close(a, b), "value {i}: {a} for {b}\n{graph}");
    }
    assert_eq!(step.outputs[0].len(), y_expected.values.len());

    let gradients = step
        .grads
        .iter()
        .map(|(p, g)| (Which::Param(p.0 as usize), g))
        .chain(step.row_grads.iter().enumerate().map(|(t, g)| (Which::Table(t), g)));
    let steepest = step
        .grads
        .iter()
        .flat_map(|(_, g)| g)
        .chain(step.row_grads.iter().flatten())
        .fold(0.0f32, |a, g| a.max(g.abs()));
    let mut outcome = Outcome { largest, compared: 0, kinks: 0 };
    for (which, gradient) in gradients {
        // All elements of small tensors are compared, and some elements of large tensors.
        let stride = gradient.len().div_ceil(24);
        for element in (0..gradient.len()).step_by(stride) {
            let at = |h: f64| {
                let mut moved = point.clone();
                which.of(&mut moved)[element] += h;
                value(&graph, loss, data, &moved, SEED).values[0]
            };
            const H: f64 = 1e-5;
            let (up, here, down) = (at(H), at(0.0), at(-H));
            let (right, left) = ((up - here) / H, (here - down) / H);
            if (right - left).abs() > 1e-2 * (1.0 + right.abs()) {
                outcome.kinks += 1;
                continue;
            }
            outcome.compared += 1;
            let expected = (up - down) / (2.0 * H);
            let found = f64::from(gradient[element]);
            let allowed = tolerance * (1.0 + f64::from(steepest).max(largest));
            assert!(
                (expected - found).abs() <= allowed,
                "gradient of {which:?} at {element}: {found} for {expected}\n{}",
                train.graph
            );
        }
    }
    outcome
}

#[derive(Clone, Copy, Debug)]
enum Which {
    Param(usize),
    Table(usize),
}

impl Which {
    fn of(self, point: &mut Point) -> &mut [f64] {
        match self {
            Self::Param(p) => &mut point.params[p],
            Self::Table(t) => &mut point.tables[t],
        }
    }
}
