//! Buffers that several values share. A buffer is reused after the last reader of its value, and
//! the parts of a concatenation are written directly into its columns.

use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId};
use crate::lowered::class::{Class, is_view};

/// The size of a buffer: `cols` floats for each row of the batch, or for each value of a column.
/// Values can share a buffer only if they have the same symbolic rows, because different symbolic
/// rows have different numbers of rows in each batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width {
    pub(crate) rows: Dim,
    pub(crate) cols: usize,
}

/// A moment of a run: the number of the phase, and the position in the phase.
pub(crate) type Moment = (usize, usize);

/// Assigns a buffer to each span of time, so that overlapping spans never share a buffer. A span
/// gets the free buffer that wastes the least space. Returns pairs of the key of a span and the
/// index of its buffer.
pub(crate) fn share_buffers(
    mut spans: Vec<(usize, Moment, Moment)>,
    width: impl Fn(usize) -> Width,
    widths: &mut Vec<Width>,
) -> Vec<(usize, usize)> {
    spans.sort_by_key(|&(key, first, _)| (first, key));
    let mut busy_until: Vec<Option<Moment>> = vec![None; widths.len()];
    let mut slots = Vec::with_capacity(spans.len());
    for (key, first, last) in spans {
        let wanted = width(key);
        let free = |slot: &usize| {
            widths[*slot].rows == wanted.rows && busy_until[*slot].is_none_or(|until| until < first)
        };
        // The best buffer is the narrowest of those that are wide enough. If none is wide enough,
        // it is the widest.
        let best = (0..widths.len()).filter(free).min_by_key(|&slot| match widths[slot].cols {
            have if have >= wanted.cols => (0, have - wanted.cols),
            have => (1, wanted.cols - have),
        });
        let slot = best.unwrap_or_else(|| {
            widths.push(wanted);
            busy_until.push(None);
            widths.len() - 1
        });
        widths[slot].cols = widths[slot].cols.max(wanted.cols);
        busy_until[slot] = Some(last);
        slots.push((key, slot));
    }
    slots
}

/// The values that are written directly into the columns of a concatenation.
pub(crate) struct Parts {
    /// The concatenation into which each value is written, and the first column of the value there.
    /// `None` for a value that is not written into a concatenation.
    pub(crate) within: Vec<Option<(NodeId, usize)>>,
}

impl Parts {
    /// Finds the parts of all concatenations whose operations can write into their columns.
    pub(crate) fn find(graph: &Graph, classes: &[Option<Class>]) -> Self {
        let row_wise = |id: NodeId| classes[id.0 as usize] == Some(Class::RowWise);
        let mut parts = Self { within: vec![None; graph.nodes.len()] };
        // Outer concatenations come first, so the place of an inner one is already known.
        for (index, node) in graph.nodes.iter().enumerate().rev() {
            let concat = NodeId(index as u32);
            if node.op != Op::Concat || !row_wise(concat) {
                continue;
            }
            let mut start = 0;
            for &part in &node.inputs {
                let at = part.0 as usize;
                let once = node.inputs.iter().filter(|&&other| other == part).count() == 1;
                let owned = row_wise(part) && !is_view(graph, part);
                if owned && once && parts.within[at].is_none() {
                    parts.within[at] = Some((concat, start));
                    if parts.reads_where_it_writes(graph, classes, concat) {
                        parts.within[at] = None;
                    }
                }
                start += graph.shape(part).cols;
            }
        }
        parts
    }

    /// Returns the value whose buffer contains the value `id`, and the first column of `id` in this
    /// buffer.
    pub(crate) fn root(&self, graph: &Graph, mut id: NodeId) -> (NodeId, usize) {
        let mut offset = 0;
        loop {
            if let Some((concat, start)) = self.within[id.0 as usize] {
                offset += start;
                id = concat;
            } else if let Op::Slice { start, .. } = graph.node(id).op
                && is_view(graph, id)
            {
                offset += start;
                id = graph.node(id).inputs[0];
            } else {
                return (id, offset);
            }
        }
    }

    /// Returns whether an operation would read from the buffer of `concat` while it writes to this
    /// buffer, which safe code cannot do. A concatenation whose parts are already in place reads
    /// nothing, so it does not count.
    fn reads_where_it_writes(
        &self,
        graph: &Graph,
        classes: &[Option<Class>],
        concat: NodeId,
    ) -> bool {
        let row_wise = |id: NodeId| classes[id.0 as usize] == Some(Class::RowWise);
        let root = |id: NodeId| self.root(graph, id).0;
        let buffer = root(concat);
        graph.nodes.iter().enumerate().any(|(index, node)| {
            let id = NodeId(index as u32);
            let writes = row_wise(id) && !is_view(graph, id) && root(id) == buffer;
            writes
                && node.inputs.iter().any(|&input| {
                    let in_place = self.within[input.0 as usize].is_some_and(|(c, _)| c == id);
                    !in_place && row_wise(input) && root(input) == buffer
                })
        })
    }
}
