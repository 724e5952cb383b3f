//! Sums over ranges of rows against sums of the same order, by bits. The order is that of the
//! kernels of steps with products of the library, not the processor's.

use super::super::kernels::{
    ColumnSums, Count, HEAD_GRADIENT, HeadGradient, RANGE_SUMS, RangeSums, Rows,
};
use super::super::{Gpu, GpuError};
use super::chain::round_bf16;
use super::reduce::shapes;
use super::session::{Matrix, Random, Session, Values};
use super::{Outcome, Size};

/// Computes the sums of ranges of rows in the order of `range_sums`: sixteen interleaved sums of
/// rows, which are added as a tree.
fn range_sums(
    rows: usize,
    ranges: usize,
    cols: usize,
    term: impl Fn(usize, usize) -> f32,
) -> Vec<f32> {
    let mut all = Vec::new();
    for z in 0..ranges {
        for col in 0..cols {
            let mut sums = [0.0f32; 16];
            for (i, row) in (rows * z / ranges..rows * (z + 1) / ranges).enumerate() {
                sums[i % 16] += term(row, col);
            }
            for half in [8, 4, 2, 1] {
                (0..half).for_each(|i| sums[i] += sums[i + half]);
            }
            all.push(sums[0]);
        }
    }
    all
}

/// Compares sums over ranges of rows: plain ones, weighted ones and masked ones, the masked values,
/// and their rounding to bf16.
pub(super) fn sums(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    const KINDS: [u32; 4] =
        [ColumnSums::PLAIN, ColumnSums::WEIGHTED, ColumnSums::MASKED, RangeSums::MASKED_NARROW];
    let mut session = Session::new("sum_ranges", gpu)?;
    let mut random = Random(55);
    let wide = |half: u16| f32::from_bits(u32::from(half) << 16);
    for (case, &(rows, cols, lanes, _)) in shapes(size).iter().enumerate() {
        for (kind, gap) in KINDS.into_iter().flat_map(|kind| [(kind, 0), (kind, 3)]) {
            let ranges = if gap == 0 { RangeSums::ranges(rows) } else { lanes };
            let name = format!("kind {kind}, {rows} x {cols} in {ranges} ranges, gap {gap}");
            let x = Matrix::random(&mut random, rows, cols, gap, Values::of_case(case));
            let of_g = if kind == ColumnSums::WEIGHTED { 1 } else { cols };
            let g = Matrix::random(&mut random, rows, of_g, gap, Values::Plain);
            let mut halves = || -> Vec<u16> {
                let wide = random.floats(rows * cols, Values::of_case(case));
                wide.into_iter().map(round_bf16).collect()
            };
            let (of_x, halves) = (halves(), halves());
            let term = |row: usize, col: usize| {
                let (value, at) = (x.row(row)[col], row * cols + col);
                match kind {
                    ColumnSums::PLAIN => value,
                    ColumnSums::WEIGHTED => g.at(row, 0) * value,
                    ColumnSums::MASKED if g.at(row, col) > 0.0 => value,
                    RangeSums::MASKED_NARROW if wide(halves[at]) > 0.0 => wide(of_x[at]),
                    _ => 0.0,
                }
            };
            let parts = session.poisoned::<f32>(ranges * cols)?.address();
            let x_at = x.upload(&session)?;
            let is_narrow = kind == RangeSums::MASKED_NARROW;
            let masks = kind == ColumnSums::MASKED || is_narrow;
            // The mask works in place.
            let narrow_x = session.upload(&of_x)?;
            let narrow = match is_narrow {
                true => narrow_x,
                false => session.poisoned::<u16>(rows * cols)?.address(),
            };
            let sums = RangeSums {
                x: x_at,
                g: g.upload(&session)?,
                narrow_x,
                narrow_g: session.upload(&halves)?,
                masked: if masks { x_at.data } else { 0 },
                narrow: if case % 2 == 0 || is_narrow { narrow } else { 0 },
                parts,
                rows: match case % 3 {
                    0 => Count::at(session.upload(&[rows as u32])?, rows as u32 + 7),
                    _ => Count::fixed(rows as u32),
                },
                ranges: ranges as u32,
                kind,
            };
            session.launch(&RANGE_SUMS, sums.geometry(), &sums)?;
            let expected = range_sums(rows, ranges, cols, term);
            let got = session.download(parts, ranges * cols)?;
            session.compare(&name, &got, &expected)?;
            let out = session.poisoned::<f32>(cols)?.address();
            let all = RangeSums {
                x: Rows { data: parts, stride: cols as u32, cols: cols as u32 },
                parts: out,
                rows: Count::fixed(ranges as u32),
                ranges: 1,
                kind: ColumnSums::PLAIN,
                ..RangeSums::default()
            };
            session.launch(&RANGE_SUMS, all.geometry(), &all)?;
            let expected = range_sums(ranges, 1, cols, |row, col| expected[row * cols + col]);
            let got = session.download(out, cols)?;
            session.compare(&format!("sum of ranges, {name}"), &got, &expected)?;
            let mut values = x.values.clone();
            let mut rounded = Vec::new();
            for row in 0..rows {
                for col in 0..cols {
                    rounded.push(wide(round_bf16(term(row, col))));
                    if masks {
                        values[row * x.stride + col] = term(row, col);
                    }
                }
            }
            let got = session.download(x_at.data, values.len())?;
            session.compare(&format!("masked, {name}"), &got, &values)?;
            if sums.narrow != 0 {
                let got = session.download::<u16>(narrow, rows * cols)?;
                let got: Vec<f32> = got.into_iter().map(wide).collect();
                session.compare(&format!("rounded, {name}"), &got, &rounded)?;
            }
            session.end_case(&name)?;
        }
    }
    session.finish()
}

/// Compares what a layer of one unit sends back, and its sums.
pub(super) fn heads(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("head_gradient", gpu)?;
    let mut random = Random(56);
    for (case, &(rows, cols, lanes, _)) in shapes(size).iter().enumerate() {
        for gap in [0, 3] {
            let ranges = if gap == 0 { RangeSums::ranges(rows) } else { lanes };
            let name = format!("{rows} x {cols} in {ranges} ranges, gap {gap}");
            let x = Matrix::random(&mut random, rows, cols, gap, Values::of_case(case));
            let slopes = random.floats(rows, Values::Plain);
            let weights = random.floats(cols, Values::of_case(case));
            let gradient = |row: usize, col: usize| {
                if x.row(row)[col] > 0.0 { slopes[row] * weights[col] } else { 0.0 }
            };
            // What lies between rows stays as it is.
            let before = random.floats(x.values.len(), Values::Plain);
            let (mut expected, mut rounded) = (before.clone(), Vec::new());
            for row in 0..rows {
                for col in 0..cols {
                    expected[row * x.stride + col] = gradient(row, col);
                    rounded.push(round_bf16(gradient(row, col)));
                }
            }
            let narrow = session.poisoned::<u16>(rows * cols)?.address();
            let head = HeadGradient {
                x: x.upload(&session)?,
                slopes: session.upload(&slopes)?,
                weights: session.upload(&weights)?,
                gradient: session.upload(&before)?,
                narrow: if case % 2 == 0 { narrow } else { 0 },
                parts: session.poisoned::<f32>(ranges * 2 * cols)?.address(),
                rows: rows as u32,
                ranges: ranges as u32,
            };
            session.launch(&HEAD_GRADIENT, head.geometry(), &head)?;
            let got = session.download(head.gradient, expected.len())?;
            session.compare(&name, &got, &expected)?;
            if head.narrow != 0 {
                let got = session.download::<u16>(narrow, rows * cols)?;
                session.compare_words(&format!("rounded, {name}"), &got, &rounded)?;
            }
            let expected = range_sums(rows, ranges, 2 * cols, |row, col| match col < cols {
                true => gradient(row, col),
                false => slopes[row] * x.row(row)[col - cols],
            });
            let got = session.download(head.parts, expected.len())?;
            session.compare(&format!("sums, {name}"), &got, &expected)?;
            session.end_case(&name)?;
        }
    }
    session.finish()
}
