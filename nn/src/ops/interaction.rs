//! Interactions of fields: the factorisation machine and the pairwise dot products. A row consists
//! of F vectors of `dim` floats, one after another.

use super::kernel::dot;
use super::*;
use crate::onnx::emit::Emitter;
use crate::onnx::proto::AttributeProto;

/// The number of floats of a vector that are processed at a time: one 512-bit register.
const WIDTH: usize = 16;
/// The number of fields that are processed at a time. Their sums do not depend on each other, so
/// the processor can compute them in parallel.
const BLOCK: usize = 4;
/// The number of floats that fit on the stack, for a transposed row or for the gradients of all
/// pairs. For larger rows, slower code is used.
const SCRATCH: usize = 4096;

/// The interactions of fields, and their gradients.
pub(super) struct Interaction;

impl OpGroup for Interaction {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        let (Op::FmInteraction { dim }
        | Op::FmInteractionGrad { dim }
        | Op::DotInteraction { dim }
        | Op::DotInteractionGrad { dim }) = *op
        else {
            return Err(format!(
                "{} is not an interaction; use an operation that is one",
                op.name()
            ));
        };
        let fields = |x: &Shape| match x.cols.checked_rem(dim) {
            Some(0) if x.cols / dim >= 2 => Ok(x.cols / dim),
            _ => Err(format!(
                "{x} is not two or more fields of {dim} floats; give at least two fields, or \
                 change `dim`"
            )),
        };
        let pairs = |x: &Shape| fields(x).map(|f| f * (f - 1) / 2);
        match (op, inputs) {
            (Op::FmInteraction { .. }, [x]) => fields(x).map(|_| Shape { rows: x.rows, cols: 1 }),
            (Op::DotInteraction { .. }, [x]) => pairs(x).map(|cols| Shape { rows: x.rows, cols }),
            (Op::FmInteractionGrad { .. }, [g, x]) if g.cols == 1 && g.rows == x.rows => Ok(*x),
            (Op::DotInteractionGrad { .. }, [g, x]) if g.rows == x.rows && pairs(x)? == g.cols => {
                Ok(*x)
            }
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
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
            (&Op::DotInteraction { dim }, &[x]) => dots_from(rows, x, dim, 0, &mut out),
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
            _ => reject(op),
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        let &[x] = node.inputs.as_slice() else { return Err(cx.refuse_gradient(id)) };
        let op = match node.op {
            Op::FmInteraction { dim } => Op::FmInteractionGrad { dim },
            Op::DotInteraction { dim } => Op::DotInteractionGrad { dim },
            _ => return Err(cx.refuse_gradient(id)),
        };
        cx.push_gradient(id, x, op, &[g, x])
    }

    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::FmInteraction { dim }
            | Op::FmInteractionGrad { dim }
            | Op::DotInteraction { dim }
            | Op::DotInteractionGrad { dim } => write!(f, "[{dim}]"),
            _ => Ok(()),
        }
    }

    fn chaining(_op: &Op) -> Chaining {
        Chaining::Rows
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        let pairs = |cols: u64, dim: usize| {
            let fields = cols / dim.max(1) as u64;
            fields * fields.saturating_sub(1) / 2
        };
        match op {
            Op::FmInteraction { .. } => 4 * sizes.input(0),
            Op::FmInteractionGrad { .. } => 3 * sizes.out(),
            Op::DotInteraction { dim } => 2 * sizes.out() * *dim as u64,
            Op::DotInteractionGrad { dim } => {
                let rows = sizes.sizes.rows_of(sizes.output.rows);
                4 * pairs(sizes.cols(1), *dim) * *dim as u64 * rows
            }
            _ => 0,
        }
    }

    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        Ok(Some(match (op, node.inputs) {
            (Op::FmInteraction { dim }, [x]) => fm_to_onnx(writer, x, *dim, node.cols(0)),
            (Op::DotInteraction { dim }, [x]) => dots_to_onnx(writer, x, *dim, node.cols(0)),
            _ => return Ok(None),
        }))
    }
}

/// Returns the part `start .. start + WIDTH` of a vector, padded with zeros.
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
    fm_after(x, dim, |_| ([0.0; WIDTH], [0.0; WIDTH]))
}

/// Computes the interactions of a row whose first fields have the state `state`, which
/// [`fm_state`] has written. `x` has the other fields.
#[inline(always)]
pub(super) fn fm_rest(x: &[f32], dim: usize, state: &[f32]) -> f32 {
    let (sums, squares) = state.split_at(dim);
    fm_after(x, dim, |start| (part(sums, start), part(squares, start)))
}

/// Writes the sums of the vectors, and then the sums of their squares.
pub(super) fn fm_state(x: &[f32], dim: usize, out: &mut [f32]) {
    out.fill(0.0);
    let (sums, squares) = out.split_at_mut(dim);
    for vector in x.chunks_exact(dim) {
        for ((sum, square), &v) in sums.iter_mut().zip(&mut *squares).zip(vector) {
            *sum += v;
            *square += v * v;
        }
    }
}

/// Computes the interactions of the fields in `x` and of fields before them. `before` returns the
/// sums of the vectors before and of their squares, for the part of a vector from an index on.
#[inline(always)]
fn fm_after(x: &[f32], dim: usize, before: impl Fn(usize) -> ([f32; WIDTH], [f32; WIDTH])) -> f32 {
    let mut total = [0.0; WIDTH];
    for start in (0..dim).step_by(WIDTH) {
        let (mut sum, mut squares) = before(start);
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
    0.5 * kernel::sum_by(&total, &total, |t, _| t)
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

/// Returns the number of pairs of `fields` fields.
pub(super) fn pairs_of(fields: usize) -> usize {
    fields.saturating_mul(fields.saturating_sub(1)) / 2
}

/// Returns whether the dot products of rows with `cols` floats are computed in blocks. The order of
/// the additions in blocks differs from the order without blocks.
pub(crate) fn is_blocked(cols: usize, dim: usize) -> bool {
    (cols / dim).next_multiple_of(WIDTH) * dim <= SCRATCH
}

/// Computes the dot products of all pairs of fields, without the pairs of two of the `skipped`
/// first fields.
pub(super) fn dots_from(
    rows: usize,
    x: View<'_>,
    dim: usize,
    skipped: usize,
    out: &mut ViewMut<'_>,
) {
    let lanes = (x.cols / dim).next_multiple_of(WIDTH);
    let mut scratch = [0.0f32; SCRATCH];
    let blocked = is_blocked(x.cols, dim);
    simd!({
        for i in 0..rows {
            let (x, out) = (x.row(i), out.row(i));
            if blocked {
                dots_blocked(x, dim, lanes, skipped, &mut scratch, out)
            } else {
                dots(x, dim, skipped, out)
            }
        }
    })
}

#[inline(always)]
fn dots(x: &[f32], dim: usize, skipped: usize, out: &mut [f32]) {
    let mut next = 0;
    for (i, a) in x.chunks_exact(dim).enumerate().skip(skipped) {
        for b in x.chunks_exact(dim).take(i) {
            out[next] = dot(a, b);
            next += 1;
        }
    }
}

/// Computes `4 × 16` pairs at a time. First the vectors are transposed. Then the products of a
/// field with sixteen other fields take `dim` multiplications of a register by a number.
#[inline(always)]
fn dots_blocked(
    x: &[f32],
    dim: usize,
    lanes: usize,
    skipped: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let fields = x.len() / dim;
    let skipped_pairs = pairs_of(skipped);
    for (j, vector) in x.chunks_exact(dim).enumerate() {
        for (line, &v) in scratch.chunks_exact_mut(lanes).zip(vector) {
            line[j] = v;
        }
    }
    for first in (skipped..fields).step_by(BLOCK) {
        let last = (first + BLOCK).min(fields) - 1;
        // If fewer than four fields are left, the last field is used repeatedly, and its additional
        // sums are ignored.
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
                    let from = pairs_of(i) - skipped_pairs + start;
                    for (o, &s) in out[from..from + width].iter_mut().zip(sums) {
                        *o = s;
                    }
                }
            }
        }
    }
}

/// Computes the same result as [`dots_grad`], for four fields at a time. First, it writes the
/// gradients of all pairs as a full matrix with zeros on the diagonal.
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

/// Computes `dx_i = Σ_{j≠i} g_ij · x_j`.
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

/// Writes the reshaping of rows to `[rows, fields, dim]` as ONNX.
fn fields_to_onnx(e: &mut Emitter, x: &str, dim: usize, cols: usize) -> String {
    // In ONNX, 0 stands for the number of rows of x.
    let shape = e.ints(&[0, (cols / dim) as i64, dim as i64]);
    e.op("Reshape", &[x, &shape], vec![])
}

/// Writes `½ Σ ((Σ v)² − Σ v²)` as ONNX.
fn fm_to_onnx(writer: &mut Writer<'_>, x: &str, dim: usize, cols: usize) -> String {
    let e = &mut writer.emitter;
    let fields = fields_to_onnx(e, x, dim, cols);
    let axis = e.int(1);
    let flat = |name| vec![AttributeProto::int(name, 0)];
    let sum = e.op("ReduceSum", &[&fields, &axis], flat("keepdims"));
    let sum = e.op("Mul", &[&sum, &sum], vec![]);
    let squares = e.op("Mul", &[&fields, &fields], vec![]);
    let squares = e.op("ReduceSum", &[&squares, &axis], flat("keepdims"));
    let pairs = e.op("Sub", &[&sum, &squares], vec![]);
    let total = writer.reduce("ReduceSum", &pairs, 1);
    let half = writer.emitter.float(0.5);
    writer.emitter.op("Mul", &[&total, &half], vec![])
}

/// Writes the products of all fields with each other as ONNX, and then the selection of the pairs
/// `(i, j)` with `j < i`.
fn dots_to_onnx(writer: &mut Writer<'_>, x: &str, dim: usize, cols: usize) -> String {
    let count = cols / dim;
    let e = &mut writer.emitter;
    let fields = fields_to_onnx(e, x, dim, cols);
    let turned = e.op("Transpose", &[&fields], vec![AttributeProto::ints("perm", &[0, 2, 1])]);
    let products = e.op("MatMul", &[&fields, &turned], vec![]);
    let shape = e.ints(&[0, (count * count) as i64]);
    let flat = e.op("Reshape", &[&products, &shape], vec![]);
    let pairs = (0..count).flat_map(|i| (0..i).map(move |j| (i * count + j) as i64));
    let pairs = e.ints(&pairs.collect::<Vec<_>>());
    e.op("Gather", &[&flat, &pairs], vec![AttributeProto::int("axis", 1)])
}
