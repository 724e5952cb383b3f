//! Matrix products of f32 on one thread, for row-major matrices and for matrices with any strides.
//! The caller divides the rows into tiles and passes the tiles to the pool. So products on several
//! threads never wait for each other.
//!
//! The crate has three families of products. [`linear`] and [`outer_product`] are the products of a
//! dense layer, computed by our own kernels. Their definition (see `product`) fixes the bits of
//! each element. So the bits do not depend on the registers of the machine, on the tile, or on the
//! other rows. [`gemm`] and its short forms are the general product. The `gemm-f32` crate computes
//! it without its own threads. For one shape on one machine, its result is always the same.
//! [`linear_int8`] is the product of a dense layer in 8-bit integers, with the same bits
//! everywhere. [`bf16`] has the products of a dense layer with factors of half the bits.

pub mod bf16;
mod fallback;
mod int8;
mod panel;
mod product;
mod reference;
mod resume;
mod scratch;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod transpose;
#[cfg(target_arch = "x86_64")]
mod vector;

pub use int8::{
    INT8_INNER, Int8Rows, Int8Weight, fake_quantize_columns, fake_quantize_rows, linear_int8,
    linear_int8_at,
};
pub use panel::Panel;
pub use product::{
    Begun, Epilogue, Right, linear, linear_at, linear_from, linear_from_at, outer_product,
    outer_product_at,
};
pub use resume::{begin, begin_at, can_resume};
pub use scratch::{OUTER_BLOCK, Scratch};

/// An operand of a product. Element (i, j) is at `values[i * row_stride + j * column_stride]`. A
/// transposed view has the same values with exchanged strides.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// Creates a view of a row-major matrix with `row_stride` floats from one row to the next.
    pub fn new(values: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self { values, rows, columns, row_stride, column_stride: 1 }
    }

    /// Creates a view of a row-major matrix without gaps between rows.
    pub fn packed(values: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::new(values, rows, columns, columns)
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns a view of the same values with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Self {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// Computes `c = alpha * a * b + beta * c`. Here `a` is an m x k matrix, `b` a k x n matrix, and
/// `c` a row-major m x n matrix with `c_rs` floats from one row to the next. The strides of the
/// inputs are in elements: `a_rs` between rows, `a_cs` between columns. If `beta` is zero, `c` is
/// not read and may hold NaN.
///
/// # Panics
///
/// Panics if a matrix does not fit its slice or if rows of `c` overlap. Both are mistakes of the
/// caller.
#[expect(
    clippy::too_many_arguments,
    reason = "the interface every BLAS has; see `View` for a shorter one"
)]
pub fn gemm(
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    a: &[f32],
    a_rs: usize,
    a_cs: usize,
    b: &[f32],
    b_rs: usize,
    b_cs: usize,
    beta: f32,
    c: &mut [f32],
    c_rs: usize,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert_fits("a", a.len(), m, k, a_rs, a_cs);
    assert_fits("b", b.len(), k, n, b_rs, b_cs);
    assert_fits("c", c.len(), m, n, c_rs, 1);
    assert!(m == 1 || c_rs >= n, "rows of c overlap: stride {c_rs}, {n} columns");
    // The kernels need a column-major result: c^T = b^T * a^T.
    let kernel = gemm_f32::gemm::f32::get_gemm_fn();
    let stride = |stride: usize| stride as isize;
    // SAFETY: the kernel reads element (i, j) of a for i < m and j < k, and of b for i < k and j <
    // n. It reads and writes those of c for i < m and j < n. Each is at the offset that its strides
    // give. `assert_fits` has checked with checked arithmetic that the largest of these offsets is
    // inside its slice, and so that it fits isize (no slice of f32 is longer than isize::MAX
    // bytes). `c` is borrowed mutably, so it overlaps neither input; with `c_rs >= n` its elements
    // are distinct.
    unsafe {
        kernel(
            n,
            m,
            k,
            c.as_mut_ptr(),
            stride(c_rs),
            1,
            beta != 0.0,
            b.as_ptr(),
            stride(b_rs),
            stride(b_cs),
            a.as_ptr(),
            stride(a_rs),
            stride(a_cs),
            beta,
            alpha,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}

/// Panics if an element of a matrix is outside of a slice with `length` values.
fn assert_fits(
    name: &str,
    length: usize,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    let last = (rows - 1)
        .checked_mul(row_stride)
        .zip((columns - 1).checked_mul(column_stride))
        .and_then(|(down, right)| down.checked_add(right));
    assert!(
        last.is_some_and(|last| last < length),
        "matrix {name} of {rows} x {columns} with strides {row_stride} and {column_stride} \
         does not fit {length} values"
    );
}

/// Panics if a row-major result of `m` rows and `n` columns is outside of its slice, or if its rows
/// overlap.
fn assert_result_fits(out: &[f32], m: usize, n: usize, out_row: usize) {
    assert_fits("out", out.len(), m, n, out_row, 1);
    assert!(m == 1 || out_row >= n, "rows of the result overlap: stride {out_row}, {n} columns");
}

/// Computes `c = a * b + beta * c` for a row-major `c` with `c_rs` floats from one row to the next.
///
/// # Panics
///
/// Panics for the same reasons as [`gemm`], and if the inner dimensions differ.
pub fn product(a: View<'_>, b: View<'_>, beta: f32, c: &mut [f32], c_rs: usize) {
    assert_eq!(a.columns, b.rows, "inner dimensions differ");
    gemm(
        a.rows,
        b.columns,
        a.columns,
        1.0,
        a.values,
        a.row_stride,
        a.column_stride,
        b.values,
        b.row_stride,
        b.column_stride,
        beta,
        c,
        c_rs,
    );
}

/// Computes `c = a * b + beta * c`, a forward product. `a` is m x k and `b` is k x n, both without
/// gaps.
///
/// # Panics
///
/// Panics for the reasons of [`gemm`].
pub fn nn(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], beta: f32, c: &mut [f32]) {
    gemm(m, n, k, 1.0, a, k, 1, b, n, 1, beta, c, n);
}

/// Computes `c = a * b^T + beta * c`, the gradient of an input. `a` is m x k and `b` is n x k, both
/// without gaps.
///
/// # Panics
///
/// Panics for the reasons of [`gemm`].
pub fn nt(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], beta: f32, c: &mut [f32]) {
    gemm(m, n, k, 1.0, a, k, 1, b, 1, k, beta, c, n);
}

/// Computes `c = a^T * b + beta * c`, the gradient of a weight. `a` is k x m and `b` is k x n, both
/// without gaps.
///
/// # Panics
///
/// Panics for the reasons of [`gemm`].
pub fn tn(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], beta: f32, c: &mut [f32]) {
    gemm(m, n, k, 1.0, a, 1, m, b, n, 1, beta, c, n);
}

#[cfg(test)]
mod general {
    use proptest::prelude::*;

    use super::tests::values;
    use super::*;

    /// Computes the product by its definition in f64, for the same arguments as `gemm`.
    fn naive(
        (m, n, k): (usize, usize, usize),
        alpha: f32,
        (a, a_rs, a_cs): (&[f32], usize, usize),
        (b, b_rs, b_cs): (&[f32], usize, usize),
        beta: f32,
        c: &[f32],
        c_rs: usize,
    ) -> Vec<f32> {
        let mut out = c.to_vec();
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k)
                    .map(|p| f64::from(a[i * a_rs + p * a_cs]) * f64::from(b[p * b_rs + j * b_cs]))
                    .sum();
                let old =
                    if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(c[i * c_rs + j]) };
                out[i * c_rs + j] = (f64::from(alpha) * sum + old) as f32;
            }
        }
        out
    }

    fn dimension() -> impl Strategy<Value = usize> {
        prop_oneof![Just(0usize), Just(1), 2usize..20, 20usize..140]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn gemm_is_the_product_by_definition(
            (m, n, k) in (dimension(), dimension(), dimension()),
            (a_gap, b_gap, c_gap) in (0usize..5, 0usize..5, 0usize..5),
            (a_turned, b_turned) in any::<(bool, bool)>(),
            alpha in prop_oneof![Just(1.0f32), Just(-0.5), Just(0.0)],
            beta in prop_oneof![Just(0.0f32), Just(1.0), Just(0.5)],
            seed in any::<u64>(),
        ) {
            let (a_rs, a_cs) = if a_turned { (1, m + a_gap) } else { (k + a_gap, 1) };
            let (b_rs, b_cs) = if b_turned { (1, k + b_gap) } else { (n + b_gap, 1) };
            let c_rs = n + c_gap;
            let length = |rows: usize, columns: usize, row: usize, column: usize| {
                if rows == 0 || columns == 0 { 0 } else { (rows - 1) * row + (columns - 1) * column + 1 }
            };
            let a = values(length(m, k, a_rs, a_cs), seed);
            let b = values(length(k, n, b_rs, b_cs), seed ^ 1);
            let mut c = values(length(m, n, c_rs, 1), seed ^ 2);
            if beta == 0.0 {
                // These elements are not read, so a NaN there is harmless.
                c.iter_mut().step_by(3).for_each(|value| *value = f32::NAN);
            }
            let expected = naive((m, n, k), alpha, (&a, a_rs, a_cs), (&b, b_rs, b_cs), beta, &c, c_rs);
            let mut again = c.clone();
            gemm(m, n, k, alpha, &a, a_rs, a_cs, &b, b_rs, b_cs, beta, &mut c, c_rs);
            for (place, (got, expected)) in c.iter().zip(&expected).enumerate() {
                let inside = n > 0 && place % c_rs < n;
                if inside {
                    prop_assert!((got - expected).abs() <= 1e-5 * (k as f32 + 1.0), "{} {} {}", place, got, expected);
                } else {
                    // The gaps between rows must not be touched.
                    prop_assert_eq!(got.to_bits(), expected.to_bits());
                }
            }
            gemm(m, n, k, alpha, &a, a_rs, a_cs, &b, b_rs, b_cs, beta, &mut again, c_rs);
            prop_assert!(c.iter().zip(&again).all(|(left, right)| left.to_bits() == right.to_bits()));
        }
    }

    #[test]
    fn the_short_forms_are_the_long_one() {
        let (m, n, k) = (7, 19, 33);
        let (a, b) = (values(m * k, 1), values(k * n, 2));
        let mut expected = vec![0.0; m * n];
        nn(m, n, k, &a, &b, 0.0, &mut expected);
        let transpose = |values: &[f32], rows: usize, columns: usize| -> Vec<f32> {
            (0..rows * columns).map(|i| values[i % rows * columns + i / rows]).collect()
        };
        let (a_turned, b_turned) = (transpose(&a, m, k), transpose(&b, k, n));
        let close = |got: &[f32]| {
            assert!(got.iter().zip(&expected).all(|(left, right)| (left - right).abs() < 1e-5));
        };
        let mut c = vec![f32::NAN; m * n];
        nt(m, n, k, &a, &b_turned, 0.0, &mut c);
        close(&c);
        tn(m, n, k, &a_turned, &b, 0.0, &mut c);
        close(&c);
        let (a, b) = (View::packed(&a, m, k), View::new(&b_turned, n, k, k).transposed());
        product(a, b, 0.0, &mut c, n);
        close(&c);
    }

    #[test]
    fn matrices_that_do_not_fit_panic() {
        type Shape = (usize, usize, usize, usize, usize, usize);
        let shapes: [Shape; 6] = [
            (4, 4, 4, 5, 4, 4),
            (4, 4, 4, 4, 5, 4),
            (4, 4, 4, 4, 4, 5),
            (4, 4, 4, 4, 4, 3),
            (usize::MAX, 4, 4, 4, 4, 4),
            (4, 4, 4, usize::MAX, 4, 4),
        ];
        for (m, n, k, a_rs, b_rs, c_rs) in shapes {
            let product = || {
                let mut c = [0.0; 16];
                gemm(m, n, k, 1.0, &[0.0; 16], a_rs, 1, &[0.0; 16], b_rs, 1, 0.0, &mut c, c_rs);
            };
            assert!(std::panic::catch_unwind(product).is_err(), "{m} {n} {k} {a_rs} {b_rs} {c_rs}");
        }
    }
}
