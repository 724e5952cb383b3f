//! The pass that removes operations that change nothing, and replaces operations by simpler ones:
//!
//! * slices of slices, of concatenations and of broadcasts, and slices of all columns;
//! * products with one, sums of one term, and broadcasts to one column;
//! * an element-wise product that is only added to another value: one operation replaces both.

use super::*;
use crate::graph::op::{Binary, Unary};
use crate::graph::shape::Dim;

pub(super) fn run(ir: &Ir) -> Result<Ir> {
    let ir = simplify(ir)?;
    let ir = dead_code::run(&ir)?;
    let ir = join_added_products(&ir)?;
    dead_code::run(&ir)
}

/// The simpler form by which a node is replaced.
enum Simpler {
    Is(NodeId),
    Op(Op, Vec<NodeId>),
}

fn simplify(ir: &Ir) -> Result<Ir> {
    let mut rewrite = Rewrite::new(ir);
    for id in ir.ids() {
        let node = ir.graph.node(id);
        let mut op = node.op.clone();
        let mut inputs: Vec<NodeId> = node.inputs.iter().map(|&i| rewrite.at(i)).collect();
        // A slice of a slice of a concatenation takes several rounds. Each round leads to an
        // earlier node.
        loop {
            match simplify_node(&rewrite.graph, &op, &inputs) {
                None => {
                    rewrite.put(id, op, &inputs)?;
                    break;
                }
                Some(Simpler::Is(other)) => {
                    rewrite.replace_by(id, other);
                    break;
                }
                Some(Simpler::Op(new, of)) => (op, inputs) = (new, of),
            }
        }
    }
    Ok(rewrite.finish())
}

fn simplify_node(graph: &Graph, op: &Op, inputs: &[NodeId]) -> Option<Simpler> {
    let is_one = |id: NodeId| matches!(graph.node(id).op, Op::Fill { value, .. } if value == 1.0);
    match (op, inputs) {
        (Op::Unary(Unary::Scale { by }), &[x]) if *by == 1.0 => Some(Simpler::Is(x)),
        (Op::Concat | Op::AddN, &[x]) => Some(Simpler::Is(x)),
        (Op::BroadcastColumns { cols: 1 }, &[x]) => Some(Simpler::Is(x)),
        (Op::Binary(Binary::Mul), &[a, b]) => {
            let same = |of: NodeId, by: NodeId| {
                let (of, by) = (graph.shape(of), graph.shape(by));
                (by.rows == of.rows || by.rows == Dim::Const(1))
                    && (by.cols == of.cols || by.cols == 1)
            };
            if is_one(b) && same(a, b) {
                Some(Simpler::Is(a))
            } else if is_one(a) && same(b, a) {
                Some(Simpler::Is(b))
            } else {
                None
            }
        }
        (Op::Slice { start, len }, &[x]) => part(graph, *start, *len, x),
        _ => None,
    }
}

/// Returns the simpler form of the columns `start .. start + len` of a node, or `None` if there is
/// no simpler form.
fn part(graph: &Graph, start: usize, len: usize, x: NodeId) -> Option<Simpler> {
    let node = graph.node(x);
    if start == 0 && len == node.shape.cols {
        return Some(Simpler::Is(x));
    }
    match (&node.op, node.inputs.as_slice()) {
        (Op::Slice { start: first, .. }, &[of]) => {
            Some(Simpler::Op(Op::Slice { start: first + start, len }, vec![of]))
        }
        (Op::BroadcastColumns { .. }, &[of]) => {
            Some(Simpler::Op(Op::BroadcastColumns { cols: len }, vec![of]))
        }
        (Op::Concat, parts) => {
            let mut first = 0;
            for &part in parts {
                let cols = graph.shape(part).cols;
                if first <= start && start + len <= first + cols {
                    return Some(Simpler::Op(Op::Slice { start: start - first, len }, vec![part]));
                }
                first += cols;
            }
            None
        }
        _ => None,
    }
}

/// Joins `c + a·b` into one operation if no other node reads the product. Both forms round the
/// product before the addition.
fn join_added_products(ir: &Ir) -> Result<Ir> {
    let uses = ir.uses();
    let graph = &ir.graph;
    let product = |id: NodeId, other: NodeId| {
        let node = graph.node(id);
        let alone = uses[id.0 as usize] == 1 && graph.shape(other) == node.shape;
        match (&node.op, node.inputs.as_slice()) {
            (Op::Binary(Binary::Mul), &[a, b]) if alone && graph.shape(a) == node.shape => {
                Some([a, b, other])
            }
            (Op::Binary(Binary::Mul), &[a, b]) if alone && graph.shape(b) == node.shape => {
                Some([b, a, other])
            }
            _ => None,
        }
    };
    let mut rewrite = Rewrite::new(ir);
    for id in ir.ids() {
        let node = graph.node(id);
        let found = match (&node.op, node.inputs.as_slice()) {
            (Op::Binary(Binary::Add), &[a, b]) if node.shape.rows.is_tiled() => {
                product(b, a).or_else(|| product(a, b))
            }
            _ => None,
        };
        match found {
            Some(inputs) => {
                let inputs = inputs.map(|input| rewrite.at(input));
                rewrite.put(id, Op::MulAdd, &inputs)?;
            }
            None => rewrite.keep(id)?,
        }
    }
    Ok(rewrite.finish())
}
