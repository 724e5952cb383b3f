//! The buffers of the values of a batch, which do not depend on its size.
//!
//! A buffer has all rows of a value. It is reused after the last reader of its value. The parts of
//! a concatenation are written directly into its columns.

use crate::graph::op::Op;
use crate::graph::shape::NodeId;
use crate::lowered::{Class, Lowered, Moment, Parts, Width, is_view, share_buffers};

/// The place of a value in a buffer, in floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValuePlace {
    pub(crate) buffer: usize,
    pub(crate) offset: usize,
    pub(crate) stride: usize,
}

/// The buffers of a graph, and the places of its row-wise values in them.
#[derive(Debug)]
pub(crate) struct ValuePlan {
    /// The width of each buffer, as the number of floats from one row to the next.
    pub(crate) buffers: Vec<Width>,
    /// The place of each row-wise value; `None` for other nodes.
    pub(crate) places: Vec<Option<ValuePlace>>,
    /// The concatenation into which each value is written directly; `None` if there is none.
    pub(crate) within: Vec<Option<NodeId>>,
}

impl ValuePlan {
    /// Plans the buffers of a graph. Launches run in the order of nodes, but lookups come first.
    pub(crate) fn new(lowered: &Lowered) -> Self {
        let graph = &lowered.graph;
        let parts = Parts::find(graph, &lowered.classes);
        let row_wise = |id: NodeId| lowered.classes[id.0 as usize] == Some(Class::RowWise);
        let root = |mut id: NodeId| {
            // A collected value is the value itself, because all of its rows are in one buffer.
            while graph.node(id).op == Op::Collect {
                id = graph.node(id).inputs[0];
            }
            parts.root(graph, id)
        };
        let mut uses: Vec<Option<(usize, usize)>> = vec![None; graph.nodes.len()];
        let mut touch = |id: NodeId, at: usize| {
            let (id, _) = root(id);
            if row_wise(id) {
                let (first, last) = uses[id.0 as usize].get_or_insert((at, at));
                (*first, *last) = ((*first).min(at), (*last).max(at));
            }
        };
        for (index, node) in graph.nodes.iter().enumerate() {
            let id = NodeId(index as u32);
            let at = match (&node.op, lowered.classes[index]) {
                (_, None) => continue,
                (Op::Gather(_) | Op::GatherArgMax(_), _) => 0,
                (_, Some(Class::Unique)) => usize::MAX,
                _ => index + 1,
            };
            // A view does not read its input. The readers of the view read it.
            if is_view(graph, id) || node.op == Op::Collect {
                continue;
            }
            touch(id, at);
            node.inputs.iter().for_each(|&input| touch(input, at));
        }
        lowered.outputs.iter().for_each(|&id| touch(id, usize::MAX));
        let moment = |at: usize| -> Moment { (0, at) };
        let spans = uses.iter().enumerate();
        let spans =
            spans.filter_map(|(at, uses)| uses.map(|(a, b)| (at, moment(a), moment(b)))).collect();
        let width = |index: usize| {
            let shape = graph.nodes[index].shape;
            Width { rows: shape.rows, cols: stride_of(shape.cols) }
        };
        let mut buffers = Vec::new();
        let mut buffer_of = vec![None; graph.nodes.len()];
        for (index, buffer) in share_buffers(spans, width, &mut buffers) {
            buffer_of[index] = Some(buffer);
        }
        let places = (0..graph.nodes.len() as u32).map(NodeId).map(|id| {
            let (root, offset) = parts.root(graph, id);
            let buffer = buffer_of[root.0 as usize].filter(|_| row_wise(id))?;
            Some(ValuePlace { buffer, offset, stride: width(root.0 as usize).cols })
        });
        let places = places.collect();
        let within = parts.within.iter().map(|part| part.map(|(concat, _)| concat)).collect();
        Self { buffers, places, within }
    }
}

/// Returns the number of floats from one row to the next. Rows of four floats or more begin at
/// multiples of 16 bytes, so that kernels read them as vectors.
fn stride_of(cols: usize) -> usize {
    if cols < 4 { cols } else { cols.next_multiple_of(4) }
}
