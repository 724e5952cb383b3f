//! The timeline of a run: the work of each thread with its times. See [`Profile`](crate::Profile)
//! for sums.
//!
//! The events of a lane are in a buffer of its own, which gets its room before the pass begins.
//! Events that belong to no lane (sums of lanes, packing, gradients of rows) share one buffer,
//! under a lock that is taken a few times in a run. When recording is off, both cost one branch for
//! each node and tile.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use crate::cost::cost;
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::NodeId;
use crate::graph::sizes::Sizes;

/// The work of a thread during an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// The tiles of a lane, through all operations of a pass.
    Pass(u32),
    /// The work of one node: on a tile, on a sum over the lanes, or on a constant.
    Node(NodeId),
    /// The computation of the factors and rows of the values of lists.
    Lists,
    /// The packing of weights for the products.
    Pack,
    /// The collection of results and of values of the batch from the lanes.
    Collect,
}

/// A piece of a thread's work in a run, with its times.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The work that was done.
    pub work: Work,
    /// The lane that the work belongs to, if any.
    pub lane: Option<u32>,
    /// The thread that did the work.
    pub thread: ThreadId,
    /// The time at which the work began.
    pub begin: Instant,
    /// The time at which the work ended.
    pub end: Instant,
}

/// The events that belong to no lane.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) is_on: bool,
    events: Mutex<Vec<Event>>,
}

impl Log {
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.is_on.then(Instant::now)
    }

    pub(crate) fn end(&self, begun: Option<Instant>, work: Work) {
        if let Some(begin) = begun {
            let (thread, end) = (thread::current().id(), Instant::now());
            self.events().push(Event { work, lane: None, thread, begin, end });
        }
    }

    pub(crate) fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the name under which the times of a node are summed up: the operation, and the links
/// that are fused with it.
pub fn kind(op: &Op) -> String {
    match op {
        Op::Fused(fused) => {
            let links = fused.chain.iter().map(|link| format!("+{link}"));
            fused.head.name().to_owned() + &links.collect::<String>()
        }
        op => op.name().to_owned(),
    }
}

/// Returns the minimum number of bytes that computing a node moves between the processor and its
/// caches: its inputs that are values of the batch, and its result.
pub fn moved_bytes(graph: &Graph, id: NodeId, sizes: &Sizes) -> u64 {
    let node = graph.node(id);
    let inputs = node.inputs.iter().map(|&input| cost(graph, input, sizes).bytes);
    inputs.sum::<u64>() + cost(graph, id, sizes).bytes
}
