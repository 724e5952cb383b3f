//! Losses of the rows of a group against each other: of pairs, and of lists.
//!
//! A group is a run of rows whose numbers of groups are equal. Each row computes its own loss and
//! its own gradient from the columns of the whole batch ([`Op::Collect`]), by a walk over the rows
//! of its group in their order, with sums in f64. So the bits of a row depend on the rows of its
//! group alone, and not on tiles or threads. The time of a group grows with the square of its rows.
//!
//! Only rows of label 1 have a loss. With `w` for weights and `z` for scores, the loss and the
//! weight of a row i of label 1 are
//!
//! ```text
//! pairwise: w_i · Σ_j w_j · ln(1 + e^(z_j − z_i)) and w_i · Σ_j w_j, over the rows j of label 0
//! listwise: w_i · (ln Σ_j w_j · e^(z_j) − z_i)    and w_i,           over all rows j
//! ```
//!
//! So a row of weight 2 counts as two rows. A row of weight 0 does not count, and its label may be
//! missing.

use std::ops::Range;

use super::*;
use crate::graph::op::GroupLoss;

/// The losses of rows in groups, their weights, and their gradients.
pub(super) struct InGroups;

/// The columns of the whole batch.
#[derive(Clone, Copy)]
struct Rows<'a> {
    labels: View<'a>,
    weights: View<'a>,
    groups: View<'a>,
    count: usize,
}

impl Rows<'_> {
    /// Returns the rows of the group of row `i`.
    fn group(self, i: usize) -> Range<usize> {
        let number = self.groups.at(i);
        let is_other = |&row: &usize| self.groups.at(row) != number;
        let start = (0..i).rev().find(is_other).map_or(0, |row| row + 1);
        let end = (i + 1..self.count).find(is_other).unwrap_or(self.count);
        start..end
    }

    /// Returns the weight of row `i`.
    fn weight(self, i: usize) -> f64 {
        f64::from(self.weights.at(i))
    }

    /// Returns the weight of row `i` if its label is 1, else 0.
    fn positive(self, i: usize) -> f64 {
        let weight = self.weight(i);
        // The label of a row of weight 0 may be any number.
        if weight == 0.0 { 0.0 } else { weight * f64::from(self.labels.at(i)) }
    }

    /// Returns the weight of row `i` if its label is 0, else 0.
    fn negative(self, i: usize) -> f64 {
        self.weight(i) - self.positive(i)
    }
}

/// Returns the logarithm of the weighted sum of `e^z` over the rows of a group.
fn log_sum(rows: Rows<'_>, scores: View<'_>, group: Range<usize>) -> f64 {
    let score = |row: usize| f64::from(scores.at(row));
    let counts = |row: &usize| rows.weight(*row) > 0.0;
    let most = group.clone().filter(counts).map(score).fold(f64::NEG_INFINITY, f64::max);
    let term = |row: usize| rows.weight(row) * (score(row) - most).exp();
    most + group.filter(counts).map(term).sum::<f64>().ln()
}

/// Returns `ln(1 + e^x)`, which cannot overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl GroupLoss {
    /// Returns the weighted loss of row `i`.
    fn loss(self, rows: Rows<'_>, scores: View<'_>, i: usize) -> f64 {
        let weight = rows.positive(i);
        if weight == 0.0 {
            return 0.0;
        }
        let (group, own) = (rows.group(i), f64::from(scores.at(i)));
        let of_group = match self {
            Self::Pairwise => group
                .map(|j| (rows.negative(j), j))
                .filter(|&(weight, _)| weight > 0.0)
                .map(|(weight, j)| weight * softplus(f64::from(scores.at(j)) - own))
                .sum::<f64>(),
            Self::Listwise => log_sum(rows, scores, group) - own,
        };
        weight * of_group
    }

    /// Returns the weight of the loss of row `i`.
    fn weight(self, rows: Rows<'_>, i: usize) -> f64 {
        let weight = rows.positive(i);
        match self {
            _ if weight == 0.0 => 0.0,
            Self::Pairwise => weight * rows.group(i).map(|j| rows.negative(j)).sum::<f64>(),
            Self::Listwise => weight,
        }
    }

    /// Returns the derivative of `Σ_k g_k · loss_k` with respect to the score of row `i`.
    fn slope(self, rows: Rows<'_>, scores: View<'_>, g: View<'_>, i: usize) -> f64 {
        let weight = rows.weight(i);
        if weight == 0.0 {
            return 0.0;
        }
        let (group, own) = (rows.group(i), f64::from(scores.at(i)));
        let score = |row: usize| f64::from(scores.at(row));
        let slope_of = |k: usize| f64::from(g.at(k)) * rows.positive(k);
        match self {
            Self::Pairwise => {
                let (mut below, mut above) = (0.0, 0.0);
                let (positive, negative) = (slope_of(i), rows.negative(i));
                for k in group {
                    if positive != 0.0 && rows.negative(k) > 0.0 {
                        below += rows.negative(k) * sigmoid(score(k) - own);
                    }
                    if negative > 0.0 && rows.positive(k) > 0.0 {
                        above += slope_of(k) * sigmoid(own - score(k));
                    }
                }
                negative * above - positive * below
            }
            Self::Listwise => {
                let total: f64 = group.clone().map(slope_of).sum();
                // A group without a row of label 1 has no loss.
                let share = if total == 0.0 {
                    0.0
                } else {
                    weight * (own - log_sum(rows, scores, group)).exp()
                };
                total * share - slope_of(i)
            }
        }
    }
}

impl OpGroup for InGroups {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        let whole = |s: &Shape| s.rows == Dim::Whole && s.cols == 1;
        let fits = match (op, inputs) {
            (Op::GroupLoss(_), [z, rest @ ..]) => {
                *z == Shape::batch(1) && rest.len() == 4 && rest.iter().all(whole)
            }
            (Op::GroupGrad(_), [z, rest @ ..]) => {
                *z == Shape::batch(1) && rest.len() == 5 && rest.iter().all(whole)
            }
            (Op::GroupWeight(_), rest) => rest.len() == 3 && rest.iter().all(whole),
            _ => false,
        };
        if fits { Ok(Shape::batch(1)) } else { cannot_take(op, inputs) }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
        let count = tile.total_rows;
        let mut fill = |value: &dyn Fn(usize) -> f64| {
            for i in 0..tile.rows {
                out.data[i * out.stride] = value(tile.first_row + i) as f32;
            }
        };
        match (op, inputs) {
            (Op::GroupLoss(loss), &[_, scores, labels, weights, groups]) => {
                let rows = Rows { labels, weights, groups, count };
                fill(&|i| loss.loss(rows, scores, i));
            }
            (Op::GroupWeight(loss), &[labels, weights, groups]) => {
                let rows = Rows { labels, weights, groups, count };
                fill(&|i| loss.weight(rows, i));
            }
            (Op::GroupGrad(loss), &[_, scores, labels, weights, groups, g]) => {
                let rows = Rows { labels, weights, groups, count };
                fill(&|i| loss.slope(rows, scores, g, i));
            }
            _ => reject(op),
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        let (Op::GroupLoss(loss), &[z, scores, labels, weights, groups]) =
            (&node.op, node.inputs.as_slice())
        else {
            return Err(cx.refuse_gradient(id));
        };
        // Collecting does not change the elements of a value, so the gradient of the scores goes
        // directly to the input. Labels, weights and groups have no gradient.
        let g = cx.push(id, "whole", Op::Collect, &[g])?;
        let inputs = [z, scores, labels, weights, groups, g];
        cx.push_gradient(id, z, Op::GroupGrad(*loss), &inputs)
    }

    fn flops(_op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        // The sizes of groups are not known here.
        16 * sizes.sizes.rows as u64
    }
}
