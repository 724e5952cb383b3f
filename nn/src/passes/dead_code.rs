//! The pass that removes nodes that no result needs.

use super::ir::{Ir, Rewrite};
use crate::error::Result;

pub(super) fn run(ir: &Ir) -> Result<Ir> {
    let mut live = vec![false; ir.graph.nodes.len()];
    for root in ir.roots() {
        live[root.0 as usize] = true;
    }
    for (index, node) in ir.graph.nodes.iter().enumerate().rev() {
        if live[index] {
            node.inputs.iter().for_each(|input| live[input.0 as usize] = true);
        }
    }
    let mut rewrite = Rewrite::new(ir);
    for id in ir.ids().filter(|id| live[id.0 as usize]) {
        rewrite.keep(id)?;
    }
    Ok(rewrite.finish())
}
