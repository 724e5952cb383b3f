//! The record of a graph: operations, and what must run before each.

use std::collections::BTreeMap;

use super::operation::Operation;
use crate::gpu::device::{Event, Stream};
use crate::gpu::error::GpuError;

/// An operation of a graph.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) operation: Operation,
    /// The nodes that must have run.
    pub(super) after: Vec<usize>,
}

/// A graph that is being recorded.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) origin: Stream,
    nodes: Vec<Node>,
    /// For each stream that has joined: the nodes after which its next operation runs.
    tails: BTreeMap<Stream, Vec<usize>>,
    /// For each event that was recorded here: the nodes for which it stands.
    events: BTreeMap<Event, Vec<usize>>,
}

impl Capture {
    pub(super) fn new(origin: Stream) -> Self {
        let tails = BTreeMap::from([(origin, Vec::new())]);
        Self { origin, nodes: Vec::new(), tails, events: BTreeMap::new() }
    }

    pub(super) fn has_joined(&self, stream: Stream) -> bool {
        self.tails.contains_key(&stream)
    }

    pub(super) fn push(&mut self, stream: Stream, operation: Operation) {
        let after = self.tails.insert(stream, vec![self.nodes.len()]).unwrap_or_default();
        self.nodes.push(Node { operation, after });
    }

    pub(super) fn record(&mut self, event: Event, stream: Stream) {
        let tail = self.tails.get(&stream).cloned().unwrap_or_default();
        self.events.insert(event, tail);
    }

    /// Lets a stream wait for an event. Returns `false` if neither belongs to the graph.
    pub(super) fn wait(&mut self, stream: Stream, event: Event) -> Result<bool, GpuError> {
        match (self.events.get(&event), self.tails.contains_key(&stream)) {
            (Some(nodes), _) => {
                let nodes = nodes.clone();
                let tail = self.tails.entry(stream).or_default();
                tail.extend(nodes);
                tail.sort_unstable();
                tail.dedup();
                Ok(true)
            }
            (None, true) => Err(GpuError::Capture(
                "a stream that records waits for an event from outside of the graph".into(),
            )),
            (None, false) => Ok(false),
        }
    }

    /// Returns the nodes if every stream has been joined back to the origin.
    pub(super) fn finish(self) -> Result<Vec<Node>, GpuError> {
        let mut is_joined = vec![false; self.nodes.len()];
        let mut open = self.tails.get(&self.origin).cloned().unwrap_or_default();
        while let Some(index) = open.pop() {
            if !is_joined[index] {
                is_joined[index] = true;
                open.extend(&self.nodes[index].after);
            }
        }
        match is_joined.iter().position(|joined| !joined) {
            None => Ok(self.nodes),
            Some(index) => {
                let label = self.nodes[index].operation.action.label();
                Err(GpuError::Capture(format!(
                    "the stream of {label} was not joined back by an event"
                )))
            }
        }
    }
}
