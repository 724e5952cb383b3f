//! The pass that adds each term of a sum when the term is computed. The order is still from left to
//! right. So a sum over the whole model does not have to keep all its terms until the last one is
//! computed.

use std::collections::HashMap;

use super::*;
use crate::graph::op::Binary;

/// The state of a sum while its terms are being added.
struct Sum<'a> {
    id: NodeId,
    terms: &'a [NodeId],
    /// The number of terms that have been added to `total`.
    added: usize,
    total: Option<NodeId>,
}

pub(super) fn run(ir: &Ir) -> Result<Ir> {
    let nodes = ir.ids().map(|id| (id, ir.graph.node(id)));
    let sums = nodes.filter(|(_, node)| node.op == Op::AddN && node.shape.rows.is_tiled());
    let mut sums: Vec<Sum<'_>> =
        sums.map(|(id, node)| Sum { id, terms: &node.inputs, added: 0, total: None }).collect();
    let mut sums_of: HashMap<NodeId, Vec<usize>> = HashMap::new();
    for (index, sum) in sums.iter().enumerate() {
        for &term in sum.terms {
            let of = sums_of.entry(term).or_default();
            if of.last() != Some(&index) {
                of.push(index);
            }
        }
    }
    let mut rewrite = Rewrite::new(ir);
    for id in ir.ids() {
        if !rewrite.has(id) {
            rewrite.keep(id)?;
        }
        // A sum can be a term of another sum.
        let mut written = vec![id];
        while let Some(term) = written.pop() {
            for &index in sums_of.get(&term).into_iter().flatten() {
                if advance(&mut sums[index], &mut rewrite)? {
                    written.push(sums[index].id);
                }
            }
        }
    }
    dead_code::run(&rewrite.finish())
}

/// Adds the next terms of a sum that have already been computed. Returns whether this call has
/// added the last term.
fn advance(sum: &mut Sum<'_>, rewrite: &mut Rewrite<'_>) -> Result<bool> {
    let before = sum.added;
    while let Some(&term) = sum.terms.get(sum.added).filter(|&&term| rewrite.has(term)) {
        let term = rewrite.at(term);
        sum.added += 1;
        let is_last = sum.added == sum.terms.len();
        let add = Op::Binary(Binary::Add);
        sum.total = Some(match sum.total {
            None if is_last => {
                rewrite.replace_by(sum.id, term);
                term
            }
            None => term,
            Some(total) if is_last => {
                rewrite.put(sum.id, add, &[total, term])?;
                rewrite.at(sum.id)
            }
            Some(total) => {
                rewrite.insert(sum.id, &format!("{}", sum.added), add, &[total, term])?
            }
        });
    }
    Ok(before < sum.added && sum.added == sum.terms.len())
}
