//! Tests that the executor of a GPU has the bits of the CPU, on the emulated GPU. A NaN equals a
//! NaN; nothing else has a tolerance.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions, Pace};
use zillion_device::gpu::Gpu;
use zillion_nn::{
    Executor, GpuExecutor, GraphBuilder, Mode, NodeId, Params, Program, Result, Settings,
    TrainGraph, differentiate,
};

use crate::check::{SEED, Step, params_of, weighted_sum, workers};
use crate::data::{Data, graph_inputs};
use crate::random::{Choice, build};

/// Returns an emulated GPU that runs each operation at once.
fn gpu() -> Arc<dyn Gpu> {
    let options = EmulatedOptions { pace: Pace::Eager, ..EmulatedOptions::seeded(0) };
    Arc::new(Emulated::new(options))
}

/// Returns a number for the bits of each float, and one number for all NaN.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
}

/// Asserts that two steps have the same bits.
fn assert_same(cpu: &Step, gpu: &Step, train: &TrainGraph) {
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

/// A pair of executors of one program.
struct Pair<'a> {
    train: &'a TrainGraph,
    cpu: Executor,
    gpu: GpuExecutor,
}

impl<'a> Pair<'a> {
    fn new(train: &'a TrainGraph, settings: Settings, gpu: Arc<dyn Gpu>) -> Self {
        let program = Program::train(train, settings).unwrap();
        let cpu = Executor::new(program.clone());
        Self { train, cpu, gpu: GpuExecutor::new(program, gpu).unwrap() }
    }

    /// Runs a step on both, and compares the results.
    fn check(&mut self, data: &Data, params: &Params) {
        let buffers = || -> Vec<Vec<f32>> {
            data.tables.iter().map(|t| vec![f32::NAN; t.values.len()]).collect()
        };
        let outputs = &self.train.graph.outputs;
        let mut of_cpu = params.clone();
        let mut row_grads = buffers();
        let mut slices: Vec<&mut [f32]> = row_grads.iter_mut().map(Vec::as_mut_slice).collect();
        let workers = workers(1);
        self.cpu.train(&workers, &data.inputs(), &mut of_cpu, SEED, &mut slices).unwrap();
        let cpu = Step {
            loss: self.cpu.loss().unwrap(),
            grads: self.cpu.param_grads().map(|(p, g)| (p, g.to_vec())).collect(),
            row_grads,
            outputs: outputs.iter().map(|&(_, o)| self.cpu.output(o).unwrap().to_vec()).collect(),
            params: of_cpu,
        };
        let mut of_gpu = params.clone();
        let mut row_grads = buffers();
        let mut slices: Vec<&mut [f32]> = row_grads.iter_mut().map(Vec::as_mut_slice).collect();
        self.gpu.train(&data.inputs(), &mut of_gpu, SEED, &mut slices).unwrap();
        let gpu = Step {
            loss: self.gpu.loss().unwrap(),
            grads: self.gpu.param_grads().map(|(p, g)| (p, g.to_vec())).collect(),
            row_grads,
            outputs: outputs.iter().map(|&(_, o)| self.gpu.output(o).unwrap().to_vec()).collect(),
            params: of_gpu,
        };
        assert_same(&cpu, &gpu, self.train);
    }
}

fn train(build: impl Fn(&mut GraphBuilder) -> Result<NodeId>) -> TrainGraph {
    let mut b = GraphBuilder::new(graph_inputs(), Mode::Train);
    let y = build(&mut b).unwrap();
    let loss = weighted_sum(&mut b, y).unwrap();
    b.output("y", y).unwrap();
    differentiate(&b.finish(), loss).unwrap()
}

proptest! {
    // The graphs are the same in every run. PROPTEST_CASES sets a larger number of graphs.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(300),
        rng_seed: RngSeed::Fixed(20_261_127),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_graphs_have_the_bits_of_the_cpu(
        rows in 1usize..24,
        seed in 0u64..1000,
        lanes in 1usize..5,
        tile_rows in 1usize..9,
        choices in prop::collection::vec(any::<Choice>(), 1..16),
    ) {
        let train = train(|b| build(b, &choices));
        let settings = Settings { lanes, tile_rows, ..Settings::default() };
        let params = params_of(&train.graph, seed);
        let data = Data::new(rows, seed);
        Pair::new(&train, settings, gpu()).check(&data, &params);
    }
}
