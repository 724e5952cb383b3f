//! Layer norm over the columns of each row (Ba, Kiros & Hinton 2016).

use super::kernel::sum_by;
use super::*;

/// Layer norm and its gradients.
pub(super) struct LayerNorm;

impl OpGroup for LayerNorm {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        let line = |s: &Shape, n: usize| *s == Shape::constant(1, n);
        match (op, inputs) {
            (Op::LayerNorm { .. }, [x, scale, shift])
                if line(scale, x.cols) && line(shift, x.cols) =>
            {
                Ok(*x)
            }
            (Op::LayerNormReduce { .. }, [g, x]) if g == x => Ok(Shape::constant(1, 2 * x.cols)),
            (Op::LayerNormGrad { .. }, [g, x, scale]) if g == x && line(scale, x.cols) => Ok(*x),
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
        let rows = tile.rows;
        match (op, inputs) {
            (Op::LayerNorm { eps }, &[x, scale, shift]) => {
                layer_norm(*eps, rows, x, scale, shift, &mut out);
            }
            (Op::LayerNormGrad { eps }, &[g, x, scale]) => {
                layer_norm_grad(*eps, rows, g, x, scale, &mut out);
            }
            (Op::LayerNormReduce { eps }, &[g, x]) => {
                layer_norm_reduce(*eps, rows, g, x, &mut Partial::new(out.data));
            }
            _ => reject(op),
        }
    }

    fn accumulate(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], partial: &mut Partial<'_>) {
        let (Op::LayerNormReduce { eps }, &[g, x]) = (op, inputs) else {
            return reject(op);
        };
        layer_norm_reduce(*eps, tile.rows, g, x, partial);
    }

    fn sums_rows(op: &Op) -> bool {
        matches!(op, Op::LayerNormReduce { .. })
    }

    fn chaining(op: &Op) -> Chaining {
        match op {
            Op::LayerNorm { .. } | Op::LayerNormGrad { .. } => Chaining::Rows,
            _ => Chaining::None,
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        let (&Op::LayerNorm { eps }, &[x, scale, shift]) = (&node.op, node.inputs.as_slice())
        else {
            return Err(cx.refuse_gradient(id));
        };
        if cx.needs_gradient(scale) || cx.needs_gradient(shift) {
            let n = cx.shape(x).cols;
            let reduced = cx.push(id, "grad", Op::LayerNormReduce { eps }, &[g, x])?;
            for (param, start) in [(scale, 0), (shift, n)] {
                cx.push_gradient(id, param, Op::Slice { start, len: n }, &[reduced])?;
            }
        }
        cx.push_gradient(id, x, Op::LayerNormGrad { eps }, &[g, x, scale])?;
        Ok(())
    }

    fn flops(_op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        8 * sizes.input(0)
    }

    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        let (Op::LayerNorm { eps }, [x, scale, shift]) = (op, node.inputs) else {
            return Ok(None);
        };
        let mean = writer.reduce("ReduceMean", x, 1);
        let centred = writer.emitter.op("Sub", &[x, &mean], vec![]);
        let squares = writer.emitter.op("Mul", &[&centred, &centred], vec![]);
        let variance = writer.reduce("ReduceMean", &squares, 1);
        let e = &mut writer.emitter;
        let eps = e.float(*eps);
        let variance = e.op("Add", &[&variance, &eps], vec![]);
        let deviation = e.op("Sqrt", &[&variance], vec![]);
        let normal = e.op("Div", &[&centred, &deviation], vec![]);
        let scaled = e.op("Mul", &[&normal, scale], vec![]);
        Ok(Some(e.op("Add", &[&scaled, shift], vec![])))
    }
}

/// Returns the mean and the reciprocal standard deviation of a row.
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

fn layer_norm_reduce(eps: f32, rows: usize, g: View<'_>, x: View<'_>, partial: &mut Partial<'_>) {
    let (to_scale, to_shift) = partial.zeroed(2 * x.cols).split_at_mut(x.cols);
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
