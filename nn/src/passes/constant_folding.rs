//! The pass that computes operations before a run if they depend neither on the batch nor on a
//! parameter. They are operations on matrices with the same value in all elements, for example in
//! the weights of losses and in the gradient of a sum.

use super::*;
use crate::graph::op::{Binary, Unary};

pub(super) fn run(ir: &Ir) -> Result<Ir> {
    let mut rewrite = Rewrite::new(ir);
    for id in ir.ids() {
        let node = ir.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|&input| rewrite.at(input)).collect();
        match folded(&rewrite.graph, &node.op, &inputs) {
            Some(value) if node.shape.const_len().is_some() => {
                rewrite.put(id, Op::Fill { value, shape: node.shape }, &[])?;
            }
            _ => rewrite.keep(id)?,
        }
    }
    dead_code::run(&rewrite.finish())
}

/// Returns the value of every element of a result, if every input has the same value in all its
/// elements. The arithmetic is that of the kernels. Returns `None` if the operation cannot be
/// folded.
fn folded(graph: &Graph, op: &Op, inputs: &[NodeId]) -> Option<f32> {
    let value = |input: &NodeId| match graph.node(*input).op {
        Op::Fill { value, .. } => Some(value),
        _ => None,
    };
    if inputs.is_empty() {
        return None;
    }
    let values: Vec<f32> = inputs.iter().map(value).collect::<Option<_>>()?;
    match (op, values.as_slice()) {
        (Op::Unary(Unary::Scale { by }), &[x]) => Some(by * x),
        (Op::Unary(Unary::Offset { by }), &[x]) => Some(x + by),
        (Op::Unary(Unary::Square), &[x]) => Some(x * x),
        (Op::Unary(Unary::Relu), &[x]) => Some(if x < 0.0 { 0.0 } else { x }),
        (Op::Binary(function), &[a, b]) => Some(match function {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::SafeDiv if b == 0.0 => 0.0,
            Binary::SafeDiv => a / b,
        }),
        (Op::MulAdd, &[a, b, c]) => Some(a * b + c),
        (Op::Concat, [first, rest @ ..]) if rest.iter().all(|v| v.to_bits() == first.to_bits()) => {
            Some(*first)
        }
        (Op::Slice { .. }, &[x]) => Some(x),
        _ => None,
    }
}
