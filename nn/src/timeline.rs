//! When each thread computed what: the events behind a picture of a run.
//!
//! A lane's events lie in a buffer of its own that has room for them before the pass begins; what is too coarse to
//! belong to a lane (sums of lanes, packing, gradients of rows) shares one, under a lock that is taken a few
//! times a run. Off, both cost a branch a node and tile.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use crate::cost::cost;
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::NodeId;
use crate::graph::sizes::Sizes;

/// What a thread was computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// A lane's tiles, through all operations of a pass.
    Pass(u32),
    /// A node: of a tile, of a sum over the lanes, or of a constant.
    Node(NodeId),
    /// Factors and rows of the values of lists.
    Lists,
    /// Weights laid out for the products.
    Pack,
    /// Results and values of the batch put together from the lanes.
    Collect,
}

/// A stretch of a thread's time in a run.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What was computed.
    pub work: Work,
    /// The lane that it belongs to, where it belongs to one.
    pub lane: Option<u32>,
    /// Who computed it.
    pub thread: ThreadId,
    /// When it began.
    pub begin: Instant,
    /// When it ended.
    pub end: Instant,
}

/// Events of no lane.
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

/// What a node is counted as where times are summed up by kind: the operation, and what is fused with it.
pub fn kind(op: &Op) -> String {
    match op {
        Op::Fused(fused) => {
            let links = fused.chain.iter().map(|link| format!("+{link}"));
            fused.head.name().to_owned() + &links.collect::<String>()
        }
        op => op.name().to_owned(),
    }
}

/// The least bytes that computing a node moves between the processor and its caches: its inputs that are
/// values of the batch, and its result.
pub fn moved_bytes(graph: &Graph, id: NodeId, sizes: &Sizes) -> u64 {
    let node = graph.node(id);
    let inputs = node.inputs.iter().map(|&input| cost(graph, input, sizes).bytes);
    inputs.sum::<u64>() + cost(graph, id, sizes).bytes
}
