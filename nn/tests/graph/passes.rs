//! Tests that every graph computes the same bits with each pass on and off, except for the sign of
//! a zero.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use zillion_nn::{
    Error, Executor, Graph, GraphBuilder, Mode, NodeId, Op, Passes, Program, Settings, Shape,
    differentiate,
};

use crate::check::{Step, params_of, train_step, weighted_sum, workers};
use crate::data::{Data, graph_inputs};
use crate::random::{Choice, build};

/// Returns the sets of passes to compare: no pass, each pass alone, all passes but one, and all
/// passes.
fn selections() -> Vec<(String, Passes)> {
    let names: Vec<&str> = Passes::known().map(|(name, _)| name).collect();
    let mut selections = vec![("all".to_owned(), Passes::ALL)];
    for &name in &names {
        let others: Vec<&str> = names.iter().copied().filter(|&other| other != name).collect();
        selections.push((format!("only {name}"), Passes::without(&others).unwrap()));
        selections.push((format!("without {name}"), Passes::without(&[name]).unwrap()));
    }
    selections
}

/// Returns whether numbers are equal. −0 equals 0, and a NaN equals a NaN.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || a.is_nan() && b.is_nan())
}

fn same_step(a: &Step, b: &Step) -> Result<(), String> {
    if !same(&[a.loss], &[b.loss]) {
        return Err(format!("loss {} for {}", b.loss, a.loss));
    }
    for ((p, a), (_, b)) in a.grads.iter().zip(&b.grads) {
        if !same(a, b) {
            return Err(format!("gradient of {p:?}: {b:?} for {a:?}"));
        }
    }
    for (a, b) in a.row_grads.iter().zip(&b.row_grads).chain(a.outputs.iter().zip(&b.outputs)) {
        if !same(a, b) {
            return Err(format!("{b:?} for {a:?}"));
        }
    }
    let params = a.params.iter().zip(b.params.iter());
    match params.into_iter().all(|((_, a), (_, b))| same(a, b)) {
        true => Ok(()),
        false => Err("running statistics".to_owned()),
    }
}

fn results(graph: &Graph, ids: &[NodeId], data: &Data, passes: Passes) -> Vec<Vec<f32>> {
    let settings = Settings { lanes: 3, tile_rows: 4, passes };
    let mut executor = Executor::new(Program::infer(graph, ids, settings).unwrap());
    executor.infer(&workers(2), &data.inputs(), &params_of(graph, 3)).unwrap();
    ids.iter().map(|&id| executor.output(id).unwrap().to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(150),
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_graphs_compute_the_same(
        rows in 2usize..24,
        seed in 0u64..1000,
        choices in prop::collection::vec(any::<Choice>(), 1..16),
    ) {
        let data = Data::new(rows, seed);
        let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
        let y = build(&mut b, &choices).unwrap();
        let loss = weighted_sum(&mut b, y).unwrap();
        b.output("y", y).unwrap();
        let graph = b.finish();
        let params = params_of(&graph, seed);
        let train = differentiate(&graph, loss).unwrap();
        let step = |passes| {
            let settings = Settings { lanes: 3, tile_rows: 4, passes };
            train_step(&train, &data, &params, settings, &workers(2))
        };
        let plain = step(Passes::NONE);
        let alone = results(&graph, &[y], &data, Passes::NONE);
        for (name, passes) in selections() {
            if let Err(reason) = same_step(&plain, &step(passes)) {
                return Err(TestCaseError::fail(format!("{name}: {reason}\n{}", train.graph)));
            }
            let found = results(&graph, &[y], &data, passes);
            prop_assert!(same(&alone[0], &found[0]), "{}: inference\n{}", name, graph);
        }
    }
}

#[test]
fn requested_nodes_are_not_fused_away() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Infer);
    let x = b.numeric("x", &[0, 1, 2]).unwrap();
    let h = b.linear("layer", x, 4).unwrap();
    let y = b.relu("relu", h).unwrap();
    let graph = b.finish();
    let data = Data::new(9, 1);
    let both = results(&graph, &[h, y, h], &data, Passes::ALL);
    assert!(both[0].iter().any(|&v| v < 0.0), "the layer itself has negative values");
    assert_eq!(both[0], both[2]);
    assert_eq!(both, results(&graph, &[h, y, h], &data, Passes::NONE));
    let program = Program::infer(&graph, &[y], Settings::default()).unwrap();
    let fused = program.graph().nodes.iter().any(|node| matches!(node.op, Op::Fused(_)));
    assert!(fused, "{}", program.graph());
}

#[test]
fn names_of_passes_are_checked() {
    let Err(Error::Setting { name, reason }) = Passes::without(&["epilogue"]) else {
        panic!("there is no such pass");
    };
    assert_eq!(name, "passes_off");
    assert!(reason.contains("did you mean \"epilogues\"?"), "{reason}");
    assert_eq!(Passes::without(&["all"]).unwrap(), Passes::NONE);
    assert!(Passes::without::<&str>(&[]).unwrap() == Passes::ALL && Passes::ALL.has("algebra"));
    assert_eq!(Passes::NONE.to_string(), "");
}

#[test]
fn a_buffer_is_used_again_by_the_operation_that_reads_it_last() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Infer);
    let x = b.numeric("x", &[0, 1, 2]).unwrap();
    let mut h = b.linear("layer", x, 40).unwrap();
    // Each value is read twice, so nothing can be fused.
    for i in 0..5 {
        let s = b.sigmoid(&format!("s{i}"), h).unwrap();
        h = b.mul(&format!("h{i}"), s, h).unwrap();
    }
    assert_eq!(b.shape(h), Shape::batch(40));
    let graph = b.finish();
    let bytes = |passes| {
        let settings = Settings { passes, ..Settings::default() };
        let program = Program::infer(&graph, &[h], settings).unwrap();
        program.memory(256, 1, |_| 1)
    };
    let with = bytes(Passes::ALL);
    let without = bytes(Passes::without(&["in_place", "epilogues"]).unwrap());
    assert!(with.planned < without.planned, "{with:?} {without:?}");
    // If each value has separate rows, there are eleven values of 40 columns, and rows of 3 floats.
    assert_eq!(without.naive, 4 * 256 * (11 * 40 + 3));
    let data = Data::new(70, 2);
    assert_eq!(
        results(&graph, &[h], &data, Passes::ALL),
        results(&graph, &[h], &data, Passes::NONE)
    );
}
