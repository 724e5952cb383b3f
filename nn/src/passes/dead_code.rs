//! The pass that removes the nodes on which no result depends.

use super::*;

pub(super) fn run(ir: &Ir) -> Result<Ir> {
    let live = ir.graph.live(ir.roots());
    let mut rewrite = Rewrite::new(ir);
    for id in ir.ids().filter(|id| live[id.0 as usize]) {
        rewrite.keep(id)?;
    }
    Ok(rewrite.finish())
}
