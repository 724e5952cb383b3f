//! The bias of the output of a model: the parameter that is added to the score of every row.

use crate::graph::Graph;
use crate::graph::op::{Binary, Op, Unary};
use crate::graph::shape::{NodeId, ParamId};

/// Returns the trained parameter of one element that is added to every row of a score, or `None` if
/// there is none. The search goes from the score through sums only, so that a change of the
/// parameter changes every score by the same amount. If a sum has several such parameters, the
/// first one in the order of the terms is returned.
#[must_use]
pub fn find_output_bias(graph: &Graph, score: NodeId) -> Option<ParamId> {
    let mut nodes = vec![score];
    while let Some(id) = nodes.pop() {
        let node = graph.node(id);
        match (&node.op, node.inputs.as_slice()) {
            (Op::Param { param }, _) => {
                let spec = graph.param(*param);
                if spec.trainable && (spec.rows, spec.cols) == (1, 1) {
                    return Some(*param);
                }
            }
            (Op::Linear, &[_, _, bias]) => nodes.push(bias),
            (Op::Binary(Binary::Add), &[a, b]) => nodes.extend([b, a]),
            (Op::Unary(Unary::Offset { .. }), &[x]) => nodes.push(x),
            _ => {}
        }
    }
    None
}
