//! Tests of stopped runs and of released buffers.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{Graph, GraphBuilder, GraphInputs, Mode, differentiate};

const TILE_ROWS: usize = 64;

fn workers(threads: usize) -> Workers {
    Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

fn model() -> Graph {
    let inputs = GraphInputs { numeric: vec!["x".into()], ..GraphInputs::default() };
    let mut b = GraphBuilder::new(inputs, Mode::Infer);
    let x = b.numeric("x", &[0]).unwrap();
    let hidden = b.linear("hidden", x, 24).unwrap();
    let hidden = b.relu("active", hidden).unwrap();
    let logits = b.linear("last", hidden, 1).unwrap();
    b.output("logits", logits).unwrap();
    b.finish()
}

fn executor(graph: &Graph) -> Executor {
    let settings = Settings { lanes: 4, tile_rows: TILE_ROWS, ..Settings::default() };
    let output = graph.output("logits").unwrap();
    Executor::new(Program::infer(graph, &[output], settings).unwrap())
}

/// Runs a batch of numbers, and stops it if `is_late` returns `true`.
fn run(
    executor: &mut Executor,
    graph: &Graph,
    (rows, threads): (usize, usize),
    is_late: Option<&(dyn Fn() -> bool + Sync)>,
) -> Result<Vec<f32>> {
    let numbers: Vec<f32> = (0..rows).map(|i| i as f32 / 100.0).collect();
    let inputs = Inputs { rows, numeric: vec![&numbers], ..Inputs::default() };
    let params = Params::init(&graph.params, 1);
    executor.infer_unless(&workers(threads), &inputs, &params, is_late)?;
    Ok(executor.named_output("logits").unwrap().to_vec())
}

#[test]
fn a_late_run_stops_before_its_next_tile() {
    let graph = model();
    let rows = 20 * TILE_ROWS;
    let expected = run(&mut executor(&graph), &graph, (rows, 1), None).unwrap();
    let mut used = executor(&graph);
    let calls = AtomicUsize::new(0);
    let count = || calls.fetch_add(1, Ordering::Relaxed) + 1;
    let never = || count() == 0;
    assert_eq!(run(&mut used, &graph, (rows, 1), Some(&never)).unwrap(), expected);
    assert!(calls.load(Ordering::Relaxed) >= 20, "each tile is preceded by a check");

    calls.store(0, Ordering::Relaxed);
    let fourth = || count() >= 4;
    let late = run(&mut used, &graph, (rows, 1), Some(&fourth));
    assert!(matches!(late, Err(Error::Late)));
    assert_eq!(calls.load(Ordering::Relaxed), 4, "nothing is computed after the time is over");
    assert_eq!(run(&mut used, &graph, (rows, 1), None).unwrap(), expected);
}

#[test]
fn one_late_check_stops_all_threads() {
    let graph = model();
    for threads in [1, 3] {
        // The function returns `true` only once.
        let calls = AtomicUsize::new(0);
        let once = || calls.fetch_add(1, Ordering::Relaxed) == 2;
        let size = (20 * TILE_ROWS, threads);
        let late = run(&mut executor(&graph), &graph, size, Some(&once));
        assert!(matches!(late, Err(Error::Late)), "{threads} threads");
    }
}

#[test]
fn released_buffers_hold_nothing_and_grow_again() {
    let graph = model();
    let mut used = executor(&graph);
    let small = run(&mut used, &graph, (10, 1), None).unwrap();
    let few = used.buffer_bytes();
    run(&mut used, &graph, (100_000, 1), None).unwrap();
    assert!(used.buffer_bytes() > 10 * few, "{} bytes", used.buffer_bytes());
    used.release();
    assert_eq!(used.buffer_bytes(), 0);
    assert_eq!(run(&mut used, &graph, (10, 1), None).unwrap(), small);
    assert_eq!(used.buffer_bytes(), few);
}

/// Makes a training program with batch norm, and returns its graph and its executor.
fn normed() -> (Graph, Executor) {
    let inputs = GraphInputs { numeric: vec!["x".into()], ..GraphInputs::default() };
    let mut b = GraphBuilder::new(inputs, Mode::Train);
    let x = b.numeric("x", &[0]).unwrap();
    let hidden = b.linear("hidden", x, 3).unwrap();
    let normed = b.batch_norm("normed", hidden).unwrap();
    let last = b.linear("last", normed, 1).unwrap();
    let loss = b.mean_rows("loss", last).unwrap();
    let graph = b.finish();
    let settings = Settings { lanes: 2, tile_rows: TILE_ROWS, ..Settings::default() };
    let program = Program::train(&differentiate(&graph, loss).unwrap(), settings).unwrap();
    (graph, Executor::new(program))
}

#[test]
fn statistics_that_are_computed_apart_have_the_bits_of_training() {
    let (graph, mut executor) = normed();
    let batches: Vec<Vec<f32>> = [5, 1, 90]
        .iter()
        .map(|&rows| (0..rows).map(|i| ((i * i + rows) % 17) as f32 / 7.0).collect())
        .collect();
    let (workers, seed) = (workers(2), StepSeed::default());
    let initial = Params::init(&graph.params, 1);
    let (mut trained, mut joined) = (initial.clone(), initial.clone());
    let mut parts = Vec::new();
    for batch in &batches {
        let inputs = Inputs { rows: batch.len(), numeric: vec![batch], ..Inputs::default() };
        executor.train(&workers, &inputs, &mut trained, seed, &mut []).unwrap();
        let mut part = Vec::new();
        executor.train_apart(&workers, &inputs, &initial, seed, &mut [], &mut part).unwrap();
        parts.push(part);
    }
    for part in &parts {
        executor.apply_statistics(&mut joined, part).unwrap();
    }
    assert_ne!(trained, initial);
    assert_eq!(trained, joined);
    let error = executor.apply_statistics(&mut joined, &parts[0][1..]).unwrap_err();
    assert!(error.to_string().contains("same model"), "{error}");
    assert_eq!(trained, joined);
}
