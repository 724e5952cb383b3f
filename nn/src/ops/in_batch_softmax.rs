//! Softmax over the items of the whole batch, for retrieval models (Yi et al., RecSys 2019): the
//! item of each row is compared with the items of all other rows.
//!
//! Row i scores item j by `s_ij = by · u_i·v_j − c_j`, where `c_j` corrects for the frequency of
//! item j in batches. If another row has the same item as row i, it is not a negative example and
//! is left out. Three row-wise operations compute the logarithm of the sum of exponentials, the
//! gradient of u and the gradient of v. They read operands that are complete for the whole batch
//! ([`Op::Collect`], a barrier between passes). They work in blocks: at any time, only the scores
//! of one tile against one block are in memory, and never the matrix of all scores.
//!
//! The bits of a row depend on the rows of the batch alone, and not on its tile. The products are
//! those of dense layers, and a block is as long as their chains: the gradient of a row is one
//! product over all rows of the batch. The sum of exponentials of a block has sixteen interleaved
//! partial sums. So a GPU can compute the same bits with other tiles.

use super::kernel::sum_by;
use super::*;
use crate::graph::op::InBatch;
use zillion_device::matmul::{self, Epilogue, Panel, Right};

/// The number of rows in a block, which is the length of a chain of
/// [`matmul::linear`](zillion_device::matmul::linear). A tile is scored against one block at a
/// time.
const BLOCK: usize = 512;

/// The softmax over the items of a batch, and its gradients.
pub(super) struct InBatchSoftmax;

impl OpGroup for InBatchSoftmax {
    fn shape(op: &Op, inputs: &[Shape], graph: &Graph) -> ShapeResult {
        let whole = |s: &Shape| s.rows == Dim::Whole;
        let batch = |s: &Shape| s.rows == Dim::Batch;
        let column = |s: &Shape| s.cols == 1;
        if let Op::InBatchLse(b) | Op::InBatchQueryGrad(b) | Op::InBatchItemGrad(b) = op
            && b.column >= graph.inputs.columns.len()
        {
            return Err(format!(
                "there is no sparse column {}; name a column of the inputs",
                b.column
            ));
        }
        let fits = match (op, inputs) {
            (Op::Collect, [x]) if batch(x) => {
                return Ok(Shape { rows: Dim::Whole, cols: x.cols });
            }
            (Op::InBatchLse(_), [u, v, c @ ..]) => {
                let ok = batch(u) && whole(v) && u.cols == v.cols;
                (ok && c.len() <= 1 && c.iter().all(|c| whole(c) && column(c))).then_some(1)
            }
            (Op::InBatchQueryGrad(_), [g, u, lse, v, c @ ..]) => {
                let ok = [g, lse].iter().all(|s| batch(s) && column(s))
                    && batch(u)
                    && whole(v)
                    && u.cols == v.cols;
                (ok && c.len() <= 1 && c.iter().all(|c| whole(c) && column(c))).then_some(u.cols)
            }
            (Op::InBatchItemGrad(_), [v, u, lse, g, c @ ..]) => {
                let ok = [g, lse].iter().all(|s| whole(s) && column(s))
                    && batch(v)
                    && whole(u)
                    && u.cols == v.cols;
                (ok && c.len() <= 1 && c.iter().all(|c| batch(c) && column(c))).then_some(v.cols)
            }
            _ => None,
        };
        match fits {
            Some(cols) => Ok(Shape::batch(cols)),
            None => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
        match (op, inputs) {
            (Op::InBatchLse(spec), &[u, v, ref c @ ..]) => {
                log_sum_exp(spec, tile, u, v, c.first().copied(), &mut out);
            }
            (Op::InBatchQueryGrad(spec), &[g, u, lse, v, ref c @ ..]) => {
                let c = c.first().copied();
                gradient(spec, tile, u, v, &mut out, |i| {
                    let (lse, g) = (lse.at(i), g.at(i));
                    #[inline(always)]
                    move |j| (c.map_or(0.0, |c| c.at(j)), lse, g)
                });
            }
            (Op::InBatchItemGrad(spec), &[v, u, lse, g, ref c @ ..]) => {
                let c = c.first().copied();
                gradient(spec, tile, v, u, &mut out, |j| {
                    let c = c.map_or(0.0, |c| c.at(j));
                    #[inline(always)]
                    move |i| (c, lse.at(i), g.at(i))
                });
            }
            _ => reject(op),
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        let (Op::InBatchLse(spec), &[u, whole_v, ref correction @ ..]) =
            (&node.op, node.inputs.as_slice())
        else {
            return Err(cx.refuse_gradient(id));
        };
        let inputs = [&[g, u, id, whole_v], correction].concat();
        cx.push_gradient(id, u, Op::InBatchQueryGrad(*spec), &inputs)?;
        // Collecting does not change the elements of a value, so the gradient goes directly to the
        // input.
        let v = find_collected(cx, whole_v);
        if let Some(v) = v.filter(|&v| cx.needs_gradient(v)) {
            let mut inputs = vec![v];
            for value in [u, id, g] {
                inputs.push(cx.push(id, "whole", Op::Collect, &[value])?);
            }
            for &c in correction {
                match find_collected(cx, c) {
                    Some(c) if !cx.needs_gradient(c) => inputs.push(c),
                    _ => return Err(cx.refuse_gradient(id)),
                }
            }
            cx.push_gradient(id, v, Op::InBatchItemGrad(*spec), &inputs)?;
        }
        Ok(())
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        if *op == Op::Collect {
            return 0;
        }
        let rows = sizes.sizes.rows as u64;
        2 * rows * rows * sizes.inputs.iter().map(|s| s.cols as u64).max().unwrap_or(0)
    }
}

/// Returns the blocks into which the rows of the batch are divided, in order.
fn blocks(rows: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..rows.div_ceil(BLOCK)).map(move |b| b * BLOCK..rows.min((b + 1) * BLOCK))
}

/// The dot products of the rows of a tile with the rows of one block.
struct Products {
    /// The rows of the block as columns, packed for the product.
    panels: Vec<Panel>,
    /// The number of rows of the block for which the panels were made.
    packed: usize,
    values: Vec<f32>,
}

impl Products {
    /// Allocates memory for the products of the rows of a tile with any block.
    fn new(tile: &Tile<'_>) -> Self {
        let floats = tile.rows * BLOCK.min(tile.total_rows);
        Self { panels: Vec::new(), packed: 0, values: vec![0.0; floats] }
    }

    /// Returns `own·othersᵀ` for the rows of a tile and `n` rows of a block, row after row.
    fn compute(&mut self, rows: usize, own: View<'_>, others: View<'_>, n: usize) -> &mut [f32] {
        let d = own.cols;
        if self.packed != n {
            (self.panels, self.packed) = (Panel::list(d, n), n);
        }
        let turned = matmul::View::new(others.data, n, d, others.stride).transposed();
        self.panels.iter_mut().for_each(|panel| panel.fill(turned));
        let left = matmul::View::new(own.data, rows, d, own.stride);
        let right = Right::Packed(&self.panels);
        matmul::linear(left, right, Epilogue::default(), &mut self.values, n);
        &mut self.values
    }
}

/// Returns the rows of a view from the row `start` on.
fn rows_from(view: View<'_>, start: usize) -> View<'_> {
    View { data: &view.data[start * view.stride..], ..view }
}

/// Returns whether `i` and `j` are different rows with the same item.
#[inline(always)]
fn is_hit(ids: &[u32], i: usize, j: usize) -> bool {
    i != j && ids[i] == ids[j]
}

fn log_sum_exp(
    spec: &InBatch,
    tile: &Tile<'_>,
    u: View<'_>,
    v: View<'_>,
    correction: Option<View<'_>>,
    out: &mut ViewMut<'_>,
) {
    let ids = tile.inputs.columns[spec.column].inverse;
    let mut most = vec![f32::NEG_INFINITY; tile.rows];
    let mut sum = vec![0.0f32; tile.rows];
    let mut products = Products::new(tile);
    for block in blocks(tile.total_rows) {
        let n = block.len();
        let scores = products.compute(tile.rows, u, rows_from(v, block.start), n);
        simd!({
            for i in 0..tile.rows {
                let row = &mut scores[i * n..][..n];
                let at = tile.first_row + i;
                let mut best = most[i];
                for (j, s) in row.iter_mut().enumerate() {
                    let j = block.start + j;
                    let c = correction.map_or(0.0, |c| c.data[j * c.stride]);
                    let score = spec.by * *s - c;
                    *s = if is_hit(ids, at, j) { f32::NEG_INFINITY } else { score };
                    best = if *s > best { *s } else { best };
                }
                // The maximum is −∞ if all scores so far were left out.
                if best > f32::NEG_INFINITY {
                    let of_block = sum_by(row, row, |s, _| math::exp(s - best));
                    sum[i] = sum[i] * math::exp(most[i] - best) + of_block;
                    most[i] = best;
                }
            }
        });
    }
    for i in 0..tile.rows {
        out.data[i * out.stride] = most[i] + math::ln(sum[i]);
    }
}

/// Computes the gradient of the rows of a tile, `Σ_k share_ik · other_k`, where `other_k` are the
/// rows of the other tower. The factor `by` is part of the shares. `terms(i)` is called for a row i
/// of the tile and returns a function. For a row of the batch, this function returns three numbers:
/// the correction, the logarithm of the sum of exponentials, and the gradient.
#[inline(always)]
fn gradient<F: Fn(usize) -> (f32, f32, f32)>(
    spec: &InBatch,
    tile: &Tile<'_>,
    own: View<'_>,
    others: View<'_>,
    out: &mut ViewMut<'_>,
    terms: impl Fn(usize) -> F,
) {
    let ids = tile.inputs.columns[spec.column].inverse;
    let mut products = Products::new(tile);
    for block in blocks(tile.total_rows) {
        let n = block.len();
        let values = rows_from(others, block.start);
        let shares = products.compute(tile.rows, own, values, n);
        simd!({
            for i in 0..tile.rows {
                let (at, terms) = (tile.first_row + i, terms(i));
                for (k, s) in shares[i * n..][..n].iter_mut().enumerate() {
                    let k = block.start + k;
                    let (c, lse, g) = terms(k);
                    let share = spec.by * g * math::exp(spec.by * *s - c - lse);
                    *s = if is_hit(ids, at, k) { 0.0 } else { share };
                }
            }
        });
        let left = matmul::View::new(shares, tile.rows, n, n);
        let right = Right::Plain(matmul::View::new(values.data, n, others.cols, others.stride));
        let epilogue = Epilogue { accumulate: block.start > 0, ..Epilogue::default() };
        matmul::linear(left, right, epilogue, out.data, out.stride);
    }
}

fn find_collected(cx: &Backward, whole: NodeId) -> Option<NodeId> {
    match (&cx.node(whole).op, cx.node(whole).inputs.as_slice()) {
        (Op::Collect, &[x]) => Some(x),
        _ => None,
    }
}
