//! The bias of the output of a model: the parameter that is added to the score of every row.

use crate::graph::Graph;
use crate::graph::op::{Binary, Op, Unary};
use crate::graph::shape::{NodeId, ParamId};

/// Returns the trained parameter that is added to every row of a score, and the index of its
/// element, or `None` if there is none. The search goes from the score through sums only, so that a
/// change of the element changes every score by the same amount. The score of a class is the
/// logarithm of its probability, and the search goes on at the score before the softmax, where the
/// parameter has an element for each class. If a sum has several such parameters, the first one in
/// the order of the terms is returned.
#[must_use]
pub fn find_output_bias(graph: &Graph, score: NodeId) -> Option<(ParamId, usize)> {
    let (mut nodes, mut element) = (vec![score], (0, 1));
    while let Some(id) = nodes.pop() {
        let node = graph.node(id);
        match (&node.op, node.inputs.as_slice()) {
            (Op::Param { param }, _) => {
                let spec = graph.param(*param);
                if spec.trainable && (spec.rows, spec.cols) == (1, element.1) {
                    return Some((*param, element.0));
                }
            }
            (Op::Linear, &[_, _, bias]) => nodes.push(bias),
            (Op::Binary(Binary::Add), &[a, b]) => nodes.extend([b, a]),
            (Op::Unary(Unary::Offset { .. }), &[x]) => nodes.push(x),
            (Op::Slice { start, len: 1 }, &[x]) => {
                let of = graph.node(x);
                if let (Op::Binary(Binary::Sub), &[scores, total]) = (&of.op, of.inputs.as_slice())
                    && graph.node(total).op == Op::LogSumExpColumns
                {
                    element = (*start, graph.shape(scores).cols);
                    nodes.push(scores);
                }
            }
            _ => {}
        }
    }
    None
}
