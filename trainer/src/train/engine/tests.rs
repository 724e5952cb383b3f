//! Tests of steps whose gradients have no finite norm, and of runs with several numbers of batches
//! ahead.

use zillion_nn::{Mode, Params};

use super::super::tests::Place;
use super::super::{TrainOptions, train};
use crate::observer::Silent;

/// A model whose loss is finite and whose dense gradient is not: a square root has an infinite
/// slope at 0, which is multiplied by 0.
const STEEP: &str = "[model]\nkind = 'graph'\nlogits = 'score'\n\
    [model.nodes.fields]\nop = 'embedding'\n\
    [model.nodes.hidden]\nop = 'linear'\ninputs = ['fields']\nwidth = 6\n\
    [model.nodes.active]\nop = 'relu'\ninputs = ['hidden']\n\
    [model.nodes.factor]\nop = 'param'\nshape = [1, 6]\n\
    [model.nodes.scaled]\nop = 'mul'\ninputs = ['active', 'factor']\n\
    [model.nodes.square]\nop = 'square'\ninputs = ['scaled']\n\
    [model.nodes.root]\nop = 'sqrt'\ninputs = ['square']\n\
    [model.nodes.score]\nop = 'linear'\ninputs = ['root']\nwidth = 1\n";

#[test]
fn a_skipped_step_creates_its_rows_and_moves_no_weight() {
    let place = Place::new();
    let endings =
        [("plain", ""), ("clipped", "clip_norm = 1.0\n"), ("accumulated", "accumulate = 3\n")];
    for (name, more) in endings {
        let train =
            |epochs: u64| format!("{STEEP}[train]\nepochs = {epochs}\nbatch_size = 64\n{more}");
        let report = place.run(name, &train(3));
        assert_eq!(report.skipped_steps, report.steps, "{name}");
        assert!(report.steps >= 6, "{name}");
        // Every key of the data has a row. All gradients of rows were dropped and counted.
        for (table, rows) in report.tables.iter().zip([40, 60]) {
            assert_eq!(table.rows, rows, "{name}");
            assert!(table.nonfinite >= rows, "{name}: {table:?}");
        }
        // The dense parameters are the initial ones, and further steps change no score.
        let (params, _) = place.params(name);
        let graph = place.job("unused", &train(3)).graph(Mode::Train).unwrap();
        assert_eq!(params, Params::init(&graph.params, 3), "{name}");
        let short = format!("{name}-short");
        place.run(&short, &train(1));
        assert_eq!(place.logits(name), place.logits(&short), "{name}");
    }
}

#[test]
fn batches_ahead_change_no_byte_of_a_checkpoint() {
    let place = Place::new();
    let run = |name: &str, ahead: usize, threads: usize| {
        let more = format!(
            "ahead = {ahead}\n[model]\nkind = 'deepfm'\nhidden = [8, 4]\n\
             [train]\nepochs = 2\nbatch_size = 16\n"
        );
        let job = place.job(name, &more);
        train(job, TrainOptions::new(threads).unwrap(), &mut Silent).unwrap();
        place.files(name)
    };
    let one = run("one", 1, 1);
    assert!(one.len() > 3);
    for (name, ahead, threads) in [("two", 2, 2), ("many", 64, 3), ("alone", 64, 1)] {
        assert!(run(name, ahead, threads) == one, "{name}");
    }
}
