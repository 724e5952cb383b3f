//! Reverse-mode differentiation. It adds nodes that compute the gradients to a graph.
//!
//! The gradient rule of each operation is next to its kernels in [`ops`](crate::ops). This module
//! visits the nodes in reverse order and adds up the gradients. If several nodes use a value, its
//! gradients are added in the reverse order of these uses. All lookups in one table share one
//! gradient node.

pub(crate) mod backward;

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{NodeId, ParamId, Shape};
use crate::ops;
use backward::Backward;

/// A graph with the gradients of its loss.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainGraph {
    /// The unchanged nodes of the model, followed by the nodes of the backward pass.
    pub graph: Graph,
    /// The node of the loss, of shape `[1, 1]`.
    pub loss: NodeId,
    /// The gradients of the parameters. Each pair is a trainable parameter that the loss depends
    /// on, and the node of its gradient.
    pub param_grads: Vec<(ParamId, NodeId)>,
    /// The gradients of the rows of tables, of shape `[U, stride]`. Each pair is the index of a
    /// table that the loss depends on, and the node of its gradient.
    pub row_grads: Vec<(usize, NodeId)>,
}

/// Returns the graph with additional nodes for the gradients of `loss`, which is a node of shape
/// `[1, 1]`.
pub fn differentiate(graph: &Graph, loss: NodeId) -> Result<TrainGraph> {
    if loss.0 as usize >= graph.nodes.len() || graph.shape(loss) != Shape::constant(1, 1) {
        let node =
            graph.nodes.get(loss.0 as usize).map_or_else(|| loss.to_string(), |n| n.name.clone());
        return Err(Error::Shape {
            node,
            reason: "the loss is not a [1, 1] matrix of this graph; name a node of this shape"
                .into(),
        });
    }
    let mut cx = Backward::new(graph);
    let seed = Op::Fill { value: 1.0, shape: Shape::constant(1, 1) };
    let seed = cx.push(loss, "grad", seed, &[])?;
    cx.add_gradient(loss, seed);
    for index in (0..=loss.0).rev() {
        let id = NodeId(index);
        if !cx.needs_gradient(id) {
            continue;
        }
        if let Some(g) = cx.sum(id)? {
            cx.grads[index as usize] = vec![g];
            ops::gradient(&mut cx, id, g)?;
        }
    }
    let row_grads = cx.row_gradients()?;
    let mut param_grads: Vec<(ParamId, NodeId)> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if let (Op::Param { param }, [g]) = (&node.op, cx.grads[index].as_slice()) {
            param_grads.push((*param, *g));
        }
    }
    param_grads.sort_unstable();
    Ok(TrainGraph { graph: cx.graph, loss, param_grads, row_grads })
}
