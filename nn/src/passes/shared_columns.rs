//! The rewriting for batches with shared columns, which have one row for all rows of the batch. A
//! node that depends only on such columns becomes a constant, which is computed once in a run.
//!
//! This is not one of the [`PASSES`](super::Passes): it changes the shapes of nodes, and it applies
//! only to a program that was planned for a set of shared columns. It runs before the passes. The
//! values of the other nodes keep all their bits:
//!
//! * A constant that meets rows of the batch is copied to all rows, or broadcast where the
//!   operation can broadcast a row.
//! * The first layer of an MLP reads a concatenation. If it begins with constants, one node
//!   multiplies these columns once, and the product of each row goes on from this state. Sums of a
//!   factorisation machine are treated in the same way.
//! * The dot products of pairs of constant vectors are computed once.
//!
//! Only the constants at the *beginning* of a concatenation can be shared in this way, because a
//! sum is computed in the order of the columns.

use zillion_device::matmul;
use zillion_feature::SharedColumns;

use super::*;
use crate::graph::shape::Dim;
use crate::ops::is_blocked;

/// The operation that copies a row to all rows of the batch.
const COPY: Op = Op::BroadcastRows { rows: Dim::Batch, mean: false };

/// Rewrites a graph for batches in which the columns `shared` have one row.
pub(crate) fn run(ir: &Ir, shared: &SharedColumns) -> Result<Ir> {
    let ir = dead_code::run(ir)?;
    let ir = split_numerics(&ir, shared)?;
    let ir = split_interactions(&ir, shared)?;
    let mut sharing = Sharing::new(&ir, shared);
    sharing.rewrite.graph.shared = shared.clone();
    for id in ir.ids() {
        sharing.rewrite_node(id)?;
    }
    // Results have a row for each row of the batch. No node is written after them, so that the
    // copies may replace the constants.
    for id in ir.roots() {
        if sharing.facts.is_constant(id) {
            let rows = sharing.copy_to_rows(id)?;
            sharing.rewrite.replace_by(id, rows);
        }
    }
    dead_code::run(&sharing.rewrite.finish())
}

/// Splits each node that reads shared and other numeric columns into a concatenation of nodes that
/// read only one kind.
fn split_numerics(ir: &Ir, shared: &SharedColumns) -> Result<Ir> {
    let mut rewrite = Rewrite::new(ir);
    for id in ir.ids() {
        let Op::Numeric { columns } = &ir.graph.node(id).op else {
            rewrite.keep(id)?;
            continue;
        };
        let is_shared = |column: &usize| shared.has_numeric(*column);
        let runs: Vec<&[usize]> = columns.chunk_by(|a, b| is_shared(a) == is_shared(b)).collect();
        if let [_] = runs[..] {
            rewrite.keep(id)?;
            continue;
        }
        let mut parts = Vec::with_capacity(runs.len());
        for run in runs {
            let op = Op::Numeric { columns: run.to_vec() };
            parts.push(rewrite.insert(id, "columns", op, &[])?);
        }
        rewrite.put(id, Op::Concat, &parts)?;
    }
    Ok(rewrite.finish())
}

/// Splits each interaction of vectors whose first vectors are constants. The pairs of these vectors
/// are the first pairs of the result.
fn split_interactions(ir: &Ir, shared: &SharedColumns) -> Result<Ir> {
    let facts = Facts::new(ir, shared);
    let mut rewrite = Rewrite::new(ir);
    for id in ir.ids() {
        let node = ir.graph.node(id);
        let (&Op::DotInteraction { dim }, &[x]) = (&node.op, node.inputs.as_slice()) else {
            rewrite.keep(id)?;
            continue;
        };
        let start = facts.prefix(x, dim).filter(|&start| {
            start >= 2 * dim && !facts.is_constant(id) && is_blocked(ir.graph.shape(x).cols, dim)
        });
        let Some(start) = start else {
            rewrite.keep(id)?;
            continue;
        };
        let head: Vec<NodeId> =
            facts.head(x, start).into_iter().map(|leaf| rewrite.at(leaf)).collect();
        let head = rewrite.insert(id, "shared", Op::Concat, &head)?;
        let pairs = rewrite.insert(id, "shared_pairs", Op::DotInteraction { dim }, &[head])?;
        let rest = Op::DotInteractionRest { dim, first: start / dim };
        let x = rewrite.at(x);
        let rest = rewrite.insert(id, "pairs", rest, &[x])?;
        rewrite.put(id, Op::Concat, &[pairs, rest])?;
    }
    dead_code::run(&rewrite.finish())
}

/// The properties of the nodes of a graph for a set of shared columns.
struct Facts<'a> {
    ir: &'a Ir,
    /// The flags of the nodes that depend only on shared columns, and have one row.
    constant: Vec<bool>,
    /// The flags of the concatenations that some node reads with all their columns.
    whole: Vec<bool>,
}

impl<'a> Facts<'a> {
    fn new(ir: &'a Ir, shared: &SharedColumns) -> Self {
        let nodes = ir.graph.nodes.len();
        let mut facts = Self { ir, constant: vec![false; nodes], whole: vec![false; nodes] };
        for id in ir.ids() {
            let node = ir.graph.node(id);
            facts.constant[id.0 as usize] = match &node.op {
                Op::Gather(gather) => gather.pooling.is_some() && shared.has_sparse(gather.column),
                Op::Numeric { columns } => {
                    !columns.is_empty() && columns.iter().all(|&column| shared.has_numeric(column))
                }
                op => {
                    let is_fixed = |&input: &NodeId| {
                        facts.is_constant(input)
                            || matches!(ir.graph.shape(input).rows, Dim::Const(_))
                    };
                    works_row_by_row(op)
                        && node.shape.rows == Dim::Batch
                        && node.inputs.iter().all(is_fixed)
                }
            };
        }
        for root in ir.roots() {
            facts.whole[root.0 as usize] = true;
        }
        for id in ir.ids() {
            let node = ir.graph.node(id);
            // A concatenation takes the parts of its inputs, and not the inputs themselves.
            if node.op == Op::Concat {
                continue;
            }
            let skipped = usize::from(facts.resumed(id).is_some());
            for &input in node.inputs.iter().skip(skipped) {
                facts.whole[input.0 as usize] = true;
            }
        }
        facts
    }

    fn is_constant(&self, id: NodeId) -> bool {
        self.constant[id.0 as usize]
    }

    /// Returns whether the node is a concatenation with a part that is not constant.
    fn is_mixed(&self, id: NodeId) -> bool {
        self.ir.graph.node(id).op == Op::Concat && !self.is_constant(id)
    }

    /// Returns the parts of a concatenation that are no concatenations themselves, in order. For
    /// another node, returns the node.
    fn leaves(&self, id: NodeId) -> Vec<NodeId> {
        if !self.is_mixed(id) {
            return vec![id];
        }
        let inputs = &self.ir.graph.node(id).inputs;
        inputs.iter().flat_map(|&input| self.leaves(input)).collect()
    }

    /// Returns the number of constant columns at the beginning of a concatenation, rounded down to
    /// a number of whole parts and to a multiple of `unit`. Returns `None` if there are none.
    fn prefix(&self, id: NodeId, unit: usize) -> Option<usize> {
        if !self.is_mixed(id) {
            return None;
        }
        let leaves = self.leaves(id).into_iter().take_while(|&leaf| self.is_constant(leaf));
        let ends = leaves.scan(0, |end, leaf| {
            *end += self.ir.graph.shape(leaf).cols;
            Some(*end)
        });
        ends.filter(|end| end % unit == 0).last()
    }

    /// Returns the parts of a concatenation in its first `cols` columns.
    fn head(&self, id: NodeId, cols: usize) -> Vec<NodeId> {
        let mut end = 0;
        let leaves = self.leaves(id).into_iter();
        leaves
            .take_while(|&leaf| {
                end += self.ir.graph.shape(leaf).cols;
                end <= cols
            })
            .collect()
    }

    /// Returns the number of columns of the first input whose state is computed once, or `None` if
    /// the node is not computed from such a state.
    fn resumed(&self, id: NodeId) -> Option<usize> {
        let node = self.ir.graph.node(id);
        match (&node.op, node.inputs.as_slice()) {
            // The product with a single column has another order of additions.
            (Op::Linear, &[x, w, ..]) if node.shape.cols > 1 && matmul::can_resume() => {
                let is_weight = matches!(self.ir.graph.shape(w).rows, Dim::Const(_));
                self.prefix(x, 1).filter(|_| is_weight && !self.is_constant(w))
            }
            (&Op::FmInteraction { dim }, &[x]) => self.prefix(x, dim),
            _ => None,
        }
    }
}

/// Returns whether a row of the result depends on the same row of the inputs only, so that equal
/// rows have equal results.
fn works_row_by_row(op: &Op) -> bool {
    matches!(
        op,
        Op::Linear
            | Op::MatMulNt
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::MulAdd
            | Op::AddN
            | Op::Concat
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::SumColumns
            | Op::RowDot
            | Op::BroadcastColumns { .. }
            | Op::SoftmaxColumns
            | Op::LogSumExpColumns
            | Op::BatchNorm { .. }
            | Op::LayerNorm { .. }
            | Op::FmInteraction { .. }
            | Op::DotInteraction { .. }
    )
}

/// The rewriting of the nodes, in order.
struct Sharing<'a> {
    facts: Facts<'a>,
    rewrite: Rewrite<'a>,
    /// The copies of constants in all rows, by the old constant.
    copies: Vec<Option<NodeId>>,
}

impl<'a> Sharing<'a> {
    fn new(ir: &'a Ir, shared: &SharedColumns) -> Self {
        let copies = vec![None; ir.graph.nodes.len()];
        Self { facts: Facts::new(ir, shared), rewrite: Rewrite::new(ir), copies }
    }

    fn rewrite_node(&mut self, id: NodeId) -> Result<()> {
        let ir = self.facts.ir;
        let node = ir.graph.node(id);
        if self.facts.is_constant(id) {
            return self.rewrite.keep(id);
        }
        if self.facts.is_mixed(id) {
            // Otherwise all readers take the parts that they need.
            return match self.facts.whole[id.0 as usize] {
                true => {
                    let parts = self.parts(id)?;
                    self.rewrite.put(id, Op::Concat, &parts)
                }
                false => Ok(()),
            };
        }
        if let Some(start) = self.facts.resumed(id) {
            return self.resume(id, start);
        }
        let broadcasts = matches!(node.op, Op::Binary(_));
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            let stays = broadcasts || !self.facts.is_constant(input);
            inputs.push(if stays { self.rewrite.at(input) } else { self.copy_to_rows(input)? });
        }
        self.rewrite.put(id, node.op.clone(), &inputs)
    }

    /// Writes the state of an operation after the first `start` columns, and the operation that
    /// goes on from it.
    fn resume(&mut self, id: NodeId, start: usize) -> Result<()> {
        let ir = self.facts.ir;
        let node = ir.graph.node(id);
        let x = node.inputs[0];
        let head: Vec<NodeId> =
            self.facts.head(x, start).into_iter().map(|leaf| self.rewrite.at(leaf)).collect();
        let head = match head[..] {
            [only] => only,
            _ => self.rewrite.insert(id, "shared", Op::Concat, &head)?,
        };
        let rest = self.rest(x, start)?;
        let others: Vec<NodeId> =
            node.inputs[1..].iter().map(|&input| self.rewrite.at(input)).collect();
        let (state, op) = match node.op {
            Op::FmInteraction { dim } => (Op::FmState { dim }, Op::FmRest { dim }),
            _ => (Op::LinearState, Op::LinearRest { start }),
        };
        // A product reads its weight in both nodes.
        let weight = others.get(..1).unwrap_or_default();
        let state = self.rewrite.insert(id, "state", state, &[&[head], weight].concat())?;
        let bias = others.get(1..).unwrap_or_default();
        self.rewrite.put(id, op, &[&[rest], weight, &[state], bias].concat())
    }

    /// Writes the columns of the concatenation `x` from the column `start` on.
    fn rest(&mut self, x: NodeId, start: usize) -> Result<NodeId> {
        let ir = self.facts.ir;
        let node = ir.graph.node(x);
        if self.facts.whole[x.0 as usize] {
            let at = self.rewrite.at(x);
            let len = node.shape.cols - start;
            return match start {
                0 => Ok(at),
                _ => self.rewrite.insert(x, "rest", Op::Slice { start, len }, &[at]),
            };
        }
        let mut parts = Vec::with_capacity(node.inputs.len());
        let mut first = 0;
        for &input in &node.inputs {
            let end = first + ir.graph.shape(input).cols;
            if end > start {
                parts.push(if self.facts.is_mixed(input) {
                    self.rest(input, start.saturating_sub(first))?
                } else if self.facts.is_constant(input) {
                    self.copy_to_rows(input)?
                } else {
                    self.rewrite.at(input)
                });
            }
            first = end;
        }
        match parts[..] {
            [only] => Ok(only),
            _ => self.rewrite.insert(x, "rest", Op::Concat, &parts),
        }
    }

    /// Returns the parts of a concatenation with all its columns. A part that is a concatenation
    /// which was not written is replaced by its own parts. Neighbouring constants are joined and
    /// copied together.
    fn parts(&mut self, id: NodeId) -> Result<Vec<NodeId>> {
        let inputs = self.written_parts(id);
        let mut parts = Vec::with_capacity(inputs.len());
        let facts = &self.facts;
        let runs = inputs.chunk_by(|&a, &b| facts.is_constant(a) == facts.is_constant(b));
        let runs: Vec<&[NodeId]> = runs.collect();
        for run in runs {
            let written: Vec<NodeId> = run.iter().map(|&part| self.rewrite.at(part)).collect();
            match run {
                [first, ..] if !self.facts.is_constant(*first) => parts.extend(written),
                [only] => parts.push(self.copy_to_rows(*only)?),
                _ => {
                    let joined = self.rewrite.insert(id, "shared", Op::Concat, &written)?;
                    parts.push(self.rewrite.insert(id, "rows", COPY, &[joined])?);
                }
            }
        }
        Ok(parts)
    }

    /// Returns the parts of a concatenation as nodes of the old graph which were written.
    fn written_parts(&self, id: NodeId) -> Vec<NodeId> {
        let inputs = self.facts.ir.graph.node(id).inputs.iter();
        let parts = inputs.flat_map(|&input| {
            let is_written = !self.facts.is_mixed(input) || self.facts.whole[input.0 as usize];
            if is_written { vec![input] } else { self.written_parts(input) }
        });
        parts.collect()
    }

    /// Returns a node with a copy of a constant in each row of the batch.
    fn copy_to_rows(&mut self, id: NodeId) -> Result<NodeId> {
        if let Some(copy) = self.copies[id.0 as usize] {
            return Ok(copy);
        }
        let at = self.rewrite.at(id);
        let copy = self.rewrite.insert(id, "rows", COPY, &[at])?;
        self.copies[id.0 as usize] = Some(copy);
        Ok(copy)
    }
}
