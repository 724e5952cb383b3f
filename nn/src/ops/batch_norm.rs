//! Batch norm (Ioffe & Szegedy 2015).
//!
//! Batch norm consists of four operations: the statistics of the batch, the normalisation by given
//! statistics, the sums that the gradient needs, and the gradient. Statistics are merged over tiles
//! and lanes by the pairwise update of Chan, Golub & LeVeque (1979). So the variance stays exact
//! even if the values of a column are far from zero. Inference uses the same normalisation with the
//! running statistics.

use super::kernel::add;
use super::*;

/// The number of columns that are processed at a time. It is so small that their factors stay in
/// the first-level cache while the rows are read.
const BLOCK: usize = 1024;

/// Batch norm: statistics, normalisation, its gradients and the running statistics.
pub(super) struct BatchNorm;

impl OpGroup for BatchNorm {
    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::BatchNormRunning { variance: true, .. } => f.write_str("[variance]"),
            Op::BatchNormRunning { variance: false, .. } => f.write_str("[mean]"),
            _ => Ok(()),
        }
    }

    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
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
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
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
                update_running(*momentum, *variance, tile.total_rows, running, stats, &mut out);
            }
            _ => reject(op),
        }
    }

    fn accumulate(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], partial: &mut Partial<'_>) {
        match (op, inputs) {
            (Op::BatchNormStats, &[x]) => tile_stats(tile.rows, x, partial),
            (Op::BatchNormReduce { eps }, &[g, x, stats]) => {
                batch_norm_reduce(*eps, tile.rows, g, x, stats, partial);
            }
            _ => reject(op),
        }
    }

    /// Returns the length of the partial sum. Statistics need four floats for each column: the mean
    /// and the squared deviations of the rows so far, and the mean and the squared deviations of
    /// the current tile.
    fn partial_len(op: &Op, len: usize) -> usize {
        if *op == Op::BatchNormStats { 2 * len } else { len }
    }

    fn combines_by_element(op: &Op) -> bool {
        *op != Op::BatchNormStats
    }

    fn combine<'a>(
        op: &Op,
        partials: impl Iterator<Item = (usize, &'a [f32])>,
        start: usize,
        _total_rows: usize,
        out: &mut [f32],
    ) {
        match op {
            Op::BatchNormStats => combine_stats(partials, out),
            _ => add_partials(partials, start, out),
        }
    }

    fn chaining(op: &Op) -> Chaining {
        match op {
            Op::BatchNorm { .. } | Op::BatchNormGrad { .. } | Op::BatchNormFixedGrad { .. } => {
                Chaining::Tile
            }
            _ => Chaining::None,
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        let (&Op::BatchNorm { eps }, &[x, stats, scale, shift]) =
            (&node.op, node.inputs.as_slice())
        else {
            // The gradient rule of batch norm covers its statistics. Other uses of statistics have
            // no gradient.
            return Err(cx.refuse_gradient(id));
        };
        let n = cx.shape(x).cols;
        let reduced = cx.push(id, "grad", Op::BatchNormReduce { eps }, &[g, x, stats])?;
        for (param, start) in [(scale, 0), (shift, n)] {
            cx.push_gradient(id, param, Op::Slice { start, len: n }, &[reduced])?;
        }
        let of_batch = cx.node(stats).op == Op::BatchNormStats && cx.node(stats).inputs == [x];
        if of_batch {
            let inputs = [g, x, stats, scale, reduced];
            cx.push_gradient(id, x, Op::BatchNormGrad { eps }, &inputs)
        } else if cx.needs_gradient(stats) {
            Err(cx.refuse_gradient(id))
        } else {
            cx.push_gradient(id, x, Op::BatchNormFixedGrad { eps }, &[g, stats, scale])
        }
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        match op {
            Op::BatchNormStats | Op::BatchNormReduce { .. } => 4 * sizes.input(0),
            Op::BatchNormGrad { .. } => 5 * sizes.out(),
            Op::BatchNormRunning { .. } => 3 * sizes.out(),
            _ => 2 * sizes.out(),
        }
    }

    /// Writes `a·x + b`. The factors `a` and `b` are computed from the running statistics.
    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        let (Op::BatchNorm { eps }, [x, stats, scale, shift]) = (op, node.inputs) else {
            return Ok(None);
        };
        let (e, cols) = (&mut writer.emitter, node.out_cols);
        let axis = e.int(1);
        let (start, middle, end) = (e.int(0), e.int(cols as i64), e.int(2 * cols as i64));
        let mean = e.op("Slice", &[stats, &start, &middle, &axis], vec![]);
        let variance = e.op("Slice", &[stats, &middle, &end, &axis], vec![]);
        let eps = e.float(*eps);
        let variance = e.op("Add", &[&variance, &eps], vec![]);
        let deviation = e.op("Sqrt", &[&variance], vec![]);
        let factor = e.op("Div", &[scale, &deviation], vec![]);
        let moved = e.op("Mul", &[&mean, &factor], vec![]);
        let summand = e.op("Sub", &[shift, &moved], vec![]);
        let scaled = e.op("Mul", &[x, &factor], vec![]);
        Ok(Some(e.op("Add", &[&scaled, &summand], vec![])))
    }
}

/// Computes the next running mean or variance: the weighted mean of the old value and the value of
/// the batch.
fn update_running(
    momentum: f32,
    variance: bool,
    total_rows: usize,
    running: View<'_>,
    stats: View<'_>,
    out: &mut ViewMut<'_>,
) {
    if total_rows == 0 {
        // If there are no rows, there are no new statistics.
        return out.row(0).copy_from_slice(running.row(0));
    }
    let part = running_part(momentum, variance, total_rows, stats.row(0));
    for ((o, &old), part) in out.row(0).iter_mut().zip(running.row(0)).zip(part) {
        *o = weigh_running(momentum, old, part);
    }
}

/// Returns the part of the next running mean or variance that comes from a batch of `total_rows`
/// rows with the given statistics.
pub(crate) fn running_part(
    momentum: f32,
    variance: bool,
    total_rows: usize,
    stats: &[f32],
) -> impl Iterator<Item = f32> {
    // The estimate is unbiased. With only one row, the biased estimate (0) is used, because an
    // unbiased estimate does not exist.
    let count = total_rows as f32;
    let unbiased = if count > 1.0 { count / (count - 1.0) } else { 1.0 };
    let (mean, var) = stats.split_at(stats.len() / 2);
    let (batch, factor) = if variance { (var, unbiased) } else { (mean, 1.0) };
    batch.iter().map(move |&new| momentum * factor * new)
}

/// Returns the next running value: the weighted old value and the part of the batch.
pub(crate) fn weigh_running(momentum: f32, old: f32, part: f32) -> f32 {
    (1.0 - momentum) * old + part
}

fn tile_stats(rows: usize, x: View<'_>, partial: &mut Partial<'_>) {
    let n = x.cols;
    let (so_far, of_tile) = partial.values.split_at_mut(2 * n);
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
    match partial.rows_before {
        0 => so_far.copy_from_slice(of_tile),
        rows_before => merge_stats(so_far, rows_before, of_tile, rows),
    }
}

#[inline(always)]
fn add_squares(squares: &mut [f32], mean: &[f32], x: &[f32]) {
    for ((s, &m), &x) in squares.iter_mut().zip(mean).zip(x) {
        *s += (x - m) * (x - m);
    }
}

/// Merges the mean and the squared deviations of `rows` new rows into those of `rows_before` rows.
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

/// Computes the statistics of the batch from the statistics of its lanes, in the order of lanes.
fn combine_stats<'a>(partials: impl Iterator<Item = (usize, &'a [f32])>, out: &mut [f32]) {
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
    partial: &mut Partial<'_>,
) {
    let n = x.cols;
    let (mean, var) = stats.row(0).split_at(n);
    let (to_scale, to_shift) = partial.zeroed(2 * n).split_at_mut(n);
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

/// Computes `scale/σ · (g − mean(g) − x̂ · mean(g·x̂))`. If the statistics are constants, computes
/// only the first term, `scale/σ · g`.
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
