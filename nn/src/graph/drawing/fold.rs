//! The folding of similar nodes of a graph into one box, for example the lookups of 26 features or
//! the experts of a mixture.
//!
//! Two nodes are alike if they have the same operation and the same shape, if they read nodes that
//! are alike, and if the nodes that read them are alike. To find the groups of like nodes, the
//! nodes are first grouped by operation and shape. Then groups are split until no group changes any
//! more. Two nodes on one path are never alike, because their distances from the start of the path
//! differ.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId, Shape};

/// Nodes that are drawn as one box, and the boxes that the box reads.
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) nodes: Vec<NodeId>,
    pub(super) inputs: BTreeSet<usize>,
}

/// Returns whether a node is drawn. All nodes except parameters are.
pub(super) fn is_drawn(graph: &Graph, id: NodeId) -> bool {
    !matches!(graph.node(id).op, Op::Param { .. })
}

/// Returns the boxes of a graph, each after the boxes that it reads.
pub(super) fn fold(graph: &Graph) -> Vec<Fold> {
    let ids = (0..graph.nodes.len() as u32).map(NodeId);
    let drawn: Vec<NodeId> = ids.filter(|&id| is_drawn(graph, id)).collect();
    let inputs = |id: NodeId| {
        let inputs = graph.node(id).inputs.iter().copied();
        inputs.filter(|&input| is_drawn(graph, input))
    };
    let mut readers = vec![Vec::new(); graph.nodes.len()];
    for &id in &drawn {
        inputs(id).for_each(|input| readers[input.0 as usize].push(id));
    }
    let mut class = vec![0usize; graph.nodes.len()];
    let mut count = 0;
    loop {
        let mut classes = BTreeMap::new();
        let mut next = class.clone();
        for &id in &drawn {
            let class_of = |id: &NodeId| class[id.0 as usize];
            let node = graph.node(id);
            let before: Vec<usize> = inputs(id).map(|input| class_of(&input)).collect();
            let behind: BTreeSet<usize> = readers[id.0 as usize].iter().map(class_of).collect();
            let kind = (class_of(&id), node.op.name(), kind_of_shape(node.shape));
            let number = classes.len();
            next[id.0 as usize] = *classes.entry((kind, before, behind)).or_insert(number);
        }
        class = next;
        if classes.len() == count {
            break;
        }
        count = classes.len();
    }
    // Boxes are in the order of their last nodes, so that each follows everything that it reads.
    let mut members: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
    for &id in &drawn {
        members.entry(class[id.0 as usize]).or_default().push(id);
    }
    let mut boxes: Vec<Vec<NodeId>> = members.into_values().collect();
    boxes.sort_by_key(|nodes| nodes.last().copied());
    let mut place = vec![0; graph.nodes.len()];
    for (at, nodes) in boxes.iter().enumerate() {
        nodes.iter().for_each(|id| place[id.0 as usize] = at);
    }
    let read = |nodes: &[NodeId]| {
        nodes.iter().flat_map(|&id| inputs(id)).map(|input| place[input.0 as usize]).collect()
    };
    boxes.into_iter().map(|nodes| Fold { inputs: read(&nodes), nodes }).collect()
}

/// Returns the part of a shape by which nodes are grouped. Nodes in one box may have different
/// indices of tables and columns, so the indices are not part of the result.
fn kind_of_shape(shape: Shape) -> (u8, usize, usize) {
    match shape.rows {
        Dim::Batch => (0, 0, shape.cols),
        Dim::Unique(_) => (1, 0, shape.cols),
        Dim::Values(_) => (2, 0, shape.cols),
        Dim::Whole => (3, 0, shape.cols),
        Dim::Const(rows) => (4, rows, shape.cols),
    }
}

#[cfg(test)]
mod tests {
    use zillion_feature::Pooling;

    use super::*;
    use crate::{ColumnInput, GraphBuilder, GraphInputs, Mode, TableInput};

    #[test]
    fn lookups_of_many_tables_become_one_box() {
        let name = |i: usize| format!("t{i}");
        let inputs = GraphInputs {
            tables: (0..5).map(|i| TableInput { name: name(i), stride: 4 }).collect(),
            columns: (0..5).map(|i| ColumnInput { name: name(i), table: i }).collect(),
            ..Default::default()
        };
        let mut b = GraphBuilder::new(inputs, Mode::Infer);
        let parts: Vec<NodeId> =
            (0..5).map(|i| b.gather(&name(i), i, 0, 4, Pooling::Sum).unwrap()).collect();
        let x = b.concat("x", &parts).unwrap();
        let h = b.linear("l0", x, 20).unwrap();
        let h = b.relu("r0", h).unwrap();
        let h = b.linear("l1", h, 20).unwrap();
        b.relu("r1", h).unwrap();
        let boxes = fold(&b.finish());
        let sizes: Vec<usize> = boxes.iter().map(|fold| fold.nodes.len()).collect();
        assert_eq!(sizes, [5, 5, 1, 1, 1, 1, 1], "rows, lookups, concat and the four layers");
        let inputs: Vec<Vec<usize>> =
            boxes.iter().map(|fold| fold.inputs.iter().copied().collect()).collect();
        let expected: [&[usize]; 7] = [&[], &[0], &[1], &[2], &[3], &[4], &[5]];
        assert_eq!(inputs, expected);
    }
}
