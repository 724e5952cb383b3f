//! The pass that joins element-wise operations to the operation before them. It joins an activation
//! to its linear layer or batch norm, the derivative of an activation to the product that computes
//! the gradient, and element-wise operations to each other. Two operations are joined only if no
//! other node reads the value between them. So this value needs no buffer.

use super::*;
use crate::graph::op::{Fused, Link};
use crate::ops::MAX_INPUTS;
use crate::ops::{can_lead, is_operand, link_of};

/// A node, with the operations that are joined to it.
#[derive(Clone, Debug)]
struct Chain {
    head: Op,
    head_inputs: usize,
    links: Vec<Link>,
    /// The inputs of the head, then the operands of the links, as nodes of the old graph.
    inputs: Vec<NodeId>,
}

pub(super) fn run(ir: &Ir) -> Result<Ir> {
    let uses = ir.uses();
    let graph = &ir.graph;
    let mut chains: Vec<Option<Chain>> = vec![None; graph.nodes.len()];
    let mut joined = vec![false; graph.nodes.len()];
    for id in ir.ids() {
        let node = graph.node(id);
        if !node.shape.rows.is_tiled() {
            continue;
        }
        let mut chain = can_lead(&node.op).then(|| Chain {
            head: node.op.clone(),
            head_inputs: node.inputs.len(),
            links: Vec::new(),
            inputs: node.inputs.clone(),
        });
        // The running value is the input that is computed last. With another input, the operation
        // would be computed later than necessary, and the values that it reads would have to be
        // kept until then.
        let rows = |id: NodeId| graph.shape(id).rows.is_tiled();
        let last = node.inputs.iter().enumerate().filter(|&(_, &input)| rows(input));
        let last = last.max_by_key(|&(_, &input)| input);
        if let Some((running, &input)) = last {
            let at = input.0 as usize;
            let found = chains[at].clone().zip(link_of(&node.op, running, node.inputs.len()));
            let others = node.inputs.iter().enumerate();
            let operands: Vec<NodeId> =
                others.filter(|&(at, _)| at != running).map(|(_, &id)| id).collect();
            let fits = |before: &Chain| {
                uses[at] == 1
                    && graph.shape(input) == node.shape
                    && before.inputs.len() + operands.len() <= MAX_INPUTS
                    && operands.iter().all(|&o| is_operand(graph.shape(o), node.shape))
            };
            if let Some((mut longer, link)) = found.filter(|(before, _)| fits(before)) {
                longer.links.push(link);
                longer.inputs.extend(operands);
                joined[at] = true;
                chain = Some(longer);
            }
        }
        chains[id.0 as usize] = chain;
    }
    let mut rewrite = Rewrite::new(ir);
    for id in ir.ids() {
        let at = id.0 as usize;
        if joined[at] {
            continue;
        }
        match chains[at].take().filter(|chain| !chain.links.is_empty()) {
            None => rewrite.keep(id)?,
            Some(Chain { head, head_inputs, links: chain, inputs }) => {
                let inputs: Vec<NodeId> = inputs.iter().map(|&input| rewrite.at(input)).collect();
                rewrite.put(
                    id,
                    Op::Fused(Box::new(Fused { head, head_inputs, chain })),
                    &inputs,
                )?;
            }
        }
    }
    Ok(rewrite.finish())
}
