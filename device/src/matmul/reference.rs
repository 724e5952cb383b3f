//! The products by their definition, element by element. Tests compare the kernels with them, and
//! machines without kernels use them.

use super::View;
use super::product::{BLOCK, Epilogue, Right};
use super::scratch::OUTER_BLOCK;

/// Computes the sum of one block as a chain of fused multiplications and additions.
fn chain(range: std::ops::Range<usize>, pair: impl Fn(usize) -> (f32, f32)) -> f32 {
    range.map(pair).fold(0.0, |sum, (a, b)| a.mul_add(b, sum))
}

/// Adds the sums of the blocks, in order. If `start` is given, they are added to it.
fn sum(
    start: Option<f32>,
    inner: usize,
    block: usize,
    pair: impl Fn(usize) -> (f32, f32) + Copy,
) -> f32 {
    let mut total = start;
    let mut begin = 0;
    loop {
        let end = inner.min(begin + block);
        let part = chain(begin..end, pair);
        let sum = total.map_or(part, |total| total + part);
        if end == inner {
            return sum;
        }
        (total, begin) = (Some(sum), end);
    }
}

/// Computes [`super::linear`] by its definition. The caller has checked the shapes.
pub(super) fn linear(
    x: View<'_>,
    w: Right<'_>,
    (m, k, n): (usize, usize, usize),
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    for i in 0..m {
        for j in 0..n {
            let out = &mut out[i * out_row + j];
            let start = epilogue.accumulate.then_some(*out);
            let pair = |p| (x.values[i * x.row_stride + p * x.column_stride], w.at(p, j));
            let mut value = sum(start, k, BLOCK, pair);
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
            *out = sum(start, rows, OUTER_BLOCK, pair);
        }
    }
}
