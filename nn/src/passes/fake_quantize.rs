//! The rewriting of a model for quantisation-aware training: the products that serving computes in
//! 8-bit integers read rounded inputs and weights.
//!
//! This is not one of the [`PASSES`](super::Passes), because it changes values. It applies to the
//! forward graph of training only, before its gradients are added.

use super::*;
use crate::cpu::dense_type::is_quantisable;
use crate::graph::shape::Dim;

/// Returns a graph for training whose large layers read rounded inputs and weights, as serving with
/// dense layers in 8-bit integers rounds them. Gradients go straight through the rounding. Returns
/// `None` if no layer of the graph is large enough.
///
/// # Errors
/// Returns an error if the graph is not valid.
pub fn fake_quantize(graph: &Graph) -> Result<Option<Graph>> {
    let outputs: Vec<NodeId> = graph.outputs.iter().map(|&(_, id)| id).collect();
    let ir = Ir::infer(graph, &outputs);
    let mut rewrite = Rewrite::new(&ir);
    let mut is_changed = false;
    for id in ir.ids() {
        let node = graph.node(id);
        let (&Op::Linear, &[x, weight, ref bias @ ..]) = (&node.op, node.inputs.as_slice()) else {
            rewrite.keep(id)?;
            continue;
        };
        if !is_rounded(graph, weight) {
            rewrite.keep(id)?;
            continue;
        }
        let (x, weight) = (rewrite.at(x), rewrite.at(weight));
        let rows = Op::FakeQuantize { columns: false };
        let columns = Op::FakeQuantize { columns: true };
        let x = rewrite.insert(id, "rounded_input", rows, &[x])?;
        let weight = rewrite.insert(id, "rounded_weight", columns, &[weight])?;
        let mut inputs = vec![x, weight];
        inputs.extend(bias.iter().map(|&bias| rewrite.at(bias)));
        rewrite.put(id, Op::Linear, &inputs)?;
        is_changed = true;
    }
    Ok(is_changed.then(|| rewrite.finish().graph))
}

/// Returns whether serving rounds the products with a weight.
fn is_rounded(graph: &Graph, weight: NodeId) -> bool {
    let shape = graph.shape(weight);
    matches!(graph.node(weight).op, Op::Param { .. })
        && matches!(shape.rows, Dim::Const(rows) if is_quantisable(rows, shape.cols))
}
