//! Tests of runs whose tables outgrow the memory of an emulated GPU in the middle of training.

use std::time::Instant;

use zillion_device::gpu::emulated::{Emulated, EmulatedOptions, Pace};

use super::*;
use crate::observer::EpochReport;
use crate::train::graph_executor::GraphExecutor;

/// An observer that keeps the notes of a run and the mean loss of each epoch.
#[derive(Default)]
struct Seen {
    notes: Vec<String>,
    losses: Vec<u64>,
}

impl Observer for Seen {
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn epoch(&mut self, report: &EpochReport) {
        self.losses.push(report.mean_loss.to_bits());
    }
}

impl Seen {
    /// Returns the step from which on the GPU had a cache of rows. Returns `None` if it had all
    /// rows to the end.
    fn cached_at(&self) -> Option<u64> {
        let begin = "rows on the device in a cache from step ";
        let mut lines = self.notes.iter().filter(|line| line.starts_with(begin));
        let line = lines.next()?;
        assert_eq!(lines.next(), None);
        // The memory ends with the rows of a table, or with the lists of a batch.
        assert!(line.contains("the memory of the GPU"), "{line}");
        let step = line.strip_prefix(begin).unwrap();
        step.split_once(' ').unwrap().0.parse().ok()
    }
}

/// Writes training rows of which almost each has items of its own.
pub(super) fn write_rows(place: &Place) {
    let mut text = "user,item,recent,price,click,buy,at\n".to_owned();
    for row in 0..3_000_u64 {
        let draw = |salt: u64, below: u64| mix64(combine(row, salt)) % below;
        let item = if draw(1, 4) == 0 { draw(2, 50) } else { row };
        let click = u64::from(draw(3, 10) + item % 3 > 6);
        let (user, recent, at) = (draw(4, 40), 10_000 + 2 * row, 1_700_000_000 + row);
        writeln!(text, "{user},{item},{recent}|{},0.5,{click},0,{at}", recent + 1).unwrap();
    }
    std::fs::write(place.0.path().join("train.csv"), text).unwrap();
}

/// Trains on an emulated GPU with this memory.
fn train_in(
    place: &Place,
    of: (&str, &str),
    gpu: EmulatedOptions,
    resume: bool,
) -> (TrainReport, Seen) {
    let mut seen = Seen::default();
    let report = train_on(place, of, Arc::new(Emulated::new(gpu)), resume, &mut seen);
    (report.unwrap(), seen)
}

fn train_on(
    place: &Place,
    (output, settings): (&str, &str),
    gpu: Arc<Emulated>,
    resume: bool,
    observer: &mut dyn Observer,
) -> Result<TrainReport> {
    let job = place.job(output, settings, DeviceChoice::Emulated(0)).unwrap();
    let options = TrainOptions { resume, ..TrainOptions::new(2).unwrap() };
    let began = Instant::now();
    let (mut run, basis) = Run::open(job, options, began, &mut open_client, observer).unwrap();
    let program = run.model.executor.gpu_mut().unwrap().program().clone();
    run.model.executor = GraphExecutor::on_gpu(program, gpu, None).unwrap();
    let start = Start::From(Box::new(basis));
    run.prepare_and_train(start, began, observer)
}

pub(super) const PLAIN: &str = "tables.'*'.dim = 64\n[train]\nepochs = 2\nbatch_size = 100\n\
    checkpoint_every = 7\noptimizer = { kind = 'adam', lr = 0.01 }\n";

/// Settings with state of all kinds, and with steps that are clipped.
pub(super) const WITH_STATE: &str = "tables.'*' = { dim = 64, l2 = 0.001 }\n\
    tables.user = { admission = { kind = 'count', at_least = 2 }, dtype = 'bf16' }\n\
    tables.item.optimizer = { kind = 'adam', lr = 0.01 }\n\
    tables.item.statistics = { decay = 0.9, every_steps = 2 }\n\
    model = { kind = 'deepfm', hidden = [8, 4], batch_norm = true, dropout = 0.2 }\n\
    [train]\nepochs = 2\nbatch_size = 100\nclip_norm = 0.5\ncheckpoint_every = 5\n\
    optimizer = { kind = 'adam', lr = 0.01 }\n";

#[test]
fn a_table_that_outgrows_the_gpu_has_a_cache_there_from_the_same_step_on() {
    let place = Place::new();
    write_rows(&place);
    for (case, settings) in [PLAIN, WITH_STATE].into_iter().enumerate() {
        let cpu = format!("cpu-{case}");
        let mut expected = Seen::default();
        let job = place.job(&cpu, settings, DeviceChoice::Cpu).unwrap();
        let report = train(job, TrainOptions::new(2).unwrap(), &mut expected).unwrap();
        let files = place.files(&cpu);
        assert_eq!(report.steps, 60);
        let mut left = BTreeSet::new();
        for (seed, megabytes) in [(1, 12), (2, 10), (3, 12), (4, 11)] {
            let output = format!("gpu-{case}-{seed}");
            let memory_bytes = megabytes * 1_000_000;
            let gpu = EmulatedOptions { memory_bytes, ..EmulatedOptions::seeded(seed) };
            let (on_gpu, seen) = train_in(&place, (&output, settings), gpu.clone(), false);
            let step = seen.cached_at().unwrap_or_else(|| panic!("{output}: {:?}", seen.notes));
            assert!(step > 2 && step < 30, "{output}: {step}");
            left.insert(step);
            let figures = on_gpu.gpu.unwrap();
            assert_eq!((figures.has_cache, figures.steps), (true, 60), "{output}");
            assert!(figures.cache_slots > 1_000 && figures.has_rows, "{output}: {figures:?}");
            assert_eq!(on_gpu.valid_auc, report.valid_auc, "{output}");
            assert_eq!(seen.losses, expected.losses, "{output}");
            assert!(place.files(&output) == files, "{output}");
        }
        assert!(left.len() > 1, "the same step in each memory: {left:?}");
    }
}

#[test]
fn a_gpu_with_enough_memory_keeps_the_rows() {
    let place = Place::new();
    write_rows(&place);
    let gpu = EmulatedOptions::seeded(2);
    let (report, seen) = train_in(&place, ("gpu", PLAIN), gpu, false);
    let figures = report.gpu.unwrap();
    assert!(figures.has_rows && !figures.has_cache && figures.cache_slots == 0, "{figures:?}");
    assert!(seen.cached_at().is_none(), "{:?}", seen.notes);
}

#[test]
fn rows_of_a_checkpoint_that_leave_no_memory_for_batches_have_a_cache() {
    let place = Place::new();
    write_rows(&place);
    let once = PLAIN.replace("epochs = 2", "epochs = 1");
    place.train("run", &once, DeviceChoice::Cpu).unwrap();
    place.train("cpu", PLAIN, DeviceChoice::Cpu).unwrap();
    let memory_bytes = 10_000_000;
    let gpu = EmulatedOptions { memory_bytes, ..EmulatedOptions::seeded(2) };
    let (report, seen) = train_in(&place, ("run", PLAIN), gpu, true);
    assert!(report.gpu.unwrap().has_cache);
    let line = seen.notes.iter().find(|line| line.starts_with("device ")).unwrap();
    assert!(line.contains("rows on the device in a cache, because table `item`"), "{line}");
    assert!(line.contains("bytes of the memory of the GPU"), "{line}");
    assert!(place.files("run") == place.files("cpu"));
}

/// An observer that keeps the number of kernels that have run when the GPU got a cache of rows.
struct Leaving {
    gpu: Arc<Emulated>,
    kernels: Option<u64>,
}

impl Observer for Leaving {
    fn note(&mut self, text: &str) {
        if text.starts_with("rows on the device in a cache from") {
            self.kernels = Some(self.gpu.kernels_run());
        }
    }
}

#[test]
fn a_gpu_that_fails_ends_the_run_with_the_checkpoint_to_resume_from() {
    let place = Place::new();
    write_rows(&place);
    let settings = PLAIN.replace("checkpoint_every = 7", "checkpoint_every = 2");
    place.train("cpu", &settings, DeviceChoice::Cpu).unwrap();
    let files = place.files("cpu");
    let options = |pace, fail_launch| {
        let memory_bytes = 12_000_000;
        EmulatedOptions { memory_bytes, pace, fail_launch, ..EmulatedOptions::seeded(5) }
    };
    let run = |output: &str, pace, fail_launch| {
        let gpu = Arc::new(Emulated::new(options(pace, fail_launch)));
        let mut leaving = Leaving { gpu: Arc::clone(&gpu), kernels: None };
        let trained = train_on(&place, (output, &settings), gpu, false, &mut leaving);
        (trained, leaving.kernels)
    };
    let (trained, kernels) = run("good", Pace::Eager, None);
    let (report, kernels) = (trained.unwrap(), kernels.unwrap());
    assert_eq!(report.steps, 60);
    for (case, pace, kernel, has_left) in [
        ("first", Pace::Eager, 1, false),
        ("step", Pace::Eager, kernels / 2, false),
        ("lazy", Pace::Lazy, kernels / 2, false),
        ("cached", Pace::Eager, kernels + 9, true),
    ] {
        let (trained, left) = run(case, pace, Some(kernel));
        assert_eq!(left.is_some(), has_left, "{case}");
        let error = trained.unwrap_err();
        assert!(matches!(error, Error::StoppedByGpu { .. }), "{case}: {error:?}");
        let error = error.to_string();
        let newest = RunDir::new(place.path(case)).newest().unwrap();
        let resume = newest.is_some();
        let words = match newest {
            Some(newest) => format!(
                "the newest checkpoint is {}, of step {}: resume",
                newest.path().display(),
                newest.manifest.step
            ),
            None => "there is no checkpoint yet, so begin the run again".to_owned(),
        };
        assert!(error.contains(&words) && error.contains("failpoint"), "{case}: {error}");
        assert_eq!(resume, case != "first", "{case}");
        // The remedy of the error leads to the bytes of a run without a failure.
        let job = place.job(case, &settings, DeviceChoice::Cpu).unwrap();
        let options = TrainOptions { resume, ..TrainOptions::new(2).unwrap() };
        train(job, options, &mut Silent).unwrap();
        assert!(place.files(case) == files, "{case}");
    }
}
