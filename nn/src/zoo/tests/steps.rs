//! Tests that whole steps on a device, for which the host does not wait, have the bits of the
//! executor and the optimizer of the CPU.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions, Pace};
use zillion_device::gpu::{Counters, Gpu};
use zillion_feature::random;

use super::super::{LOSS, build};
use super::batch::{TestBatch, UNIQUE};
use super::shapes::SMALL;
use super::spec;
use super::tasks::{SPECS, Two};
use super::toy_rows::{HostRows, ROWS, ToyRows};
use super::two_tower::SPEC;
use crate::optim::{DenseOptimizer, DenseOptimizerSpec, clip_scale};
use crate::zoo::ModelInputs;
use crate::{
    Executor, GpuExecutor, Graph, Inputs, Mode, Params, Program, Settings, StagedBatch,
    StepResults, StepScalars, StepSeed, TableView, differentiate,
};

pub(super) const OPTIMIZERS: [&str; 8] = [
    "kind = 'adam'\nlr = 0.01",
    "kind = 'sgd'\nlr = 0.1",
    "kind = 'lamb'\nlr = 0.02\nweight_decay = 0.01",
    "kind = 'adamw'\nlr = 0.01\nbeta1 = 0.5",
    "kind = 'ftrl'\nlr = 0.1",
    "kind = 'adagrad'\nlr = 0.05",
    "kind = 'momentum'\nlr = 0.05\nnesterov = true",
    "kind = 'adam'\nlr = 0.03\nbeta2 = 0.9",
];

/// The expected outcome of a step: its results, and the requested results by name.
struct Expected {
    results: (f32, f64, bool),
    outputs: Vec<(String, Vec<f32>)>,
}

/// Returns a number for the bits of each float, and one number for all NaN.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
}

/// A model with its optimizer and its rows on the CPU, and the same on a device.
pub(super) struct Pair {
    graph: Graph,
    workers: Workers,
    cpu: Executor,
    optimizer: DenseOptimizer,
    params: Params,
    rows: HostRows,
    pub(super) gpu: GpuExecutor,
    /// The next batch, if another thread has written it.
    pub(super) staged: Option<StagedBatch>,
    /// The parameters and the optimizer whose newest state is on the device.
    old: (Params, DenseOptimizer),
    pub(super) toy: ToyRows,
    clip_norm: Option<f64>,
    expected: Vec<Expected>,
    finished: usize,
    skipped: usize,
}

impl Pair {
    pub(super) fn new(
        (text, optimizer, clip_norm): (&str, &str, Option<f64>),
        (model, stride): (&ModelInputs, usize),
        settings: Settings,
        device: &Arc<dyn Gpu>,
        steps: usize,
    ) -> Self {
        let graph = build(&spec(text), model, Mode::Train).unwrap();
        let train = differentiate(&graph, graph.output(LOSS).unwrap()).unwrap();
        let program = Program::train(&train, settings).unwrap();
        let cpu = Executor::new(program.clone());
        let gpu = GpuExecutor::new(program, Arc::clone(device)).unwrap();
        let spec: DenseOptimizerSpec = toml::from_str(optimizer).unwrap();
        let optimizer = DenseOptimizer::new(spec, 1e-3, &graph.params).unwrap();
        let params = Params::init(&graph.params, 3);
        let rows = HostRows::new(stride);
        let toy = ToyRows::new(device, gpu.stream(), &rows, steps);
        Self {
            workers: Workers::new(NonZeroUsize::MIN).unwrap(),
            cpu,
            old: (params.clone(), optimizer.clone()),
            optimizer,
            params,
            rows,
            gpu,
            staged: None,
            toy,
            graph,
            clip_norm,
            expected: Vec::new(),
            finished: 0,
            skipped: 0,
        }
    }

    /// Makes a step on the CPU, and enqueues it on the device.
    pub(super) fn step(&mut self, inputs: &Inputs<'_>) {
        let number = self.expected.len() as u64;
        let seed = StepSeed { seed: 5, step: number };
        let rate_scale = 1.0 / (1.0 + 0.1 * number as f32);
        let slots = slots(number);
        let scalars = StepScalars { seed, rate_scale, clip_norm: self.clip_norm };
        let Inputs { tables, .. } = inputs;
        let stride = tables[0].stride;
        let table = |values| vec![TableView { values, stride, unique: UNIQUE }];
        self.toy.begin(&slots);
        let on_device = Inputs { tables: table(&[]), ..inputs.clone() };
        let (params, optimizer) = &self.old;
        let staged = self.staged.take();
        let ticket = self
            .gpu
            .enqueue_staged_step(staged, &on_device, params, optimizer, &self.toy, scalars)
            .unwrap();
        assert_eq!(ticket.number(), number);
        let pulled = self.rows.pull(&slots);
        let inputs = Inputs { tables: table(&pulled), ..inputs.clone() };
        let mut gradients = vec![f32::NAN; pulled.len()];
        let Self { workers, cpu, params, optimizer, rows, .. } = self;
        cpu.train(workers, &inputs, params, seed, &mut [&mut gradients]).unwrap();
        let dense = optimizer.sq_norm(params, |id| cpu.param_grad(id), workers).unwrap();
        let scale = match self.clip_norm {
            _ if !dense.is_finite() => f32::NAN,
            Some(most) => clip_scale((rows.sq_norm(&slots, &gradients) + dense).sqrt(), most),
            None => 1.0,
        };
        let named = self.graph.outputs.iter();
        let outputs = named.map(|(name, _)| (name.clone(), cpu.named_output(name).unwrap().into()));
        let results = (cpu.loss().unwrap(), dense, !scale.is_finite());
        self.expected.push(Expected { results, outputs: outputs.collect() });
        if !results.2 {
            let gradient = |id| cpu.param_grad(id);
            optimizer.step(params, gradient, rate_scale, scale, workers).unwrap();
            rows.update(&slots, &gradients, scale);
        }
    }

    /// Compares the results of all steps that have ended, or of all steps.
    pub(super) fn finish(&mut self, wait: bool) {
        while let Some(results) = self.gpu.finish_step(wait).unwrap() {
            let StepResults { ticket, loss, dense_sq_norm, is_skipped } = results;
            assert_eq!(ticket.number(), self.finished as u64);
            let expected = &self.expected[self.finished];
            let (expected_loss, expected_norm, expected_skip) = expected.results;
            assert_eq!(is_skipped, expected_skip, "step {}", self.finished);
            assert_eq!(bits(&[loss]), bits(&[expected_loss]), "step {}", self.finished);
            let is_same = dense_sq_norm == expected_norm
                || (dense_sq_norm.is_nan() && expected_norm.is_nan());
            assert!(is_same, "step {}: {dense_sq_norm} {expected_norm}", self.finished);
            for (name, values) in &expected.outputs {
                let found = self.gpu.named_output(name).unwrap();
                assert_eq!(bits(found), bits(values), "{name} of step {}", self.finished);
            }
            self.finished += 1;
            self.skipped += usize::from(is_skipped);
        }
        if wait {
            assert_eq!((self.finished, self.gpu.unread_steps()), (self.expected.len(), 0));
        }
    }

    /// Compares the parameters, the state of the optimizer and the rows.
    fn compare_state(&mut self, case: &str) {
        let (params, optimizer) = &mut self.old;
        self.gpu.settle_params(params, optimizer).unwrap();
        for ((spec, a), (_, b)) in self.params.iter().zip(params.iter()) {
            assert_eq!(bits(a), bits(b), "{case}: {}", spec.name);
        }
        assert_eq!(*optimizer, self.optimizer, "{case}");
        assert_eq!(bits(&self.toy.settle()), bits(&self.rows.values), "{case}: rows");
    }

    pub(super) fn end(mut self, case: &str) -> usize {
        self.finish(true);
        self.compare_state(case);
        self.toy.free();
        self.skipped
    }
}

/// Returns different slots for the unique rows of a step.
pub(super) fn slots(step: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..ROWS as u32).collect();
    all.sort_by_key(|&slot| random::combine(step + 1, u64::from(slot)));
    all.truncate(UNIQUE);
    all
}

pub(super) fn small() -> Settings {
    Settings { lanes: 3, tile_rows: 4, ..Settings::default() }
}

/// Returns an emulated GPU, or a real one with `ZILLION_TEST_GPU=cuda:0`.
pub(super) fn device(seed: usize) -> Arc<dyn Gpu> {
    match std::env::var("ZILLION_TEST_GPU") {
        Ok(name) => Arc::from(zillion_device::gpu::open(&name, None).unwrap()),
        Err(_) => Arc::new(Emulated::new(EmulatedOptions::seeded(seed as u64))),
    }
}

pub(super) fn paced(pace: Pace, seed: u64) -> Arc<dyn Gpu> {
    let options = EmulatedOptions { pace, ..EmulatedOptions::seeded(seed) };
    Arc::new(Emulated::new(options))
}

/// The sizes of the batches of a run: the capacity grows twice, and the last batches are smaller.
const SIZES: [usize; 12] = [13, 13, 5, 13, 30, 30, 1, 30, 64, 30, 64, 2];

/// Makes batches, some of which give gradients that are not numbers.
pub(super) fn batches(is_bad: impl Fn(usize) -> bool) -> Vec<TestBatch> {
    let batch = |(step, rows): (usize, usize)| {
        let mut batch = TestBatch::new(7 + step as u64, rows, 4, 3);
        if is_bad(step) {
            batch.weight[0] = f32::NAN;
        }
        batch
    };
    SIZES.into_iter().enumerate().map(batch).collect()
}

#[test]
fn every_model_has_the_bits_of_the_cpu() {
    for (number, text) in SMALL.iter().enumerate() {
        let device = device(number);
        let optimizer = OPTIMIZERS[number % 8];
        let clip_norm = [None, Some(0.3), Some(1e9)][number % 3];
        let case = format!("{text}, {optimizer}, {clip_norm:?}");
        let batches = batches(|step| [1, 5, 6, 9].contains(&(step + number % 2)));
        let of = (&batches[0].model, batches[0].stride);
        let mut pair = Pair::new((text, optimizer, clip_norm), of, small(), &device, batches.len());
        for (step, batch) in batches.iter().enumerate() {
            pair.step(&batch.view());
            pair.finish(false);
            if step == 7 {
                pair.finish(true);
                pair.compare_state(&case);
            }
        }
        assert!(pair.gpu.growths() >= 3, "{case}");
        assert_eq!(pair.end(&case), 4, "{case}: skipped steps");
        let Counters { live_bytes, live_streams, live_events, .. } = device.counters();
        assert_eq!([live_bytes, live_streams, live_events], [0; 3], "{case}");
    }
}

#[test]
fn models_of_several_tasks_have_the_bits_of_the_cpu() {
    for (number, text) in SPECS.iter().enumerate() {
        let device = device(number);
        let batches = [30, 3, 30, 70, 1].map(|rows| Two::new(20 + rows as u64, rows));
        let of = (&batches[0].batch.model, batches[0].batch.stride);
        let settings = Settings::default();
        let mut pair = Pair::new((text, OPTIMIZERS[0], Some(0.5)), of, settings, &device, 5);
        batches.iter().for_each(|batch| pair.step(&batch.view()));
        pair.end(text);
    }
}

#[test]
fn two_towers_have_the_bits_of_the_cpu() {
    let text = format!("{SPEC}\nsampling_correction = false").replace("'i1'", "'i1', 'i2'");
    let batches = batches(|step| step == 3);
    let of = (&batches[0].model, batches[0].stride);
    let device = device(1);
    let mut pair =
        Pair::new((&text, OPTIMIZERS[2], Some(0.1)), of, small(), &device, batches.len());
    batches.iter().for_each(|batch| pair.step(&batch.view()));
    assert_eq!(pair.end(&text), 1);
}

/// Alternates between two sizes of batches, each of which has launches of its own because the rows
/// of a batch are compared.
#[test]
fn two_sizes_of_compared_batches_stay_warm() {
    let text = format!("{SPEC}\nsampling_correction = false").replace("'i1'", "'i1', 'i2'");
    let batches = batches(|_| false);
    let of = (&batches[0].model, batches[0].stride);
    let device = paced(Pace::Eager, 1);
    let mut pair = Pair::new((&text, OPTIMIZERS[0], None), of, small(), &device, 40);
    let sizes = [4, 4, 2, 2, 4, 2].into_iter().cycle();
    for (step, size) in sizes.take(40).enumerate() {
        let before = device.counters();
        pair.step(&batches[size].view());
        pair.finish(false);
        if step >= 4 {
            assert_eq!(since(&device, before), [0; 4], "step {step}");
        }
    }
    assert_eq!(pair.gpu.growths(), 2);
    pair.end("two sizes");
}

/// Skips steps in random patterns, with results that are read late, so that the rules of Adam must
/// be chosen among those of many numbers.
#[test]
fn skipped_steps_do_not_count() {
    for seed in 0..24u64 {
        let draw = |step: u64| random::combine(seed, step) >> 40;
        let batches = batches(|step| draw(step as u64) % 3 == 0);
        let of = (&batches[0].model, batches[0].stride);
        let device = device(seed as usize);
        let optimizer = OPTIMIZERS[[0, 2, 3][seed as usize % 3]];
        let mut pair = Pair::new((SMALL[6], optimizer, None), of, small(), &device, 36);
        for step in 0..36 {
            pair.step(&batches[step as usize % 12].view());
            if draw(100 + step) % 4 == 0 {
                pair.finish(draw(200 + step) % 5 == 0);
            }
        }
        assert!(pair.end(&format!("seed {seed}")) > 0);
    }
}

#[test]
fn a_step_moves_between_the_ways_to_train() {
    let batches = batches(|step| step == 2);
    let of = (&batches[0].model, batches[0].stride);
    let device = device(2);
    let mut pair = Pair::new((SMALL[5], OPTIMIZERS[0], None), of, small(), &device, 12);
    batches[..6].iter().for_each(|batch| pair.step(&batch.view()));
    // The parameters stay on the device, and the rows of a step come from the host.
    pair.finish(true);
    let pulled = pair.rows.pull(&slots(77));
    let table = vec![TableView { values: &pulled, ..batches[0].view().tables[0] }];
    let inputs = Inputs { tables: table, ..batches[0].view() };
    let seed = StepSeed { seed: 5, step: 77 };
    let mut gradients = [vec![0.0; pulled.len()], vec![0.0; pulled.len()]];
    let [of_cpu, of_gpu] = &mut gradients;
    let Pair { workers, cpu, params, optimizer, gpu, old, .. } = &mut pair;
    cpu.train(workers, &inputs, params, seed, &mut [of_cpu]).unwrap();
    optimizer.step(params, |id| cpu.param_grad(id), 1.0, 0.5, workers).unwrap();
    gpu.train_kept(&inputs, &old.0, seed, &mut [of_gpu]).unwrap();
    gpu.optimize(&mut old.1, 1.0, 0.5).unwrap();
    assert_eq!(bits(&gradients[0]), bits(&gradients[1]));
    pair.compare_state("host step");
    batches[6..].iter().for_each(|batch| pair.step(&batch.view()));
    pair.end("steps after a host step");
}

/// Returns what a device has done since `before`.
pub(super) fn since(device: &Arc<dyn Gpu>, before: Counters) -> [u64; 4] {
    let after = device.counters();
    [
        after.host_waits - before.host_waits,
        after.allocations - before.allocations,
        after.pinned_allocations - before.pinned_allocations,
        after.launches - before.launches,
    ]
}

/// Counts what warm steps do on devices of every pace, and on a real one with `ZILLION_TEST_GPU`.
/// The host may wait for a device that falls behind, but only if it is three batches ahead.
#[test]
fn a_warm_step_neither_waits_nor_allocates() {
    let mut devices: Vec<_> = (0..)
        .zip([Pace::Eager, Pace::Mixed, Pace::Lazy])
        .map(|(seed, pace)| (format!("{pace:?}"), paced(pace, seed)))
        .collect();
    devices.extend(std::env::var("ZILLION_TEST_GPU").ok().map(|name| (name, device(0))));
    for (case, device) in devices {
        let batches = batches(|step| step == 3);
        let of = (&batches[0].model, batches[0].stride);
        let mut pair = Pair::new((SMALL[9], OPTIMIZERS[0], Some(0.5)), of, small(), &device, 100);
        // The largest batch comes first, and its second step records the graph.
        (0..2).for_each(|_| pair.step(&batches[8].view()));
        pair.finish(true);
        let (before, mut stalls) = (device.counters(), pair.gpu.stalls());
        let first = stalls;
        for step in 0..80 {
            pair.step(&batches[step % 12].view());
            if std::mem::replace(&mut stalls, pair.gpu.stalls()) < stalls {
                let unread = pair.gpu.unread_steps();
                assert!(unread > 3, "{case}: the host waited {unread} steps ahead");
            }
            pair.finish(false);
        }
        let [waits, allocations, pinned, launches] = since(&device, before);
        assert_eq!([allocations, pinned, launches], [0; 3], "{case}");
        assert_eq!(device.counters().replays - before.replays, 80, "{case}");
        let stalls = stalls - first;
        assert!(waits <= stalls, "{case}: {waits} waits, {stalls} stalls");
        if case == "Eager" {
            assert_eq!(stalls, 0);
        }
        pair.end(&case);
    }
}

/// Moves the rows, which the recorded graph does not know. A new generation records it again.
#[test]
fn a_new_generation_is_recorded() {
    for tells in [true, false] {
        let device = paced(Pace::Mixed, 5);
        let batches = batches(|_| false);
        let of = (&batches[0].model, batches[0].stride);
        let mut pair = Pair::new((SMALL[5], OPTIMIZERS[1], Some(0.5)), of, small(), &device, 40);
        pair.toy.tells_moves = tells;
        (0..4).for_each(|_| pair.step(&batches[8].view()));
        pair.toy.move_slab();
        (0..4).for_each(|step| pair.step(&batches[step].view()));
        if tells {
            pair.toy.move_slab();
            (0..4).for_each(|step| pair.step(&batches[step].view()));
            pair.end("new generation");
            continue;
        }
        // The planted mistake is found by the bytes: the graph reads the rows of the old slab.
        pair.gpu.drain_steps().unwrap();
        assert_ne!(bits(&pair.toy.settle()), bits(&pair.rows.values));
        pair.toy.free();
    }
}

#[test]
fn planted_mistakes_are_found() {
    for (mistake, message) in [
        ((true, false), "the host wrote pinned memory before"),
        ((false, true), "the host read pinned memory before"),
    ] {
        let device = paced(Pace::Lazy, 3);
        let batches = batches(|_| false);
        let of = (&batches[0].model, batches[0].stride);
        let mut pair = Pair::new((SMALL[5], OPTIMIZERS[0], None), of, small(), &device, 40);
        (0..2).for_each(|_| pair.step(&batches[8].view()));
        pair.finish(true);
        let (params, optimizer) = &pair.old;
        let view = batches[8].view();
        let stride = batches[8].stride;
        let tables = vec![TableView { values: &[], stride, unique: UNIQUE }];
        let inputs = Inputs { tables, ..view };
        let scalars = StepScalars { seed: StepSeed::default(), rate_scale: 1.0, clip_norm: None };
        let mut failed = None;
        for step in 0..16 {
            pair.toy.begin(&slots(step));
            pair.gpu.forget_copies(mistake);
            let outcome = pair.gpu.enqueue_step(&inputs, params, optimizer, &pair.toy, scalars);
            failed = failed.or(outcome.err());
            if failed.is_some() {
                break;
            }
        }
        let text = failed.unwrap().to_string();
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn steps_that_do_not_fit_are_refused() {
    let batches = batches(|_| false);
    let of = (&batches[0].model, batches[0].stride);
    let device = device(0);
    let mut pair = Pair::new((SMALL[5], OPTIMIZERS[0], None), of, small(), &device, 4);
    let table = TableView { values: &[], stride: batches[0].stride, unique: UNIQUE };
    let inputs = Inputs { tables: vec![table], ..batches[0].view() };
    let scalars = StepScalars { seed: StepSeed::default(), rate_scale: 1.0, clip_norm: None };
    pair.toy.begin(&slots(0));
    let (params, optimizer) = &pair.old;
    let mut refused = |inputs: &Inputs<'_>, scalars: StepScalars| {
        let outcome = pair.gpu.enqueue_step(inputs, params, optimizer, &pair.toy, scalars);
        outcome.unwrap_err().to_string()
    };
    let message = refused(&inputs, StepScalars { rate_scale: f32::NAN, ..scalars });
    assert!(message.contains("rate_scale"), "{message}");
    let few = Inputs { tables: vec![TableView { unique: 2, ..table }], ..inputs.clone() };
    let message = refused(&few, scalars);
    assert!(message.contains("unique rows"), "{message}");
    pair.step(&batches[0].view());
    pair.end("after refusals");
}
