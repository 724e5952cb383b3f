//! The handles of a device, its counts, and what it remembers for errors.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUgraphExec, CUresult, CUstream};
use cudarc::driver::{DriverError, result};

use super::errors::{describe, is_fatal};
use super::modules::Modules;
use crate::gpu::device::{Event, Graph, Stream};
use crate::gpu::error::GpuError;
use crate::gpu::info::Counters;
use crate::gpu::launch::Label;
use crate::gpu::memory::{Memory, PinnedOwner};
use crate::gpu::ranges::Ranges;

/// The alignment of device memory that the driver guarantees, and the least size of an allocation.
const ALIGNMENT: usize = 256;
/// The number of launches that an error of a failed device names.
const REMEMBERED: usize = 8;

/// A graph, and the pinned memory that its copies use.
#[derive(Debug)]
pub(super) struct GraphEntry {
    pub(super) exec: CUgraphExec,
    pub(super) _keeps: Vec<Arc<dyn PinnedOwner>>,
}

#[derive(Debug, Clone, Copy)]
enum Recent {
    Launch(Label),
    Replay(Graph),
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) modules: Modules,
    pub(super) ranges: Ranges,
    pub(super) counters: Counters,
    /// The error by which the device failed.
    pub(super) lost: Option<GpuError>,
    /// The stream that records, and the pinned memory of the copies so far.
    pub(super) capture: Option<(Stream, Vec<Arc<dyn PinnedOwner>>)>,
    streams: Vec<Option<CUstream>>,
    events: Vec<Option<CUevent>>,
    graphs: Vec<Option<GraphEntry>>,
    recent: VecDeque<Recent>,
}

// SAFETY: all handles of the driver may be used by every thread. The value is always behind a lock.
unsafe impl Send for State {}

impl State {
    pub(super) fn new(modules: Modules) -> Self {
        Self {
            modules,
            ranges: Ranges::default(),
            counters: Counters::default(),
            lost: None,
            capture: None,
            streams: Vec::new(),
            events: Vec::new(),
            graphs: Vec::new(),
            recent: VecDeque::with_capacity(REMEMBERED),
        }
    }

    pub(super) fn counters(&self) -> Counters {
        Counters {
            live_bytes: self.ranges.live_bytes(),
            live_streams: self.streams.iter().flatten().count() as u64,
            live_events: self.events.iter().flatten().count() as u64,
            ..self.counters
        }
    }

    /// Turns the outcome of a call of the driver into ours. A fatal error is kept for all later
    /// calls.
    pub(super) fn note<T>(
        &mut self,
        action: &'static str,
        outcome: Result<T, DriverError>,
    ) -> Result<T, GpuError> {
        outcome.map_err(|error| {
            let problem = describe(error);
            if !is_fatal(error) {
                return GpuError::Driver { action, problem };
            }
            let lost = GpuError::Lost { action, problem, launches: self.recent() };
            self.lost.get_or_insert(lost).clone()
        })
    }

    /// Allocates memory of the device. The context must be current.
    pub(super) fn allocate(&mut self, bytes: usize) -> Result<Memory, GpuError> {
        // SAFETY: the context is current. The address is freed by `free` or by `destroy`.
        let outcome = unsafe { result::malloc_sync(bytes.max(ALIGNMENT)) };
        if let Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) = outcome {
            let free = result::mem_get_info().map_or(0, |(free, _)| free as u64);
            return Err(GpuError::OutOfMemory { bytes, free });
        }
        let memory = Memory::new(self.note("allocate memory", outcome)?, bytes);
        self.ranges.insert(memory);
        self.counters.allocations += 1;
        Ok(memory)
    }

    /// Frees memory that `allocate` returned. The context must be current.
    pub(super) fn free(&mut self, memory: Memory) -> Result<(), GpuError> {
        self.ranges.remove(memory)?;
        // The driver waits for the device before it frees.
        self.counters.host_waits += 1;
        // SAFETY: the address came from `malloc_sync`, as the table of ranges says, and is freed
        // once because it has left the table.
        let outcome = unsafe { result::free_sync(memory.address()) };
        self.note("free memory", outcome)
    }

    /// Remembers a launch for the error of a device that fails later.
    pub(super) fn note_launch(&mut self, label: Label) {
        self.counters.launches += 1;
        self.remember(Recent::Launch(label));
    }

    pub(super) fn note_replay(&mut self, graph: Graph) {
        self.remember(Recent::Replay(graph));
    }

    fn remember(&mut self, recent: Recent) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_back();
        }
        self.recent.push_front(recent);
    }

    fn recent(&self) -> String {
        if self.recent.is_empty() {
            return "none".into();
        }
        let texts = self.recent.iter().map(|recent| match recent {
            Recent::Launch(label) => label.to_string(),
            Recent::Replay(graph) => format!("a replay of graph {}", graph.0),
        });
        texts.collect::<Vec<_>>().join("; ")
    }

    /// Refuses what cannot be recorded. The driver would invalidate the whole graph.
    pub(super) fn refuse_in_capture(&self, what: &str) -> Result<(), GpuError> {
        match &self.capture {
            Some(_) => Err(GpuError::Capture(format!("{what} while a stream records"))),
            None => Ok(()),
        }
    }

    /// Keeps pinned memory for the graph that is recorded, if there is one.
    pub(super) fn keep(&mut self, owner: &Arc<dyn PinnedOwner>) {
        if let Some((_, keeps)) = &mut self.capture {
            keeps.push(Arc::clone(owner));
        }
    }

    pub(super) fn add_stream(&mut self, stream: CUstream) -> Result<Stream, GpuError> {
        self.streams.push(Some(stream));
        Ok(Stream(number(self.streams.len())?))
    }

    pub(super) fn add_event(&mut self, event: CUevent) -> Result<Event, GpuError> {
        self.events.push(Some(event));
        Ok(Event(number(self.events.len())?))
    }

    pub(super) fn add_graph(&mut self, graph: GraphEntry) -> Result<Graph, GpuError> {
        self.graphs.push(Some(graph));
        Ok(Graph(number(self.graphs.len())?))
    }

    pub(super) fn stream(&self, stream: Stream) -> Result<CUstream, GpuError> {
        let unknown = GpuError::Handle { what: "stream", number: stream.0.into() };
        self.streams.get(stream.0 as usize).copied().flatten().ok_or(unknown)
    }

    pub(super) fn event(&self, event: Event) -> Result<CUevent, GpuError> {
        let unknown = GpuError::Handle { what: "event", number: event.0.into() };
        self.events.get(event.0 as usize).copied().flatten().ok_or(unknown)
    }

    pub(super) fn graph(&self, graph: Graph) -> Result<CUgraphExec, GpuError> {
        let unknown = GpuError::Handle { what: "graph", number: graph.0.into() };
        self.graphs.get(graph.0 as usize).and_then(Option::as_ref).map(|g| g.exec).ok_or(unknown)
    }

    pub(super) fn remove_stream(&mut self, stream: Stream) -> Result<CUstream, GpuError> {
        let unknown = GpuError::Handle { what: "stream", number: stream.0.into() };
        self.streams.get_mut(stream.0 as usize).and_then(Option::take).ok_or(unknown)
    }

    pub(super) fn remove_event(&mut self, event: Event) -> Result<CUevent, GpuError> {
        let unknown = GpuError::Handle { what: "event", number: event.0.into() };
        self.events.get_mut(event.0 as usize).and_then(Option::take).ok_or(unknown)
    }

    pub(super) fn remove_graph(&mut self, graph: Graph) -> Result<GraphEntry, GpuError> {
        let unknown = GpuError::Handle { what: "graph", number: graph.0.into() };
        self.graphs.get_mut(graph.0 as usize).and_then(Option::take).ok_or(unknown)
    }

    /// Frees everything. The context must be current, and nothing runs any more.
    pub(super) fn destroy(&mut self) {
        // SAFETY: every handle here was made once by the driver, leaves its table now, and the
        // device has been waited for. A failure cannot be acted on.
        unsafe {
            for graph in self.graphs.drain(..).flatten() {
                let _ = result::graph::exec_destroy(graph.exec);
            }
            for event in self.events.drain(..).flatten() {
                let _ = result::event::destroy(event);
            }
            for stream in self.streams.drain(..).flatten() {
                let _ = result::stream::destroy(stream);
            }
            let all: Vec<_> = self.ranges.all().collect();
            for memory in all {
                let _ = self.ranges.remove(memory);
                let _ = result::free_sync(memory.address());
            }
        }
        self.modules.unload();
    }
}

/// Returns the number of the newest of `count` handles.
fn number(count: usize) -> Result<u32, GpuError> {
    u32::try_from(count - 1).map_err(|_| GpuError::Handle { what: "handle", number: count as u64 })
}
