//! A test that a step allocates nothing after its buffers have grown.
//!
//! The model has every kind of lookup, lists, a barrier, row gradients, and products as wide as in
//! a trained model. The test uses one thread. With more threads, the pool allocates a few bytes for
//! each phase that the threads share.

use std::num::NonZeroUsize;

use zillion_device::matmul::bf16::Instructions;
use zillion_device::{CountingAllocator, Workers};
use zillion_feature::Pooling;
use zillion_nn::{
    ColumnInput, ColumnView, Executor, GraphBuilder, GraphInputs, Inputs, LabelView, Mode,
    OccurrenceView, Params, Program, Settings, StepSeed, TableInput, TableView, differentiate,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const ROWS: usize = 1100;

#[test]
fn a_step_allocates_nothing() {
    let known = GraphInputs {
        tables: vec![TableInput { name: "items".into(), stride: 5 }],
        columns: ["item", "history"]
            .map(|name| ColumnInput { name: name.into(), table: 0 })
            .to_vec(),
        numeric: vec!["x".into(), "y".into()],
        labels: vec!["clicked".into()],
    };
    let mut b = GraphBuilder::new(known, Mode::Train);
    let item = b.gather("item", 0, 0, 4, Pooling::Sum).unwrap();
    let history = b.gather("history", 1, 0, 4, Pooling::Mean).unwrap();
    let values = b.gather_values("values", 1, 0, 4).unwrap();
    let own = b.repeat("own", item, 1).unwrap();
    let scores = b.row_dot("scores", values, own).unwrap();
    let shares = b.segment_softmax("shares", scores).unwrap();
    let weighted = b.mul("weighted", values, shares).unwrap();
    let attended = b.segment_sum("attended", weighted).unwrap();
    let fields = b.concat("fields", &[item, history, attended]).unwrap();
    let fm = b.fm("fm", fields, 4).unwrap();
    let numbers = b.numeric("numbers", &[0, 1]).unwrap();
    let x = b.concat("x", &[fields, numbers]).unwrap();
    let x = b.batch_norm("norm", x).unwrap();
    let x = b.relu("relu", x).unwrap();
    let x = b.linear("wide", x, 96).unwrap();
    let x = b.relu("active", x).unwrap();
    let x = b.dropout("thinned", x, 0.1).unwrap();
    let x = b.linear("narrower", x, 40).unwrap();
    let deep = b.linear("deep", x, 1).unwrap();
    let logit = b.add("logit", fm, deep).unwrap();
    b.output("logit", logit).unwrap();
    let loss = b.bce_with_logits("loss", logit, 0).unwrap();
    let train = differentiate(&b.finish(), loss).unwrap();

    let unique = 8u32;
    let table: Vec<f32> = (0..unique * 5).map(|i| (i % 7) as f32 * 0.1 - 0.3).collect();
    let single: Vec<u32> = (0..ROWS as u32).map(|i| i % unique).collect();
    let offsets: Vec<i32> = (0..=ROWS as i32).map(|i| 2 * i).collect();
    let lists: Vec<u32> = (0..2 * ROWS as u32).map(|i| (i * 5) % unique).collect();
    let all: Vec<u32> = single.iter().chain(&lists).copied().collect();
    let mut starts = vec![0u32];
    let mut positions = Vec::new();
    for key in 0..unique {
        positions.extend((0..all.len() as u32).filter(|&at| all[at as usize] == key));
        starts.push(positions.len() as u32);
    }
    let numbers: Vec<f32> = (0..ROWS).map(|i| i as f32 / ROWS as f32).collect();
    let labels: Vec<f32> = (0..ROWS).map(|i| (i % 2) as f32).collect();
    let column =
        |inverse, offsets, base| ColumnView { table: 0, inverse, offsets, weights: None, base };
    let inputs = Inputs {
        rows: ROWS,
        tables: vec![TableView { values: &table, stride: 5, unique: unique as usize }],
        columns: vec![column(&single, None, 0), column(&lists, Some(&offsets), ROWS as u32)],
        occurrences: vec![OccurrenceView { offsets: &starts, positions: &positions }],
        numeric: vec![&numbers, &numbers],
        labels: vec![LabelView { values: &labels, mask: None }],
        weight: None,
    };

    let workers = Workers::new(NonZeroUsize::MIN).unwrap();
    let settings = Settings { lanes: 3, tile_rows: 128, ..Settings::default() };
    for kind in std::iter::once(None).chain(Instructions::list().map(Some)) {
        let program = Program::train(&train, settings).unwrap();
        let mut executor = Executor::with_products(program, kind);
        let mut params = Params::init(&train.graph.params, 1);
        let mut grads = vec![0.0; table.len()];
        let mut counts = [0; 4];
        for (step, count) in (0..).zip(&mut counts) {
            let before = ALLOCATOR.count();
            let seed = StepSeed { seed: 1, step };
            executor.train(&workers, &inputs, &mut params, seed, &mut [&mut grads]).unwrap();
            *count = ALLOCATOR.count() - before;
        }
        assert!(counts[0] > 0, "the first step makes the buffers: {counts:?}");
        assert_eq!(counts[1..], [0; 3], "{kind:?}");
        assert!(grads.iter().any(|&g| g != 0.0) && executor.loss().unwrap().is_finite());
    }
}
