//! The benchmark `zillion bench gpu`: floors of a GPU, and the rates of products and of row kernels
//! beside them, measured in the same run. Whole steps of a model follow.

use anyhow::Result;
use serde::Serialize;
use zillion_device::gpu::rates::{self, Rate, StepRate};
use zillion_device::gpu::{Counters, Info, open};

use crate::args::{BenchGpuArgs, GpuPart};
use crate::print_outcome;

#[derive(Serialize)]
struct Outcome {
    device: Info,
    /// The copies and launches that no kernel can be faster than.
    floors: Vec<Rate>,
    rates: Vec<Rate>,
    /// Whole steps of a model.
    steps: Vec<StepRate>,
    counters: Counters,
}

pub(crate) fn run(args: &BenchGpuArgs, is_json: bool) -> Result<()> {
    let gpu = open(&args.device, args.kernels.as_deref())?;
    let gpu = gpu.as_ref();
    let wants = |part: GpuPart| args.part.is_empty() || args.part.contains(&part);
    let floors = rates::measure_floors(gpu)?;
    let copy = floors.first().map_or(f64::NAN, Rate::rate);
    let mut all = Vec::new();
    if wants(GpuPart::Rows) {
        all.extend(rates::measure_rows(gpu, args.rows, copy)?);
    }
    if wants(GpuPart::Index) {
        all.extend(rates::measure_index(gpu, args.index_places)?);
    }
    if wants(GpuPart::Exact) {
        all.extend(rates::measure_exact_products(gpu)?);
    }
    if wants(GpuPart::Library) {
        all.extend(rates::measure_library_products(gpu)?);
    }
    let mut steps = Vec::new();
    if wants(GpuPart::Step) {
        rates::measure_step(gpu, args.rows, |step| steps.push(step.clone()))?;
    }
    if wants(GpuPart::StepParts) {
        rates::measure_step_parts(gpu, args.rows, |rate| all.push(rate.clone()))?;
    }
    let (device, counters) = (gpu.info().clone(), gpu.counters());
    print_outcome(&Outcome { device, floors, rates: all, steps, counters }, is_json)
}
