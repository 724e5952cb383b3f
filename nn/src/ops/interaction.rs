//! Interactions of fields: factorisation machine and pairwise dot products. A row holds F vectors of
//! `dim` floats, one after another.

use super::kernel::{Tile, View, ViewMut, dot, simd};
use crate::autodiff::Backward;
use crate::error::Result;
use crate::graph::{NodeId, Shape};
use crate::op::Op;

/// Floats of a vector handled at a time: one 512-bit register.
const WIDTH: usize = 16;
/// Floats of a row that are transposed on the stack; wider rows take the slower way.
const TRANSPOSED: usize = 4096;

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
            if lanes * dim <= TRANSPOSED {
                let mut scratch = [0.0f32; TRANSPOSED];
                simd!({
                    for i in 0..rows {
                        dots_transposed(x.row(i), dim, lanes, &mut scratch, out.row(i));
                    }
                })
            } else {
                simd!({
                    for i in 0..rows {
                        dots(x.row(i), dim, out.row(i));
                    }
                })
            }
        }
        (&Op::DotInteractionGrad { dim }, &[g, x]) => simd!({
            for i in 0..rows {
                dots_grad(g.row(i), x.row(i), dim, out.row(i));
            }
        }),
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

/// Sixteen pairs at a time: with the vectors transposed, a field's products with sixteen others are
/// `dim` multiplications of a register by a number.
#[inline(always)]
fn dots_transposed(x: &[f32], dim: usize, lanes: usize, scratch: &mut [f32], out: &mut [f32]) {
    for (j, vector) in x.chunks_exact(dim).enumerate() {
        for (k, &v) in vector.iter().enumerate() {
            scratch[k * lanes + j] = v;
        }
    }
    let mut next = 0;
    for (i, a) in x.chunks_exact(dim).enumerate().skip(1) {
        for start in (0..i).step_by(WIDTH) {
            let mut sums = [0.0; WIDTH];
            for (&a, line) in a.iter().zip(scratch.chunks_exact(lanes)) {
                let line = part(line, start);
                for k in 0..WIDTH {
                    sums[k] += a * line[k];
                }
            }
            let width = WIDTH.min(i - start);
            for (o, &s) in out[next..next + width].iter_mut().zip(&sums) {
                *o = s;
            }
            next += width;
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
