//! Tests that every model gives the same bits whether the columns of a user have one row or a copy
//! in each row, and tests of the work that is saved.

use std::num::NonZeroUsize;

use zillion_device::Workers;
use zillion_feature::{Pooling, SharedColumns};

use super::super::{ITEM, LOGITS, PROBABILITIES, USER, build};
use super::batch::TestBatch;
use super::shapes::SMALL;
use super::{inputs, spec, tasks, two_tower};
use crate::inputs::Inputs;
use crate::{ColumnCopies, Executor, Graph, Mode, NodeId, Op, Params, Program, Settings, Sizes};

/// Returns the inputs with the first row of each shared column as its only row.
fn one_row<'a>(batch: &'a TestBatch, shared: &SharedColumns) -> Inputs<'a> {
    let mut inputs = batch.view();
    for &at in shared.sparse() {
        let column = &mut inputs.columns[at];
        let values = column.offsets.map_or(1, |offsets| offsets[1] as usize);
        column.inverse = &column.inverse[..values];
        column.offsets = column.offsets.map(|offsets| &offsets[..2]);
    }
    for &at in shared.numeric() {
        inputs.numeric[at] = &inputs.numeric[at][..1];
    }
    inputs.occurrences.clear();
    inputs
}

/// Runs a program and returns the bits of its results.
fn run(
    program: Program,
    ids: &[NodeId],
    batch: &TestBatch,
    shared: &SharedColumns,
    params: &Params,
) -> Vec<Vec<u32>> {
    let workers = Workers::new(NonZeroUsize::new(2).unwrap()).unwrap();
    let mut inputs = one_row(batch, shared);
    let copies = ColumnCopies::new(&inputs, shared, program.one_row_columns()).unwrap();
    copies.apply(&mut inputs);
    let mut executor = Executor::new(program);
    executor.infer(&workers, &inputs, params).unwrap();
    let bits = |&id: &NodeId| executor.output(id).unwrap().iter().map(|x| x.to_bits()).collect();
    ids.iter().map(bits).collect()
}

fn set(sparse: usize, numeric: usize) -> SharedColumns {
    let bits = |set: usize| (0..3).filter(move |at| set >> at & 1 == 1);
    SharedColumns::new(bits(sparse), bits(numeric))
}

fn same_bits(text: &str, batch: &TestBatch, sets: impl Iterator<Item = SharedColumns>) {
    let graph = build(&spec(text), &batch.model, Mode::Infer).unwrap();
    let mut ids: Vec<NodeId> = graph.outputs.iter().map(|&(_, id)| id).collect();
    ids.dedup();
    let params = Params::init(&graph.params, 5);
    let settings = Settings::default();
    for shared in sets {
        let numeric = shared.numeric().iter().filter(|&&at| at < batch.numeric.len());
        let shared = SharedColumns::new(shared.sparse().to_vec(), numeric.copied());
        let plain = Program::infer(&graph, &ids, settings).unwrap();
        let copied = run(plain, &ids, batch, &shared, &params);
        let program = Program::infer_shared(&graph, &ids, settings, &shared).unwrap();
        let found = run(program, &ids, batch, &shared, &params);
        assert_eq!(found, copied, "{text}: {} rows, {shared:?}", batch.rows);
    }
}

fn texts() -> impl Iterator<Item = &'static str> {
    SMALL.into_iter().chain(tasks::SPECS).chain([two_tower::SPEC])
}

fn batch_for(text: &str, rows: usize, dim: usize) -> TestBatch {
    // Each number of the model with two towers is named in a tower.
    let numbers = if text == two_tower::SPEC { 2 } else { 3 };
    let mut batch = TestBatch::new(7, rows, dim, numbers);
    if tasks::SPECS.contains(&text) {
        batch.model.labels = vec!["click".into(), "buy".into()];
    }
    batch
}

#[test]
fn every_set_of_shared_columns_changes_no_bit() {
    for text in texts() {
        let sets = (0..8).flat_map(|sparse| (0..8).map(move |numeric| set(sparse, numeric)));
        same_bits(text, &batch_for(text, 63, 4), sets);
    }
}

#[test]
fn no_number_of_candidates_changes_a_bit() {
    for rows in [1, 2, 256, 257, 1000] {
        for text in texts() {
            let sets = [(1, 0), (3, 0), (2, 5), (7, 2), (7, 7)];
            let sets = sets.into_iter().map(|(sparse, numeric)| set(sparse, numeric));
            same_bits(text, &batch_for(text, rows, 4), sets);
        }
    }
}

#[test]
fn products_of_several_blocks_change_no_bit() {
    // A block of a product has 512 columns. The cuts are before, at and after the end of a block.
    for (dim, text) in [
        (300, "kind = 'deepfm'\nhidden = [70, 5]"),
        (256, "kind = 'dcnv2'\nhidden = [33]\ncross_layers = 2"),
        (20, "kind = 'dlrm'\nhidden = [70, 5]"),
        (300, "kind = 'dlrm'\nhidden = [70, 5]"),
        (512, "kind = 'wide_deep'\nhidden = [40]"),
    ] {
        let sets = [(1, 0), (3, 0), (3, 7), (7, 1), (7, 7)];
        let sets = sets.into_iter().map(|(sparse, numeric)| set(sparse, numeric));
        same_bits(text, &batch_for(text, 70, dim), sets);
    }
}

fn flops(graph: &Graph, output: &str, shared: &SharedColumns, sizes: &Sizes) -> u64 {
    let id = graph.output(output).unwrap();
    let settings = Settings::default();
    Program::infer_shared(graph, &[id], settings, shared).unwrap().cost(sizes).flops
}

#[test]
fn twenty_of_26_shared_fields_save_the_predicted_work() {
    let mut model = inputs(26, 16, 13);
    (model.columns[1].list, model.columns[1].sequence) = (false, false);
    let text = "kind = 'deepfm'\nhidden = [400, 400, 400]";
    let graph = build(&spec(text), &model, Mode::Infer).unwrap();
    let rows = 1000;
    let sizes = Sizes::of(rows);
    let whole = flops(&graph, LOGITS, &SharedColumns::default(), &sizes);
    let found = flops(&graph, LOGITS, &SharedColumns::new(0..20, []), &sizes);
    let products = 2 * 20 * 16 * 400;
    // The factorisation machine adds three numbers for each float of a field. It counts four for
    // the whole row, so the rest counts the two sums of a vector at the end.
    let machine = 4 * 26 * 16 - (3 * 6 * 16 + 2 * 16);
    let saved = (rows as u64) * (products + machine) - (products + 3 * 20 * 16);
    assert_eq!(whole - found, saved);
    assert!(found * 4 < whole * 3, "{found} of {whole}");
}

#[test]
fn user_towers_and_pooled_histories_are_computed_once() {
    let mut model = inputs(3, 4, 2);
    model.columns[1].pooling = Pooling::Mean;
    let (rows, values) = (500, 250);
    let sizes = Sizes { rows, list_len: vec![1, values, 1] };
    let graph = build(&spec(two_tower::SPEC), &model, Mode::Infer).unwrap();
    let of = |output, rows| {
        flops(&graph, output, &SharedColumns::default(), &Sizes { rows, ..sizes.clone() })
    };
    let shared = SharedColumns::new([1], [1]);
    // The output for the user still has a row for each candidate.
    assert_eq!(flops(&graph, USER, &shared, &sizes), of(USER, 1));
    let (user, item) = (of(USER, 1), of(ITEM, rows));
    let score = of(LOGITS, rows) - of(USER, rows) - of(ITEM, rows);
    assert!(flops(&graph, LOGITS, &shared, &sizes) <= user + item + score);
    // A history is pooled once.
    let graph = build(&spec("kind = 'dnn'\nhidden = [8]"), &model, Mode::Infer).unwrap();
    let saved = flops(&graph, LOGITS, &SharedColumns::default(), &sizes)
        - flops(&graph, LOGITS, &SharedColumns::new([1], []), &sizes);
    assert_eq!(saved, (rows as u64 - 1) * 250 * 4);
}

#[test]
fn pairs_of_shared_vectors_are_multiplied_once() {
    let mut model = inputs(26, 16, 0);
    (model.columns[1].list, model.columns[1].sequence) = (false, false);
    let graph = build(&spec("kind = 'dlrm'\nhidden = [40]"), &model, Mode::Infer).unwrap();
    let ids = [LOGITS, PROBABILITIES].map(|name| graph.output(name).unwrap());
    let shared = SharedColumns::new(0..20, []);
    let program = Program::infer_shared(&graph, &ids, Settings::default(), &shared).unwrap();
    let nodes = &program.graph().nodes;
    let rest =
        nodes.iter().find(|node| matches!(node.op, Op::DotInteractionRest { dim: 16, first: 20 }));
    assert_eq!(rest.unwrap().shape.cols, 325 - 190);
    // The first layer begins with the 190 pairs of shared vectors.
    let layer = nodes.iter().find(|node| matches!(node.op.head(), Op::LinearRest { start: 190 }));
    assert!(layer.is_some(), "{}", program.graph());
}
