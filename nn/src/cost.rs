//! What a node costs: floating-point operations, and the bytes of its result.
//!
//! Additions, multiplications and functions of an element count as one each. What is moved and not computed
//! (lookups of one row, concatenations, views) costs none.

use crate::graph::{Dim, Graph, NodeId, Shape};
use crate::op::{Link, Op};

/// How large a batch is.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Rows of the batch.
    pub rows: usize,
    /// Values of a list, for each sparse column; 1 where none is said.
    pub list_len: Vec<usize>,
}

/// What a node costs for one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes of its result.
    pub bytes: u64,
}

impl Sizes {
    /// A batch of so many rows, one value a row in every column.
    pub fn of(rows: usize) -> Self {
        Self { rows, list_len: Vec::new() }
    }

    fn rows_of(&self, dim: Dim) -> u64 {
        let rows = self.rows as u64;
        match dim {
            Dim::Values(column) => rows * self.list_len.get(column).map_or(1, |&n| n as u64),
            Dim::Const(n) => n as u64,
            // At most a row of the table for each of the batch.
            Dim::Batch | Dim::Whole | Dim::Unique(_) => rows,
        }
    }

    fn elements(&self, shape: Shape) -> u64 {
        self.rows_of(shape.rows) * shape.cols as u64
    }
}

/// What a node of a graph costs.
pub fn cost(graph: &Graph, id: NodeId, sizes: &Sizes) -> Cost {
    let node = graph.node(id);
    let inputs: Vec<Shape> = node.inputs.iter().map(|&input| graph.shape(input)).collect();
    let given = matches!(node.op, Op::Rows { .. } | Op::Param { .. });
    let bytes = if given { 0 } else { 4 * sizes.elements(node.shape) };
    Cost { flops: flops(&node.op, &inputs, node.shape, sizes), bytes }
}

fn flops(op: &Op, inputs: &[Shape], shape: Shape, sizes: &Sizes) -> u64 {
    let out = sizes.elements(shape);
    let input = |at: usize| inputs.get(at).map_or(0, |&s| sizes.elements(s));
    let cols = |at: usize| inputs.get(at).map_or(0, |s| s.cols as u64);
    let pairs = |x: u64, dim: usize| {
        let fields = x / dim.max(1) as u64;
        fields * fields.saturating_sub(1) / 2
    };
    match op {
        Op::Fused(fused) => {
            let (head, _) = inputs.split_at(fused.head_inputs.min(inputs.len()));
            let a_link = |link: &Link| match link {
                Link::MulAdd | Link::MulAddOf | Link::AddProduct => 2,
                Link::UnaryGrad(_) | Link::PointOf(_) => 2,
                Link::Unary(_) | Link::Binary(_) | Link::BinaryOf(_) => 1,
            };
            let links: u64 = fused.chain.iter().map(a_link).sum();
            flops(&fused.head, head, shape, sizes) + links * out
        }
        Op::Linear => 2 * out * cols(0) + if inputs.len() > 2 { out } else { 0 },
        Op::MatMulNt => 2 * out * cols(0),
        Op::MatMulTn => 2 * input(0) * cols(1),
        Op::InBatchLse(_) | Op::InBatchQueryGrad(_) | Op::InBatchItemGrad(_) => {
            let rows = sizes.rows as u64;
            2 * rows * rows * inputs.iter().map(|s| s.cols as u64).max().unwrap_or(0)
        }
        Op::Unary(_) | Op::Binary(_) | Op::Dropout { .. } => out,
        Op::UnaryGrad(_) | Op::MulAdd => 2 * out,
        Op::AddN => out * (inputs.len() as u64).saturating_sub(1),
        Op::SumColumns | Op::SumRows { .. } | Op::SegmentSum { .. } => input(0),
        Op::RowDot => 2 * input(0),
        Op::GatherGrad { .. } => inputs.iter().map(|&s| sizes.elements(s)).sum(),
        Op::FmInteraction { .. } => 4 * input(0),
        Op::FmInteractionGrad { .. } => 3 * out,
        Op::DotInteraction { dim } => 2 * out * *dim as u64,
        Op::DotInteractionGrad { dim } => {
            4 * pairs(cols(1), *dim) * *dim as u64 * sizes.rows_of(shape.rows)
        }
        Op::BatchNormStats | Op::BatchNormReduce { .. } => 4 * input(0),
        Op::BatchNorm { .. } | Op::BatchNormFixedGrad { .. } => 2 * out,
        Op::BatchNormGrad { .. } => 5 * out,
        Op::LayerNorm { .. } | Op::LayerNormGrad { .. } | Op::LayerNormReduce { .. } => {
            8 * input(0)
        }
        Op::SoftmaxColumns
        | Op::SoftmaxColumnsGrad
        | Op::LogSumExpColumns
        | Op::SegmentSoftmax { .. }
        | Op::SegmentSoftmaxGrad { .. } => 4 * input(0),
        Op::BceSum | Op::BceGrad | Op::FocalSum(_) | Op::FocalGrad(_) => 8 * sizes.rows as u64,
        Op::BatchNormRunning { .. } => 3 * out,
        Op::Gather(gather) if sizes.list_len.get(gather.column).is_some_and(|&n| n > 1) => {
            sizes.rows_of(Dim::Values(gather.column)) * gather.dim as u64
        }
        // They move values, or make them.
        Op::Rows { .. }
        | Op::Numeric { .. }
        | Op::Label { .. }
        | Op::Weight { .. }
        | Op::Param { .. }
        | Op::Fill { .. }
        | Op::Gather(_)
        | Op::GatherArgMax(_)
        | Op::Concat
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::BroadcastColumns { .. }
        | Op::BroadcastRows { .. }
        | Op::Repeat { .. }
        | Op::Collect => 0,
    }
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
    fn products_cost_two_operations_an_element_of_the_inner_dimension() {
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
            let costs = ids.map(|id| cost(graph, id, &sizes));
            costs.fold(Cost::default(), |a, b| Cost {
                flops: a.flops + b.flops,
                bytes: a.bytes + b.bytes,
            })
        };
        let before = totals(&stages[stages.len() - 2].graph);
        let after = totals(&stages[stages.len() - 1].graph);
        assert_eq!(stages[stages.len() - 1].pass, Some("epilogues"));
        assert_eq!(after.flops, before.flops);
        // The linear layer's result, and the gradient before the activation's derivative.
        assert_eq!(after.bytes + 2 * 160, before.bytes);
    }
}
