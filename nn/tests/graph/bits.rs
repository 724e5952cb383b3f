//! Tests that results have the same bits for any number of threads, and are nearly the same for any
//! division of the batch.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use zillion_feature::Pooling;
use zillion_nn::{GraphBuilder, Mode, Result, Settings, TrainGraph, Unary, differentiate};

use crate::check::{Step, bits, params_of, train_step, workers};
use crate::data::{Data, graph_inputs};

/// Builds a model with lookups of every kind, batch norm, dropout, FM and a linear part. It has a
/// barrier of each kind.
fn model(b: &mut GraphBuilder) -> Result<zillion_nn::NodeId> {
    let item = b.gather("item", 0, 0, 4, Pooling::Sum)?;
    let history = b.gather("history", 1, 0, 4, Pooling::Max)?;
    let text = b.gather("text", 2, 0, 4, Pooling::Mean)?;
    let tag = b.gather("tag", 3, 0, 4, Pooling::Sqrtn)?;
    let wide = b.gather("wide", 1, 7, 1, Pooling::Sum)?;
    let fields = b.concat("fields", &[item, history, text, tag])?;
    let fm = b.fm("fm", fields, 4)?;
    let numeric = b.numeric("numeric", &[0, 1, 2])?;
    let mut h = b.concat("input", &[fields, numeric])?;
    for layer in 0..2 {
        h = b.linear(&format!("mlp.{layer}"), h, 24)?;
        h = b.batch_norm(&format!("mlp.{layer}.norm"), h)?;
        h = b.relu(&format!("mlp.{layer}.relu"), h)?;
        h = b.dropout(&format!("mlp.{layer}.dropout"), h, 0.2)?;
    }
    let h = b.layer_norm("last.norm", h)?;
    let h = b.unary("last.silu", Unary::Silu, h)?;
    let deep = b.linear("deep", h, 1)?;
    let logit = b.add("fm+wide", fm, wide)?;
    let logit = b.add("logit", logit, deep)?;
    b.output("logit", logit)?;
    b.bce_with_logits("loss", logit, 0)
}

fn train() -> TrainGraph {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let loss = model(&mut b).unwrap();
    differentiate(&b.finish(), loss).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        rng_seed: RngSeed::Fixed(20_260_602),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn threads_do_not_change_a_bit(
        rows in 1usize..300,
        seed in any::<u64>(),
        lanes in 1usize..12,
        tile_rows in 1usize..300,
    ) {
        let train = train();
        let data = Data::new(rows, seed);
        let params = params_of(&train.graph, seed);
        let settings = Settings { lanes, tile_rows, ..Settings::default() };
        let step = |threads| bits(&train_step(&train, &data, &params, settings, &workers(threads)));
        let one = step(1);
        prop_assert_eq!(&one, &step(2));
        prop_assert_eq!(&one, &step(3));
    }
}

#[test]
fn another_cut_of_the_batch_adds_in_another_order_and_no_more() {
    let train = train();
    for rows in [1, 2, 63, 64, 65, 200] {
        let data = Data::new(rows, 5);
        let params = params_of(&train.graph, 5);
        let step = |lanes, tile_rows| {
            train_step(
                &train,
                &data,
                &params,
                Settings { lanes, tile_rows, ..Settings::default() },
                &workers(2),
            )
        };
        let whole = step(1, 1 << 16);
        for (lanes, tile_rows) in [(8, 256), (3, 16), (256, 1), (8, 7)] {
            assert_near(&whole, &step(lanes, tile_rows));
        }
    }
}

fn assert_near(a: &Step, b: &Step) {
    let near = |a: &[f32], b: &[f32]| {
        // The bias before a batch norm has gradient 0. Because of rounding, it is about 1e-6.
        let scale = a.iter().fold(1.0f32, |m, v| m.max(v.abs()));
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() <= 1e-4 * scale, "{a} and {b} of up to {scale}");
        }
    };
    near(&[a.loss], &[b.loss]);
    for ((_, a), (_, b)) in a.grads.iter().zip(&b.grads) {
        near(a, b);
    }
    for (a, b) in a.row_grads.iter().zip(&b.row_grads).chain(a.outputs.iter().zip(&b.outputs)) {
        near(a, b);
    }
}

#[test]
fn buffers_of_a_large_batch_serve_a_small_one() {
    let train = train();
    let params = params_of(&train.graph, 1);
    let program = || {
        zillion_nn::Program::train(
            &train,
            Settings { lanes: 4, tile_rows: 8, ..Settings::default() },
        )
        .unwrap()
    };
    let mut used = zillion_nn::Executor::new(program());
    let workers = workers(2);
    for rows in [100, 3, 77, 1, 100] {
        let data = Data::new(rows, rows as u64);
        let run = |executor: &mut zillion_nn::Executor| {
            let mut grads: Vec<Vec<f32>> =
                data.tables.iter().map(|t| vec![0.0; t.values.len()]).collect();
            let mut slices: Vec<&mut [f32]> = grads.iter_mut().map(Vec::as_mut_slice).collect();
            let seed = crate::check::SEED;
            executor
                .train(&workers, &data.inputs(), &mut params.clone(), seed, &mut slices)
                .unwrap();
            (executor.loss().unwrap().to_bits(), grads)
        };
        assert_eq!(run(&mut used), run(&mut zillion_nn::Executor::new(program())));
    }
}
