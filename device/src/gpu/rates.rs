//! Measurements of a device: the floors of copies and launches, and the rates of products and
//! kernels beside them.
//!
//! A kernel is timed inside of a graph, as a step runs it: the figure is that of the median replay.

mod floors;
mod index;
mod products;
mod rows;
mod step;

use serde::Serialize;

use super::device::{Event, Gpu, Graph, Stream};
use super::error::GpuError;
use super::memory::Memory;

pub use floors::measure_floors;
pub use index::measure_index;
pub use products::{measure_exact_products, measure_library_products};
pub use rows::measure_rows;
pub use step::{StepRate, measure_step, measure_step_parts};

/// The number of replays that are timed; the median counts.
const REPLAYS: usize = 7;

/// One figure of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// The name, such as `product tf32`.
    pub name: String,
    /// The shape, such as `8192x400x400`.
    pub shape: String,
    /// The microseconds of one operation.
    pub microseconds: f64,
    /// The rate in `unit`.
    pub rate: f64,
    /// The unit of the rate.
    pub unit: &'static str,
    /// The rate as a share of the floor that was measured in the same run, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_floor: Option<f64>,
    /// A remark, such as the number of the best algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Rate {
    fn new(name: &str, shape: String, seconds: f64, rate: f64, unit: &'static str) -> Self {
        let (of_floor, note) = (None, None);
        Self {
            name: name.to_owned(),
            shape,
            microseconds: seconds * 1e6,
            rate,
            unit,
            of_floor,
            note,
        }
    }

    /// Returns the rate in its unit.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    fn noted(self, note: String) -> Self {
        Self { note: Some(note), ..self }
    }

    fn beside(self, floor: f64) -> Self {
        Self { of_floor: Some(self.rate / floor), ..self }
    }
}

/// A stream with two timed events, and the memory of a measurement.
pub(super) struct Timer<'a> {
    gpu: &'a dyn Gpu,
    stream: Stream,
    events: [Event; 2],
    memory: Vec<Memory>,
}

impl<'a> Timer<'a> {
    fn new(gpu: &'a dyn Gpu) -> Result<Self, GpuError> {
        let stream = gpu.create_stream()?;
        let events = [gpu.create_event(true)?, gpu.create_event(true)?];
        Ok(Self { gpu, stream, events, memory: Vec::new() })
    }

    /// Allocates memory whose floats are about 0.0115.
    fn allocate(&mut self, bytes: usize) -> Result<Memory, GpuError> {
        let memory = self.gpu.allocate(bytes)?;
        self.memory.push(memory);
        self.gpu.fill(self.stream, memory, 0x3c)?;
        Ok(memory)
    }

    fn upload<T: bytemuck::NoUninit>(&mut self, values: &[T]) -> Result<Memory, GpuError> {
        let memory = self.gpu.allocate(size_of_val(values))?;
        self.memory.push(memory);
        self.gpu.upload(self.stream, memory, bytemuck::cast_slice(values))?;
        Ok(memory)
    }

    /// Returns the seconds of what `enqueue` puts on the stream.
    fn seconds(&self, enqueue: impl FnOnce() -> Result<(), GpuError>) -> Result<f64, GpuError> {
        let [from, to] = self.events;
        self.gpu.record(from, self.stream)?;
        enqueue()?;
        self.gpu.record(to, self.stream)?;
        self.gpu.synchronize(self.stream)?;
        self.gpu.elapsed(from, to)
    }

    fn capture(&self, record: impl FnOnce() -> Result<(), GpuError>) -> Result<Graph, GpuError> {
        self.gpu.begin_capture(self.stream)?;
        record()?;
        self.gpu.end_capture(self.stream)
    }

    /// Returns the seconds of one of `count` operations in a graph: of the median replay.
    fn seconds_in_graph(
        &self,
        count: usize,
        mut enqueue: impl FnMut(usize) -> Result<(), GpuError>,
    ) -> Result<f64, GpuError> {
        // Once outside, so that an error names its launch and all code is loaded.
        enqueue(0)?;
        self.gpu.synchronize(self.stream)?;
        let graph = self.capture(|| (0..count).try_for_each(&mut enqueue))?;
        self.gpu.replay(self.stream, graph)?;
        let mut all = Vec::with_capacity(REPLAYS);
        for _ in 0..REPLAYS {
            all.push(self.seconds(|| self.gpu.replay(self.stream, graph))?);
        }
        self.gpu.free_graph(graph)?;
        Ok(median(all) / count as f64)
    }

    fn free(self) -> Result<(), GpuError> {
        self.gpu.synchronize(self.stream)?;
        self.memory.iter().try_for_each(|memory| self.gpu.free(*memory))
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
