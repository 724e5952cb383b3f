//! The inputs of a batch that a graph reads, so that only these are uploaded.

use crate::graph::op::Op;
use crate::lowered::Lowered;

/// The inputs of a batch that the nodes of a graph read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// The numeric columns, in ascending order.
    pub(crate) numeric: Vec<usize>,
    /// The labels whose values are read, in ascending order.
    pub(crate) labels: Vec<usize>,
    /// The labels whose masks are read, in ascending order.
    pub(crate) masks: Vec<usize>,
    /// Whether the sample weights are read.
    pub(crate) weight: bool,
    /// Whether the rows of each table are read.
    pub(crate) tables: Vec<bool>,
}

impl Sources {
    /// Finds the inputs that the nodes of a graph read.
    pub(crate) fn new(lowered: &Lowered) -> Self {
        let graph = &lowered.graph;
        let mut sources =
            Self { tables: vec![false; graph.inputs.tables.len()], ..Self::default() };
        for (node, class) in graph.nodes.iter().zip(&lowered.classes) {
            match &node.op {
                _ if class.is_none() => {}
                Op::Numeric { columns } => sources.numeric.extend(columns),
                Op::Label { label } => sources.labels.push(*label),
                Op::Weight { label } => {
                    sources.masks.extend(label);
                    sources.weight = true;
                }
                Op::Rows { table } => sources.tables[*table] = true,
                _ => {}
            }
        }
        for list in [&mut sources.numeric, &mut sources.labels, &mut sources.masks] {
            list.sort_unstable();
            list.dedup();
        }
        sources
    }
}
