//! The exact products against `matmul`, by bits.

use super::super::kernels::{
    Count, Geometry, OUTER_80X80, Outer, Product, ROW_DOT, RowDot, TRANSPOSE, Transpose,
};
use super::super::{Gpu, GpuError};
use super::session::{Lanes, Random, Session, Values};
use super::{Outcome, Size};
use crate::matmul::{Epilogue, Right, Scratch, View, linear_at, outer_product_at};
use crate::simd::{dot, level};

/// One product with its operands on the host.
struct Case {
    rows: usize,
    k: usize,
    n: usize,
    /// Floats between the end of a row and the next row of `a`, `b` and `c`.
    gaps: [usize; 3],
    values: Values,
    bias: bool,
    relu: bool,
    accumulate: bool,
}

impl Case {
    fn check(&self, session: &mut Session<'_>, random: &mut Random) -> Result<(), GpuError> {
        let Self { rows, k, n, gaps, values, bias, relu, accumulate } = *self;
        let [lda, ldb, ldc] = [k + gaps[0], n + gaps[1], n + gaps[2]];
        let name = format!("{rows} x {k} x {n}, strides {lda}, {ldb}, {ldc}");
        let a = random.floats(rows * lda, values);
        let b = random.floats(k * ldb, values);
        let bias_values = random.floats(n, values);
        let old = if accumulate {
            random.floats(rows * ldc, values)
        } else {
            vec![f32::from_bits(u32::MAX); rows * ldc]
        };
        let mut expected = old.clone();
        // The rows are cut into tiles, as the executor does; the bits do not depend on them.
        for first in (0..rows).step_by(256) {
            let tile = 256.min(rows - first);
            linear_at(
                level(),
                View::new(&a[first * lda..], tile, k, lda),
                Right::Plain(View::new(&b, k, n, ldb)),
                Epilogue { accumulate, bias: bias.then_some(&bias_values[..]), relu },
                &mut expected[first * ldc..],
                ldc,
            );
        }
        let rows_at = session.upload(&[rows as u32])?;
        let mut product = Product {
            a: session.upload(&a)?,
            b: session.upload(&b)?,
            bias: if bias { session.upload(&bias_values)? } else { 0 },
            // The grid is for more rows than there are, as in the last batch of an epoch.
            rows: Count::at(rows_at, rows as u32 + 100),
            n: n as u32,
            k: k as u32,
            lda: lda as u32,
            ldb: ldb as u32,
            ldc: ldc as u32,
            relu: relu.into(),
            accumulate: accumulate.into(),
            ..Product::default()
        };
        for (kernel, geometry) in [product.with_64_rows(), product.with_128_rows()] {
            product.c = session.upload(&old)?;
            session.launch(kernel, geometry, &product)?;
            let got = session.download(product.c, rows * ldc)?;
            session.compare(&format!("{} {name}", kernel.name), &got, &expected)?;
        }
        session.end_case(&name)
    }
}

/// Compares products of random shapes: edges of tiles, several chains, unaligned rows, epilogues,
/// and values that underflow or are not finite.
pub(super) fn products(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("product", gpu)?;
    let mut random = Random(11);
    let (cases, most, most_k) = match size {
        Size::Small => (14, 150, 90),
        Size::Full => (60, 700, 600),
    };
    for case in 0..cases {
        let rows = if case == 0 { 0 } else { 1 + random.below(most) };
        let k = match case % 7 {
            0 => 16 * (1 + random.below(5)),
            // Several chains of 512 steps.
            3 => 500 + random.below(most_k * 2),
            5 => random.below(2),
            _ => 1 + random.below(most_k),
        };
        let n = if case % 6 == 2 { 1 + random.below(8) } else { 2 + random.below(most) };
        let aligned = (4 - n % 4) % 4;
        let gaps = match case % 3 {
            0 => [random.below(5), aligned, aligned],
            1 => [random.below(9), aligned + 4, random.below(7)],
            _ => [0, random.below(7), aligned],
        };
        let values = Values::of_case(case);
        let (bias, relu, accumulate) = (case % 2 == 0, case % 3 == 1, case % 5 > 2);
        Case { rows, k, n, gaps, values, bias, relu, accumulate }
            .check(&mut session, &mut random)?;
    }
    session.finish()
}

/// Compares the products of a model's layers.
pub(super) fn layers(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("product_of_layers", gpu)?;
    let mut random = Random(12);
    let shapes: &[(usize, usize, usize)] = match size {
        Size::Small => &[(70, 429, 81)],
        Size::Full => &[
            (8192, 429, 400),
            (8192, 400, 400),
            (8192, 400, 429),
            (8192, 3341, 400),
            (40_000, 400, 400),
        ],
    };
    for &(rows, k, n) in shapes {
        let gaps = [(4 - k % 4) % 4, (4 - n % 4) % 4, (4 - n % 4) % 4];
        let values = Values::Plain;
        let (bias, relu, accumulate) = (true, n == 400, false);
        Case { rows, k, n, gaps, values, bias, relu, accumulate }
            .check(&mut session, &mut random)?;
    }
    session.finish()
}

/// Compares gradients of weights: lanes of tiles, some of them short or empty.
pub(super) fn outer_products(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("outer_product", gpu)?;
    let mut random = Random(13);
    let shapes: &[(usize, usize, usize, usize, usize)] = match size {
        // Rows, columns of the input, columns of the gradient, lanes, rows of a tile.
        Size::Small => {
            &[(300, 83, 81, 3, 100), (57, 13, 5, 4, 20), (40, 161, 6, 1, 17), (3, 9, 7, 5, 256)]
        }
        Size::Full => &[
            (8192, 429, 400, 8, 256),
            (8192, 429, 400, 32, 256),
            (7000, 400, 429, 8, 256),
            (65_536, 429, 400, 64, 256),
            (300, 83, 81, 3, 100),
        ],
    };
    for (case, &(rows, m, n, lane_count, tile_rows)) in shapes.iter().enumerate() {
        let name = format!("{m} x {rows} x {n} in {lane_count} lanes of tiles of {tile_rows} rows");
        let aligned = case % 2 == 0;
        let lda = if aligned { m.next_multiple_of(4) } else { m + 1 };
        let ldb = if aligned { n.next_multiple_of(4) } else { n + 3 };
        let values = Values::of_case(case + 2);
        let a = random.floats(rows * lda, values);
        let b = random.floats(rows * ldb, values);
        let split = Lanes::random(&mut random, rows, lane_count, tile_rows);
        let Lanes { tiles, lanes } = &split;
        let mut expected = vec![f32::from_bits(u32::MAX); lane_count * m * n];
        for (lane, out) in expected.chunks_mut(m * n).enumerate() {
            let of_lane = &tiles[lanes[lane] as usize..=lanes[lane + 1] as usize];
            for (index, tile) in of_lane.windows(2).enumerate() {
                let (first, length) = (tile[0] as usize, (tile[1] - tile[0]) as usize);
                outer_product_at(
                    level(),
                    View::new(&a[first * lda..], length, m, lda),
                    View::new(&b[first * ldb..], length, n, ldb),
                    index > 0,
                    out,
                    n,
                    &mut Scratch::default(),
                );
            }
        }
        let c = session.poisoned::<f32>(expected.len())?.address();
        let outer = Outer {
            a: session.upload(&a)?,
            b: session.upload(&b)?,
            c,
            tiles: session.upload(tiles)?,
            lanes: session.upload(lanes)?,
            m: m as u32,
            n: n as u32,
            lda: lda as u32,
            ldb: ldb as u32,
            lane_count: lane_count as u32,
            unused: 0,
        };
        session.launch(&OUTER_80X80, outer.geometry(), &outer)?;
        let got = session.download(c, expected.len())?;
        session.compare(&name, &got, &expected)?;
        session.end_case(&name)?;
    }
    session.finish()
}

/// Compares products with one column, and dot products of rows.
pub(super) fn row_dots(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("row_dot", gpu)?;
    let mut random = Random(14);
    let shapes: &[(usize, usize)] = match size {
        Size::Small => &[(37, 45), (5, 1), (20, 16), (9, 0), (1, 200)],
        Size::Full => &[(8192, 400), (65_536, 429), (1000, 16), (70_000, 1)],
    };
    for (case, &(rows, k)) in shapes.iter().enumerate() {
        for (both, bias) in [(false, None), (false, Some(0.25f32)), (true, None)] {
            let name = format!("{rows} rows of {k} floats, two values: {both}, bias {bias:?}");
            let (ldx, ldo) = (k + case, 1 + case % 3);
            let values = Values::of_case(case);
            let x = random.floats(rows * ldx, values);
            let w = random.floats(if both { rows * ldx } else { k }, values);
            let mut expected = vec![f32::from_bits(u32::MAX); rows * ldo];
            for row in 0..rows {
                let right = if both { &w[row * ldx..][..k] } else { &w[..] };
                let sum = dot(&x[row * ldx..][..k], right);
                expected[row * ldo] = if both { sum } else { sum + bias.unwrap_or(0.0) };
            }
            let out = session.poisoned::<f32>(expected.len())?.address();
            let parameters = RowDot {
                x: session.upload(&x)?,
                w: session.upload(&w)?,
                bias: bias.map_or(Ok(0), |bias| session.upload(&[bias]))?,
                out,
                rows: Count::fixed(rows as u32),
                k: k as u32,
                ldx: ldx as u32,
                ldw: if both { ldx as u32 } else { 0 },
                ldo: ldo as u32,
                add_bias: (!both).into(),
                unused: 0,
            };
            session.launch(&ROW_DOT, Geometry::half_warps(rows as u32), &parameters)?;
            let got = session.download(out, expected.len())?;
            session.compare(&name, &got, &expected)?;
            session.end_case(&name)?;
        }
    }
    session.finish()
}

/// Compares transposes of several shapes.
pub(super) fn transposes(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("transpose", gpu)?;
    let mut random = Random(15);
    let shapes: &[(usize, usize)] = match size {
        Size::Small => &[(33, 65), (1, 5), (32, 32)],
        Size::Full => &[(429, 400), (3341, 400), (1, 7)],
    };
    for &(rows, cols) in shapes {
        let name = format!("{rows} x {cols}");
        let (ldi, ldo) = (cols + 3, rows + 2);
        let input = random.floats(rows * ldi, Values::Special);
        let mut expected = vec![f32::from_bits(u32::MAX); cols * ldo];
        for row in 0..rows {
            for col in 0..cols {
                expected[col * ldo + row] = input[row * ldi + col];
            }
        }
        let out = session.poisoned::<f32>(expected.len())?.address();
        let (rows, cols, ldi, ldo) = (rows as u32, cols as u32, ldi as u32, ldo as u32);
        let input = session.upload(&input)?;
        let parameters = Transpose { input, out, rows, cols, ldi, ldo };
        session.launch(&TRANSPOSE, parameters.geometry(), &parameters)?;
        let got = session.download(out, expected.len())?;
        session.compare(&name, &got, &expected)?;
        session.end_case(&name)?;
    }
    session.finish()
}
