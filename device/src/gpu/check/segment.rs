//! Operations on lists and interactions of fields against their definitions (`nn/src/ops`), by
//! bits.

use super::super::kernels::{
    Count, DOT_INTERACTION, DOT_INTERACTION_GRAD, FM_INTERACTION, FM_INTERACTION_GRAD, Geometry,
    Interaction, Rows, SEGMENT, Segment,
};
use super::super::{Gpu, GpuError};
use super::session::{Matrix, Random, Session, Values};
use super::{Outcome, Size};
use crate::simd::{dot, math, sum};

/// Computes one column of one list.
fn segment(kind: u32, mean: bool, x: &[f32], y: &[f32]) -> Vec<f32> {
    let by = if mean && !y.is_empty() { 1.0 / y.len() as f32 } else { 1.0 };
    match kind {
        Segment::REPEAT => vec![by * x[0]; y.len()],
        Segment::SUM => vec![x.iter().fold(0.0, |sum, x| sum + x) * by],
        Segment::SOFTMAX => {
            let most = x.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
            let powers: Vec<f32> = x.iter().map(|x| math::exp(x - most)).collect();
            let by = 1.0 / powers.iter().fold(0.0, |sum, x| sum + x);
            powers.iter().map(|power| power * by).collect()
        }
        _ => {
            let sum = x.iter().zip(y).fold(0.0, |sum, (g, y)| sum + g * y);
            x.iter().zip(y).map(|(g, y)| y * (g - sum)).collect()
        }
    }
}

/// Compares repetitions, sums and softmaxes over lists, some of which are empty.
pub(super) fn segments(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("segment", gpu)?;
    let mut random = Random(61);
    let shapes: &[(usize, usize, usize)] = match size {
        Size::Small => &[(30, 5, 7), (9, 1, 20), (4, 17, 1)],
        Size::Full => &[(8192, 1, 50), (4096, 32, 20), (1000, 17, 3)],
    };
    for &(rows, cols, most) in shapes {
        let mut offsets = vec![0u32];
        for row in 0..rows {
            offsets.push(offsets[row] + random.below(most + 1) as u32);
        }
        let values = offsets[rows] as usize;
        for kind in 0..=Segment::SOFTMAX_GRAD {
            for mean in [false, true] {
                let name = format!("kind {kind}, mean {mean}, {rows} lists of {cols} columns");
                let of_rows = |rows_kind: u32| if kind == rows_kind { rows } else { values };
                let x =
                    Matrix::random(&mut random, of_rows(Segment::REPEAT), cols, 2, Values::Plain);
                let y = Matrix::random(&mut random, values, cols, 1, Values::Plain);
                let out_rows = of_rows(Segment::SUM);
                let mut expected = vec![f32::from_bits(u32::MAX); out_rows * cols];
                for row in 0..rows {
                    let list = offsets[row] as usize..offsets[row + 1] as usize;
                    let inputs = if kind == Segment::REPEAT { row..row + 1 } else { list.clone() };
                    let outputs = if kind == Segment::SUM { row..row + 1 } else { list.clone() };
                    for col in 0..cols {
                        let column = |m: &Matrix, range: std::ops::Range<usize>| -> Vec<f32> {
                            range.map(|row| m.row(row)[col]).collect()
                        };
                        let results = segment(
                            kind,
                            mean,
                            &column(&x, inputs.clone()),
                            &column(&y, list.clone()),
                        );
                        for (row, result) in outputs.clone().zip(results) {
                            expected[row * cols + col] = result;
                        }
                    }
                }
                let out = session.poisoned::<f32>(expected.len())?.address();
                let parameters = Segment {
                    x: x.upload(&session)?,
                    y: y.upload(&session)?,
                    out: Rows { data: out, stride: cols as u32, cols: cols as u32 },
                    offsets: session.upload(&offsets)?,
                    rows: Count::fixed(rows as u32),
                    kind,
                    mean: mean.into(),
                };
                session.launch(&SEGMENT, Geometry::elements((rows * cols) as u64), &parameters)?;
                let got = session.download(out, expected.len())?;
                session.compare(&name, &got, &expected)?;
                session.end_case(&name)?;
            }
        }
    }
    session.finish()
}

/// Computes the interaction of a factorisation machine.
fn fm(x: &[f32], dim: usize) -> f32 {
    let mut total = [0.0f32; 16];
    for k in 0..dim {
        let (mut sum, mut squares) = (0.0f32, 0.0f32);
        for vector in x.chunks(dim) {
            sum += vector[k];
            squares += vector[k] * vector[k];
        }
        total[k % 16] += sum * sum - squares;
    }
    0.5 * sum(&total)
}

/// Compares the interactions of fields and their gradients.
pub(super) fn interactions(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("interaction", gpu)?;
    let mut random = Random(62);
    // Rows, fields, dimension; the last ones are beyond the blocks of the processor.
    let shapes: &[(usize, usize, usize)] = match size {
        Size::Small => &[(6, 5, 16), (5, 3, 7), (3, 27, 20), (2, 20, 140), (2, 65, 2), (2, 1, 4)],
        Size::Full => {
            &[(8192, 26, 16), (4096, 27, 128), (1000, 13, 10), (300, 40, 150), (200, 70, 8)]
        }
    };
    for (case, &(rows, fields, dim)) in shapes.iter().enumerate() {
        let name = format!("{rows} rows of {fields} vectors of {dim} floats");
        let cols = fields * dim;
        let pairs = fields * (fields - 1) / 2;
        let x = Matrix::random(&mut random, rows, cols, case, Values::of_case(case));
        let g = Matrix::random(&mut random, rows, pairs.max(1), 1, Values::Plain);
        let blocked = Interaction::blocked(fields as u32, dim as u32);
        let blocked_grad = Interaction::blocked_grad(fields as u32);
        let mut expected = [rows, rows * cols, rows * pairs, rows * cols]
            .map(|len| vec![f32::from_bits(u32::MAX); len]);
        for row in 0..rows {
            let (x, g) = (x.row(row), g.row(row));
            let vector = |i: usize| &x[i * dim..][..dim];
            expected[0][row] = fm(x, dim);
            for e in 0..cols {
                let sum = (0..fields).fold(0.0, |sum, i| sum + vector(i)[e % dim]);
                expected[1][row * cols + e] = g[0] * (sum - x[e]);
                let i = e / dim;
                let mut sum = 0.0f32;
                for j in 0..fields {
                    if j != i {
                        let (low, high) = (i.min(j), i.max(j));
                        sum += g[high * (high - 1) / 2 + low] * vector(j)[e % dim];
                    } else if blocked_grad {
                        sum += 0.0 * vector(j)[e % dim];
                    }
                }
                expected[3][row * cols + e] = sum;
            }
            for i in 0..fields {
                for j in 0..i {
                    let chain =
                        || vector(i).iter().zip(vector(j)).fold(0.0, |sum, (a, b)| sum + a * b);
                    let product = if blocked { chain() } else { dot(vector(i), vector(j)) };
                    expected[2][row * pairs + i * (i - 1) / 2 + j] = product;
                }
            }
        }
        let kernels =
            [&FM_INTERACTION, &FM_INTERACTION_GRAD, &DOT_INTERACTION, &DOT_INTERACTION_GRAD];
        let all = kernels.into_iter().zip(&expected).enumerate();
        // Both products also with vectors that are read in place.
        let cases =
            all.flat_map(|(index, of)| (0..=u32::from(index > 1)).map(move |p| (index, of, p)));
        for (index, (kernel, expected), in_place) in cases {
            let out = session.poisoned::<f32>(expected.len())?.address();
            let width = (expected.len() / rows) as u32;
            let parameters = Interaction {
                x: x.upload(&session)?,
                g: g.upload(&session)?,
                out: Rows { data: out, stride: width, cols: width },
                rows: Count::fixed(rows as u32),
                dim: dim as u32,
                blocked: if index == 2 { blocked } else { blocked_grad }.into(),
                in_place,
                unused: 0,
            };
            let geometry = match index {
                2 => parameters.dots(),
                3 => parameters.dots_grad(),
                _ => Geometry::half_warps(rows as u32),
            };
            session.launch(kernel, geometry, &parameters)?;
            let got = session.download(out, expected.len())?;
            session.compare(&format!("{} of {name}", kernel.name), &got, expected)?;
            session.end_case(&name)?;
        }
    }
    session.finish()
}
