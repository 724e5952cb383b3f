//! The comparison of the executors of the CPU and of a GPU, by the bits of all results. A NaN
//! equals a NaN; nothing else has a tolerance.
//!
//! The GPU is an emulated one. With `ZILLION_TEST_GPU=cuda:0` it is a real one. The tests must then
//! run on one thread, because no other work may reach a device while a graph is recorded.

use std::sync::{Arc, OnceLock};

use zillion_device::gpu::emulated::{Emulated, EmulatedOptions, Pace};
use zillion_device::gpu::{Counters, Gpu};
use zillion_nn::{Executor, GpuExecutor, NodeId, ParamId, Params, Program, Settings, TrainGraph};

use crate::check::{SEED, Step, workers};
use crate::data::Data;

/// Returns the options of an emulated GPU with a seed.
pub(crate) fn options(seed: u64) -> EmulatedOptions {
    EmulatedOptions { memory_bytes: 1 << 30, ..EmulatedOptions::seeded(seed) }
}

/// Returns the real GPU on which the tests run, if the environment names one. All tests share it.
fn real() -> Option<Arc<dyn Gpu>> {
    static REAL: OnceLock<Option<Arc<dyn Gpu>>> = OnceLock::new();
    let open = || {
        let name = std::env::var("ZILLION_TEST_GPU").ok()?;
        Some(Arc::from(zillion_device::gpu::open(&name, None).unwrap()))
    };
    REAL.get_or_init(open).clone()
}

/// Returns an emulated GPU whose operations run late and in an order that follows the seed.
pub(crate) fn seeded(seed: u64) -> Arc<dyn Gpu> {
    real().unwrap_or_else(|| Arc::new(Emulated::new(options(seed))))
}

/// Returns an emulated GPU that runs each operation at once, and threads in their order.
pub(crate) fn gpu() -> Arc<dyn Gpu> {
    let eager = || Arc::new(Emulated::new(EmulatedOptions { pace: Pace::Eager, ..options(0) }));
    real().unwrap_or_else(|| eager())
}

/// Asserts that everything on a device was given back.
pub(crate) fn assert_nothing_lives(gpu: &dyn Gpu) {
    let Counters { live_bytes, live_streams, live_events, .. } = gpu.counters();
    assert_eq!((live_bytes, live_streams, live_events), (0, 0, 0), "bytes, streams and events");
}

/// Returns a number for the bits of each float, and one number for all NaN.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
}

/// Asserts that two steps have the same bits.
pub(crate) fn assert_same(cpu: &Step, gpu: &Step, train: &TrainGraph) {
    let same = |what: &str, cpu: &[f32], gpu: &[f32]| {
        let (a, b) = (bits(cpu), bits(gpu));
        if let Some(at) = (0..a.len().max(b.len())).find(|&at| a.get(at) != b.get(at)) {
            let (cpu, gpu) = (cpu.get(at), gpu.get(at));
            panic!("{what}, float {at}: {cpu:?} on the CPU, {gpu:?} on the GPU\n{}", train.graph);
        }
    };
    for ((id, cpu), &(_, node)) in cpu.outputs.iter().enumerate().zip(&train.graph.outputs) {
        same(&format!("output {node}"), cpu, &gpu.outputs[id]);
    }
    same("the loss", &[cpu.loss], &[gpu.loss]);
    assert_eq!(cpu.grads.len(), gpu.grads.len());
    for ((id, cpu), (other, gpu)) in cpu.grads.iter().zip(&gpu.grads) {
        assert_eq!(id, other);
        same(&format!("the gradient of {}", train.graph.param(*id).name), cpu, gpu);
    }
    for (table, (cpu, gpu)) in cpu.row_grads.iter().zip(&gpu.row_grads).enumerate() {
        same(&format!("the gradient of table {table}"), cpu, gpu);
    }
    for ((spec, cpu), (_, gpu)) in cpu.params.iter().zip(gpu.params.iter()) {
        same(&spec.name, cpu, gpu);
    }
}

/// Runs a training step with the slices that it needs.
fn step_of(
    train: &TrainGraph,
    data: &Data,
    params: &Params,
    run: impl FnOnce(&mut Params, &mut [&mut [f32]]) -> (f32, Vec<(ParamId, Vec<f32>)>),
) -> Step {
    let mut row_grads: Vec<Vec<f32>> =
        data.tables.iter().map(|t| vec![f32::NAN; t.values.len()]).collect();
    let mut slices: Vec<&mut [f32]> = row_grads.iter_mut().map(Vec::as_mut_slice).collect();
    let mut params = params.clone();
    let (loss, grads) = run(&mut params, &mut slices);
    let outputs = vec![Vec::new(); train.graph.outputs.len()];
    Step { loss, grads, row_grads, outputs, params }
}

/// Runs a training step on the GPU.
pub(crate) fn run_gpu(
    gpu: &mut GpuExecutor,
    train: &TrainGraph,
    data: &Data,
    params: &Params,
) -> Step {
    let mut step = step_of(train, data, params, |params, row_grads| {
        gpu.train(&data.inputs(), params, SEED, row_grads).unwrap();
        let grads = gpu.param_grads().map(|(p, g)| (p, g.to_vec())).collect();
        (gpu.loss().unwrap(), grads)
    });
    for (out, &(_, id)) in step.outputs.iter_mut().zip(&train.graph.outputs) {
        *out = gpu.output(id).unwrap().to_vec();
    }
    step
}

/// Runs a training step on the CPU.
pub(crate) fn run_cpu(
    cpu: &mut Executor,
    train: &TrainGraph,
    data: &Data,
    params: &Params,
) -> Step {
    let mut step = step_of(train, data, params, |params, row_grads| {
        cpu.train(&workers(1), &data.inputs(), params, SEED, row_grads).unwrap();
        let grads = cpu.param_grads().map(|(p, g)| (p, g.to_vec())).collect();
        (cpu.loss().unwrap(), grads)
    });
    for (out, &(_, id)) in step.outputs.iter_mut().zip(&train.graph.outputs) {
        *out = cpu.output(id).unwrap().to_vec();
    }
    step
}

/// Asserts that a GPU computes the step of the CPU: by launches, and by the replay of a graph.
pub(crate) fn compare_step(
    train: &TrainGraph,
    data: &Data,
    params: &Params,
    settings: Settings,
    cpu: &Step,
) {
    let mut executor = GpuExecutor::new(Program::train(train, settings).unwrap(), gpu()).unwrap();
    for _ in 0..2 {
        assert_same(cpu, &run_gpu(&mut executor, train, data, params), train);
    }
}

/// Asserts that a GPU computes the values that the CPU has computed.
pub(crate) fn compare_values(cpu: &Executor, nodes: &[NodeId], data: &Data, params: &Params) {
    let mut executor = GpuExecutor::new(cpu.program().clone(), gpu()).unwrap();
    executor.infer(&data.inputs(), params).unwrap();
    for &id in nodes {
        let (cpu_value, gpu_value) = (cpu.output(id).unwrap(), executor.output(id).unwrap());
        assert_eq!(bits(cpu_value), bits(gpu_value), "{id}\n{}", cpu.program().graph());
    }
}
