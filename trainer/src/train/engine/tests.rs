//! Tests of steps whose gradients have no finite norm, of runs with several numbers of batches
//! ahead, and of results that come late.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Instant;

use zillion_nn::{Mode, Params};

use super::super::opening::{Open, open_client};
use super::super::prepare::Start;
use super::super::steep::steep_model;
use super::super::tests::Place;
use super::super::{TrainOptions, TrainReport, train};
use super::*;
use crate::checkpoint::{Checkpoint, RunDir};
use crate::observer::{EpochReport, InspectOptions, InspectedStep, Observer, Silent};

#[test]
fn a_skipped_step_creates_its_rows_and_moves_no_weight() {
    let (place, steep) = (Place::new(), steep_model(6));
    let endings =
        [("plain", ""), ("clipped", "clip_norm = 1.0\n"), ("accumulated", "accumulate = 3\n")];
    for (name, more) in endings {
        let train = |epochs: u64| {
            format!(
                "{steep}[train]\nepochs = {epochs}\nbatch_size = 64\noutput_bias = 'zero'\n{more}"
            )
        };
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

/// An engine of the host whose results come some batches later than their steps, as those of a GPU.
#[derive(Default)]
struct LateEngine {
    delay: usize,
    losses: VecDeque<Result<f64>>,
}

impl Engine for LateEngine {
    fn step(
        &mut self,
        run: &mut Run,
        planned: &mut Planned,
        next: Option<&Arc<LookupPlan>>,
    ) -> Result<Stepped> {
        if self.losses.iter().any(Result::is_err) {
            // The steps after a loss that is not finite have no use.
            return Ok(Stepped::Done);
        }
        let loss = HostEngine.step(run, planned, next);
        let loss = loss.map(|_| run.buffers.loss.take().unwrap());
        self.losses.push_back(loss);
        Ok(Stepped::Done)
    }

    fn finish(&mut self, _run: &mut Run, waits: bool) -> Result<Option<f64>> {
        if self.losses.len() <= self.delay && !waits {
            return Ok(None);
        }
        self.losses.pop_front().transpose()
    }
}

/// An observer that keeps the mean loss of each epoch, and the values of each step.
#[derive(Default)]
struct Losses {
    epochs: Vec<f64>,
    steps: Vec<(u64, f64)>,
}

impl Observer for Losses {
    fn inspect_options(&self) -> InspectOptions {
        InspectOptions { steps: true, ..InspectOptions::default() }
    }

    fn inspect(&mut self, step: &InspectedStep<'_>) {
        self.steps.push((step.step, step.loss));
    }

    fn epoch(&mut self, report: &EpochReport) {
        self.epochs.push(report.mean_loss);
    }
}

/// Trains with results that come `delay` batches late.
fn train_late(
    place: &Place,
    name: &str,
    more: &str,
    delay: usize,
) -> (Result<TrainReport>, Losses) {
    let mut losses = Losses::default();
    let (job, options) = (place.job(name, more), TrainOptions::new(2).unwrap());
    let open: &mut Open<'_> = &mut open_client;
    let (mut run, basis) = Run::open(job, options, Instant::now(), open, &mut losses).unwrap();
    run.engine = Box::new(LateEngine { delay, ..LateEngine::default() });
    let start = Start::From(Box::new(basis));
    let report = run.prepare_and_train(start, Instant::now(), &mut losses);
    (report, losses)
}

#[test]
fn results_that_come_late_change_no_byte_and_no_loss() {
    let place = Place::new();
    let registry = place.path("registry");
    for (case, accumulate) in [(0, 1), (1, 3)] {
        let more = |name: &str| {
            format!(
                "[publish]\nregistry = {registry:?}\nmodel = '{name}'\nevery = 4\nparity_rows = 8\n\
                 [model]\nkind = 'deepfm'\nhidden = [8, 4]\n\
                 [train]\nepochs = 2\nbatch_size = 16\naccumulate = {accumulate}\n\
                 checkpoint_every = 5\nfull_every = 3\nkeep = 100\n"
            )
        };
        let run = |delay: usize| {
            let name = format!("late-{case}-{delay}");
            let (report, losses) = train_late(&place, &name, &more(&name), delay);
            let report = report.unwrap();
            let kept = read_progress(&place, &name);
            (report.steps, report.published, kept, losses.epochs, losses.steps, read(&place, &name))
        };
        let expected = run(0);
        assert_eq!(expected.4.len(), 76, "each batch has a loss");
        assert!(expected.2.len() > 4, "{:?}", expected.2);
        assert!(expected.1.is_some_and(|version| version > 4), "{:?}", expected.1);
        for delay in [1, 7, 1000] {
            assert!(run(delay) == expected, "{accumulate} batches, {delay} late");
        }
    }
}

/// Reads the progress of a run in each of its checkpoints, with the sum of the losses.
fn read_progress(place: &Place, name: &str) -> Vec<String> {
    let dir = RunDir::new(place.path(name));
    let progress = |step| Checkpoint::open(dir.checkpoint_path(step)?).map(|c| c.manifest.progress);
    let steps = dir.steps().unwrap().into_iter();
    steps.map(|step| format!("{step}: {:?}", progress(step).unwrap())).collect()
}

/// Reads the files of the newest checkpoint that do not name the run.
fn read(place: &Place, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = place.files(name);
    files.retain(|path, _| !path.ends_with("manifest.json"));
    assert!(files.len() > 3, "{:?}", files.keys());
    files
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_though_it_is_read_late() {
    let place = Place::new();
    let more = "[model]\nkind = 'deepfm'\nhidden = [8, 4]\n\
        [train]\nepochs = 4\nbatch_size = 16\ncheckpoint_every = 2\n\
        optimizer = { kind = 'sgd', lr = 1e18 }\n";
    let run = |delay: usize| {
        let name = format!("lost-{delay}");
        let (report, losses) = train_late(&place, &name, more, delay);
        let kept = RunDir::new(place.path(&name)).steps().unwrap();
        (report.unwrap_err().to_string(), kept, losses.steps)
    };
    let expected = run(0);
    assert!(expected.0.contains("diverged"), "{}", expected.0);
    for delay in [1, 7, 1000] {
        assert!(run(delay) == expected, "{delay} late");
    }
}
