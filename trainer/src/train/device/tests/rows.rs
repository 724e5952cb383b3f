//! Tests of runs whose rows stay on the emulated GPU, and whose results come later than their
//! steps.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::job::DeviceChoice::{Cpu, Emulated};
use crate::observer::{CheckpointReport, EpochReport};
use crate::train::steep::steep_model;

/// The seed of an emulated GPU that is always faster than the host, so that the host never has to
/// wait for room.
const FAST: u64 = 3;

/// An observer that stops a run at the end of a checkpoint, so that the run ends some steps later.
struct StopBehindCheckpoint {
    checkpoints: u64,
    stop: Arc<AtomicBool>,
}

impl Observer for StopBehindCheckpoint {
    fn report_checkpoint(&mut self, _: &CheckpointReport) {
        self.checkpoints = self.checkpoints.saturating_sub(1);
        self.stop.fetch_or(self.checkpoints == 0, Ordering::Relaxed);
    }
}

/// Settings with everything that has a state and can be on a GPU.
const WITH_STATE: &str = "tables.user = { admission = { kind = 'count', at_least = 2 }, \
        statistics = { decay = 0.9, every_steps = 2 }, l2 = 0.01 }\n\
    tables.item = { optimizer = { kind = 'adam', lr = 0.01 }, dtype = 'bf16' }\n\
    model = { kind = 'deepfm', hidden = [8, 4], batch_norm = true, dropout = 0.2 }\n\
    [train]\nepochs = 3\nbatch_size = 6\nclip_norm = 0.5\n\
    checkpoint_every = 3\nfull_every = 3\noptimizer = { kind = 'adam', lr = 0.01 }\n";

#[test]
fn a_run_moves_between_devices_at_checkpoints() {
    let place = Place::new();
    let report = place.train("whole", WITH_STATE, Cpu).unwrap();
    let expected = place.files("whole");
    assert_eq!(report.steps, 51);
    for history in 0..6_u64 {
        let output = format!("history-{history}");
        let draw = |part: u64, below: u64| mix64(combine(55 + history, part)) % below;
        let mut moves = 0;
        for part in 0.. {
            let device = match (history + part) % 2 {
                0 => Emulated(draw(part, 1000)),
                _ => Cpu,
            };
            let mut options = TrainOptions::new(1 + draw(part + 100, 3) as usize).unwrap();
            options.resume = part > 0;
            let checkpoints = 1 + draw(part + 200, 4);
            let mut observer = StopBehindCheckpoint { checkpoints, stop: options.stop.clone() };
            let job = place.job(&output, WITH_STATE, device).unwrap();
            let report = train(job, options, &mut observer).unwrap();
            assert_eq!(report.gpu.map(|gpu| gpu.has_rows), (device != Cpu).then_some(true));
            if !report.interrupted {
                break;
            }
            moves += 1;
        }
        assert!(moves > 1, "{output} was not interrupted");
        assert!(place.files(&output) == expected, "{output}");
    }
}

#[test]
fn warm_steps_neither_wait_nor_allocate() {
    let place = Place::new();
    let run = |name: &str, epochs: u64, device: u64| {
        let settings = format!(
            "data.shuffle = false\n[train]\nepochs = {epochs}\nbatch_size = 10\n\
             clip_norm = 1.0\noptimizer = {{ kind = 'adam', lr = 0.01 }}\n"
        );
        place.train(name, &settings, Emulated(device)).unwrap().gpu.unwrap()
    };
    let one = run("one", 1, FAST);
    let five = run("five", 5, FAST);
    assert_eq!((one.steps, five.steps), (10, 50));
    assert!(one.has_rows && one.bytes > 0 && five.bytes == one.bytes, "{one:?} {five:?}");
    // The first batches need memory. From the second epoch on, every batch has been seen.
    assert!(one.waited_steps < 10, "{one:?}");
    assert_eq!(five.waited_steps, one.waited_steps, "{five:?}");
    assert_eq!(five.allocating_steps, one.allocating_steps, "{five:?}");
    // The threads that plan ahead have written their batches, also those of the smaller last batch.
    assert!(five.staged_steps >= 40, "{five:?}");
    // A GPU that runs only if the host waits lets the host wait for room.
    let slow = run("slow", 5, 4);
    assert!(slow.waited_steps > five.waited_steps && slow.waited_steps < slow.steps, "{slow:?}");
}

/// An observer that keeps the figures of each epoch.
#[derive(Default)]
struct Epochs(Vec<(u64, f64, f64)>);

impl Observer for Epochs {
    fn epoch(&mut self, report: &EpochReport) {
        self.0.push((report.epoch, report.mean_loss, report.regulariser));
    }
}

#[test]
fn the_figures_of_an_epoch_are_those_of_processors() {
    let place = Place::new();
    let settings = "tables.'*'.l2 = 0.01\n[train]\nepochs = 3\nbatch_size = 7\n";
    let figures = |name: &str, device| {
        let mut epochs = Epochs::default();
        let job = place.job(name, settings, device).unwrap();
        let report = train(job, TrainOptions::new(2).unwrap(), &mut epochs).unwrap();
        let tables = serde_json::to_value(&report.tables).unwrap();
        let tables: Vec<_> = tables.as_array().unwrap().iter().map(without_bytes).collect();
        (epochs.0, report.valid_auc, report.test.map(|test| test.auc), tables)
    };
    let expected = figures("cpu", Cpu);
    assert_eq!(expected.0.len(), 3);
    for device in [1, 2, FAST] {
        assert_eq!(figures(&format!("gpu-{device}"), Emulated(device)), expected);
    }
}

/// Returns the report of a table without the bytes that it takes on the host.
fn without_bytes(report: &serde_json::Value) -> serde_json::Value {
    let mut report = report.clone();
    report.as_object_mut().unwrap().remove("bytes").unwrap();
    report
}

#[test]
fn skipped_steps_among_others_are_those_of_processors() {
    let (place, steep) = (Place::new(), steep_model(1));
    let mut mixed = 0;
    for (case, batch) in [(0, 2), (1, 1), (2, 28)] {
        for (clip, more) in [(0, ""), (1, "clip_norm = 0.1\n")] {
            let settings = format!(
                "{steep}[train]\nepochs = 2\nbatch_size = {batch}\n{more}\
                 optimizer = {{ kind = 'adam', lr = 0.02 }}\ncheckpoint_every = 7\n"
            );
            let run = |name: &str, device| {
                let report = place.train(name, &settings, device).unwrap();
                let tables: Vec<_> = report.tables.iter().map(|t| (t.rows, t.nonfinite)).collect();
                (report.skipped_steps, report.steps, tables, place.files(name))
            };
            let expected = run(&format!("cpu-{case}-{clip}"), Cpu);
            mixed += u64::from(expected.0 > 0 && expected.0 < expected.1);
            for device in [1, FAST] {
                let name = format!("gpu-{case}-{clip}-{device}");
                let found = run(&name, Emulated(device));
                assert!(found == expected, "{name}: {:?} {:?}", &found.0, &expected.0);
            }
        }
    }
    assert!(mixed > 0, "no run has both kinds of steps");
}

#[test]
fn a_loss_that_is_not_finite_ends_a_run_on_a_gpu() {
    let place = Place::new();
    let settings = "[train]\nepochs = 9\nbatch_size = 5\ncheckpoint_every = 2\nkeep = 100\n\
        optimizer = { kind = 'sgd', lr = 1e16 }\n";
    let run = |name: &str, device| {
        let error = place.train(name, settings, device).unwrap_err();
        let kept = RunDir::new(place.path(name)).steps().unwrap();
        (error.to_string(), kept)
    };
    let expected = run("cpu", Cpu);
    assert!(expected.0.contains("diverged"), "{}", expected.0);
    for device in [1, 2, FAST] {
        let name = format!("gpu-{device}");
        assert_eq!(run(&name, Emulated(device)), expected);
    }
}

#[test]
fn published_versions_have_the_rows_of_processors() {
    let place = Place::new();
    let run = |name: &str, device| {
        let registry = place.path(&format!("{name}-registry"));
        let settings = format!(
            "publish = {{ registry = {registry:?}, model = 'm', every = 3 }}\n\
             [train]\nepochs = 2\nbatch_size = 10\ncheckpoint_every = 4\n"
        );
        let report = place.train(name, &settings, device).unwrap();
        let mut files = read_files(registry.as_ref());
        // Manifests have times and the name of the run.
        files.retain(|path, _| path.extension().is_none_or(|of| of != "json"));
        (report.published, files)
    };
    let expected = run("cpu", Cpu);
    assert!(expected.0.is_some_and(|version| version >= 6), "{:?}", expected.0);
    assert!(expected.1.len() > 12, "{:?}", expected.1.keys());
    for device in [1, FAST] {
        let found = run(&format!("gpu-{device}"), Emulated(device));
        assert_eq!(found.0, expected.0);
        for (path, bytes) in &expected.1 {
            assert!(found.1.get(path) == Some(bytes), "{}", path.display());
        }
        assert_eq!(found.1.len(), expected.1.len());
    }
}
