//! Tests of whole steps on a device: the memory that the rows of tables see, and what is refused.
//! The bytes of trained models are compared in the tests of the zoo.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::gpu::{Gpu, GpuError, Memory, Precision, Stream};
use zillion_feature::Pooling;
use zillion_nn::optim::{DenseOptimizer, DenseOptimizerSpec};
use zillion_nn::{
    DeviceRows, Executor, GpuExecutor, GraphBuilder, Inputs, LibraryProducts, Mode, Program,
    Result, Settings, StepScalars, TableView, TrainGraph, differentiate,
};

use crate::check::{SEED, params_of, weighted_sum};
use crate::compare::{assert_nothing_lives, run_cpu, run_gpu, seeded};
use crate::data::{Data, graph_inputs};

/// Rows that are copied from memory, and whose gradients are copied to memory.
struct Copies {
    rows: Vec<Memory>,
    seen: Vec<Memory>,
    /// Whether the update fails.
    fails: Cell<bool>,
}

impl Copies {
    fn new(gpu: &dyn Gpu, stream: Stream, data: &Data) -> Self {
        let new = |bytes: usize| gpu.allocate(bytes).unwrap();
        let bytes = |table: &crate::data::Table| 4 * table.values.len();
        let rows: Vec<Memory> = data.tables.iter().map(|table| new(bytes(table))).collect();
        for (&memory, table) in rows.iter().zip(&data.tables) {
            gpu.upload(stream, memory, bytemuck::cast_slice(&table.values)).unwrap();
        }
        let seen = data.tables.iter().map(|table| new(bytes(table))).collect();
        Self { rows, seen, fails: Cell::new(false) }
    }

    fn free(self, gpu: &dyn Gpu) {
        self.rows.into_iter().chain(self.seen).for_each(|memory| gpu.free(memory).unwrap());
    }

    /// Returns the gradients of a table in the last step.
    fn gradients(&self, gpu: &dyn Gpu, stream: Stream, table: usize) -> Vec<f32> {
        let mut values = vec![0.0f32; self.seen[table].bytes() / 4];
        gpu.download(stream, bytemuck::cast_slice_mut(&mut values), self.seen[table]).unwrap();
        values
    }
}

impl DeviceRows for Copies {
    fn generation(&self) -> u64 {
        0
    }

    fn pull(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        rows: &[Option<Memory>],
    ) -> std::result::Result<(), GpuError> {
        assert_eq!(rows.len(), 2);
        let all = rows.iter().zip(&self.rows).filter_map(|(to, from)| Some((to.as_ref()?, from)));
        all.into_iter().try_for_each(|(&to, &from)| gpu.copy(stream, to, from))
    }

    fn sq_norm(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        _: &[Memory],
        out: Memory,
    ) -> std::result::Result<(), GpuError> {
        gpu.fill(stream, out, 0)
    }

    fn update(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        gradients: &[Memory],
        scale: Memory,
        skip: Memory,
    ) -> std::result::Result<(), GpuError> {
        assert_eq!((gradients.len(), scale.bytes(), skip.bytes()), (2, 4, 4));
        if self.fails.get() {
            return Err(GpuError::OutOfMemory { bytes: 4321, free: 0 });
        }
        let all = gradients.iter().zip(&self.seen);
        all.into_iter().try_for_each(|(from, &to)| gpu.copy(stream, to, from.part(0, to.bytes())?))
    }
}

fn train(build: impl Fn(&mut GraphBuilder) -> Result<zillion_nn::NodeId>) -> TrainGraph {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let y = build(&mut b).unwrap();
    let loss = weighted_sum(&mut b, y).unwrap();
    b.output("y", y).unwrap();
    differentiate(&b.finish(), loss).unwrap()
}

/// Returns the inputs of a batch whose rows are on the device.
fn on_device(data: &Data) -> Inputs<'_> {
    let inputs = data.inputs();
    let tables = inputs.tables.iter().map(|table| TableView { values: &[], ..*table }).collect();
    Inputs { tables, ..inputs }
}

fn scalars(clip_norm: Option<f64>) -> StepScalars {
    StepScalars { seed: SEED, rate_scale: 1.0, clip_norm }
}

fn optimizer(train: &TrainGraph) -> DenseOptimizer {
    let spec = DenseOptimizerSpec::Sgd { lr: 1e-3, momentum: 0.0 };
    DenseOptimizer::new(spec, 0.0, &train.graph.params).unwrap()
}

/// Compares the gradients of all tables. No gradient reaches the second table of the last model,
/// whose gradients must be zero.
#[test]
fn rows_see_the_gradients_of_every_table() {
    let both = train(|b| {
        let history = b.gather("history", 1, 0, 4, Pooling::Max)?;
        let text = b.gather("text", 2, 0, 4, Pooling::Mean)?;
        let tag = b.gather("tag", 3, 0, 3, Pooling::Sqrtn)?;
        let all = b.concat("all", &[history, text, tag])?;
        b.linear("deep", all, 2)
    });
    let one = train(|b| {
        let item = b.gather("item", 0, 0, 8, Pooling::Sum)?;
        let history = b.gather("history", 1, 2, 5, Pooling::Sum)?;
        let all = b.concat("all", &[item, history])?;
        b.linear("deep", all, 2)
    });
    for (number, train) in [both, one].iter().enumerate() {
        for seed in 0..4 {
            let device = seeded(seed);
            let settings = Settings { lanes: 3, tile_rows: 16, ..Settings::default() };
            let program = Program::train(train, settings).unwrap();
            let mut cpu = Executor::new(program.clone());
            let mut gpu = GpuExecutor::new(program, Arc::clone(&device)).unwrap();
            let (params, optimizer) = (params_of(&train.graph, 5), optimizer(train));
            for rows in [20, 20, 300, 300, 7] {
                // The parameters are those of the first step in each comparison.
                gpu.drop_kept().unwrap();
                let data = Data::new(rows, rows as u64);
                let expected = run_cpu(&mut cpu, train, &data, &params);
                let copies = Copies::new(&*device, gpu.stream(), &data);
                let clip = (rows == 300).then_some(1.0);
                gpu.enqueue_step(&on_device(&data), &params, &optimizer, &copies, scalars(clip))
                    .unwrap();
                let results = gpu.finish_step(true).unwrap().unwrap();
                assert_eq!(results.loss.to_bits(), expected.loss.to_bits());
                for table in 0..2 {
                    let found = copies.gradients(&*device, gpu.stream(), table);
                    let case = format!("model {number}, {rows} rows, table {table}");
                    assert_eq!(found, expected.row_grads[table], "{case}");
                    let is_zero = found.iter().all(|&g| g == 0.0);
                    assert_eq!(is_zero, (number, table) == (1, 1), "{case}");
                }
                copies.free(&*device);
            }
            drop(gpu);
            assert_nothing_lives(&*device);
        }
    }
}

/// Compares whole steps with runs that the host waits for, whose products are the library's.
#[test]
fn steps_with_products_of_the_library_have_the_bits_of_runs() {
    let train = train(|b| {
        let item = b.gather("item", 0, 0, 8, Pooling::Sum)?;
        let values = b.gather_values("values", 1, 0, 8)?;
        let hidden = b.linear("values.0", values, 12)?;
        let sum = b.segment_sum("sum", hidden)?;
        let all = b.concat("all", &[item, sum])?;
        let hidden = b.linear("deep.0", all, 24)?;
        let hidden = b.relu("deep.0.relu", hidden)?;
        b.linear("deep.1", hidden, 9)
    });
    for (seed, precision) in (0..).zip([Precision::Tf32, Precision::Bf16]) {
        let device = seeded(seed);
        let new = || {
            let rows = NonZeroUsize::new(40).unwrap();
            let library = LibraryProducts { precision, rows, kept: BTreeMap::new() };
            let program = Program::train(&train, Settings::default()).unwrap();
            GpuExecutor::with_products(program, Arc::clone(&device), Some(library)).unwrap()
        };
        let (mut of_runs, mut of_steps) = (new(), new());
        let (params, optimizer) = (params_of(&train.graph, 5), optimizer(&train));
        for rows in [16, 16, 5, 40, 40, 16] {
            of_steps.drop_kept().unwrap();
            let data = Data::new(rows, rows as u64);
            let expected = run_gpu(&mut of_runs, &train, &data, &params);
            let stream = of_steps.stream();
            let copies = Copies::new(&*device, stream, &data);
            let inputs = on_device(&data);
            of_steps.enqueue_step(&inputs, &params, &optimizer, &copies, scalars(None)).unwrap();
            let results = of_steps.finish_step(true).unwrap().unwrap();
            assert_eq!(results.loss.to_bits(), expected.loss.to_bits(), "{precision:?}");
            for table in 0..2 {
                let found = copies.gradients(&*device, stream, table);
                assert_eq!(found, expected.row_grads[table], "{precision:?}, {rows} rows");
            }
            for (param, grad) in &expected.grads {
                let memory = of_steps.device_param_grad(*param).unwrap();
                let mut found = vec![0.0f32; grad.len()];
                device.download(stream, bytemuck::cast_slice_mut(&mut found), memory).unwrap();
                assert_eq!(&found, grad, "{precision:?}, {}", train.graph.param(*param).name);
            }
            copies.free(&*device);
        }
        drop((of_runs, of_steps));
        assert_nothing_lives(&*device);
    }
}

/// Fails an operation while the second stream of a step has not been joined, so that the record of
/// the graph fails too. The error is that of the operation, and the next step is recorded again.
#[test]
fn an_operation_that_fails_in_a_record_is_the_error() {
    let train = train(|b| {
        let item = b.gather("item", 0, 0, 8, Pooling::Sum)?;
        b.linear("deep", item, 2)
    });
    for seed in 0..4 {
        let device = seeded(seed);
        let program = Program::train(&train, Settings::default()).unwrap();
        let mut gpu = GpuExecutor::new(program, Arc::clone(&device)).unwrap();
        let (params, optimizer) = (params_of(&train.graph, 5), optimizer(&train));
        let data = Data::new(20, 5);
        let (inputs, copies) = (on_device(&data), Copies::new(&*device, gpu.stream(), &data));
        let mut losses = Vec::new();
        for fails in [false, true, false, false] {
            copies.fails.set(fails);
            // Each step begins with the same parameters. All but the first one record a graph.
            gpu.drop_kept().unwrap();
            let step = gpu.enqueue_step(&inputs, &params, &optimizer, &copies, scalars(None));
            match step {
                Err(error) => assert!(fails && error.to_string().contains("4321"), "{error}"),
                Ok(_) => losses.push(gpu.finish_step(true).unwrap().unwrap().loss.to_bits()),
            }
        }
        assert_eq!(losses, [losses[0]; 3]);
        copies.free(&*device);
    }
}

#[test]
fn a_program_that_does_not_train_has_no_steps() {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Infer);
    let x = b.numeric("x", &[0]).unwrap();
    let y = b.linear("y", x, 1).unwrap();
    let graph = b.finish();
    let device = seeded(0);
    let program = Program::infer(&graph, &[y], Settings::default()).unwrap();
    let mut gpu = GpuExecutor::new(program, Arc::clone(&device)).unwrap();
    let data = Data::new(3, 1);
    let copies = Copies::new(&*device, gpu.stream(), &data);
    let params = params_of(&graph, 5);
    let spec = DenseOptimizerSpec::Sgd { lr: 1e-3, momentum: 0.0 };
    let optimizer = DenseOptimizer::new(spec, 0.0, &graph.params).unwrap();
    let inputs = on_device(&data);
    let refused = gpu.enqueue_step(&inputs, &params, &optimizer, &copies, scalars(None));
    assert!(refused.unwrap_err().to_string().contains("an inference program cannot train"));
    assert!(gpu.finish_step(true).unwrap().is_none());
}
