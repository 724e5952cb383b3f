//! Tests of the products that the library of a GPU computes: they are near the exact ones, their
//! bits depend on the batch alone, and mistakes around them are found.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use zillion_device::gpu::{Gpu, Kind, Precision};
use zillion_feature::Pooling;
use zillion_nn::{
    Executor, GpuExecutor, GraphBuilder, LibraryProducts, Mode, NodeId, ParamInit, Program, Result,
    Settings, TrainGraph, Unary, differentiate,
};

use crate::check::{Step, params_of, weighted_sum};
use crate::compare::{assert_nothing_lives, assert_same, gpu, run_cpu, run_gpu, seeded};
use crate::data::{Data, graph_inputs};
use crate::random::{Choice, build};
use crate::without::Without;

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Tf32, Precision::Bf16];

fn train(build: impl Fn(&mut GraphBuilder) -> Result<NodeId>) -> TrainGraph {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let y = build(&mut b).unwrap();
    let loss = weighted_sum(&mut b, y).unwrap();
    b.output("y", y).unwrap();
    differentiate(&b.finish(), loss).unwrap()
}

fn settings() -> Settings {
    Settings { lanes: 3, tile_rows: 16, ..Settings::default() }
}

/// Creates an executor whose products have 16 rows.
fn executor(train: &TrainGraph, precision: Precision, gpu: Arc<dyn Gpu>) -> GpuExecutor {
    let rows = NonZeroUsize::new(16).unwrap();
    let library = LibraryProducts { precision, rows, kept: BTreeMap::new() };
    let program = Program::train(train, settings()).unwrap();
    GpuExecutor::with_products(program, gpu, Some(library)).unwrap()
}

/// Returns a model with products of each kind: over the rows of the batch and over values, of
/// columns in whole units of the library and of others, with a bias and without, and of a weight
/// that is itself computed.
fn model(activation: Unary) -> TrainGraph {
    train(|b| {
        let item = b.gather("item", 0, 0, 8, Pooling::Sum)?;
        let text = b.gather("text", 2, 0, 4, Pooling::Mean)?;
        let values = b.gather_values("values", 1, 0, 8)?;
        let hidden = b.linear("values.0", values, 12)?;
        let hidden = b.unary("values.0.act", activation, hidden)?;
        let hidden = b.linear("values.1", hidden, 9)?;
        let score = b.linear("values.score", hidden, 1)?;
        let share = b.segment_softmax("values.share", score)?;
        let shared = b.mul("values.shared", values, share)?;
        let attended = b.segment_sum("attended", shared)?;
        let numeric = b.numeric("numeric", &[0, 1, 2])?;
        let x = b.concat("input", &[item, numeric, text, attended])?;
        let mut h = x;
        for (layer, units) in [24, 10, 16].into_iter().enumerate() {
            h = b.linear(&format!("mlp.{layer}"), h, units)?;
            h = b.unary(&format!("mlp.{layer}.act"), activation, h)?;
            h = b.dropout(&format!("mlp.{layer}.dropout"), h, 0.2)?;
        }
        let (_, square) = b.param("square", (16, 16), ParamInit::XavierNormal, true)?;
        let norm = b.layer_norm("square.norm", square)?;
        let h = b.matmul("h.norm", h, norm)?;
        let (_, plain) = b.param("plain", (16, 11), ParamInit::XavierNormal, true)?;
        let plain = b.matmul("h.plain", h, plain)?;
        // The place of this product in the concatenation is not a multiple of 16 bytes.
        let both = b.concat("both", &[numeric, plain])?;
        b.linear("last", both, 9)
    })
}

/// Returns the bits of all results of a step, and one number for all NaN.
fn bits(step: &Step) -> Vec<u32> {
    let dense = step.grads.iter().flat_map(|(_, grad)| grad);
    let params = step.params.iter().flat_map(|(_, values)| values);
    let all = dense.chain(step.row_grads.iter().chain(&step.outputs).flatten()).chain(params);
    all.chain([&step.loss]).map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
}

/// Returns the length of the difference of all gradients, divided by the length of the exact ones.
fn distance(exact: &Step, other: &Step) -> f64 {
    let all = |step: &Step| -> Vec<f64> {
        let dense = step.grads.iter().flat_map(|(_, grad)| grad);
        dense.chain(step.row_grads.iter().flatten()).map(|&x| f64::from(x)).collect()
    };
    let (exact, other) = (all(exact), all(other));
    assert_eq!(exact.len(), other.len());
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = length(&mut exact.iter().zip(&other).map(|(a, b)| a - b));
    difference / length(&mut exact.iter().copied())
}

/// Runs batches of several sizes, and returns what differs from another executor for each batch.
fn differences(gpu: &Arc<dyn Gpu>, precision: Precision, activation: Unary) -> Vec<String> {
    let train = model(activation);
    let params = params_of(&train.graph, 5);
    let mut all = Vec::new();
    let mut old = executor(&train, precision, Arc::clone(gpu));
    for rows in [16, 16, 5, 16, 1, 16, 13] {
        let data = Data::new(rows, rows as u64);
        let mut params = params.clone();
        for (number, (_, values)) in params.iter_mut().enumerate() {
            values.iter_mut().for_each(|value| *value += 0.01 * (number + all.len()) as f32);
        }
        let step = run_gpu(&mut old, &train, &data, &params);
        let new =
            run_gpu(&mut executor(&train, precision, seeded(rows as u64)), &train, &data, &params);
        let exact = run_cpu(
            &mut Executor::new(Program::train(&train, settings()).unwrap()),
            &train,
            &data,
            &params,
        );
        let apart = distance(&exact, &step);
        let bound = match precision {
            Precision::F32 => 2e-6,
            Precision::Tf32 => 5e-3,
            Precision::Bf16 => 4e-2,
        };
        // Relu is off for some units where rounding moves them below zero.
        let bound = if activation == Unary::Relu { 10.0 * bound } else { bound };
        let mut found = String::new();
        if bits(&new) != bits(&step) {
            found.push_str("its bits are not those of another executor; ");
        }
        // A distance that is not a number is a difference too.
        if apart.is_nan() || apart > bound {
            found.push_str(&format!("its gradients are {apart} apart"));
        }
        if precision != Precision::F32 && apart == 0.0 {
            found.push_str("its products are exact");
        }
        all.push(found);
    }
    all
}

#[test]
fn gradients_are_near_the_exact_ones_and_depend_on_the_batch_alone() {
    for precision in PRECISIONS {
        for (seed, activation) in (0..).zip([Unary::Relu, Unary::Tanh, Unary::Relu]) {
            let device = seeded(seed);
            let found = differences(&device, precision, activation);
            assert!(found.iter().all(String::is_empty), "{precision:?}: {found:?}");
            assert!(device.counters().products > 0);
            assert_nothing_lives(&*device);
        }
    }
}

/// Leaves launches out. Each mistake must be found in some batch.
#[test]
fn mistakes_around_the_products_are_found() {
    let find = |kernel: &'static str, after: u64, precision| {
        let device: Arc<dyn Gpu> = Arc::new(Without::new(seeded(1), kernel, after));
        differences(&device, precision, Unary::Relu).iter().any(|found| !found.is_empty())
    };
    for precision in PRECISIONS {
        // The control: a kernel that does not exist is never left out.
        assert!(!find("none", 0, precision), "{precision:?}");
        // The copies of weights are those of the first run for ever.
        assert!(find("copy_weights", 2, precision), "{precision:?}");
        // The operands keep what was behind their columns, and behind the rows of the batch.
        match precision {
            Precision::Bf16 => assert!(find("padded_rows", 20, precision)),
            _ => assert!(find("clear_padding", 0, precision), "{precision:?}"),
        }
    }
}

#[test]
fn precisions_keep_the_bits_that_they_have() {
    let train = train(|b| {
        let x = b.numeric("x", &(0..8).collect::<Vec<_>>())?;
        let (_, w) = b.param("w", (8, 8), ParamInit::XavierNormal, true)?;
        b.matmul("y", x, w)
    });
    let mut params = params_of(&train.graph, 1);
    for (_, values) in params.iter_mut() {
        values
            .iter_mut()
            .enumerate()
            .for_each(|(i, value)| *value = f32::from(u8::from(i % 9 == 0)));
    }
    let with = |bit: i32, precision: Precision| {
        let mut data = Data::new(3, 2);
        let value = 1.0 + 2f32.powi(-bit);
        data.numeric.iter_mut().for_each(|column| column.fill(value));
        let step = run_gpu(&mut executor(&train, precision, gpu()), &train, &data, &params);
        let (_, y) = train.graph.outputs.iter().zip(&step.outputs).next().unwrap();
        assert!(y.iter().all(|v| v.to_bits() == y[0].to_bits()), "{y:?}");
        y[0] == value
    };
    let kept = |precision| (1..24).take_while(|&bit| with(bit, precision)).count();
    assert_eq!(PRECISIONS.map(kept), [23, 10, 7]);
}

/// Puts NaN in front of the relu of a product. The gradients show it, and so does the loss, unless
/// the library of a real GPU makes 0 of NaN.
#[test]
fn not_a_number_in_front_of_relu_is_seen() {
    let train = train(|b| {
        let item = b.gather("item", 0, 0, 8, Pooling::Sum)?;
        let numeric = b.numeric("numeric", &[0, 1, 2])?;
        let x = b.concat("input", &[item, numeric])?;
        let hidden = b.linear("deep.0", x, 24)?;
        let hidden = b.relu("deep.0.relu", hidden)?;
        b.linear("deep.1", hidden, 9)
    });
    let params = params_of(&train.graph, 6);
    for precision in PRECISIONS {
        let mut data = Data::new(16, 6);
        data.numeric[1][4] = f32::NAN;
        let device = gpu();
        let step =
            run_gpu(&mut executor(&train, precision, Arc::clone(&device)), &train, &data, &params);
        let is_nan = |(_, grad): &(_, Vec<f32>)| grad.iter().any(|x| x.is_nan());
        assert!(step.grads.iter().any(is_nan), "{precision:?}");
        assert!(step.loss.is_nan() || device.info().kind == Kind::Cuda, "{precision:?}");
    }
}

/// Counts what a step of a batch that fits does: the products are in the graph too.
#[test]
fn a_warm_step_enqueues_no_product() {
    let (train, device) = (model(Unary::Relu), seeded(2));
    let params = params_of(&train.graph, 7);
    let mut executor = executor(&train, Precision::Bf16, Arc::clone(&device));
    let large = Data::new(16, 1);
    run_gpu(&mut executor, &train, &large, &params);
    run_gpu(&mut executor, &train, &large, &params);
    for rows in [16, 15, 1] {
        let data = Data::with_lists(rows, rows as u64, 4);
        let before = device.counters();
        run_gpu(&mut executor, &train, &data, &params);
        let after = device.counters();
        assert_eq!(after.host_waits - before.host_waits, 1);
        assert_eq!(after.allocations, before.allocations);
        assert_eq!((after.launches, after.products), (before.launches, before.products));
        assert_eq!(after.replays - before.replays, 1);
    }
}

#[test]
fn algorithms_are_kept_and_set_again() {
    let train = model(Unary::Relu);
    let (data, params) = (Data::new(16, 3), params_of(&train.graph, 3));
    let mut first = executor(&train, Precision::Tf32, gpu());
    assert!(first.algorithms().is_empty());
    let expected = run_gpu(&mut first, &train, &data, &params);
    let kept = first.algorithms();
    assert!(kept.len() > 10, "{kept:?}");
    // Longer lists are more blocks of the same products.
    let mut longer = executor(&train, Precision::Tf32, gpu());
    run_gpu(&mut longer, &train, &Data::with_lists(16, 3, 40), &params);
    assert_eq!(longer.algorithms(), kept);
    // A larger batch is refused.
    let large = Data::new(17, 3);
    let error = longer.infer(&large.inputs(), &params).unwrap_err().to_string();
    assert!(error.contains("17 rows") && error.contains("have 16"), "{error}");
    assert!(kept.keys().all(|shape| shape.starts_with("tf32 ")), "{kept:?}");
    let mut second = executor(&train, Precision::Tf32, gpu());
    assert_eq!(second.keep_algorithms(&kept).unwrap(), [""; 0]);
    assert_eq!(second.algorithms(), kept);
    assert_same(&expected, &run_gpu(&mut second, &train, &data, &params), &train);
    assert_eq!(second.algorithms(), kept);
    // What the library does not propose is said, and chosen anew.
    let mut wrong = kept.clone();
    let changed = wrong.keys().find(|shape| shape.contains("biasrelu")).unwrap().clone();
    wrong.get_mut(&changed).unwrap()[5] ^= 1;
    let mut third = executor(&train, Precision::Tf32, gpu());
    let refused = third.keep_algorithms(&wrong).unwrap();
    assert!(!refused.is_empty() && refused[0].contains("algorithm"), "{refused:?}");
    run_gpu(&mut third, &train, &data, &params);
    assert_eq!(third.algorithms(), kept);
    // Exact products have no algorithms.
    let program = Program::train(&train, settings()).unwrap();
    let mut exact = GpuExecutor::new(program, gpu()).unwrap();
    assert_eq!(exact.keep_algorithms(&kept).unwrap(), [""; 0]);
    assert!(exact.algorithms().is_empty());
}

/// Runs a model on a device whose fastest algorithms are other ones. With the algorithms of the
/// first device it has the bits of the first device, and without them it has other bits.
#[test]
fn kept_algorithms_have_the_bits_of_the_first_device() {
    let train = model(Unary::Tanh);
    let (data, params) = (Data::new(16, 3), params_of(&train.graph, 3));
    for precision in PRECISIONS {
        let mut first = executor(&train, precision, seeded(0));
        let expected = run_gpu(&mut first, &train, &data, &params);
        let (kept, other) = (first.algorithms(), seeded(100));
        let mut without = executor(&train, precision, Arc::clone(&other));
        let found = run_gpu(&mut without, &train, &data, &params);
        // A real device is the same one, and has chosen already.
        let is_real = other.info().kind == Kind::Cuda;
        assert_eq!(without.algorithms() == kept, is_real, "{precision:?}");
        assert_eq!(bits(&found) == bits(&expected), is_real, "{precision:?}");
        let mut with = executor(&train, precision, seeded(100));
        assert_eq!(with.keep_algorithms(&kept).unwrap(), [""; 0]);
        assert_eq!(with.algorithms(), kept);
        assert_same(&expected, &run_gpu(&mut with, &train, &data, &params), &train);
        assert_eq!(with.algorithms(), kept, "{precision:?}");
    }
}

proptest! {
    // The graphs are the same in every run. PROPTEST_CASES sets another number of graphs.
    #![proptest_config(ProptestConfig {
        cases: if std::env::var("PROPTEST_CASES").is_ok() { ProptestConfig::default().cases } else { 600 },
        rng_seed: RngSeed::Fixed(20_261_128),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Earlier runs of an executor leave no trace, and finite values stay finite.
    #[test]
    fn random_graphs_depend_on_the_batch_alone(
        rows in 1usize..17,
        seed in 0u64..1000,
        is_narrow in any::<bool>(),
        choices in prop::collection::vec(any::<Choice>(), 1..12),
    ) {
        let train = train(|b| {
            let y = build(b, &choices)?;
            let wide = b.linear("wide", y, 9)?;
            let other = b.linear("wide.other", wide, 20)?;
            b.linear("narrow", other, 3)
        });
        let precision = if is_narrow { Precision::Bf16 } else { Precision::Tf32 };
        let (data, before) = (Data::new(rows, seed), Data::new(1 + rows / 2, seed + 1));
        let params = params_of(&train.graph, seed);
        let mut old = executor(&train, precision, gpu());
        run_gpu(&mut old, &train, &before, &params);
        let step = run_gpu(&mut old, &train, &data, &params);
        let mut new = executor(&train, precision, gpu());
        assert_same(&run_gpu(&mut new, &train, &data, &params), &step, &train);
        let program = Program::train(&train, settings()).unwrap();
        let cpu = run_cpu(&mut Executor::new(program), &train, &data, &params);
        let is_finite = |step: &Step| {
            let dense = step.grads.iter().flat_map(|(_, grad)| grad);
            dense.chain(step.row_grads.iter().flatten()).all(|x| x.is_finite())
        };
        prop_assert!(is_finite(&step) || !is_finite(&cpu));
    }
}
