//! The cost of a node: the number of floating-point operations, and the number of bytes of the
//! result.
//!
//! An addition, a multiplication or a function of one element counts as one operation. Moving data
//! without computing (a lookup of one row, a concatenation, a view) counts as no operation.

use std::iter::Sum;

use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{NodeId, Shape};
use crate::graph::sizes::{NodeSizes, Sizes};
use crate::ops;

/// The cost of a node for one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The number of floating-point operations.
    pub flops: u64,
    /// The number of bytes of the result.
    pub bytes: u64,
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |a, b| Self {
            flops: a.flops + b.flops,
            bytes: a.bytes + b.bytes,
        })
    }
}

/// Returns the cost of a node of a graph.
pub fn cost(graph: &Graph, id: NodeId, sizes: &Sizes) -> Cost {
    let node = graph.node(id);
    let inputs: Vec<Shape> = node.inputs.iter().map(|&input| graph.shape(input)).collect();
    let given = matches!(node.op, Op::Rows { .. } | Op::Param { .. });
    let bytes = if given { 0 } else { 4 * sizes.elements(node.shape) };
    let operations = NodeSizes { inputs: &inputs, output: node.shape, sizes };
    Cost { flops: ops::flops(&node.op, &operations), bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, GraphInputs, Mode, Passes, Program, TrainGraph, differentiate};

    fn mlp() -> TrainGraph {
        let inputs = GraphInputs {
            numeric: vec!["x".into(), "y".into()],
            labels: vec!["label".into()],
            ..GraphInputs::default()
        };
        let mut b = GraphBuilder::new(inputs, Mode::Train);
        let x = b.numeric("x", &[0, 1]).unwrap();
        let h = b.linear("l0", x, 4).unwrap();
        let h = b.relu("relu", h).unwrap();
        let logit = b.linear("l1", h, 1).unwrap();
        let loss = b.bce_with_logits("loss", logit, 0).unwrap();
        differentiate(&b.finish(), loss).unwrap()
    }

    #[test]
    fn products_cost_two_operations_for_each_inner_element() {
        let train = mlp();
        let sizes = Sizes::of(10);
        let of = |name: &str| cost(&train.graph, train.graph.find(name).unwrap(), &sizes);
        assert_eq!(of("l0"), Cost { flops: 10 * 4 * (2 * 2 + 1), bytes: 160 });
        assert_eq!(of("relu"), Cost { flops: 40, bytes: 160 });
        assert_eq!(of("l1.grad").flops, 10 * 4 * 2);
        assert_eq!(of("l1.grad.2"), Cost { flops: 2 * 10 * 4, bytes: 16 });
        assert_eq!(of("l0.weight"), Cost::default());
    }

    #[test]
    fn fusing_changes_no_cost_but_the_bytes_between() {
        let train = mlp();
        let stages = Program::train_stages(&train, Passes::ALL).unwrap();
        let sizes = Sizes::of(10);
        let totals = |graph: &Graph| {
            let ids = (0..graph.nodes.len() as u32).map(NodeId);
            ids.map(|id| cost(graph, id, &sizes)).sum::<Cost>()
        };
        let before = totals(&stages[stages.len() - 2].graph);
        let after = totals(&stages[stages.len() - 1].graph);
        assert_eq!(stages[stages.len() - 1].pass, Some("epilogues"));
        assert_eq!(after.flops, before.flops);
        // The difference is the result of the linear layer, and the gradient before the derivative
        // of the activation.
        assert_eq!(after.bytes + 2 * 160, before.bytes);
    }
}
