//! The products by their definition, element by element. Tests compare the kernels with them, and
//! machines without kernels use them.

use super::View;
use super::product::{BLOCK, Begun, Epilogue, Right};
use super::scratch::OUTER_BLOCK;

/// Adds the sums of the blocks, in order. If `start` is given, they are added to it. The first
/// `begun` elements are left out: `chain` is the sum of those that belong to the first block.
fn sum(
    start: Option<f32>,
    (begun, mut chain): (usize, f32),
    inner: usize,
    block: usize,
    pair: impl Fn(usize) -> (f32, f32) + Copy,
) -> f32 {
    let mut total = start;
    let mut begin = begun;
    loop {
        let end = inner.min((begin / block + 1) * block);
        let part = (begin..end).map(pair).fold(chain, |sum, (a, b)| a.mul_add(b, sum));
        let sum = total.map_or(part, |total| total + part);
        if end == inner {
            return sum;
        }
        (total, begin, chain) = (Some(sum), end, 0.0);
    }
}

/// Computes [`super::linear_from_at`] by its definition. The caller has checked the shapes.
pub(super) fn linear(
    (begun, x): (Begun<'_>, View<'_>),
    w: Right<'_>,
    (m, k, n): (usize, usize, usize),
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    let first = begun.columns;
    for i in 0..m {
        for j in 0..n {
            let out = &mut out[i * out_row + j];
            let start = match begun.has_blocks() {
                true => Some(begun.sums[j]),
                false => epilogue.accumulate.then_some(*out),
            };
            let chain = begun.chain.get(j).copied().unwrap_or(0.0);
            let pair = |p| (x.values[i * x.row_stride + (p - first) * x.column_stride], w.at(p, j));
            let mut value = sum(start, (first, chain), k, BLOCK, pair);
            if let Some(bias) = epilogue.bias {
                value += bias[j];
            }
            *out = if epilogue.relu && value < 0.0 { 0.0 } else { value };
        }
    }
}

/// Computes [`super::outer_product`] by its definition. The caller has checked the shapes.
pub(super) fn outer_product(
    x: View<'_>,
    g: View<'_>,
    (m, n, rows): (usize, usize, usize),
    accumulate: bool,
    out: &mut [f32],
    out_row: usize,
) {
    for i in 0..m {
        for j in 0..n {
            let out = &mut out[i * out_row + j];
            let start = accumulate.then_some(*out);
            let pair = |p: usize| {
                (x.values[p * x.row_stride + i * x.column_stride], g.values[p * g.row_stride + j])
            };
            *out = sum(start, (0, 0.0), rows, OUTER_BLOCK, pair);
        }
    }
}
