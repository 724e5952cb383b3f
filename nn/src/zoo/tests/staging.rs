//! Tests that batches which other threads write before their steps have the bits of batches that
//! the steps write, and a measurement of the time that this saves.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zillion_device::gpu::emulated::Pace;
use zillion_device::gpu::{Gpu, GpuError, Memory, Stream};
use zillion_device::thread_time;
use zillion_feature::random;

use super::super::{LOSS, build};
use super::batch::{TestBatch, UNIQUE};
use super::shapes::SMALL;
use super::steps::{OPTIMIZERS, Pair, batches, device, paced, since, slots, small};
use super::two_tower::SPEC;
use super::{inputs, spec};
use crate::inputs::{ColumnView, LabelView, OccurrenceView};
use crate::optim::{DenseOptimizer, DenseOptimizerSpec};
use crate::{
    BatchStager, DeviceRows, GpuExecutor, Inputs, Mode, Params, Program, Settings, StagedBatch,
    StepScalars, StepSeed, TableView, differentiate,
};

/// The number of batches that wait between the threads.
const WAITING: usize = 3;
/// The batches that wait, the one that is offered, and the one in its step.
const BLOCKS: usize = WAITING + 2;

/// Returns the inputs of a batch whose rows are on the device.
fn on_device(batch: &TestBatch) -> Inputs<'_> {
    let tables = vec![TableView { values: &[], stride: batch.stride, unique: UNIQUE }];
    Inputs { tables, ..batch.view() }
}

/// Stages a batch. The step computes the last numeric column of each second batch.
fn stage(stager: &BatchStager, batch: &TestBatch, step: usize) -> Option<StagedBatch> {
    let mut inputs = on_device(batch);
    inputs.numeric.truncate(batch.numeric.len() - step % 2);
    stager.stage(&inputs)
}

/// Makes steps while a thread writes their batches ahead. Returns the number of those that the
/// steps did not have to write.
fn run_ahead(mut pair: Pair, batches: &[&TestBatch], case: &str) -> u64 {
    let stager = pair.gpu.stager(BLOCKS);
    let (send, receive) = mpsc::sync_channel(WAITING);
    let staged = thread::scope(|scope| {
        scope.spawn(move || {
            for (step, batch) in batches.iter().enumerate() {
                send.send(stage(&stager, batch, step)).unwrap();
            }
        });
        for batch in batches {
            pair.staged = receive.recv().unwrap();
            pair.step(&batch.view());
            pair.finish(false);
        }
        pair.gpu.staged_steps()
    });
    pair.end(case);
    staged
}

#[test]
fn staged_batches_have_the_bits_of_the_cpu() {
    for (number, text) in SMALL.iter().enumerate() {
        let device = device(number);
        let optimizer = OPTIMIZERS[number % 8];
        let clip_norm = [None, Some(0.3)][number % 2];
        let case = format!("{text}, {optimizer}, {clip_norm:?}");
        let batches = batches(|step| [1, 6].contains(&step));
        let of = (&batches[0].model, batches[0].stride);
        let pair = Pair::new((text, optimizer, clip_norm), of, small(), &device, 36);
        let steps: Vec<&TestBatch> = batches.iter().cycle().take(36).collect();
        let staged = run_ahead(pair, &steps, &case);
        // The capacity grows last in step 8. Each batch from `BLOCKS` steps later on is staged.
        assert!(staged >= 36 - 9 - BLOCKS as u64, "{case}: {staged} steps");
    }
}

#[test]
fn staged_batches_of_two_forms_have_the_bits_of_the_cpu() {
    let text = format!("{SPEC}\nsampling_correction = false").replace("'i1'", "'i1', 'i2'");
    let batches = batches(|_| false);
    let of = (&batches[0].model, batches[0].stride);
    let pair = Pair::new((&text, OPTIMIZERS[0], None), of, small(), &device(1), 40);
    let sizes = [4, 4, 2, 2, 4, 2].into_iter().cycle().take(40);
    let steps: Vec<&TestBatch> = sizes.map(|at| &batches[at]).collect();
    let staged = run_ahead(pair, &steps, "two forms");
    assert!(staged >= 40 - 3 - BLOCKS as u64, "{staged} steps");
}

#[test]
fn a_warm_step_with_a_staged_batch_neither_waits_nor_allocates() {
    let batches = batches(|_| false);
    let of = (&batches[0].model, batches[0].stride);
    let device = paced(Pace::Eager, 4);
    let mut pair = Pair::new((SMALL[9], OPTIMIZERS[0], Some(0.5)), of, small(), &device, 60);
    let stager = pair.gpu.stager(1);
    (0..2).for_each(|_| pair.step(&batches[8].view()));
    pair.finish(true);
    let before = device.counters();
    for step in 0..50 {
        let batch = &batches[step % 12];
        pair.staged = stage(&stager, batch, step);
        assert!(pair.staged.is_some());
        // The only block is taken, so the next batch gets none.
        assert!(stage(&stager, batch, step).is_none());
        pair.step(&batch.view());
        pair.finish(false);
    }
    assert_eq!(since(&device, before), [0; 4]);
    assert_eq!(pair.gpu.staged_steps(), 50);
    pair.gpu.stop_staging();
    assert!(stage(&stager, &batches[0], 0).is_none());
    pair.end("warm");
}

/// Gives steps the blocks of other batches, of batches before the capacity has grown, and of
/// batches that do not fit the program. The steps write their batches themselves.
#[test]
fn a_block_that_does_not_fit_its_step_is_not_used() {
    let batches = batches(|_| false);
    let of = (&batches[0].model, batches[0].stride);
    let mut pair = Pair::new((SMALL[5], OPTIMIZERS[0], None), of, small(), &device(3), 20);
    let stager = pair.gpu.stager(4);
    assert!(stage(&stager, &batches[0], 0).is_none(), "no step has allocated blocks");
    pair.step(&batches[0].view());
    let early = stage(&stager, &batches[0], 0);
    pair.staged = stage(&stager, &batches[0], 0);
    assert!(pair.staged.is_some());
    // The batch of the step is another one.
    pair.step(&batches[2].view());
    // The capacity grows.
    pair.step(&batches[8].view());
    pair.staged = early;
    pair.step(&batches[0].view());
    assert_eq!(pair.gpu.staged_steps(), 0);
    let mut wrong = on_device(&batches[0]);
    wrong.columns[0].inverse = &[];
    assert!(stager.stage(&wrong).is_none());
    pair.staged = stage(&stager, &batches[0], 0);
    pair.step(&batches[0].view());
    assert_eq!(pair.gpu.staged_steps(), 1);
    pair.end("blocks of other steps");
}

/// Plants a mistake: a block is written again before the copy from it has run.
#[test]
fn a_block_that_is_free_too_early_is_found() {
    let device = paced(Pace::Lazy, 3);
    let batches = batches(|_| false);
    let of = (&batches[0].model, batches[0].stride);
    let mut pair = Pair::new((SMALL[5], OPTIMIZERS[0], None), of, small(), &device, 40);
    let stager = pair.gpu.stager(1);
    (0..2).for_each(|_| pair.step(&batches[8].view()));
    pair.finish(true);
    let spec: DenseOptimizerSpec = toml::from_str(OPTIMIZERS[0]).unwrap();
    let graph = &pair.gpu.program().lowered.graph.clone();
    let (params, optimizer) =
        (Params::init(&graph.params, 3), DenseOptimizer::new(spec, 0.0, &graph.params).unwrap());
    let scalars = StepScalars { seed: StepSeed::default(), rate_scale: 1.0, clip_norm: None };
    let inputs = on_device(&batches[8]);
    let failed = (0..16).find_map(|step| {
        pair.toy.begin(&slots(step));
        pair.gpu.forget_copies((true, false));
        let staged = stager.stage(&inputs);
        let toy = &pair.toy;
        pair.gpu.enqueue_staged_step(staged, &inputs, &params, &optimizer, toy, scalars).err()
    });
    let text = failed.unwrap().to_string();
    assert!(text.contains("the host wrote pinned memory before"), "{text}");
}

/// Rows that are all zeros, and whose gradients nothing reads.
struct Zeros;

impl DeviceRows for Zeros {
    fn generation(&self) -> u64 {
        0
    }

    fn pull(&self, gpu: &dyn Gpu, stream: Stream, rows: &[Option<Memory>]) -> Result<(), GpuError> {
        rows.iter().flatten().try_for_each(|rows| gpu.fill(stream, *rows, 0))
    }

    fn sq_norm(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        _: &[Memory],
        out: Memory,
    ) -> Result<(), GpuError> {
        gpu.fill(stream, out, 0)
    }

    fn update(
        &self,
        _: &dyn Gpu,
        _: Stream,
        _: &[Memory],
        _: Memory,
        _: Memory,
    ) -> Result<(), GpuError> {
        Ok(())
    }
}

/// The occurrences of the rows of a table with several columns.
struct Occurrences {
    inverse: Vec<Vec<u32>>,
    offsets: Vec<u32>,
    positions: Vec<u32>,
}

impl Occurrences {
    /// Draws the rows of `rows * fields` values. A few rows occur very often.
    fn draw(rows: usize, fields: usize, unique: usize) -> Self {
        let draw = |at: usize| {
            let unit = random::unit_f32((random::combine(3, at as u64) >> 32) as u32);
            // The first values make sure that each row occurs.
            if at < unique { at as u32 } else { (unit.powi(4) * unique as f32) as u32 }
        };
        let column = |field: usize| (0..rows).map(|row| draw(field * rows + row)).collect();
        let inverse: Vec<Vec<u32>> = (0..fields).map(column).collect();
        let mut of_rows = vec![Vec::new(); unique];
        for (at, &row) in (0..).zip(inverse.iter().flatten()) {
            of_rows[row as usize].push(at);
        }
        let mut offsets = vec![0];
        for of_row in &of_rows {
            offsets.push(offsets[offsets.len() - 1] + of_row.len() as u32);
        }
        Self { inverse, offsets, positions: of_rows.concat() }
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Prints the processor time of the thread of the steps, and of the thread that stages, in
/// microseconds. The device runs nothing meanwhile. The model is small, because the emulated device
/// is slow, so the time of a replay, which both kinds of steps have, is that of a few launches.
#[test]
#[ignore = "a measurement for docs/design/gpu.md"]
fn print_the_time_of_the_host_in_a_step() {
    const FIELDS: usize = 26;
    const ROWS: usize = 8_192;
    let unique = 60_000;
    let drawn = Occurrences::draw(ROWS, FIELDS, unique);
    let numbers = vec![0.5f32; ROWS];
    let mut model = inputs(FIELDS, 4, 13);
    model.columns[1].list = false;
    model.columns[1].sequence = false;
    let stride = model.tables[0].stride;
    let column = |(field, inverse): (usize, &Vec<u32>)| ColumnView {
        table: 0,
        inverse: &drawn.inverse[field],
        offsets: None,
        weights: None,
        base: (field * inverse.len()) as u32,
    };
    let inputs = Inputs {
        rows: ROWS,
        tables: vec![TableView { values: &[], stride, unique }],
        columns: drawn.inverse.iter().enumerate().map(column).collect(),
        occurrences: vec![OccurrenceView { offsets: &drawn.offsets, positions: &drawn.positions }],
        numeric: vec![&numbers; 13],
        labels: vec![LabelView { values: &numbers, mask: None }],
        weight: None,
    };
    let graph = build(&spec("kind = 'lr'"), &model, Mode::Train).unwrap();
    let train = differentiate(&graph, graph.output(LOSS).unwrap()).unwrap();
    let program = Program::train(&train, Settings::default()).unwrap();
    let mut gpu = GpuExecutor::new(program, paced(Pace::Lazy, 1)).unwrap();
    let spec: DenseOptimizerSpec = toml::from_str(OPTIMIZERS[0]).unwrap();
    let optimizer = DenseOptimizer::new(spec, 0.0, &graph.params).unwrap();
    let params = Params::init(&graph.params, 3);
    let stager = gpu.stager(2);
    let scalars = StepScalars { seed: StepSeed::default(), rate_scale: 1.0, clip_norm: None };
    let [mut staging, mut own, mut handed] = [const { Vec::new() }; 3];
    for step in 0..14 {
        let begin = thread_time().unwrap();
        let staged = (step % 2 == 1).then(|| stager.stage(&inputs)).flatten();
        let between = thread_time().unwrap();
        let is_staged = staged.is_some();
        gpu.enqueue_staged_step(staged, &inputs, &params, &optimizer, &Zeros, scalars).unwrap();
        let end = thread_time().unwrap();
        gpu.finish_step(true).unwrap().unwrap();
        // The first steps allocate, and record the graph.
        if step >= 4 {
            if is_staged {
                staging.push(between - begin);
            }
            if is_staged { &mut handed } else { &mut own }.push(end - between);
        }
    }
    assert_eq!((own.len(), handed.len()), (5, 5));
    eprintln!("stage {:.0} us, beside the steps", median(staging));
    eprintln!("step that writes its batch {:.0} us", median(own));
    eprintln!("step with a staged batch {:.0} us", median(handed));
}
