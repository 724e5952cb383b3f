//! The classes of nodes. A class says what a node needs before it can be computed.

use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId, Shape};

/// The class of a node, which determines how the node is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A node whose value is given: the rows of a table, or a parameter.
    Given,
    /// A row-wise node: a tile of its result needs only the same tile of its inputs, and constants.
    RowWise,
    /// A node that computes a constant from the rows of the batch. Each lane computes a partial
    /// sum.
    BatchReduce,
    /// A node that makes all rows of a value of the batch available as a constant.
    Collect,
    /// A node that computes a constant from other constants.
    Global,
    /// A node whose rows are unique rows of a table. Such nodes are always gradients, which are
    /// computed after the whole batch.
    Unique,
}

impl Class {
    /// Returns the class of a node with this operation and these shapes.
    fn of(op: &Op, shape: Shape, inputs: &[Shape]) -> Self {
        match (op, shape.rows) {
            (Op::Rows { .. } | Op::Param { .. }, _) => Self::Given,
            (_, Dim::Batch | Dim::Values(_)) => Self::RowWise,
            (_, Dim::Whole) => Self::Collect,
            (_, Dim::Unique(_)) => Self::Unique,
            // The lookup of a column that has one row for the whole batch.
            (Op::Gather(_), Dim::Const(_)) => Self::Global,
            (_, Dim::Const(_)) if inputs.iter().any(|s| matches!(s.rows, Dim::Unique(_))) => {
                Self::Unique
            }
            (_, Dim::Const(_)) if inputs.iter().any(|s| s.is_tiled()) => Self::BatchReduce,
            (_, Dim::Const(_)) => Self::Global,
        }
    }
}

/// Returns the class of each node on which `roots` depend, and `None` for the other nodes.
pub(crate) fn classify(graph: &Graph, roots: &[NodeId]) -> Vec<Option<Class>> {
    let live = graph.live(roots.iter().copied());
    let classes = graph.nodes.iter().zip(live).map(|(node, live)| {
        let shapes: Vec<Shape> = node.inputs.iter().map(|&i| graph.shape(i)).collect();
        live.then(|| Class::of(&node.op, node.shape, &shapes))
    });
    classes.collect()
}

/// Returns whether a node is a view of its input and has no value of its own.
pub(crate) fn is_view(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let rows_in_one_piece = match node.shape.const_len() {
        Some(_) => node.shape.rows == Dim::Const(1),
        None => node.shape.is_tiled(),
    };
    matches!(node.op, Op::Slice { .. }) && rows_in_one_piece
}
