//! The timeline of a run: the work of each thread, with its times. [`Profile`](crate::Profile)
//! contains the sums of these times.
//!
//! Each lane has its own buffer for its events. The memory of this buffer is allocated before the
//! pass begins. Events without a lane (sums over lanes, packing, gradients of rows) share one
//! buffer with a lock, which is taken a few times in a run. If recording is off, it costs one
//! branch for each node and tile.

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
    /// The work on all tiles of a lane in the pass with this number.
    Pass(u32),
    /// The work of one node: on a tile, on a sum over the lanes, or on a constant.
    Node(NodeId),
    /// The computation of the factors and the row indices of the values of lists.
    Lists,
    /// The packing of weights for products.
    Pack,
    /// The collection of results and of values of the batch from the lanes.
    Collect,
}

/// A period of a thread's work in a run, with its begin and end.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The work that was done.
    pub work: Work,
    /// The index of the lane, or `None` if the work belongs to no lane.
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

/// Returns the name by which the times of nodes are grouped. It consists of the name of the
/// operation and the names of the links that are fused with it.
pub fn kind(op: &Op) -> String {
    match op {
        Op::Fused(fused) => {
            let links = fused.chain.iter().map(|link| format!("+{link}"));
            fused.head.name().to_owned() + &links.collect::<String>()
        }
        op => op.name().to_owned(),
    }
}

/// Returns the minimum number of bytes that the processor moves to and from its caches to compute a
/// node. They are the bytes of its result, and of its inputs that are values of the batch.
pub fn moved_bytes(graph: &Graph, id: NodeId, sizes: &Sizes) -> u64 {
    let node = graph.node(id);
    let inputs = node.inputs.iter().map(|&input| cost(graph, input, sizes).bytes);
    inputs.sum::<u64>() + cost(graph, id, sizes).bytes
}
