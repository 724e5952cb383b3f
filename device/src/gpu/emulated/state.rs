//! The queues of the emulated device, and the order in which their operations run.
//!
//! An operation runs when the host waits, or a little earlier, and never because it was enqueued.
//! Which of the operations that may run is next is drawn at random: only the order within a stream
//! and the events restrict it. So a program that forgot an event gets a wrong result for some
//! seeds, though a real device would nearly always be kind.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::capture::{Capture, Node};
use super::memory::Store;
use super::operation::{Action, Operation};
use crate::gpu::device::{Event, Graph, Stream};
use crate::gpu::error::GpuError;
use crate::gpu::info::Counters;
use crate::gpu::memory::Memory;
use crate::gpu::product::{Algorithm, ProductKey};
use crate::gpu::ranges::Ranges;

/// The time at which operations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Only when the host waits, and then only what the wait needs or chance draws.
    Lazy,
    /// A few at each call.
    Mixed,
    /// All that may run, at each call.
    Eager,
}

#[derive(Debug)]
enum Item {
    One(Box<Operation>),
    /// A replay, and which of its nodes have run.
    Replay(Arc<Vec<Node>>, Vec<bool>),
}

impl Item {
    /// Returns the operations that have not run yet.
    fn waiting(&self) -> Box<dyn Iterator<Item = &Operation> + '_> {
        match self {
            Self::One(operation) => Box::new(std::iter::once(operation.as_ref())),
            Self::Replay(nodes, done) => {
                let open = nodes.iter().zip(done).filter(|(_, done)| !**done);
                Box::new(open.map(|(node, _)| &node.operation))
            }
        }
    }
}

fn label(operation: &Operation) -> String {
    operation.action.label()
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventState {
    pub(super) is_timed: bool,
    /// The number of records that were enqueued.
    pub(super) recorded: u64,
    /// The newest record that has run.
    done: u64,
    /// The time of that record, as the number of operations that had run.
    time: u64,
    /// Whether the latest record is in a graph, so that nothing outside can wait for it.
    pub(super) is_captured: bool,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) store: Store,
    pub(super) ranges: Ranges,
    pub(super) counters: Counters,
    pub(super) launches: BTreeMap<&'static str, u64>,
    pub(super) capture: Option<Capture>,
    /// The algorithms of products.
    pub(super) prepared: BTreeMap<ProductKey, Algorithm>,
    /// The streams on which products were prepared, with the memory of the library.
    pub(super) workspaces: BTreeMap<Stream, Memory>,
    pub(super) next_pinned: u64,
    /// The error of an operation or the mistake of the program, which all later calls return.
    pub(super) failed: Option<GpuError>,
    queues: BTreeMap<Stream, VecDeque<Item>>,
    events: BTreeMap<Event, EventState>,
    next_stream: u32,
    next_event: u32,
    graphs: Vec<Option<Arc<Vec<Node>>>>,
    pace: Pace,
    random: u64,
    clock: u64,
    /// The number of the launch that fails when it runs, counted from 1.
    fail_launch: Option<u64>,
    pub(super) kernels_run: u64,
}

impl State {
    pub(super) fn new(seed: u64, pace: Pace, fail_launch: Option<u64>) -> Self {
        Self {
            store: Store::new(),
            ranges: Ranges::default(),
            counters: Counters::default(),
            launches: BTreeMap::new(),
            capture: None,
            prepared: BTreeMap::new(),
            workspaces: BTreeMap::new(),
            next_pinned: 0,
            failed: None,
            queues: BTreeMap::new(),
            events: BTreeMap::new(),
            next_stream: 0,
            next_event: 0,
            graphs: Vec::new(),
            pace,
            random: seed,
            clock: 0,
            fail_launch,
            kernels_run: 0,
        }
    }

    /// Keeps a mistake of the program, unless an earlier one is kept.
    pub(super) fn note_mistake(&mut self, text: String) {
        self.failed.get_or_insert(GpuError::Mistake(text));
    }

    /// Returns a random number below `limit`, which is above zero.
    fn draw(&mut self, limit: usize) -> usize {
        (self.next_random() % limit as u64) as usize
    }

    fn next_random(&mut self) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub(super) fn add_stream(&mut self) -> Stream {
        let stream = Stream(self.next_stream);
        self.next_stream += 1;
        self.queues.insert(stream, VecDeque::new());
        stream
    }

    /// Removes a stream. Notes a mistake if one of its operations has not run.
    pub(super) fn remove_stream(&mut self, stream: Stream) -> Result<(), GpuError> {
        self.queue(stream)?;
        let queue = self.queues.remove(&stream);
        let user = queue.iter().flatten().flat_map(Item::waiting).next().map(label);
        if let Some(label) = user {
            self.note_mistake(format!("a stream was freed before {label} had run"));
        }
        self.check_failed()
    }

    pub(super) fn add_event(&mut self, is_timed: bool) -> Event {
        let event = Event(self.next_event);
        self.next_event += 1;
        self.events.insert(event, EventState { is_timed, ..EventState::default() });
        event
    }

    /// Removes an event. Notes a mistake if a record of it, or a wait for it, has not run.
    pub(super) fn remove_event(&mut self, event: Event) -> Result<(), GpuError> {
        self.event(event)?;
        let uses = |one: &&Operation| one.action.event() == Some(event);
        let user = self.waiting().find(uses).map(label);
        if let Some(label) = user {
            self.note_mistake(format!("an event was freed before {label} had run"));
        }
        self.events.remove(&event);
        self.check_failed()
    }

    /// Returns the counts, with what exists now.
    pub(super) fn counters(&self) -> Counters {
        Counters {
            live_bytes: self.ranges.live_bytes(),
            live_streams: self.queues.len() as u64,
            live_events: self.events.len() as u64,
            ..self.counters
        }
    }

    pub(super) fn add_graph(&mut self, nodes: Vec<Node>) -> Graph {
        self.graphs.push(Some(Arc::new(nodes)));
        Graph(self.graphs.len() as u32 - 1)
    }

    pub(super) fn graph(&self, graph: Graph) -> Result<Arc<Vec<Node>>, GpuError> {
        let unknown = GpuError::Handle { what: "graph", number: graph.0.into() };
        self.graphs.get(graph.0 as usize).and_then(Option::as_ref).map(Arc::clone).ok_or(unknown)
    }

    pub(super) fn remove_graph(&mut self, graph: Graph) -> Result<(), GpuError> {
        let unknown = GpuError::Handle { what: "graph", number: graph.0.into() };
        self.graphs.get_mut(graph.0 as usize).and_then(Option::take).map(drop).ok_or(unknown)
    }

    pub(super) fn event(&mut self, event: Event) -> Result<&mut EventState, GpuError> {
        let unknown = GpuError::Handle { what: "event", number: event.0.into() };
        self.events.get_mut(&event).ok_or(unknown)
    }

    fn queue(&mut self, stream: Stream) -> Result<&mut VecDeque<Item>, GpuError> {
        let unknown = GpuError::Handle { what: "stream", number: stream.0.into() };
        self.queues.get_mut(&stream).ok_or(unknown)
    }

    /// Puts an operation on a stream, or into the graph that the stream records.
    pub(super) fn enqueue(&mut self, stream: Stream, action: Action) -> Result<(), GpuError> {
        self.queue(stream)?;
        let uses = action.uses(&self.store);
        let operation = Operation { action, uses };
        if let Some(capture) = &mut self.capture
            && capture.has_joined(stream)
        {
            capture.push(stream, operation);
            return Ok(());
        }
        self.queue(stream)?.push_back(Item::One(Box::new(operation)));
        self.run_some()
    }

    pub(super) fn enqueue_replay(&mut self, stream: Stream, graph: Graph) -> Result<(), GpuError> {
        let nodes = self.graph(graph)?;
        let done = vec![false; nodes.len()];
        self.queue(stream)?.push_back(Item::Replay(nodes, done));
        self.run_some()
    }

    pub(super) fn record(&mut self, event: Event, stream: Stream) -> Result<(), GpuError> {
        self.queue(stream)?;
        self.event(event)?;
        if let Some(capture) = &mut self.capture
            && capture.has_joined(stream)
        {
            capture.record(event, stream);
            self.event(event)?.is_captured = true;
            return Ok(());
        }
        let state = self.event(event)?;
        state.is_captured = false;
        state.recorded += 1;
        let generation = state.recorded;
        self.enqueue(stream, Action::Record { event, generation })
    }

    pub(super) fn wait(&mut self, stream: Stream, event: Event) -> Result<(), GpuError> {
        self.queue(stream)?;
        let EventState { recorded, is_captured, .. } = *self.event(event)?;
        if let Some(capture) = &mut self.capture {
            if capture.wait(stream, event)? {
                return Ok(());
            }
        } else if is_captured {
            return Err(GpuError::Capture("an event of a graph is waited for outside".into()));
        }
        match recorded {
            0 => Ok(()),
            generation => self.enqueue(stream, Action::Wait { event, generation }),
        }
    }

    /// Returns all operations that may run now: their streams, and the nodes within replays.
    fn ready(&self) -> Vec<(Stream, usize)> {
        let mut ready = Vec::new();
        for (&stream, queue) in &self.queues {
            match queue.front() {
                None => {}
                Some(Item::One(operation)) => match operation.action {
                    Action::Wait { event, generation } => {
                        if self.is_past(event, generation) {
                            ready.push((stream, 0));
                        }
                    }
                    _ => ready.push((stream, 0)),
                },
                Some(Item::Replay(nodes, done)) => {
                    let is_ready = |index: &usize| {
                        !done[*index] && nodes[*index].after.iter().all(|n| done[*n])
                    };
                    ready.extend((0..nodes.len()).filter(is_ready).map(|index| (stream, index)));
                    if nodes.is_empty() {
                        ready.push((stream, 0));
                    }
                }
            }
        }
        ready
    }

    /// Runs one operation that may run.
    fn run_one(&mut self, stream: Stream, index: usize) -> Result<(), GpuError> {
        let queue = self.queue(stream)?;
        let (operation, is_last) = match queue.front_mut() {
            None => return Ok(()),
            Some(Item::One(operation)) => (Some(operation.as_ref().clone()), true),
            Some(Item::Replay(nodes, done)) => {
                if let Some(done) = done.get_mut(index) {
                    *done = true;
                }
                let operation = nodes.get(index).map(|node| node.operation.clone());
                (operation, done.iter().all(|done| *done))
            }
        };
        if is_last {
            queue.pop_front();
        }
        let Some(operation) = operation else { return Ok(()) };
        self.clock += 1;
        if let Action::Record { event, generation } = operation.action {
            let clock = self.clock;
            let state = self.event(event)?;
            state.done = state.done.max(generation);
            state.time = clock;
        }
        if let Some(used) = operation.uses.iter().find(|used| !self.store.is_live(**used)) {
            let (label, address) = (operation.action.label(), used.address);
            let text = format!("{label} uses memory at {address:#x} that was freed before it ran");
            self.note_mistake(text);
            return self.check_failed();
        }
        let seed = self.next_random();
        let mut outcome = operation.action.run(seed);
        if matches!(operation.action, Action::Kernel(_)) {
            self.kernels_run += 1;
            if self.fail_launch == Some(self.kernels_run) {
                outcome = Err("the failpoint of this launch".into());
            }
        }
        if let Err(problem) = outcome {
            let launches = operation.action.label();
            let lost = GpuError::Lost { action: "finish its work", problem, launches };
            self.failed.get_or_insert(lost);
        }
        self.check_failed()
    }

    pub(super) fn check_failed(&self) -> Result<(), GpuError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Runs as much as the pace asks for.
    pub(super) fn run_some(&mut self) -> Result<(), GpuError> {
        let most = match self.pace {
            Pace::Lazy => 0,
            Pace::Mixed => self.draw(4),
            Pace::Eager => usize::MAX,
        };
        for _ in 0..most {
            if !self.run_next()? {
                break;
            }
        }
        Ok(())
    }

    /// Runs one operation, and returns whether there was one.
    pub(super) fn run_next(&mut self) -> Result<bool, GpuError> {
        let ready = self.ready();
        if ready.is_empty() {
            return Ok(false);
        }
        let (stream, index) = ready[self.draw(ready.len())];
        self.run_one(stream, index)?;
        Ok(true)
    }

    /// Runs operations until `is_met`.
    fn run_until(&mut self, is_met: impl Fn(&Self) -> bool) -> Result<(), GpuError> {
        while !is_met(self) {
            if !self.run_next()? {
                self.note_mistake("the streams wait for each other, and nothing can run".into());
                return self.check_failed();
            }
        }
        if let Err(text) = self.store.check() {
            self.note_mistake(text);
        }
        self.check_failed()
    }

    /// Runs at least everything on a stream.
    pub(super) fn finish(&mut self, stream: Stream) -> Result<(), GpuError> {
        self.queue(stream)?;
        self.run_until(|state| state.queues.get(&stream).is_none_or(VecDeque::is_empty))
    }

    /// Runs at least what the latest record of an event needs.
    pub(super) fn finish_event(&mut self, event: Event) -> Result<(), GpuError> {
        let EventState { recorded, is_captured, .. } = *self.event(event)?;
        if is_captured {
            return Err(GpuError::Capture("an event of a graph is waited for outside".into()));
        }
        self.run_until(|state| state.is_past(event, recorded))
    }

    /// Returns whether the latest record of an event has run.
    pub(super) fn is_done(&mut self, event: Event) -> Result<bool, GpuError> {
        let state = self.event(event)?;
        Ok(state.done >= state.recorded)
    }

    /// Returns the number of operations that ran between two events.
    pub(super) fn elapsed(&mut self, from: Event, to: Event) -> Result<u64, GpuError> {
        for event in [from, to] {
            let state = *self.event(event)?;
            let problem = match state {
                EventState { is_timed: false, .. } => "is not timed",
                EventState { recorded: 0, .. } => "was not recorded",
                _ if state.done < state.recorded => "is not done",
                _ => continue,
            };
            let problem = format!("event {} {problem}", event.0);
            return Err(GpuError::Driver { action: "measure the time between events", problem });
        }
        Ok(self.event(to)?.time.saturating_sub(self.event(from)?.time))
    }

    /// Returns the operations that have not run yet.
    fn waiting(&self) -> impl Iterator<Item = &Operation> {
        self.queues.values().flatten().flat_map(Item::waiting)
    }

    /// Returns whether a record of an event has run.
    fn is_past(&self, event: Event, generation: u64) -> bool {
        self.events.get(&event).is_none_or(|state| state.done >= generation)
    }

    /// Finds an operation that has not run yet and uses the allocation at `address`.
    pub(super) fn find_user(&self, address: u64) -> Option<String> {
        let mut waiting = self.waiting();
        let found = waiting.find(|one| one.uses.iter().any(|used| used.address == address));
        found.map(|operation| operation.action.label())
    }

    pub(super) fn note_pinned_access(&mut self, number: u64, range: Range<usize>, is_write: bool) {
        let touches = |operation: &&Operation| {
            operation.action.pinned().is_some_and(|(block, bytes, writes)| {
                let overlaps = bytes.start < range.end && range.start < bytes.end;
                block == number && overlaps && (is_write || writes)
            })
        };
        let label = self.waiting().find(touches).map(|operation| operation.action.label());
        if let Some(label) = label {
            let verb = if is_write { "wrote" } else { "read" };
            self.note_mistake(format!("the host {verb} pinned memory before {label} had run"));
        }
    }

    /// Learns that the host has dropped a block, for which a driver waits for the whole device.
    pub(super) fn note_pinned_release(&mut self, number: u64) {
        if self.capture.is_some() {
            self.note_mistake("the host dropped pinned memory while a stream records".into());
        }
        let touches =
            |operation: &&Operation| operation.action.pinned().is_some_and(|p| p.0 == number);
        let label = self.waiting().find(touches).map(|operation| operation.action.label());
        if let Some(label) = label {
            self.note_mistake(format!("the host dropped pinned memory before {label} had run"));
        }
    }
}
