//! The softmax over the items of a batch against its definition (`nn/src/ops/in_batch_softmax.rs`),
//! by bits: the products, the sums and the gradients of both towers.

use super::super::kernels::{
    Count, IN_BATCH_LSE, IN_BATCH_SHARES, InBatch, Product, Rows, TRANSPOSE, Transpose,
};
use super::super::{Gpu, GpuError};
use super::session::{Matrix, Random, Session, Values};
use super::{Outcome, Size};
use crate::matmul::{Epilogue, Right, View, linear};
use crate::simd::{math, sum};

/// The number of rows in a block of the processor.
const BLOCK: usize = 512;

/// Both towers of a batch, and what belongs to each of its rows.
struct Case {
    rows: usize,
    dim: usize,
    queries: Matrix,
    items: Matrix,
    ids: Vec<u32>,
    correction: Option<Matrix>,
    gradients: Matrix,
    by: f32,
}

impl Case {
    fn new(random: &mut Random, rows: usize, dim: usize, corrected: bool) -> Self {
        let matrix =
            |random: &mut Random, cols, gap| Matrix::random(random, rows, cols, gap, Values::Plain);
        Self {
            rows,
            dim,
            queries: matrix(random, dim, 3),
            items: matrix(random, dim, 0),
            // Some items are in several rows, and in the first case one item is in all of them.
            ids: (0..rows).map(|_| random.below(rows / 3 + 1) as u32).collect(),
            correction: corrected.then(|| matrix(random, 1, 2)),
            gradients: matrix(random, 1, 0),
            by: 3.0,
        }
    }

    fn is_hit(&self, i: usize, j: usize) -> bool {
        i != j && self.ids[i] == self.ids[j]
    }

    fn correction(&self, row: usize) -> f32 {
        self.correction.as_ref().map_or(0.0, |c| c.at(row, 0))
    }

    /// Returns the dot products of all rows of one tower with all rows of the other one.
    fn products(&self, own: &Matrix, others: &Matrix) -> Vec<f32> {
        let mut turned = vec![0.0; self.dim * self.rows];
        for row in 0..self.rows {
            for (k, &x) in others.row(row).iter().enumerate() {
                turned[k * self.rows + row] = x;
            }
        }
        let mut out = vec![0.0; self.rows * self.rows];
        let left = View::new(&own.values, self.rows, self.dim, own.stride);
        let right = Right::Plain(View::packed(&turned, self.dim, self.rows));
        linear(left, right, Epilogue::default(), &mut out, self.rows);
        out
    }

    /// Returns the logarithm of the sum of exponentials of each row.
    fn log_sums(&self) -> Vec<f32> {
        let products = self.products(&self.queries, &self.items);
        let of_row = |(i, products): (usize, &[f32])| {
            let (mut most, mut total) = (f32::NEG_INFINITY, 0.0f32);
            for (block, products) in products.chunks(BLOCK).enumerate() {
                let score = |(j, &x): (usize, &f32)| {
                    let j = block * BLOCK + j;
                    let score = self.by * x - self.correction(j);
                    if self.is_hit(i, j) { f32::NEG_INFINITY } else { score }
                };
                let scores: Vec<f32> = products.iter().enumerate().map(score).collect();
                let best = scores.iter().fold(most, |best, &s| if s > best { s } else { best });
                if best > f32::NEG_INFINITY {
                    let terms: Vec<f32> = scores.iter().map(|s| math::exp(s - best)).collect();
                    total = total * math::exp(most - best) + sum(&terms);
                    most = best;
                }
            }
            most + math::ln(total)
        };
        products.chunks(self.rows).enumerate().map(of_row).collect()
    }

    /// Returns the gradient of one tower.
    fn gradient(&self, kind: u32, lse: &[f32]) -> Vec<f32> {
        let (own, others) = self.towers(kind);
        let mut shares = self.products(own, others);
        for (i, row) in shares.chunks_mut(self.rows).enumerate() {
            for (k, share) in row.iter_mut().enumerate() {
                let (query, item) = if kind == InBatch::OF_QUERIES { (i, k) } else { (k, i) };
                let g = self.gradients.at(query, 0);
                let score = self.by * *share - self.correction(item);
                let of_pair = self.by * g * math::exp(score - lse[query]);
                *share = if self.is_hit(i, k) { 0.0 } else { of_pair };
            }
        }
        let mut out = vec![0.0; self.rows * self.dim];
        let left = View::packed(&shares, self.rows, self.rows);
        let right = Right::Plain(View::new(&others.values, self.rows, self.dim, others.stride));
        linear(left, right, Epilogue::default(), &mut out, self.dim);
        out
    }

    /// Returns the tower that has the gradient, and the other one.
    fn towers(&self, kind: u32) -> (&Matrix, &Matrix) {
        if kind == InBatch::OF_QUERIES {
            (&self.queries, &self.items)
        } else {
            (&self.items, &self.queries)
        }
    }
}

/// Launches the products of the rows `first..first + rows` of one tower with the other tower.
fn multiply(
    session: &Session<'_>,
    case: &Case,
    own: Rows,
    others: Rows,
    [first, rows]: [u32; 2],
) -> Result<Rows, GpuError> {
    let total = case.rows as u32;
    let turned = session.poisoned::<f32>(case.rows * case.dim)?.address();
    let transpose = Transpose {
        input: others.data,
        out: turned,
        rows: total,
        cols: case.dim as u32,
        ldi: others.stride,
        ldo: total,
    };
    session.launch(&TRANSPOSE, transpose.geometry(), &transpose)?;
    let stride = total + 1;
    let products = session.poisoned::<f32>(rows as usize * stride as usize)?.address();
    let product = Product {
        a: own.data + u64::from(first) * u64::from(own.stride) * 4,
        b: turned,
        c: products,
        rows: Count::fixed(rows.min(total - first)),
        n: total,
        k: case.dim as u32,
        lda: own.stride,
        ldb: total,
        ldc: stride,
        ..Product::default()
    };
    let (kernel, geometry) = product.choose();
    session.launch(kernel, geometry, &product)?;
    Ok(Rows { data: products, stride, cols: total })
}

/// Compares the sums and both gradients.
pub(super) fn softmaxes(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("in_batch", gpu)?;
    let mut random = Random(111);
    // The rows of the batch, the floats of a vector, the rows of a launch.
    let shapes: &[(usize, usize, u32)] = match size {
        Size::Small => &[(2, 3, 2), (41, 5, 16), (600, 4, 350)],
        Size::Full => &[(1500, 64, 1024), (4096, 32, 1024), (700, 600, 700)],
    };
    for (index, &(rows, dim, part)) in shapes.iter().enumerate() {
        let name = format!("{rows} rows of {dim} floats, {part} a launch");
        let case = Case::new(&mut random, rows, dim, index != 0);
        let lse = case.log_sums();
        let queries = case.queries.upload(&session)?;
        let items = case.items.upload(&session)?;
        let correction = match &case.correction {
            Some(correction) => correction.upload(&session)?,
            None => Rows::default(),
        };
        let out = session.poisoned::<f32>(2 * rows)?.address();
        let common = InBatch {
            items: session.upload(&case.ids)?,
            correction,
            g: case.gradients.upload(&session)?,
            lse: Rows { data: out, stride: 2, cols: 1 },
            out,
            out_stride: 2,
            total: Count::at(session.upload(&[rows as u32])?, rows as u32),
            rows: part,
            by: case.by,
            ..InBatch::default()
        };
        let parts: Vec<u32> = (0..rows as u32).step_by(part as usize).collect();
        for &first_row in &parts {
            let products = multiply(&session, &case, queries, items, [first_row, part])?;
            let parameters = InBatch { products, first_row, ..common };
            session.launch(&IN_BATCH_LSE, parameters.sums(), &parameters)?;
        }
        let got: Vec<f32> = session.download(out, 2 * rows - 1)?;
        let got: Vec<f32> = got.iter().copied().step_by(2).collect();
        session.compare(&format!("sums, {name}"), &got, &lse)?;
        for kind in [InBatch::OF_QUERIES, InBatch::OF_ITEMS] {
            let (own, others) =
                if kind == InBatch::OF_QUERIES { (queries, items) } else { (items, queries) };
            let to = session.poisoned::<f32>(rows * dim)?.address();
            for &first_row in &parts {
                let products = multiply(&session, &case, own, others, [first_row, part])?;
                let parameters = InBatch { products, first_row, kind, ..common };
                session.launch(&IN_BATCH_SHARES, parameters.shares(), &parameters)?;
                let product = Product {
                    a: products.data,
                    b: others.data,
                    c: to + u64::from(first_row) * dim as u64 * 4,
                    rows: Count::fixed(part.min(rows as u32 - first_row)),
                    n: dim as u32,
                    k: rows as u32,
                    lda: products.stride,
                    ldb: others.stride,
                    ldc: dim as u32,
                    ..Product::default()
                };
                let (kernel, geometry) = product.choose();
                session.launch(kernel, geometry, &product)?;
            }
            let got = session.download(to, rows * dim)?;
            let expected = case.gradient(kind, &lse);
            session.compare(&format!("gradient {kind}, {name}"), &got, &expected)?;
        }
        session.end_case(&name)?;
    }
    session.finish()
}
