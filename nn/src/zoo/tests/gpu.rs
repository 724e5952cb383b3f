//! Tests that every model has the bits of the CPU on a GPU, for batches of several sizes.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::gpu::Gpu;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions};

use super::super::{LOSS, build};
use super::batch::{TestBatch, UNIQUE};
use super::shapes::SMALL;
use super::spec;
use crate::{Executor, GpuExecutor, Mode, Params, Program, Settings, StepSeed, differentiate};

/// Returns a number for the bits of each float, and one number for all NaN.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
}

/// Trains a model for a few steps, each with another batch, on the CPU and on a GPU.
fn compare(text: &str, numeric: usize, settings: Settings, rows: &[usize], device: &Arc<dyn Gpu>) {
    let model = TestBatch::new(1, 3, 4, numeric).model;
    let graph = build(&spec(text), &model, Mode::Train).unwrap();
    let train = differentiate(&graph, graph.output(LOSS).unwrap()).unwrap();
    let program = Program::train(&train, settings).unwrap();
    let mut cpu = Executor::new(program.clone());
    let mut gpu = GpuExecutor::new(program, Arc::clone(device)).unwrap();
    let workers = Workers::new(NonZeroUsize::MIN).unwrap();
    let mut params = Params::init(&graph.params, 3);
    for (step, &rows) in rows.iter().enumerate() {
        let batch = TestBatch::new(7 + step as u64, rows, 4, numeric);
        let seed = StepSeed { seed: 5, step: step as u64 };
        let mut grads = [vec![f32::NAN; UNIQUE * batch.stride], vec![0.5; UNIQUE * batch.stride]];
        let [of_cpu, of_gpu] = &mut grads;
        let mut other = params.clone();
        cpu.train(&workers, &batch.view(), &mut params, seed, &mut [of_cpu]).unwrap();
        gpu.train(&batch.view(), &mut other, seed, &mut [of_gpu]).unwrap();
        let case = format!("{text}, {numeric} numbers, {rows} rows, {settings:?}");
        assert_eq!(bits(&[cpu.loss().unwrap()]), bits(&[gpu.loss().unwrap()]), "{case}");
        let (a, b): (Vec<_>, Vec<_>) = (cpu.param_grads().collect(), gpu.param_grads().collect());
        assert_eq!(a.len(), b.len());
        for ((id, a), (_, b)) in a.iter().zip(&b) {
            assert_eq!(bits(a), bits(b), "{case}: {}", graph.param(*id).name);
        }
        assert_eq!(bits(&grads[0]), bits(&grads[1]), "{case}: rows");
        for ((spec, a), (_, b)) in params.iter().zip(other.iter()) {
            assert_eq!(bits(a), bits(b), "{case}: {}", spec.name);
        }
        // The gradients move the parameters, so that the steps differ.
        for (id, grad) in a {
            let values = params.value_mut(id).iter_mut().zip(grad);
            values.for_each(|(value, gradient)| *value -= 0.1 * gradient);
        }
    }
}

#[test]
fn every_model_has_the_bits_of_the_cpu() {
    for (number, text) in SMALL.iter().enumerate() {
        let options = EmulatedOptions::seeded(number as u64);
        let device: Arc<dyn Gpu> = Arc::new(Emulated::new(options));
        for numeric in [0, 3] {
            let small = Settings { lanes: 3, tile_rows: 4, ..Settings::default() };
            compare(text, numeric, small, &[13, 1, 2, 4, 5, 30], &device);
        }
        compare(text, 3, Settings::default(), &[200, 64, 65, 63], &device);
        assert_eq!(device.counters().live_bytes, 0, "the executors free their memory");
    }
}
