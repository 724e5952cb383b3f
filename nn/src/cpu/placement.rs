//! The placement of values in buffers.
//!
//! A value of the batch that is used only in the phase that computes it gets a tile buffer. Each
//! thread has one set of tile buffers, and a buffer is reused after its last reader. All other
//! values of the batch have buffers with all rows of the batch, and each lane owns the buffers of
//! its rows. A slice is a view of its input. The parts of a concatenation are written directly into
//! its columns, unless the operation that computes a part reads from the same buffer. If an
//! element-wise operation is the last reader of an operand, it works in the buffer of this operand.

use crate::cpu::schedule::Schedule;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId, ParamId};
use crate::lowered::{Class, Parts, Width, is_view, share_buffers};
use crate::ops::{MAX_INPUTS, partial_len};
use crate::ops::{is_operand, link_of};

/// The place of a value. Offsets and strides are counted in floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// No place, because the value is not computed.
    Nowhere,
    /// The rows of a table, which the caller passes to the run.
    Rows { table: usize },
    /// A place in a parameter.
    Param { param: ParamId, offset: usize },
    /// A place in a separate buffer of a constant.
    Const { slot: usize, offset: usize },
    /// A place in a buffer of the thread that works on the tile.
    Tile { slot: usize, offset: usize, stride: usize },
    /// A place in a buffer of the lane.
    Wide { slot: usize, offset: usize, stride: usize },
}

/// The places of all nodes, and the sizes of their buffers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placement {
    pub(crate) places: Vec<Place>,
    /// The index of the partial sum of each sum over the batch; `None` for other nodes.
    pub(crate) partials: Vec<Option<usize>>,
    /// The concatenation into which each value is written directly; `None` if there is none.
    pub(crate) in_place: Vec<Option<NodeId>>,
    /// The index of the input in whose buffer each node is computed; `None` if it has a buffer of
    /// its own.
    pub(crate) reuses: Vec<Option<usize>>,
    /// The number of floats of each constant. It is 0 for a value with all rows of the batch,
    /// because the number of rows is not known yet.
    pub(crate) const_lens: Vec<usize>,
    /// The size of each tile buffer.
    pub(crate) tile_buffers: Vec<Width>,
    /// The size of each lane buffer.
    pub(crate) wide_buffers: Vec<Width>,
    /// The number of floats of each partial sum.
    pub(crate) partial_lens: Vec<usize>,
    /// The widths of all computed values except views.
    pub(crate) values: Vec<Width>,
}

impl Placement {
    /// Plans the places of the nodes of a schedule. The nodes in `kept` are read after the last
    /// phase. If `reuse` is true, element-wise operations write their results to the buffer of an
    /// operand that is not read again.
    pub(crate) fn new(
        graph: &Graph,
        schedule: &Schedule<'_>,
        kept: &[NodeId],
        reuse: bool,
    ) -> Result<Self> {
        let nodes = graph.nodes.len();
        let mut placement = Self {
            places: vec![Place::Nowhere; nodes],
            partials: vec![None; nodes],
            in_place: vec![None; nodes],
            reuses: vec![None; nodes],
            const_lens: Vec::new(),
            tile_buffers: Vec::new(),
            wide_buffers: Vec::new(),
            partial_lens: Vec::new(),
            values: Vec::new(),
        };
        let ids = (0..nodes as u32).map(NodeId);
        let computed = ids.filter(|&id| {
            let class = schedule.class(id);
            class.is_some_and(|class| class != Class::Given) && !is_view(graph, id)
        });
        placement.values = computed
            .map(|id| Width { rows: graph.shape(id).rows, cols: graph.shape(id).cols })
            .filter(|width| !matches!(width.rows, Dim::Unique(_)))
            .collect();
        placement.place_constants(graph, schedule)?;
        let parts = Parts::find(graph, schedule.classes);
        placement.in_place = parts.within.iter().map(|w| w.map(|(concat, _)| concat)).collect();
        placement.place_buffers(graph, schedule, &parts, kept, reuse);
        Ok(placement)
    }

    fn place_constants(&mut self, graph: &Graph, schedule: &Schedule<'_>) -> Result<()> {
        for (index, node) in graph.nodes.iter().enumerate() {
            let id = NodeId(index as u32);
            let place = match (schedule.class(id), &node.op) {
                (Some(Class::Given), Op::Rows { table }) => Place::Rows { table: *table },
                (Some(Class::Given), Op::Param { param }) => {
                    Place::Param { param: *param, offset: 0 }
                }
                (Some(Class::Global | Class::BatchReduce), Op::Slice { start, .. })
                    if is_view(graph, id) =>
                {
                    match self.places[node.inputs[0].0 as usize] {
                        Place::Param { param, offset } => {
                            Place::Param { param, offset: offset + start }
                        }
                        Place::Const { slot, offset } => {
                            Place::Const { slot, offset: offset + start }
                        }
                        other => other,
                    }
                }
                (Some(class @ (Class::Global | Class::BatchReduce | Class::Collect)), op) => {
                    if class == Class::BatchReduce {
                        self.partials[index] = Some(self.partial_lens.len());
                        self.partial_lens.push(partial_len(op, node.shape));
                    }
                    self.const_lens.push(node.shape.const_len().unwrap_or(0));
                    Place::Const { slot: self.const_lens.len() - 1, offset: 0 }
                }
                (Some(Class::Unique), op) if !matches!(op, Op::GatherGrad { .. }) => {
                    return Err(Error::Shape {
                        node: node.name.clone(),
                        reason: format!(
                            "{} cannot be computed over rows of a table; look the rows up first",
                            op.name()
                        ),
                    });
                }
                _ => Place::Nowhere,
            };
            self.places[index] = place;
        }
        Ok(())
    }

    fn place_buffers(
        &mut self,
        graph: &Graph,
        schedule: &Schedule<'_>,
        parts: &Parts,
        kept: &[NodeId],
        reuse: bool,
    ) {
        let mut uses: Vec<Option<Uses>> = vec![None; graph.nodes.len()];
        let mut touch = |id: NodeId, phase: usize, at: usize| {
            let root = parts.root(graph, id).0.0 as usize;
            uses[root].get_or_insert(Uses::begin(phase, at)).extend(phase, at);
        };
        for (index, node) in graph.nodes.iter().enumerate() {
            let id = NodeId(index as u32);
            let Some(class) = schedule.class(id) else { continue };
            let phase = match class {
                Class::Unique => usize::MAX,
                // The value is read after its pass, so it must not be in a tile buffer.
                Class::Collect => schedule.phase(id) + 1,
                _ => schedule.phase(id),
            };
            if class == Class::RowWise && !is_view(graph, id) {
                touch(id, phase, index);
            }
            // A view does not read its input. The readers of the view read it.
            if !is_view(graph, id) {
                for &input in &node.inputs {
                    if schedule.class(input) == Some(Class::RowWise) {
                        touch(input, phase, index);
                    }
                }
            }
        }
        for &id in kept {
            if schedule.class(id) == Some(Class::RowWise) {
                touch(id, usize::MAX, usize::MAX);
            }
        }
        let mut bases: Vec<usize> = (0..graph.nodes.len()).collect();
        if reuse {
            self.reuse_operands(graph, schedule, parts, &mut uses, &mut bases);
        }
        let roots: Vec<(usize, Uses)> =
            uses.iter().enumerate().filter_map(|(i, u)| u.map(|u| (i, u))).collect();
        let (wide, tile): (Vec<_>, Vec<_>) =
            roots.into_iter().partition(|(_, u)| u.first_phase != u.last_phase);

        let width = |root: usize| {
            let shape = graph.nodes[root].shape;
            Width { rows: shape.rows, cols: stride_of(shape.cols) }
        };
        let spans = wide.iter().map(|&(i, u)| (i, (u.first_phase, 0), (u.last_phase, 0))).collect();
        let wide_slots = share_buffers(spans, width, &mut self.wide_buffers);
        let spans =
            tile.iter().map(|&(i, u)| (i, (u.first_phase, u.first), (u.last_phase, u.last)));
        let tile_slots = share_buffers(spans.collect(), width, &mut self.tile_buffers);

        for (index, place) in self.places.iter_mut().enumerate() {
            let id = NodeId(index as u32);
            if schedule.class(id) != Some(Class::RowWise) {
                continue;
            }
            let (root, offset) = parts.root(graph, id);
            let stride = width(root.0 as usize).cols;
            let base = bases[root.0 as usize];
            let slot_in = |slots: &[(usize, usize)]| {
                slots.iter().find(|&&(r, _)| r == base).map(|&(_, slot)| slot)
            };
            if let Some(slot) = slot_in(&wide_slots) {
                *place = Place::Wide { slot, offset, stride };
            } else if let Some(slot) = slot_in(&tile_slots) {
                *place = Place::Tile { slot, offset, stride };
            }
        }
    }
}

impl Placement {
    /// Finds element-wise operations that are the last reader of an operand of their own shape. The
    /// result of such an operation is placed in the operand's buffer. Afterwards, the uses of the
    /// operand include the uses of the result, `bases` maps the result to the operand's buffer, and
    /// `uses` has no entry for the result. This is done only inside one pass. Few values outlive a
    /// pass, and for them the tiles of different passes would have to be equal.
    fn reuse_operands(
        &mut self,
        graph: &Graph,
        schedule: &Schedule<'_>,
        parts: &Parts,
        uses: &mut [Option<Uses>],
        bases: &mut [usize],
    ) {
        for (index, node) in graph.nodes.iter().enumerate() {
            let id = NodeId(index as u32);
            let row_wise = |id: NodeId| schedule.class(id) == Some(Class::RowWise);
            let root = |id: NodeId| parts.root(graph, id).0;
            let Some(own) = uses[index].filter(|_| row_wise(id) && root(id) == id) else {
                continue;
            };
            let dies = |running: usize| {
                let operand = node.inputs[running];
                // Other operations write the parts of a concatenation to its buffer.
                if !row_wise(operand)
                    || root(operand) != operand
                    || graph.shape(operand) != node.shape
                    || graph.node(operand).op == Op::Concat
                {
                    return None;
                }
                let base = bases[operand.0 as usize];
                let others = node.inputs.iter().enumerate().filter(|&(at, _)| at != running);
                let read_beside = others
                    .filter(|&(_, &other)| row_wise(other))
                    .any(|(_, &other)| bases[root(other).0 as usize] == base);
                let until = uses[base]?;
                let in_one_pass = until.first_phase == until.last_phase
                    && own.first_phase == own.last_phase
                    && own.first_phase == until.last_phase;
                (in_one_pass && until.last == index && !read_beside).then_some(base)
            };
            let head_inputs = match &node.op {
                Op::Fused(fused) => fused.head_inputs,
                _ => node.inputs.len(),
            };
            let head = node.op.head();
            let able = (0..head_inputs.min(MAX_INPUTS))
                .filter(|&running| link_of(head, running, head_inputs).is_some());
            let operands_fit = |running: usize| {
                let others = node.inputs[..head_inputs].iter().enumerate();
                others
                    .filter(|&(at, _)| at != running)
                    .all(|(_, &other)| is_operand(graph.shape(other), node.shape))
            };
            let found = able
                .filter(|&running| operands_fit(running))
                .find_map(|running| Some((running, dies(running)?)));
            if let Some((running, base)) = found {
                self.reuses[index] = Some(running);
                bases[index] = base;
                uses[index] = None;
                if let Some(until) = &mut uses[base] {
                    until.extend(own.first_phase, own.first);
                    until.extend(own.last_phase, own.last);
                }
            }
        }
    }
}

/// The number of floats in a cache line.
pub(crate) const LINE: usize = 16;

/// The minimum number of cache lines of a wide row. The number of lines of a wide row is always
/// odd.
const WIDE_LINES: usize = 8;

/// Returns the number of floats from one row of a buffer to the next. If a row is shorter than a
/// cache line, there is no gap after it. Otherwise, a row takes whole lines, so that a register is
/// loaded from one line and not from two. A wide row takes an odd number of lines. The reason is
/// that a product reads down a column. With 32 lines in each row, a whole column would be in only
/// two sets of the first-level cache.
fn stride_of(cols: usize) -> usize {
    if cols < LINE {
        return cols;
    }
    let lines = cols.div_ceil(LINE);
    LINE * if lines < WIDE_LINES { lines } else { lines | 1 }
}

/// The period from the first to the last use of a buffer.
#[derive(Clone, Copy, Debug)]
struct Uses {
    first_phase: usize,
    first: usize,
    last_phase: usize,
    last: usize,
}

impl Uses {
    fn begin(phase: usize, at: usize) -> Self {
        Self { first_phase: phase, first: at, last_phase: phase, last: at }
    }

    fn extend(&mut self, phase: usize, at: usize) {
        (self.first_phase, self.first) = (self.first_phase, self.first).min((phase, at));
        (self.last_phase, self.last) = (self.last_phase, self.last).max((phase, at));
    }
}
