//! A whole training step of DeepFM as one graph, put together from the kernels: 26 columns of one
//! table, 13 numbers, three layers, the interaction and a linear part, cross-entropy, Adam for the
//! layers and row-wise AdaGrad for the table.
//!
//! Several planned batches lie in device memory, and a step begins with a copy of one of them to
//! where the graph reads it. All that changes from step to step is read from device memory: the
//! batch, and the scalars of Adam. Losses go to a ring that is read after the run. So a step has no
//! wait and no allocation, which the counters of the device show.

mod batch;
mod enqueue;
mod launches;
mod model;
mod products;

use std::time::Instant;

use serde::Serialize;

use self::batch::Batches;
use self::launches::Launches;
use self::model::{Model, RING, Sizes};
use super::rows::BATCHES;
use super::{Rate, Timer, median};
use crate::gpu::device::{Gpu, Graph};
use crate::gpu::error::GpuError;
use crate::gpu::memory::Memory;
use crate::gpu::product::Precision;

/// A group of launches of a step, which can be left out to see what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Lookup,
    Forward,
    Head,
    Loss,
    Sums,
    Weights,
    Inputs,
    Interaction,
    Dense,
    Rows,
}

impl Part {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Lookup, "lookup, interaction and linear part"),
        (Self::Forward, "layers"),
        (Self::Head, "logit and its gradient"),
        (Self::Loss, "sum of losses"),
        (Self::Sums, "masks and column sums"),
        (Self::Weights, "gradients of weights"),
        (Self::Inputs, "gradients of inputs"),
        (Self::Interaction, "gradient of the interaction"),
        (Self::Dense, "Adam and transposes"),
        (Self::Rows, "row sums and row-wise AdaGrad"),
    ];
}

/// The figures of a step in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct StepRate {
    /// The name of the figure, which is `step deepfm-16`.
    pub name: &'static str,
    /// The arithmetic of the products: `exact`, or the precision of the library's products.
    pub products: &'static str,
    /// Whether the lookup, and the copies of weights, have a launch for each operation.
    pub split: bool,
    /// The number of rows of a batch.
    pub rows: usize,
    /// The microseconds of a step by events: of the median run.
    pub microseconds: f64,
    /// The shortest and the longest run.
    pub spread: [f64; 2],
    /// The microseconds of a step by the host's clock.
    pub wall_microseconds: f64,
    /// Million rows in a second.
    pub million_rows_per_second: f64,
    /// The microseconds of the host to enqueue a step.
    pub enqueue_microseconds: f64,
    /// The numbers of kernels and of library products in the graph.
    pub graph: [u64; 2],
    /// The mean loss of the first and of the last step.
    pub loss: [f32; 2],
    /// The host waits and the allocations of the timed steps.
    pub waits_and_allocations: [u64; 2],
    /// Digests of all weights, states and rows after 20 steps: launched one by one, by replays of
    /// the graph, and by replays once more.
    pub digests: [String; 3],
    /// Whether the digests are equal.
    pub equal: bool,
}

/// A step with its memory.
struct Step<'a> {
    timer: Timer<'a>,
    model: Model,
    launches: Launches,
    resident: Vec<Memory>,
    current: Memory,
}

impl<'a> Step<'a> {
    fn new(
        gpu: &'a dyn Gpu,
        batches: &Batches,
        sizes: &Sizes,
        library: Option<Precision>,
    ) -> Result<Self, GpuError> {
        let mut timer = Timer::new(gpu)?;
        let model = Model::new(&mut timer, batches, sizes, library == Some(Precision::Bf16))?;
        let resident = batches.upload(&mut timer)?;
        let current = timer.allocate(batches.places.bytes)?;
        gpu.copy(timer.stream, current, resident[0])?;
        model.reset(&timer)?;
        let launches = Launches::new(&mut timer, batches, &model, current, library)?;
        Ok(Self { timer, model, launches, resident, current })
    }

    fn capture(&self, without: Option<Part>) -> Result<Graph, GpuError> {
        self.timer.capture(|| self.launches.enqueue(self.timer.gpu, &self.model, without))
    }

    /// Enqueues the step with a number: as replay of a graph, or launch by launch.
    fn enqueue(&self, number: usize, graph: Option<Graph>) -> Result<(), GpuError> {
        let (gpu, stream, model) = (self.timer.gpu, self.timer.stream, &self.model);
        let at = number % RING;
        let bytes = model.rule.bytes();
        gpu.copy(stream, self.current, self.resident[number % BATCHES])?;
        gpu.copy(stream, model.rule, model.rules.part(at * bytes, bytes)?)?;
        match graph {
            Some(graph) => gpu.replay(stream, graph)?,
            None => self.launches.enqueue(gpu, model, None)?,
        }
        gpu.copy(stream, model.ring.part(at * 4, 4)?, model.loss)
    }

    /// Runs some steps from the start, and returns the digest of what they leave.
    fn digest(&self, steps: usize, graph: Option<Graph>) -> Result<u64, GpuError> {
        self.model.reset(&self.timer)?;
        (0..steps).try_for_each(|number| self.enqueue(number, graph))?;
        self.model.digest(&self.timer)
    }

    fn losses(&self) -> Result<Vec<f32>, GpuError> {
        let mut losses = vec![0f32; RING];
        let to = bytemuck::cast_slice_mut(&mut losses);
        self.timer.gpu.download(self.timer.stream, to, self.model.ring)?;
        Ok(losses)
    }

    /// Measures the step with a launch for each operation of the lookup and each copy of a weight,
    /// or with one launch for all of them.
    fn measure(
        &mut self,
        rows: usize,
        products: &'static str,
        is_split: bool,
    ) -> Result<StepRate, GpuError> {
        self.launches.is_split = is_split;
        let gpu = self.timer.gpu;
        let by_launches = self.digest(20, None)?;
        let before = gpu.counters();
        let graph = self.capture(None)?;
        let after = gpu.counters();
        let by_replays = self.digest(20, Some(graph))?;
        let again = self.digest(20, Some(graph))?;
        let count = if rows > 10_000 { 80 } else { 320 };
        self.model.reset(&self.timer)?;
        let mut number = 0;
        let mut steps = |count: usize| {
            (0..count).try_for_each(|_| {
                self.enqueue(number, Some(graph))?;
                number += 1;
                Ok(())
            })
        };
        steps(16)?;
        gpu.synchronize(self.timer.stream)?;
        let (mut device, mut wall, mut host) = (Vec::new(), Vec::new(), Vec::new());
        let mut used = [0, 0];
        for _ in 0..5 {
            let started = Instant::now();
            let mut counted = [before; 2];
            let seconds = self.timer.seconds(|| {
                counted[0] = gpu.counters();
                steps(count)?;
                counted[1] = gpu.counters();
                Ok(())
            })?;
            device.push(seconds / count as f64 * 1e6);
            wall.push(started.elapsed().as_secs_f64() / count as f64 * 1e6);
            used[0] += counted[1].host_waits - counted[0].host_waits;
            used[1] += counted[1].allocations - counted[0].allocations;
        }
        for _ in 0..5 {
            // So few steps that the driver's queue is never full.
            let started = Instant::now();
            steps(16)?;
            host.push(started.elapsed().as_secs_f64() / 16.0 * 1e6);
            gpu.synchronize(self.timer.stream)?;
        }
        let losses = self.losses()?;
        gpu.free_graph(graph)?;
        device.sort_by(f64::total_cmp);
        let microseconds = device[2];
        let mean = |number: usize| losses[number % RING] / rows as f32;
        let all = [by_launches, by_replays, again];
        Ok(StepRate {
            name: "step deepfm-16",
            products,
            split: is_split,
            rows,
            microseconds,
            spread: [device[0], device[4]],
            wall_microseconds: median(wall),
            million_rows_per_second: rows as f64 / microseconds,
            enqueue_microseconds: median(host),
            graph: [after.launches - before.launches, after.products - before.products],
            loss: [mean(0), mean(number - 1)],
            waits_and_allocations: used,
            digests: all.map(|digest| format!("{digest:016x}")),
            equal: by_launches == by_replays && by_replays == again,
        })
    }

    /// Measures the graph, and the graph without each of its parts.
    fn measure_parts(&self, rows: usize, products: &str) -> Result<Vec<Rate>, GpuError> {
        let mut all = Vec::new();
        let mut whole = 0.0;
        for part in std::iter::once(None).chain(Part::ALL.map(Some)) {
            self.model.reset(&self.timer)?;
            let graph = self.capture(part.map(|(part, _)| part))?;
            let count = if rows > 10_000 { 16 } else { 64 };
            let run = || (0..count).try_for_each(|number| self.enqueue(number, Some(graph)));
            run()?;
            let mut seconds = Vec::new();
            for _ in 0..5 {
                seconds.push(self.timer.seconds(run)? / count as f64);
            }
            let seconds = median(seconds);
            self.timer.gpu.free_graph(graph)?;
            let name = match part {
                None => format!("step {products}, whole"),
                Some((_, name)) => format!("step {products}, without {name}"),
            };
            if part.is_none() {
                whole = seconds;
            }
            let rate = rows as f64 / seconds / 1e6;
            let one = Rate::new(&name, format!("batch {rows}"), seconds, rate, "M rows/s");
            all.push(one.noted(format!("saves {:.1} us", (whole - seconds) * 1e6)));
        }
        Ok(all)
    }
}

/// The precisions of a step's products and their names.
const PRODUCTS: [(Option<Precision>, &str); 4] = [
    (None, "exact"),
    (Some(Precision::Tf32), "tf32"),
    (Some(Precision::Bf16), "bf16"),
    (Some(Precision::F32), "f32, library"),
];

fn for_all(
    gpu: &dyn Gpu,
    table_rows: u64,
    mut run: impl FnMut(&mut Step<'_>, usize, &'static str) -> Result<(), GpuError>,
) -> Result<(), GpuError> {
    for rows in [8192usize, 65_536] {
        let thresholds = if rows > 10_000 { [16, 256] } else { [8, 64] };
        let batches = Batches::new(rows, table_rows, thresholds);
        let lanes = (rows / 512).min(64);
        let sizes = Sizes { units: vec![400; 3], tile: 256, lanes };
        for (library, name) in PRODUCTS {
            let mut step = Step::new(gpu, &batches, &sizes, library)?;
            run(&mut step, rows, name)?;
            step.timer.free()?;
        }
    }
    Ok(())
}

/// Measures the step with a table of `table_rows` rows, and gives each setting's figures to `each`.
///
/// # Errors
///
/// Returns the error of the device.
pub fn measure_step(
    gpu: &dyn Gpu,
    table_rows: u64,
    mut each: impl FnMut(&StepRate),
) -> Result<(), GpuError> {
    for_all(gpu, table_rows, |step, rows, name| {
        for is_split in [true, false] {
            each(&step.measure(rows, name, is_split)?);
        }
        Ok(())
    })
}

/// Measures the step without each of its parts.
///
/// # Errors
///
/// Returns the error of the device.
pub fn measure_step_parts(
    gpu: &dyn Gpu,
    table_rows: u64,
    mut each: impl FnMut(&Rate),
) -> Result<(), GpuError> {
    for_all(gpu, table_rows, |step, rows, name| {
        if !name.starts_with("f32") {
            step.measure_parts(rows, name)?.iter().for_each(&mut each);
        }
        Ok(())
    })
}

#[cfg(all(test, feature = "emulated-gpu"))]
mod tests;
