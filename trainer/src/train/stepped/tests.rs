//! Tests of runs whose steps are taken one at a time, against whole runs.

use std::sync::atomic::Ordering;

use super::*;
use crate::observer::Silent;
use crate::train::tests::{Place, read_files};

const MORE: &str = "[model]\nkind = 'deepfm'\nhidden = [8]\ndropout = 0.2\n\
    [train]\nepochs = 2\nbatch_size = 64\ncheckpoint_every = 4\n\
    [train.schedule]\nwarmup_steps = 3\ndecay = { kind = 'cosine', steps = 20 }\n";

fn open(place: &Place, output: &str, resume: bool) -> SteppedRun {
    let options = TrainOptions { resume, ..TrainOptions::new(2).unwrap() };
    SteppedRun::open(place.job(output, MORE), options, &mut Silent).unwrap()
}

/// Takes the steps of the run's own batches, at most `limit` of them. Returns whether the run has
/// had all of its epochs.
fn take_steps(run: &mut SteppedRun, limit: usize) -> bool {
    let mut taken = 0;
    while !run.is_finished() {
        while let Some(batch) = run.next_batch(&mut Silent).unwrap() {
            if taken == limit {
                return false;
            }
            run.step(batch, &mut Silent).unwrap();
            taken += 1;
        }
        run.end_epoch(&mut Silent).unwrap();
    }
    true
}

#[test]
fn steps_taken_one_at_a_time_give_the_bytes_of_a_whole_run() {
    let place = Place::new();
    let whole = place.run("whole", MORE);
    let mut run = open(&place, "stepped", false);
    assert!(take_steps(&mut run, usize::MAX));
    let report = run.finish(&mut Silent).unwrap();
    assert!(!report.interrupted);
    assert_eq!(report.test.unwrap().auc, whole.test.unwrap().auc);
    assert_eq!(place.files("stepped"), place.files("whole"));
    // The best epoch is chosen in the same way.
    let best = |report: &TrainReport| read_files(&report.checkpoint);
    assert_eq!(report.best_epoch, whole.best_epoch);
    assert_eq!(best(&place.run("again", MORE)), read_files(&report.checkpoint));
}

#[test]
fn an_ended_run_resumes_in_the_middle_of_an_epoch() {
    let place = Place::new();
    place.run("whole", MORE);
    let mut run = open(&place, "stepped", false);
    assert!(!take_steps(&mut run, 13));
    let report = run.finish(&mut Silent).unwrap();
    assert!(report.interrupted);
    assert_eq!(report.steps, 13);
    let mut run = open(&place, "stepped", true);
    assert_eq!((run.steps(), run.epoch()), (13, 1));
    assert!(take_steps(&mut run, usize::MAX));
    run.finish(&mut Silent).unwrap();
    assert_eq!(place.files("stepped"), place.files("whole"));
}

#[test]
fn a_factor_of_the_rates_moves_the_weights_less() {
    let place = Place::new();
    let mut losses = Vec::new();
    for (name, factor) in [("full", 1.0), ("none", 1e-12)] {
        let mut run = open(&place, name, false);
        run.set_rate_factor(factor).unwrap();
        assert!(take_steps(&mut run, usize::MAX));
        losses.push(run.finish(&mut Silent).unwrap().history.last().unwrap().loss.unwrap());
    }
    assert!(losses[0] < losses[1] - 0.01, "{losses:?}");
    let mut run = open(&place, "wrong", false);
    for factor in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        run.set_rate_factor(factor).unwrap_err();
    }
}

#[test]
fn a_batch_of_another_job_and_a_failed_run_are_refused() {
    let place = Place::new();
    let mut run = open(&place, "stepped", false);
    let refused = run.step(Batch::default().into(), &mut Silent).unwrap_err();
    assert!(refused.to_string().contains("it has no rows"), "{refused}");
    let mut batch = run.next_batch(&mut Silent).unwrap().unwrap();
    let mut narrow = batch.clone();
    narrow.batch.sparse.pop();
    let refused = run.step(narrow, &mut Silent).unwrap_err();
    assert!(refused.to_string().contains("1 features of ids"), "{refused}");
    let early = run.end_epoch(&mut Silent).unwrap_err();
    assert!(early.to_string().contains("has had no step"), "{early}");
    // The run takes further steps after a batch that it has refused.
    run.step(batch.clone(), &mut Silent).unwrap();
    batch.batch.numeric[0].fill(f32::INFINITY);
    let diverged = run.step(batch.clone(), &mut Silent).unwrap_err();
    assert!(matches!(diverged, Error::Diverged { .. }), "{diverged}");
    let refused = run.end_epoch(&mut Silent).unwrap_err();
    assert!(refused.to_string().contains("resume from its newest"), "{refused}");
    run.finish(&mut Silent).unwrap_err();
    let accumulate = place.job("two", "[model]\nkind = 'lr'\n[train]\naccumulate = 2\n");
    let Err(refused) = SteppedRun::open(accumulate, TrainOptions::new(1).unwrap(), &mut Silent)
    else {
        panic!("steps of two batches must be refused")
    };
    assert!(refused.to_string().contains("`train.accumulate`"), "{refused}");
}

#[test]
fn a_stopped_validation_leaves_the_epoch_to_be_ended_again() {
    let place = Place::new();
    place.run("whole", MORE);
    let mut run = open(&place, "stepped", false);
    let stop = run.run.options.stop.clone();
    while !run.is_finished() {
        while let Some(batch) = run.next_batch(&mut Silent).unwrap() {
            run.step(batch, &mut Silent).unwrap();
        }
        let epoch = run.epoch();
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(run.validate(), Err(Error::EvaluationStopped)));
        assert!(matches!(run.end_epoch(&mut Silent), Err(Error::EvaluationStopped)));
        stop.store(false, Ordering::Relaxed);
        assert_eq!(run.epoch(), epoch);
        assert!(run.validate().unwrap().is_some());
        run.end_epoch(&mut Silent).unwrap();
    }
    run.finish(&mut Silent).unwrap();
    assert_eq!(place.files("stepped"), place.files("whole"));
}
