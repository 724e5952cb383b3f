//! Tests that the executor of a GPU has the bits of the CPU: random graphs, batches of all sizes,
//! and what a step costs. The tests of single operations compare both executors too
//! ([`compare`](crate::compare)).

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use zillion_device::gpu::Gpu;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions};
use zillion_feature::Pooling;
use zillion_nn::{
    Binary, Dim, Executor, GpuExecutor, GraphBuilder, Mode, NodeId, Op, ParamInit, Program, Result,
    Settings, TrainGraph, Unary, differentiate,
};

use crate::check::{SEED, params_of, weighted_sum};
use crate::compare::{assert_nothing_lives, assert_same, gpu, options, run_cpu, run_gpu, seeded};
use crate::data::{Data, graph_inputs};
use crate::random::{Choice, build};

fn train(build: impl Fn(&mut GraphBuilder) -> Result<NodeId>) -> TrainGraph {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let y = build(&mut b).unwrap();
    let loss = weighted_sum(&mut b, y).unwrap();
    b.output("y", y).unwrap();
    differentiate(&b.finish(), loss).unwrap()
}

/// Adds operations that random graphs of other tests do not have, because their gradients cannot be
/// compared with differences. An operation whose shapes do not fit is left out.
fn extend(b: &mut GraphBuilder, mut x: NodeId, choices: &[(u8, u8)]) -> NodeId {
    for (i, &choice) in choices.iter().enumerate() {
        x = apply(b, &format!("more.{i}"), x, choice).unwrap_or(x);
    }
    x
}

fn apply(b: &mut GraphBuilder, name: &str, x: NodeId, (op, detail): (u8, u8)) -> Result<NodeId> {
    let cols = b.cols(x);
    let constant = |b: &mut GraphBuilder, rows: usize, cols: usize| {
        b.param(&format!("{name}.c"), (rows, cols), ParamInit::XavierNormal, true)
    };
    let detail = usize::from(detail);
    match op % 14 {
        0 => {
            let small = b.unary(&format!("{name}.tanh"), Unary::Tanh, x)?;
            b.unary(name, Unary::Exp, small)
        }
        1 => b.unary(name, Unary::Sqrt, x),
        2 => {
            let positive = b.unary(&format!("{name}.softplus"), Unary::Softplus, x)?;
            b.unary(name, Unary::Ln, positive)
        }
        3 => {
            let square = b.unary(&format!("{name}.square"), Unary::Square, x)?;
            let above = b.unary(&format!("{name}.above"), Unary::Offset { by: 1.0 }, square)?;
            b.binary(name, Binary::Div, x, above)
        }
        4 => {
            let other = b.relu(&format!("{name}.relu"), x)?;
            b.binary(name, Binary::SafeDiv, x, other)
        }
        5 => b.softmax_columns(name, x),
        6 => {
            let sum = b.log_sum_exp_columns(&format!("{name}.lse"), x)?;
            b.sub(name, x, sum)
        }
        // Products with weights that are themselves computed.
        7 | 8 => {
            let (_, wide) = constant(b, cols, 6)?;
            let weight = b.slice(&format!("{name}.w"), wide, detail % 5, 1 + detail % 2)?;
            b.matmul(name, x, weight)
        }
        9 => {
            let (_, line) = constant(b, 1 + detail % 300, cols)?;
            let mean = b.mean_rows(&format!("{name}.mean"), line)?;
            b.mul(name, x, mean)
        }
        10 => {
            let (_, square) = constant(b, cols, cols)?;
            let norm = b.layer_norm(&format!("{name}.norm"), square)?;
            b.matmul(name, x, norm)
        }
        11 if b.shape(x).rows == Dim::Batch => {
            let mean = b.mean_rows(&format!("{name}.mean"), x)?;
            let (_, w) = constant(b, cols, 1 + detail % 3)?;
            let global = b.matmul(&format!("{name}.global"), mean, w)?;
            let all = Op::BroadcastRows { rows: Dim::Batch, mean: true };
            let all = b.push(&format!("{name}.all"), all, &[global])?;
            b.concat(name, &[x, all])
        }
        12 => b.batch_norm(name, x),
        _ => b.linear(name, x, 1 + detail % 90),
    }
}

/// Returns the number of random graphs: ten thousand, unless the environment sets another number.
fn graphs() -> u32 {
    match std::env::var("PROPTEST_CASES") {
        Ok(_) => ProptestConfig::default().cases,
        Err(_) => 10_000,
    }
}

proptest! {
    // The graphs are the same in every run. PROPTEST_CASES sets another number of graphs.
    #![proptest_config(ProptestConfig {
        cases: graphs(),
        rng_seed: RngSeed::Fixed(20_261_127),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_graphs_have_the_bits_of_the_cpu(
        rows in 1usize..24,
        seed in 0u64..1000,
        lanes in 1usize..5,
        tile_rows in 1usize..9,
        choices in prop::collection::vec(any::<Choice>(), 1..16),
        more in prop::collection::vec(any::<(u8, u8)>(), 0..5),
    ) {
        let train = train(|b| build(b, &choices).map(|y| extend(b, y, &more)));
        let settings = Settings { lanes, tile_rows, ..Settings::default() };
        let params = params_of(&train.graph, seed);
        let data = Data::new(rows, seed);
        let program = Program::train(&train, settings).unwrap();
        let cpu = run_cpu(&mut Executor::new(program.clone()), &train, &data, &params);
        let mut executor = GpuExecutor::new(program, gpu()).unwrap();
        assert_same(&cpu, &run_gpu(&mut executor, &train, &data, &params), &train);
    }
}

/// Returns a model with lookups of every kind, products of values, and a barrier of each kind.
fn model() -> TrainGraph {
    train(|b| {
        let item = b.gather("item", 0, 0, 4, Pooling::Sum)?;
        let history = b.gather("history", 1, 0, 4, Pooling::Max)?;
        let text = b.gather("text", 2, 0, 4, Pooling::Mean)?;
        let tag = b.gather("tag", 3, 0, 4, Pooling::Sqrtn)?;
        let wide = b.gather("wide", 1, 7, 1, Pooling::Sum)?;
        let values = b.gather_values("values", 1, 0, 5)?;
        let hidden = b.linear("values.hidden", values, 7)?;
        let hidden = b.batch_norm("values.norm", hidden)?;
        let hidden = b.dropout("values.dropout", hidden, 0.3)?;
        let score = b.linear("values.score", hidden, 1)?;
        let share = b.segment_softmax("values.share", score)?;
        let shared = b.mul("values.shared", values, share)?;
        let attended = b.segment_sum("attended", shared)?;
        let fields = b.concat("fields", &[item, history, text, tag])?;
        let fm = b.fm("fm", fields, 4)?;
        let dots = b.dot_interaction("dots", fields, 4)?;
        let numeric = b.numeric("numeric", &[0, 1, 2])?;
        let mut h = b.concat("input", &[fields, numeric, dots, attended])?;
        for layer in 0..2 {
            h = b.linear(&format!("mlp.{layer}"), h, 24)?;
            h = b.batch_norm(&format!("mlp.{layer}.norm"), h)?;
            h = b.relu(&format!("mlp.{layer}.relu"), h)?;
            h = b.dropout(&format!("mlp.{layer}.dropout"), h, 0.2)?;
        }
        let h = b.layer_norm("last.norm", h)?;
        let deep = b.linear("deep", h, 1)?;
        let logit = b.add("fm+wide", fm, wide)?;
        b.add("logit", logit, deep)
    })
}

/// Compares sizes below, at and above the borders of tiles, lanes and blocks. Lists of up to 40
/// items make tiles with fewer rows, and tiles of several blocks.
#[test]
fn batches_of_all_sizes_have_the_bits_of_the_cpu() {
    let train = model();
    let params = params_of(&train.graph, 5);
    for (number, (lanes, tile_rows)) in [(8, 256), (3, 16), (256, 1), (8, 7)].iter().enumerate() {
        let settings = Settings { lanes: *lanes, tile_rows: *tile_rows, ..Settings::default() };
        let program = Program::train(&train, settings).unwrap();
        let mut cpu = Executor::new(program.clone());
        let mut gpu = GpuExecutor::new(program, seeded(number as u64)).unwrap();
        for (rows, bound) in [(1, 2), (2, 5), (63, 1), (64, 5), (65, 40), (257, 5), (513, 3)] {
            let data = Data::with_lists(rows, rows as u64, bound);
            let expected = run_cpu(&mut cpu, &train, &data, &params);
            assert_same(&expected, &run_gpu(&mut gpu, &train, &data, &params), &train);
        }
    }
}

#[test]
fn not_a_number_stays_where_the_cpu_has_it() {
    let train = model();
    let params = params_of(&train.graph, 6);
    let settings = Settings { lanes: 3, tile_rows: 4, ..Settings::default() };
    let mut data = Data::new(23, 6);
    data.tables[0].values[9] = f32::INFINITY;
    data.numeric[1][4] = f32::NAN;
    let program = Program::train(&train, settings).unwrap();
    let cpu = run_cpu(&mut Executor::new(program.clone()), &train, &data, &params);
    assert!(cpu.loss.is_nan());
    let mut executor = GpuExecutor::new(program, gpu()).unwrap();
    assert_same(&cpu, &run_gpu(&mut executor, &train, &data, &params), &train);
}

/// Counts what a step of a batch that fits does: it waits once, allocates nothing, and enqueues one
/// graph.
#[test]
fn a_warm_step_waits_once_and_allocates_nothing() {
    let train = model();
    let params = params_of(&train.graph, 7);
    for seed in 0..4 {
        let device = seeded(seed);
        let settings = Settings { lanes: 3, tile_rows: 16, ..Settings::default() };
        let program = Program::train(&train, settings).unwrap();
        let mut executor = GpuExecutor::new(program, Arc::clone(&device)).unwrap();
        let large = Data::new(70, 1);
        run_gpu(&mut executor, &train, &large, &params);
        run_gpu(&mut executor, &train, &large, &params);
        for rows in [70, 33, 1, 70] {
            let data = Data::with_lists(rows, rows as u64, 4);
            let before = device.counters();
            run_gpu(&mut executor, &train, &data, &params);
            let after = device.counters();
            assert_eq!(after.host_waits - before.host_waits, 1);
            assert_eq!(after.allocations, before.allocations);
            assert_eq!(after.pinned_allocations, before.pinned_allocations);
            assert_eq!(after.launches, before.launches, "all launches are in the graph");
            assert_eq!(after.replays - before.replays, 1);
        }
        assert_eq!(executor.growths(), 1);
        drop(executor);
        assert_nothing_lives(&*device);
    }
}

#[test]
fn memory_that_is_exhausted_is_an_error_and_not_a_leak() {
    let train = model();
    let params = params_of(&train.graph, 8);
    for failing in 1..=3 {
        let options = EmulatedOptions { fail_allocation: Some(failing), ..options(0) };
        let device: Arc<dyn Gpu> = Arc::new(Emulated::new(options));
        let program = Program::train(&train, Settings::default()).unwrap();
        let data = Data::new(30, 8);
        let mut grads: Vec<Vec<f32>> =
            data.tables.iter().map(|t| vec![0.0; t.values.len()]).collect();
        let made = GpuExecutor::new(program, Arc::clone(&device));
        let ran = made.and_then(|mut executor| {
            let mut slices: Vec<&mut [f32]> = grads.iter_mut().map(Vec::as_mut_slice).collect();
            executor.train(&data.inputs(), &mut params.clone(), SEED, &mut slices)
        });
        match ran {
            Err(error) => assert!(error.to_string().contains("exhausted"), "{error}"),
            Ok(()) => assert_eq!(failing, 3, "a run allocates twice"),
        }
        assert_nothing_lives(&*device);
    }
}

/// Compares rows of vectors that do not fit in the shared memory of a block.
#[test]
fn wide_interactions_have_the_bits_of_the_cpu() {
    for (fields, dim) in [(2, 30_000), (345, 3)] {
        let wide = train(|b| {
            let x = b.numeric("x", &[0, 1])?;
            let x = b.linear("fields", x, fields * dim)?;
            b.dot_interaction("pairs", x, dim)
        });
        let params = params_of(&wide.graph, 9);
        let data = Data::new(2, 9);
        let program = Program::train(&wide, Settings::default()).unwrap();
        let cpu = run_cpu(&mut Executor::new(program.clone()), &wide, &data, &params);
        let mut executor = GpuExecutor::new(program, gpu()).unwrap();
        assert_same(&cpu, &run_gpu(&mut executor, &wide, &data, &params), &wide);
    }
}

#[test]
fn what_a_gpu_cannot_compute_is_refused_by_name() {
    let mut inputs = graph_inputs();
    inputs.tables[0].stride = 40_000;
    let mut b = GraphBuilder::new(inputs, Mode::Train);
    let vector = b.gather("vector", 0, 0, 40_000, Pooling::Sum).unwrap();
    let loss = weighted_sum(&mut b, vector).unwrap();
    let wide = differentiate(&b.finish(), loss).unwrap();
    let program = Program::train(&wide, Settings::default()).unwrap();
    let error = GpuExecutor::new(program, gpu()).unwrap_err().to_string();
    assert!(error.contains("layer `vector`") && error.contains("train on the CPU"), "{error}");
}
