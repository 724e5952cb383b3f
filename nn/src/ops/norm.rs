//! Batch norm and layer norm.
//!
//! Batch norm is four operations: statistics over the batch, normalisation by given statistics,
//! the sums that its gradient needs, and the gradient. Statistics are merged from tile to tile and
//! from lane to lane by the pairwise update of Chan, Golub & LeVeque (1979), so that a column far
//! from zero keeps its variance. Inference normalises by the running statistics with the same
//! operation.

use super::kernel::{Tile, View, ViewMut, add, simd, sum_by};
use crate::autodiff::Backward;
use crate::error::Result;
use crate::graph::{NodeId, Shape};
use crate::op::Op;

/// Columns worked on at a time: their factors stay in first-level cache while rows stream by.
const BLOCK: usize = 1024;

pub(super) fn shape(op: &Op, inputs: &[Shape]) -> std::result::Result<Shape, String> {
    let line = |s: &Shape, n: usize| *s == Shape::constant(1, n);
    match (op, inputs) {
        (Op::BatchNormStats, [x]) if x.is_tiled() => Ok(Shape::constant(1, 2 * x.cols)),
        (Op::BatchNorm { .. }, [x, stats, scale, shift])
            if line(stats, 2 * x.cols) && line(scale, x.cols) && line(shift, x.cols) =>
        {
            Ok(*x)
        }
        (Op::BatchNormReduce { .. }, [g, x, stats]) if g == x && line(stats, 2 * x.cols) => {
            Ok(Shape::constant(1, 2 * x.cols))
        }
        (Op::BatchNormGrad { .. }, [g, x, stats, scale, reduced])
            if g == x
                && line(stats, 2 * x.cols)
                && line(scale, x.cols)
                && line(reduced, 2 * x.cols) =>
        {
            Ok(*x)
        }
        (Op::BatchNormFixedGrad { .. }, [g, stats, scale])
            if line(stats, 2 * g.cols) && line(scale, g.cols) =>
        {
            Ok(*g)
        }
        (Op::BatchNormRunning { .. }, [running, stats])
            if line(running, running.cols) && line(stats, 2 * running.cols) =>
        {
            Ok(*running)
        }
        (Op::LayerNorm { .. }, [x, scale, shift]) if line(scale, x.cols) && line(shift, x.cols) => {
            Ok(*x)
        }
        (Op::LayerNormReduce { .. }, [g, x]) if g == x => Ok(Shape::constant(1, 2 * x.cols)),
        (Op::LayerNormGrad { .. }, [g, x, scale]) if g == x && line(scale, x.cols) => Ok(*x),
        _ => Err(format!("{} cannot take {}", op.name(), super::list(inputs))),
    }
}

pub(super) fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
    let rows = tile.rows;
    match (op, inputs) {
        (Op::BatchNorm { eps }, &[x, stats, scale, shift]) => {
            batch_norm(*eps, rows, x, stats, scale, shift, &mut out);
        }
        (Op::BatchNormGrad { eps }, &[g, x, stats, scale, reduced]) => {
            let sums = Some((x, reduced, 1.0 / tile.total_rows as f32));
            batch_norm_grad(*eps, rows, g, stats, scale, sums, &mut out);
        }
        (Op::BatchNormFixedGrad { eps }, &[g, stats, scale]) => {
            batch_norm_grad(*eps, rows, g, stats, scale, None, &mut out);
        }
        (Op::BatchNormRunning { momentum, variance }, &[running, stats]) => {
            let n = running.cols;
            if tile.total_rows == 0 {
                // Statistics of nothing say nothing.
                return out.row(0).copy_from_slice(running.row(0));
            }
            // The unbiased estimate; of one row there is none, and the biased one (0) stands in.
            let count = tile.total_rows as f32;
            let unbiased = if count > 1.0 { count / (count - 1.0) } else { 1.0 };
            let (from, factor) = if *variance { (n, unbiased) } else { (0, 1.0) };
            let batch = &stats.row(0)[from..from + n];
            for ((o, &old), &new) in out.row(0).iter_mut().zip(running.row(0)).zip(batch) {
                *o = (1.0 - momentum) * old + momentum * factor * new;
            }
        }
        (Op::LayerNorm { eps }, &[x, scale, shift]) => {
            layer_norm(*eps, rows, x, scale, shift, &mut out);
        }
        (Op::LayerNormGrad { eps }, &[g, x, scale]) => {
            layer_norm_grad(*eps, rows, g, x, scale, &mut out);
        }
        (Op::LayerNormReduce { eps }, &[g, x]) => {
            layer_norm_reduce(*eps, rows, g, x, out.data, true)
        }
        _ => super::unfit(op),
    }
}

pub(super) fn accumulate(
    op: &Op,
    tile: &Tile<'_>,
    rows_before: usize,
    inputs: &[View<'_>],
    partial: &mut [f32],
) {
    let first = rows_before == 0;
    match (op, inputs) {
        (Op::BatchNormStats, &[x]) => tile_stats(tile.rows, rows_before, x, partial),
        (Op::BatchNormReduce { eps }, &[g, x, stats]) => {
            batch_norm_reduce(*eps, tile.rows, g, x, stats, partial, first);
        }
        (Op::LayerNormReduce { eps }, &[g, x]) => {
            layer_norm_reduce(*eps, tile.rows, g, x, partial, first);
        }
        _ => super::unfit(op),
    }
}

// Batch norm.

/// Floats of a partial of statistics: mean and squared deviations so far, and those of the tile.
pub(super) fn stats_partial_len(cols: usize) -> usize {
    4 * cols
}

fn tile_stats(rows: usize, rows_before: usize, x: View<'_>, partial: &mut [f32]) {
    let n = x.cols;
    let (so_far, of_tile) = partial.split_at_mut(2 * n);
    let (mean, squares) = of_tile.split_at_mut(n);
    let (mean, squares) = (&mut mean[..n], &mut squares[..n]);
    simd!({
        mean.fill(0.0);
        squares.fill(0.0);
        for i in 0..rows {
            add(mean, x.row(i));
        }
        let by = 1.0 / rows as f32;
        mean.iter_mut().for_each(|m| *m *= by);
        for i in 0..rows {
            add_squares(squares, mean, x.row(i));
        }
    });
    if rows_before == 0 {
        so_far.copy_from_slice(of_tile);
    } else {
        merge_stats(so_far, rows_before, of_tile, rows);
    }
}

#[inline(always)]
fn add_squares(squares: &mut [f32], mean: &[f32], x: &[f32]) {
    for ((s, &m), &x) in squares.iter_mut().zip(mean).zip(x) {
        *s += (x - m) * (x - m);
    }
}

/// Merges mean and squared deviations of `rows` further rows into those of `rows_before`.
fn merge_stats(so_far: &mut [f32], rows_before: usize, more: &[f32], rows: usize) {
    let n = so_far.len() / 2;
    let (mean, squares) = so_far.split_at_mut(n);
    let (more_mean, more_squares) = more.split_at(n);
    let share = rows as f32 / (rows_before + rows) as f32;
    let weight = rows_before as f32 * share;
    for j in 0..n {
        let delta = more_mean[j] - mean[j];
        mean[j] += delta * share;
        squares[j] += more_squares[j] + delta * delta * weight;
    }
}

/// Statistics of the batch from those of its lanes, in lane order.
pub(super) fn combine_stats<'a>(
    partials: impl Iterator<Item = (usize, &'a [f32])>,
    out: &mut [f32],
) {
    let mut total = 0;
    for (rows, partial) in partials {
        let partial = &partial[..out.len()];
        if total == 0 {
            out.copy_from_slice(partial);
        } else {
            merge_stats(out, total, partial, rows);
        }
        total += rows;
    }
    let n = out.len() / 2;
    let by = 1.0 / total as f32;
    out[n..].iter_mut().for_each(|v| *v *= by);
}

/// Calls `body(start, width)` for each block of columns.
#[inline(always)]
fn blocks(cols: usize, mut body: impl FnMut(usize, usize)) {
    for start in (0..cols).step_by(BLOCK) {
        body(start, BLOCK.min(cols - start));
    }
}

fn batch_norm(
    eps: f32,
    rows: usize,
    x: View<'_>,
    stats: View<'_>,
    scale: View<'_>,
    shift: View<'_>,
    out: &mut ViewMut<'_>,
) {
    let n = x.cols;
    let (mean, var) = stats.row(0).split_at(n);
    let (scale, shift) = (scale.row(0), shift.row(0));
    simd!({
        blocks(n, |start, width| {
            let (mut a, mut b) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
            for j in 0..width {
                a[j] = scale[start + j] / (var[start + j] + eps).sqrt();
                b[j] = shift[start + j] - mean[start + j] * a[j];
            }
            for i in 0..rows {
                let x = &x.row(i)[start..start + width];
                let out = &mut out.row(i)[start..start + width];
                for (((o, &x), &a), &b) in out.iter_mut().zip(x).zip(&a).zip(&b) {
                    *o = a * x + b;
                }
            }
        })
    })
}

fn batch_norm_reduce(
    eps: f32,
    rows: usize,
    g: View<'_>,
    x: View<'_>,
    stats: View<'_>,
    partial: &mut [f32],
    first: bool,
) {
    let n = x.cols;
    let (mean, var) = stats.row(0).split_at(n);
    if first {
        partial[..2 * n].fill(0.0);
    }
    let (to_scale, to_shift) = partial[..2 * n].split_at_mut(n);
    simd!({
        blocks(n, |start, width| {
            let range = start..start + width;
            let (mut m, mut rstd) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
            for j in 0..width {
                m[j] = mean[start + j];
                rstd[j] = 1.0 / (var[start + j] + eps).sqrt();
            }
            for i in 0..rows {
                scale_and_shift_sums(
                    &mut to_scale[range.clone()],
                    &mut to_shift[range.clone()],
                    &g.row(i)[range.clone()],
                    &x.row(i)[range.clone()],
                    &m,
                    &rstd,
                );
            }
        })
    })
}

#[inline(always)]
fn scale_and_shift_sums(
    to_scale: &mut [f32],
    to_shift: &mut [f32],
    g: &[f32],
    x: &[f32],
    mean: &[f32],
    rstd: &[f32],
) {
    for (((((scale, shift), &g), &x), &m), &r) in
        to_scale.iter_mut().zip(to_shift).zip(g).zip(x).zip(mean).zip(rstd)
    {
        *scale += g * ((x - m) * r);
        *shift += g;
    }
}

/// `scale/σ · (g − mean(g) − x̂ · mean(g·x̂))`, or its first term where the statistics are given.
fn batch_norm_grad(
    eps: f32,
    rows: usize,
    g: View<'_>,
    stats: View<'_>,
    scale: View<'_>,
    sums: Option<(View<'_>, View<'_>, f32)>,
    out: &mut ViewMut<'_>,
) {
    let n = g.cols;
    let (mean, var) = stats.row(0).split_at(n);
    let scale = scale.row(0);
    simd!({
        blocks(n, |start, width| {
            let range = start..start + width;
            let (mut a, mut b) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
            let (mut c, mut m) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
            for j in 0..width {
                let rstd = 1.0 / (var[start + j] + eps).sqrt();
                a[j] = scale[start + j] * rstd;
                m[j] = mean[start + j];
                if let Some((_, reduced, by)) = sums {
                    let reduced = reduced.row(0);
                    b[j] = -a[j] * rstd * by * reduced[start + j];
                    c[j] = -a[j] * by * reduced[n + start + j];
                }
            }
            for i in 0..rows {
                let g = &g.row(i)[range.clone()];
                let out = &mut out.row(i)[range.clone()];
                match sums {
                    Some((x, _, _)) => {
                        let x = &x.row(i)[range.clone()];
                        for ((((((o, &g), &x), &a), &b), &c), &m) in
                            out.iter_mut().zip(g).zip(x).zip(&a).zip(&b).zip(&c).zip(&m)
                        {
                            *o = a * g + b * (x - m) + c;
                        }
                    }
                    None => {
                        for ((o, &g), &a) in out.iter_mut().zip(g).zip(&a) {
                            *o = a * g;
                        }
                    }
                }
            }
        })
    })
}

// Layer norm.

/// Mean and reciprocal standard deviation of a row.
#[inline(always)]
fn row_stats(eps: f32, x: &[f32]) -> (f32, f32) {
    let by = 1.0 / x.len() as f32;
    let mean = by * sum_by(x, x, |x, _| x);
    let var = by * sum_by(x, x, |x, _| (x - mean) * (x - mean));
    (mean, 1.0 / (var + eps).sqrt())
}

fn layer_norm(
    eps: f32,
    rows: usize,
    x: View<'_>,
    scale: View<'_>,
    shift: View<'_>,
    out: &mut ViewMut<'_>,
) {
    let (scale, shift) = (scale.row(0), shift.row(0));
    simd!({
        for i in 0..rows {
            let x = x.row(i);
            let (mean, rstd) = row_stats(eps, x);
            for (((o, &x), &a), &b) in out.row(i).iter_mut().zip(x).zip(scale).zip(shift) {
                *o = (x - mean) * rstd * a + b;
            }
        }
    })
}

fn layer_norm_reduce(
    eps: f32,
    rows: usize,
    g: View<'_>,
    x: View<'_>,
    partial: &mut [f32],
    first: bool,
) {
    let n = x.cols;
    if first {
        partial[..2 * n].fill(0.0);
    }
    let (to_scale, to_shift) = partial[..2 * n].split_at_mut(n);
    simd!({
        for i in 0..rows {
            let (g, x) = (g.row(i), x.row(i));
            let (mean, rstd) = row_stats(eps, x);
            for (((scale, shift), &g), &x) in
                to_scale.iter_mut().zip(to_shift.iter_mut()).zip(g).zip(x)
            {
                *scale += g * ((x - mean) * rstd);
                *shift += g;
            }
        }
    })
}

fn layer_norm_grad(
    eps: f32,
    rows: usize,
    g: View<'_>,
    x: View<'_>,
    scale: View<'_>,
    out: &mut ViewMut<'_>,
) {
    let scale = scale.row(0);
    let by = 1.0 / x.cols as f32;
    simd!({
        for i in 0..rows {
            let (g, x, out) = (g.row(i), x.row(i), out.row(i));
            let (mean, rstd) = row_stats(eps, x);
            for ((o, &g), &a) in out.iter_mut().zip(g).zip(scale) {
                *o = g * a;
            }
            let mean_g = by * sum_by(out, out, |g, _| g);
            let mean_gx = by * sum_by(out, x, |g, x| g * ((x - mean) * rstd));
            for (o, &x) in out.iter_mut().zip(x) {
                *o = rstd * (*o - mean_g - (x - mean) * rstd * mean_gx);
            }
        }
    })
}

pub(super) fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
    let node = cx.node(id).clone();
    match (&node.op, node.inputs.as_slice()) {
        (&Op::BatchNorm { eps }, &[x, stats, scale, shift]) => {
            let n = cx.shape(x).cols;
            let reduced = cx.push(id, "grad", Op::BatchNormReduce { eps }, &[g, x, stats])?;
            for (param, start) in [(scale, 0), (shift, n)] {
                if cx.wants(param) {
                    let gp = cx.push(id, "grad", Op::Slice { start, len: n }, &[reduced])?;
                    cx.give(param, gp);
                }
            }
            let of_batch = cx.node(stats).op == Op::BatchNormStats && cx.node(stats).inputs == [x];
            if of_batch && cx.wants(x) {
                let inputs = [g, x, stats, scale, reduced];
                let gx = cx.push(id, "grad", Op::BatchNormGrad { eps }, &inputs)?;
                cx.give(x, gx);
            } else if !of_batch && cx.wants(stats) {
                return Err(cx.no_rule(id));
            } else if cx.wants(x) {
                let gx = cx.push(id, "grad", Op::BatchNormFixedGrad { eps }, &[g, stats, scale])?;
                cx.give(x, gx);
            }
        }
        (&Op::LayerNorm { eps }, &[x, scale, shift]) => {
            if cx.wants(scale) || cx.wants(shift) {
                let n = cx.shape(x).cols;
                let reduced = cx.push(id, "grad", Op::LayerNormReduce { eps }, &[g, x])?;
                for (param, start) in [(scale, 0), (shift, n)] {
                    if cx.wants(param) {
                        let gp = cx.push(id, "grad", Op::Slice { start, len: n }, &[reduced])?;
                        cx.give(param, gp);
                    }
                }
            }
            if cx.wants(x) {
                let gx = cx.push(id, "grad", Op::LayerNormGrad { eps }, &[g, x, scale])?;
                cx.give(x, gx);
            }
        }
        _ => return Err(cx.no_rule(id)),
    }
    Ok(())
}
