//! Sums over columns and rows, statistics and norms against their definitions (`nn/src/ops`), by
//! bits.

use super::super::kernels::{
    BATCH_NORM, BATCH_NORM_FACTORS, BATCH_NORM_RUNNING, BatchNorm, COLUMN_SUMS, COMBINE_LANES,
    ColumnSums, CombineLanes, Count, Geometry, MERGE_STATISTICS, MergeStatistics, ROW_NORM,
    RowNorm, Rows, Running, SUM_COLUMNS, SumColumns, TILE_STATISTICS, TileStatistics,
};
use super::super::{Gpu, GpuError};
use super::session::{Lanes, Matrix, Random, Session, Values};
use super::{Outcome, Size};
use crate::simd::{dot, math, sum};

const EPS: f32 = 1e-5;

/// Returns sixteen interleaved sums of a function of `0..n`, added as a tree.
fn sum_by(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    sum(&(0..n).map(f).collect::<Vec<_>>())
}

/// The rows, columns, lanes and rows of a tile of each case.
pub(super) fn shapes(size: Size) -> &'static [(usize, usize, usize, usize)] {
    match size {
        Size::Small => &[(300, 37, 3, 100), (65, 4, 1, 20), (20, 70, 5, 9), (1, 1, 1, 256)],
        Size::Full => {
            &[(8192, 400, 8, 256), (65_536, 400, 64, 256), (7000, 429, 32, 200), (300, 37, 3, 100)]
        }
    }
}

/// Computes the sums of each lane and of all lanes. `term` gives the summands of a row.
fn lane_sums(lanes: &Lanes, len: usize, term: impl Fn(usize, &mut [f32])) -> Vec<f32> {
    let mut total: Option<Vec<f32>> = None;
    let mut terms = vec![0.0; len];
    for tiles in lanes.ranges() {
        let mut sums = vec![0.0f32; len];
        if tiles.is_empty() {
            continue;
        }
        for row in tiles.into_iter().flatten() {
            term(row, &mut terms);
            sums.iter_mut().zip(&terms).for_each(|(sum, term)| *sum += term);
        }
        match &mut total {
            None => total = Some(sums),
            Some(total) => total.iter_mut().zip(&sums).for_each(|(total, sum)| *total += sum),
        }
    }
    total.unwrap_or_else(|| vec![0.0; len])
}

/// Compares sums over columns.
pub(super) fn columns(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("sum_columns", gpu)?;
    let mut random = Random(51);
    for (case, &(rows, cols, _, _)) in shapes(size).iter().enumerate() {
        let name = format!("{rows} x {cols}");
        let x = Matrix::random(&mut random, rows, cols, case, Values::of_case(case));
        let expected: Vec<f32> = (0..rows).map(|row| sum(x.row(row))).collect();
        let out = session.poisoned::<f32>(rows)?.address();
        let parameters = SumColumns {
            x: x.upload(&session)?,
            out,
            rows: Count::fixed(rows as u32),
            out_stride: 1,
            unused: 0,
        };
        session.launch(&SUM_COLUMNS, Geometry::half_warps(rows as u32), &parameters)?;
        let got = session.download(out, rows)?;
        session.compare(&name, &got, &expected)?;
        session.end_case(&name)?;
    }
    session.finish()
}

/// Compares sums over rows: plain ones, weighted ones, and those of the gradients of norms.
pub(super) fn rows(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("sum_rows", gpu)?;
    let mut random = Random(52);
    for (case, &(rows, cols, lane_count, tile_rows)) in shapes(size).iter().enumerate() {
        let lanes = Lanes::random(&mut random, rows, lane_count, tile_rows);
        for kind in 0..=ColumnSums::MASKED {
            let name = format!("kind {kind}, {rows} x {cols} in {lane_count} lanes");
            let x = Matrix::random(&mut random, rows, cols, case % 3, Values::of_case(case));
            let of_g = if kind == ColumnSums::WEIGHTED { 1 } else { cols };
            let g = Matrix::random(&mut random, rows, of_g, 1, Values::Plain);
            let both = kind == ColumnSums::BY_COLUMN || kind == ColumnSums::BY_ROW;
            let by_row = kind == ColumnSums::BY_ROW;
            let statistics: Vec<f32> = random
                .floats(if by_row { 2 * rows } else { 2 * cols }, Values::Plain)
                .iter()
                .map(|x| x.abs())
                .collect();
            let term = |row: usize, terms: &mut [f32]| {
                for col in 0..cols {
                    let value = x.row(row)[col];
                    terms[col] = match kind {
                        ColumnSums::PLAIN => value,
                        ColumnSums::WEIGHTED => g.at(row, 0) * value,
                        ColumnSums::MASKED if g.at(row, col) > 0.0 => value,
                        ColumnSums::MASKED => 0.0,
                        ColumnSums::BY_COLUMN => {
                            let factor = 1.0 / (statistics[cols + col] + EPS).sqrt();
                            g.at(row, col) * ((value - statistics[col]) * factor)
                        }
                        _ => {
                            let [mean, factor] = [statistics[2 * row], statistics[2 * row + 1]];
                            g.at(row, col) * ((value - mean) * factor)
                        }
                    };
                    if both {
                        terms[cols + col] = g.at(row, col);
                    }
                }
            };
            let len = if both { 2 * cols } else { cols };
            let mut expected = lane_sums(&lanes, len, term);
            let mean = u32::from(kind == ColumnSums::PLAIN && case % 2 == 0);
            if mean == 1 {
                let by = 1.0 / rows as f32;
                expected.iter_mut().for_each(|sum| *sum *= by);
            }
            let parts = session.poisoned::<f32>(lane_count * len)?.address();
            let split = lanes.upload(&session)?;
            let x_at = x.upload(&session)?;
            let sums = ColumnSums {
                x: x_at,
                g: g.upload(&session)?,
                // The mask works in place.
                masked: x_at,
                statistics: session.upload(&statistics)?,
                parts,
                split,
                eps: EPS,
                kind,
            };
            session.launch(&COLUMN_SUMS, sums.geometry(), &sums)?;
            let out = session.poisoned::<f32>(len)?.address();
            let combine = CombineLanes { parts, out, split, size: len as u32, mean };
            session.launch(&COMBINE_LANES, Geometry::elements(len as u64), &combine)?;
            let got = session.download(out, len)?;
            session.compare(&name, &got, &expected)?;
            if kind == ColumnSums::MASKED {
                let mut masked = x.values.clone();
                for row in 0..rows {
                    for col in 0..cols {
                        let value = &mut masked[row * x.stride + col];
                        *value = if g.at(row, col) > 0.0 { *value } else { 0.0 };
                    }
                }
                let got = session.download(x_at.data, masked.len())?;
                session.compare(&format!("masked, {name}"), &got, &masked)?;
            }
            session.end_case(&name)?;
        }
    }
    session.finish()
}

/// Computes the statistics of a batch as the processor does.
fn statistics_of(x: &Matrix, lanes: &Lanes) -> Vec<f32> {
    let n = x.cols;
    let merge = |so_far: &mut Vec<f32>, before: usize, more: &[f32], rows: usize| {
        let share = rows as f32 / (before + rows) as f32;
        let weight = before as f32 * share;
        for j in 0..n {
            let delta = more[j] - so_far[j];
            so_far[j] += delta * share;
            so_far[n + j] += more[n + j] + delta * delta * weight;
        }
    };
    let (mut all, mut total) = (vec![0.0f32; 2 * n], 0);
    for tiles in lanes.ranges() {
        let (mut lane, mut before) = (vec![0.0f32; 2 * n], 0);
        for tile in tiles {
            let rows = tile.len();
            let mut stats = vec![0.0f32; 2 * n];
            for row in tile.clone() {
                (0..n).for_each(|j| stats[j] += x.row(row)[j]);
            }
            let by = 1.0 / rows as f32;
            stats[..n].iter_mut().for_each(|mean| *mean *= by);
            for row in tile {
                for j in 0..n {
                    let deviation = x.row(row)[j] - stats[j];
                    stats[n + j] += deviation * deviation;
                }
            }
            if before == 0 {
                lane = stats
            } else {
                merge(&mut lane, before, &stats, rows)
            }
            before += rows;
        }
        if before > 0 {
            if total == 0 {
                all = lane
            } else {
                merge(&mut all, total, &lane, before)
            }
            total += before;
        }
    }
    let by = 1.0 / total as f32;
    all[n..].iter_mut().for_each(|variance| *variance *= by);
    all
}

/// Compares batch norm: its statistics, its result, its gradients and its running statistics.
pub(super) fn batch_norms(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("batch_norm", gpu)?;
    let mut random = Random(53);
    for (case, &(rows, cols, lane_count, tile_rows)) in shapes(size).iter().enumerate() {
        let name = format!("{rows} x {cols} in {lane_count} lanes");
        let lanes = Lanes::random(&mut random, rows, lane_count, tile_rows);
        let split = lanes.upload(&session)?;
        let tiles = lanes.tiles.len() as u32 - 1;
        let x = Matrix::random(&mut random, rows, cols, case % 4, Values::of_case(2 * case));
        let g = Matrix::random(&mut random, rows, cols, 1, Values::Plain);
        let [scale, shift] = [(); 2].map(|()| random.floats(cols, Values::Plain));
        let reduced = random.floats(2 * cols, Values::Plain);
        let stats = statistics_of(&x, &lanes);
        let x_at = x.upload(&session)?;
        let tiles_out = session.poisoned::<f32>(tiles as usize * 2 * cols)?.address();
        let per_tile = TileStatistics { x: x_at, tiles_out, split };
        session.launch(&TILE_STATISTICS, per_tile.geometry(tiles + 2), &per_tile)?;
        let statistics = session.poisoned::<f32>(2 * cols)?.address();
        let merge = MergeStatistics {
            tiles_in: tiles_out,
            out: statistics,
            split,
            cols: cols as u32,
            unused: 0,
        };
        session.launch(&MERGE_STATISTICS, Geometry::columns(cols as u32), &merge)?;
        let got = session.download(statistics, 2 * cols)?;
        session.compare(&format!("statistics, {name}"), &got, &stats)?;
        for kind in 0..=BatchNorm::FIXED_GRAD {
            let mut expected = vec![f32::from_bits(u32::MAX); rows * cols];
            let by = 1.0 / rows as f32;
            for row in 0..rows {
                for col in 0..cols {
                    let (mean, variance) = (stats[col], stats[cols + col]);
                    let rstd = 1.0 / (variance + EPS).sqrt();
                    let (x, g) = (x.row(row)[col], g.row(row)[col]);
                    expected[row * cols + col] = if kind == BatchNorm::FORWARD {
                        let a = scale[col] / (variance + EPS).sqrt();
                        a * x + (shift[col] - mean * a)
                    } else {
                        let a = scale[col] * rstd;
                        let b = -a * rstd * by * reduced[col];
                        let c = -a * by * reduced[cols + col];
                        if kind == BatchNorm::GRAD { a * g + b * (x - mean) + c } else { a * g }
                    };
                }
            }
            let out = session.poisoned::<f32>(rows * cols)?.address();
            let norm = BatchNorm {
                x: x_at,
                g: g.upload(&session)?,
                out: Rows { data: out, stride: cols as u32, cols: cols as u32 },
                rows: Count::fixed(rows as u32),
                total: Count::fixed(rows as u32),
                statistics,
                scale: session.upload(&scale)?,
                shift: session.upload(&shift)?,
                reduced: session.upload(&reduced)?,
                factors: session.poisoned::<f32>(4 * cols)?.address(),
                eps: EPS,
                kind,
            };
            session.launch(&BATCH_NORM_FACTORS, Geometry::columns(cols as u32), &norm)?;
            session.launch(&BATCH_NORM, Geometry::elements((rows * cols) as u64), &norm)?;
            let got = session.download(out, rows * cols)?;
            session.compare(&format!("kind {kind}, {name}"), &got, &expected)?;
        }
        for (variance, total) in [(0, rows), (1, rows), (1, 1), (0, 0)] {
            let old = random.floats(cols, Values::Plain);
            let momentum = 0.1f32;
            let count = total as f32;
            let unbiased = if count > 1.0 { count / (count - 1.0) } else { 1.0 };
            let expected: Vec<f32> = (0..cols)
                .map(|col| {
                    let factor = if variance == 1 { unbiased } else { 1.0 };
                    let part = momentum * factor * stats[variance * cols + col];
                    if total == 0 { old[col] } else { (1.0 - momentum) * old[col] + part }
                })
                .collect();
            let out = session.poisoned::<f32>(cols)?.address();
            let running = Running {
                running: session.upload(&old)?,
                statistics,
                out,
                total: Count::at(session.upload(&[total as u32])?, u32::MAX),
                cols: cols as u32,
                variance: variance as u32,
                momentum,
                unused: 0,
            };
            session.launch(&BATCH_NORM_RUNNING, Geometry::columns(cols as u32), &running)?;
            let got = session.download(out, cols)?;
            session.compare(&format!("running {variance} of {total}, {name}"), &got, &expected)?;
        }
        session.end_case(&name)?;
    }
    session.finish()
}

/// Computes one row of a norm or softmax.
fn row_norm(kind: u32, x: &[f32], g: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    let n = x.len();
    let by = 1.0 / n as f32;
    let mean = by * sum(x);
    let variance = by * sum_by(n, |i| (x[i] - mean) * (x[i] - mean));
    let rstd = 1.0 / (variance + EPS).sqrt();
    let most = x.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    match kind {
        RowNorm::STATISTICS => out[..2].copy_from_slice(&[mean, rstd]),
        RowNorm::LAYER_NORM => {
            (0..n).for_each(|i| out[i] = (x[i] - mean) * rstd * scale[i] + shift[i])
        }
        RowNorm::LAYER_NORM_GRAD => {
            let scaled: Vec<f32> = (0..n).map(|i| g[i] * scale[i]).collect();
            let mean_g = by * sum(&scaled);
            let mean_gx = by * sum_by(n, |i| scaled[i] * ((x[i] - mean) * rstd));
            (0..n).for_each(|i| {
                out[i] = rstd * (scaled[i] - mean_g - (x[i] - mean) * rstd * mean_gx)
            });
        }
        RowNorm::SOFTMAX => {
            let powers: Vec<f32> = x.iter().map(|x| math::exp(x - most)).collect();
            let by = 1.0 / sum(&powers);
            (0..n).for_each(|i| out[i] = powers[i] * by);
        }
        RowNorm::SOFTMAX_GRAD => {
            let mean = dot(g, x);
            (0..n).for_each(|i| out[i] = x[i] * (g[i] - mean));
        }
        _ => out[0] = most + math::ln(sum_by(n, |i| math::exp(x[i] - most))),
    }
}

/// Compares layer norm and the softmax over columns, with their gradients.
pub(super) fn row_norms(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("row_norm", gpu)?;
    let mut random = Random(54);
    for (case, &(rows, cols, _, _)) in shapes(size).iter().enumerate() {
        let rows = rows.min(10_000);
        for kind in 0..=RowNorm::LOG_SUM_EXP {
            let name = format!("kind {kind}, {rows} x {cols}");
            let x = Matrix::random(
                &mut random,
                rows,
                cols,
                case,
                Values::of_case(case + kind as usize),
            );
            let g = Matrix::random(&mut random, rows, cols, 2, Values::Plain);
            let [scale, shift] = [(); 2].map(|()| random.floats(cols, Values::Plain));
            let stride = cols.max(2);
            let mut expected = vec![f32::from_bits(u32::MAX); rows * stride];
            for (row, out) in expected.chunks_mut(stride).enumerate() {
                row_norm(kind, x.row(row), g.row(row), &scale, &shift, out);
            }
            let out = session.poisoned::<f32>(expected.len())?.address();
            let parameters = RowNorm {
                x: x.upload(&session)?,
                g: g.upload(&session)?,
                out: Rows { data: out, stride: stride as u32, cols: cols as u32 },
                rows: Count::fixed(rows as u32),
                scale: session.upload(&scale)?,
                shift: session.upload(&shift)?,
                eps: EPS,
                kind,
            };
            session.launch(&ROW_NORM, Geometry::half_warps(rows as u32), &parameters)?;
            let got = session.download(out, expected.len())?;
            session.compare(&name, &got, &expected)?;
            session.end_case(&name)?;
        }
    }
    session.finish()
}
