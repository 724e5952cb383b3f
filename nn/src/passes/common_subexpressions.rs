//! The pass that computes equal operations on the same inputs only once. Dropout layers are never
//! equal, because each has its own salt.

use std::collections::HashMap;

use super::*;

pub(super) fn run(ir: &Ir) -> Result<Ir> {
    let mut rewrite = Rewrite::new(ir);
    // An operation contains floats, so it cannot be a key of a map. Its text can be one.
    let mut seen: HashMap<(String, Vec<NodeId>), NodeId> = HashMap::new();
    for id in ir.ids() {
        let node = ir.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|&input| rewrite.at(input)).collect();
        let key = (format!("{:?}", node.op), inputs);
        match seen.get(&key) {
            Some(&first) => rewrite.replace_by(id, first),
            None => {
                rewrite.keep(id)?;
                seen.insert(key, rewrite.at(id));
            }
        }
    }
    dead_code::run(&rewrite.finish())
}
