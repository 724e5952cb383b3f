//! Tests that every model has the bits of the CPU on a GPU, for batches of several sizes.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions};
use zillion_device::gpu::{Counters, Gpu};

use super::super::{LOSS, build};
use super::batch::TestBatch;
use super::shapes::SMALL;
use super::spec;
use super::tasks::{SPECS, Two};
use super::two_tower::SPEC;
use super::written::{DCNV2, DEEPFM};
use crate::zoo::{LossSpec, ModelInputs};
use crate::{
    Executor, GpuExecutor, Inputs, Mode, Params, Program, Settings, StepSeed, differentiate,
};

/// Returns a number for the bits of each float, and one number for all NaN.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
}

/// Trains a model for a few steps, each with another batch, on the CPU and on a GPU.
fn compare<'a>(
    text: &str,
    model: &ModelInputs,
    settings: Settings,
    batches: impl IntoIterator<Item = Inputs<'a>>,
    device: &Arc<dyn Gpu>,
) {
    let graph = build(&spec(text), model, Mode::Train).unwrap();
    let train = differentiate(&graph, graph.output(LOSS).unwrap()).unwrap();
    let program = Program::train(&train, settings).unwrap();
    let mut cpu = Executor::new(program.clone());
    let mut gpu = GpuExecutor::new(program, Arc::clone(device)).unwrap();
    let workers = Workers::new(NonZeroUsize::MIN).unwrap();
    let mut params = Params::init(&graph.params, 3);
    for (step, inputs) in batches.into_iter().enumerate() {
        let seed = StepSeed { seed: 5, step: step as u64 };
        let floats = inputs.tables[0].values.len();
        let (mut of_cpu, mut of_gpu) = (vec![f32::NAN; floats], vec![0.5; floats]);
        let mut other = params.clone();
        cpu.train(&workers, &inputs, &mut params, seed, &mut [&mut of_cpu]).unwrap();
        gpu.train(&inputs, &mut other, seed, &mut [&mut of_gpu]).unwrap();
        let case = format!("{text}, {} rows, {settings:?}", inputs.rows);
        assert_eq!(bits(&[cpu.loss().unwrap()]), bits(&[gpu.loss().unwrap()]), "{case}");
        let (a, b): (Vec<_>, Vec<_>) = (cpu.param_grads().collect(), gpu.param_grads().collect());
        assert_eq!(a.len(), b.len());
        for ((id, a), (_, b)) in a.iter().zip(&b) {
            assert_eq!(bits(a), bits(b), "{case}: {}", graph.param(*id).name);
        }
        assert_eq!(bits(&of_cpu), bits(&of_gpu), "{case}: rows");
        for (name, _) in &graph.outputs {
            let (a, b) = (cpu.named_output(name).unwrap(), gpu.named_output(name).unwrap());
            assert_eq!(bits(a), bits(b), "{case}: {name}");
        }
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

fn small() -> Settings {
    Settings { lanes: 3, tile_rows: 4, ..Settings::default() }
}

/// Returns an emulated GPU, or a real one with `ZILLION_TEST_GPU=cuda:0`.
fn device(seed: usize) -> Arc<dyn Gpu> {
    match std::env::var("ZILLION_TEST_GPU") {
        Ok(name) => Arc::from(zillion_device::gpu::open(&name, None).unwrap()),
        Err(_) => Arc::new(Emulated::new(EmulatedOptions::seeded(seed as u64))),
    }
}

fn batches(rows: &[usize], numeric: usize) -> Vec<TestBatch> {
    (7..).zip(rows).map(|(seed, &rows)| TestBatch::new(seed, rows, 4, numeric)).collect()
}

#[test]
fn every_model_has_the_bits_of_the_cpu() {
    let written = [DEEPFM, DCNV2].map(str::to_owned);
    let all = SMALL.iter().map(|&text| text.to_owned()).chain(written);
    for (number, text) in all.enumerate() {
        let device = device(number);
        for numeric in [0, 3] {
            let batches = batches(&[13, 1, 2, 4, 5, 30], numeric);
            // Models written as a graph name the numbers.
            if numeric == 0 && text.contains("'graph'") {
                continue;
            }
            let views = batches.iter().map(TestBatch::view);
            compare(&text, &batches[0].model, small(), views, &device);
        }
        let batches = batches(&[200, 64, 65, 63], 3);
        let views = batches.iter().map(TestBatch::view);
        compare(&text, &batches[0].model, Settings::default(), views, &device);
        let unweighted = batches.iter().map(|batch| Inputs { weight: None, ..batch.view() });
        compare(&text, &batches[0].model, Settings::default(), unweighted, &device);
        let Counters { live_bytes, live_streams, live_events, .. } = device.counters();
        assert_eq!([live_bytes, live_streams, live_events], [0; 3], "what executors leave");
    }
}

#[test]
fn every_loss_has_the_bits_of_the_cpu() {
    let losses = [
        LossSpec::Focal { gamma: 2.0, alpha: Some(0.25) },
        LossSpec::Bce { positive_weight: 3.0, negative_weight: 0.5 },
        LossSpec::Mse {},
        LossSpec::Huber { delta: 0.3 },
        LossSpec::Poisson {},
    ];
    for loss in losses {
        let mut batches = batches(&[90, 7], 3);
        batches[0].model.labels[0].loss = loss;
        let text = "kind = 'deepfm'\nhidden = [5]\ndropout = 0.5";
        let views = batches.iter().map(TestBatch::view);
        compare(text, &batches[0].model, small(), views, &device(2));
    }
}

#[test]
fn classes_have_the_bits_of_the_cpu() {
    for (number, text) in super::classes::models().enumerate() {
        let batches = [(21, 37), (22, 5)].map(|(seed, rows)| super::classes::batch(seed, rows, 3));
        let views = batches.iter().map(TestBatch::view);
        compare(text, &batches[0].model, small(), views, &device(number));
    }
}

#[test]
fn models_of_several_tasks_have_the_bits_of_the_cpu() {
    for (number, text) in SPECS.iter().enumerate() {
        let device = device(number);
        for settings in [small(), Settings::default()] {
            let batches = [3, 30, 1, 70].map(|rows| Two::new(20 + rows as u64, rows));
            let views = batches.iter().map(Two::view);
            compare(text, &batches[0].batch.model, settings, views, &device);
        }
    }
}

/// Compares batches of several sizes. One of them has more rows than a block of scores, and the
/// launches are made anew for each size.
#[test]
fn two_towers_have_the_bits_of_the_cpu() {
    for extra in ["", "\nnormalise = false", "\nsampling_correction = false"] {
        let text = format!("{SPEC}{extra}");
        let batches = batches(&[37, 37, 1, 64, 600, 37], 2);
        let corrected = !extra.contains("correction");
        let shares: Vec<f32> = (0..600).map(|row| -1.0 - (row % 5) as f32).collect();
        let views = batches.iter().map(|batch| {
            let mut view = batch.view();
            if corrected {
                view.numeric.push(&shares[..batch.rows]);
            }
            view
        });
        compare(&text, &batches[0].model, small(), views, &device(1));
    }
}
