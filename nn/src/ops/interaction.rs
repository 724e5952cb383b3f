//! Interactions of fields: factorisation machine and pairwise dot products. A row holds F vectors of
//! `dim` floats, one after another.

use super::kernel::{Tile, View, ViewMut, dot, simd};
use crate::autodiff::Backward;
use crate::error::Result;
use crate::graph::{NodeId, Shape};
use crate::op::Op;

/// Floats of a vector handled at a time: one 512-bit register.
const WIDTH: usize = 16;
/// Fields handled at a time: independent sums, so that none waits for the one before.
const BLOCK: usize = 4;
/// Floats kept on the stack: a row transposed, or the gradients of all pairs. Larger ones take the
/// slower way.
const SCRATCH: usize = 4096;

pub(super) fn shape(op: &Op, inputs: &[Shape]) -> std::result::Result<Shape, String> {
    let (Op::FmInteraction { dim }
    | Op::FmInteractionGrad { dim }
    | Op::DotInteraction { dim }
    | Op::DotInteractionGrad { dim }) = *op
    else {
        return Err(format!("{} is no interaction", op.name()));
    };
    let fields = |x: &Shape| match x.cols.checked_rem(dim) {
        Some(0) if x.cols / dim >= 2 => Ok(x.cols / dim),
        _ => Err(format!("{x} is not two or more fields of {dim} floats")),
    };
    let pairs = |x: &Shape| fields(x).map(|f| f * (f - 1) / 2);
    match (op, inputs) {
        (Op::FmInteraction { .. }, [x]) => fields(x).map(|_| Shape { rows: x.rows, cols: 1 }),
        (Op::DotInteraction { .. }, [x]) => pairs(x).map(|cols| Shape { rows: x.rows, cols }),
        (Op::FmInteractionGrad { .. }, [g, x]) if g.cols == 1 && g.rows == x.rows => Ok(*x),
        (Op::DotInteractionGrad { .. }, [g, x]) if g.rows == x.rows && pairs(x)? == g.cols => {
            Ok(*x)
        }
        _ => Err(format!("{} cannot take {}", op.name(), super::list(inputs))),
    }
}

pub(super) fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
    let rows = tile.rows;
    match (op, inputs) {
        (&Op::FmInteraction { dim }, &[x]) => simd!({
            for i in 0..rows {
                out.data[i * out.stride] = fm(x.row(i), dim);
            }
        }),
        (&Op::FmInteractionGrad { dim }, &[g, x]) => simd!({
            for i in 0..rows {
                fm_grad(g.at(i), x.row(i), dim, out.row(i));
            }
        }),
        (&Op::DotInteraction { dim }, &[x]) => {
            let lanes = (x.cols / dim).next_multiple_of(WIDTH);
            let mut scratch = [0.0f32; SCRATCH];
            let blocked = lanes * dim <= SCRATCH;
            simd!({
                for i in 0..rows {
                    let (x, out) = (x.row(i), out.row(i));
                    if blocked {
                        dots_blocked(x, dim, lanes, &mut scratch, out)
                    } else {
                        dots(x, dim, out)
                    }
                }
            })
        }
        (&Op::DotInteractionGrad { dim }, &[g, x]) => {
            let fields = x.cols / dim;
            let mut scratch = [0.0f32; SCRATCH];
            let blocked = fields * fields <= SCRATCH;
            simd!({
                for i in 0..rows {
                    let (g, x, out) = (g.row(i), x.row(i), out.row(i));
                    if blocked {
                        dots_grad_blocked(g, x, dim, &mut scratch, out);
                    } else {
                        dots_grad(g, x, dim, out);
                    }
                }
            })
        }
        _ => super::unfit(op),
    }
}

/// The part `start .. start + WIDTH` of a vector, zero beyond its end.
#[inline(always)]
fn part(vector: &[f32], start: usize) -> [f32; WIDTH] {
    let rest = &vector[start..];
    match rest.first_chunk::<WIDTH>() {
        Some(full) => *full,
        None => {
            let mut part = [0.0; WIDTH];
            for (p, &v) in part.iter_mut().zip(rest) {
                *p = v;
            }
            part
        }
    }
}

#[inline(always)]
fn field_sum(x: &[f32], dim: usize, start: usize) -> [f32; WIDTH] {
    let mut sum = [0.0; WIDTH];
    for vector in x.chunks_exact(dim) {
        let v = part(vector, start);
        for k in 0..WIDTH {
            sum[k] += v[k];
        }
    }
    sum
}

#[inline(always)]
fn fm(x: &[f32], dim: usize) -> f32 {
    let mut total = [0.0; WIDTH];
    for start in (0..dim).step_by(WIDTH) {
        let mut squares = [0.0; WIDTH];
        let mut sum = [0.0; WIDTH];
        for vector in x.chunks_exact(dim) {
            let v = part(vector, start);
            for k in 0..WIDTH {
                sum[k] += v[k];
                squares[k] += v[k] * v[k];
            }
        }
        for k in 0..WIDTH {
            total[k] += sum[k] * sum[k] - squares[k];
        }
    }
    0.5 * super::kernel::sum_by(&total, &total, |t, _| t)
}

#[inline(always)]
fn fm_grad(g: f32, x: &[f32], dim: usize, out: &mut [f32]) {
    for start in (0..dim).step_by(WIDTH) {
        let sum = field_sum(x, dim, start);
        for (vector, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
            match (vector[start..].first_chunk(), out[start..].first_chunk_mut()) {
                (Some(v), Some(o)) => {
                    let (v, o): (&[f32; WIDTH], &mut [f32; WIDTH]) = (v, o);
                    for k in 0..WIDTH {
                        o[k] = g * (sum[k] - v[k]);
                    }
                }
                _ => {
                    for ((o, &v), &s) in out[start..].iter_mut().zip(&vector[start..]).zip(&sum) {
                        *o = g * (s - v);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn dots(x: &[f32], dim: usize, out: &mut [f32]) {
    let mut next = 0;
    for (i, a) in x.chunks_exact(dim).enumerate() {
        for b in x.chunks_exact(dim).take(i) {
            out[next] = dot(a, b);
            next += 1;
        }
    }
}

/// `4 × 16` pairs at a time: with the vectors transposed, the products of a field with sixteen others
/// are `dim` multiplications of a register by a number.
#[inline(always)]
fn dots_blocked(x: &[f32], dim: usize, lanes: usize, scratch: &mut [f32], out: &mut [f32]) {
    let fields = x.len() / dim;
    for (j, vector) in x.chunks_exact(dim).enumerate() {
        for (line, &v) in scratch.chunks_exact_mut(lanes).zip(vector) {
            line[j] = v;
        }
    }
    for first in (0..fields).step_by(BLOCK) {
        let last = (first + BLOCK).min(fields) - 1;
        // Beyond the last field the last stands in; its sums are not used.
        let vectors: [&[f32]; BLOCK] =
            std::array::from_fn(|q| &x[(first + q).min(last) * dim..][..dim]);
        for start in (0..last).step_by(WIDTH) {
            let mut sums = [[0.0; WIDTH]; BLOCK];
            for (k, line) in scratch.chunks_exact(lanes).take(dim).enumerate() {
                let line = part(line, start);
                for q in 0..BLOCK {
                    let a = vectors[q][k];
                    for (sum, &b) in sums[q].iter_mut().zip(&line) {
                        *sum += a * b;
                    }
                }
            }
            for (i, sums) in (first..=last).zip(&sums) {
                if let Some(width) = i.checked_sub(start) {
                    let width = width.min(WIDTH);
                    let from = i * i.saturating_sub(1) / 2 + start;
                    for (o, &s) in out[from..from + width].iter_mut().zip(sums) {
                        *o = s;
                    }
                }
            }
        }
    }
}

/// As [`dots_grad`], four fields at a time, from the gradients of all pairs as a full matrix with zeros
/// on its diagonal.
#[inline(always)]
fn dots_grad_blocked(g: &[f32], x: &[f32], dim: usize, scratch: &mut [f32], out: &mut [f32]) {
    let fields = x.len() / dim;
    let mut next = 0;
    for i in 0..fields {
        scratch[i * fields + i] = 0.0;
        for j in 0..i {
            scratch[i * fields + j] = g[next];
            scratch[j * fields + i] = g[next];
            next += 1;
        }
    }
    for first in (0..fields).step_by(BLOCK) {
        let last = (first + BLOCK).min(fields) - 1;
        let lines: [&[f32]; BLOCK] =
            std::array::from_fn(|q| &scratch[(first + q).min(last) * fields..][..fields]);
        for start in (0..dim).step_by(WIDTH) {
            let mut sums = [[0.0; WIDTH]; BLOCK];
            for (j, vector) in x.chunks_exact(dim).enumerate() {
                let vector = part(vector, start);
                for q in 0..BLOCK {
                    let g = lines[q][j];
                    for (sum, &v) in sums[q].iter_mut().zip(&vector) {
                        *sum += g * v;
                    }
                }
            }
            for (i, sums) in (first..=last).zip(&sums) {
                for (o, &s) in out[i * dim..][start..dim].iter_mut().zip(sums) {
                    *o = s;
                }
            }
        }
    }
}

/// `dx_i = Σ_{j≠i} g_ij · x_j`.
#[inline(always)]
fn dots_grad(g: &[f32], x: &[f32], dim: usize, out: &mut [f32]) {
    for (i, out) in out.chunks_exact_mut(dim).enumerate() {
        let row = i * i.saturating_sub(1) / 2;
        for start in (0..dim).step_by(WIDTH) {
            let mut sums = [0.0; WIDTH];
            for (j, vector) in x.chunks_exact(dim).enumerate() {
                if j == i {
                    continue;
                }
                let g = if j < i { g[row + j] } else { g[j * (j - 1) / 2 + i] };
                let v = part(vector, start);
                for k in 0..WIDTH {
                    sums[k] += g * v[k];
                }
            }
            for (o, &s) in out[start..].iter_mut().zip(&sums) {
                *o = s;
            }
        }
    }
}

pub(super) fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
    let node = cx.node(id).clone();
    let &[x] = node.inputs.as_slice() else { return Err(cx.no_rule(id)) };
    if !cx.wants(x) {
        return Ok(());
    }
    let op = match node.op {
        Op::FmInteraction { dim } => Op::FmInteractionGrad { dim },
        Op::DotInteraction { dim } => Op::DotInteractionGrad { dim },
        _ => return Err(cx.no_rule(id)),
    };
    let gx = cx.push(id, "grad", op, &[g, x])?;
    cx.give(x, gx);
    Ok(())
}
