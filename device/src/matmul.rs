//! Matrix products of f32: row-major, strided, on one thread. Who calls it tiles the rows and hands the
//! tiles to the pool, so that products of several threads never wait for each other.
//!
//! The work is done by the `gemm-f32` crate with its AVX-512 kernels, without its threads. For one shape on
//! one machine the result is always the same.

/// One operand: element (i, j) is at `values[i * row_stride + j * column_stride]`. A transposed view is
/// the same values with the strides exchanged.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// A row-major matrix whose rows begin `row_stride` apart.
    pub fn new(values: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self { values, rows, columns, row_stride, column_stride: 1 }
    }

    /// A row-major matrix without gaps.
    pub fn packed(values: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::new(values, rows, columns, columns)
    }

    /// The same values, rows and columns exchanged.
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

/// `c = alpha * a * b + beta * c` for an m x k matrix `a`, a k x n matrix `b` and a row-major m x n matrix
/// `c` whose rows begin `c_rs` apart. Strides are in elements: `a_rs` between rows, `a_cs` between columns.
/// With `beta` zero, `c` is not read (it may hold NaN).
///
/// # Panics
///
/// Where a matrix does not fit its slice, or where rows of `c` overlap: a mistake of the caller.
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
    // The kernels want their result column-major: c^T = b^T * a^T.
    let kernel = gemm_f32::gemm::f32::get_gemm_fn();
    let stride = |stride: usize| stride as isize;
    // SAFETY: the kernel reads element (i, j) of a for i < m and j < k, of b for i < k and j < n, and reads
    // and writes those of c for i < m and j < n, each at the offset that its strides give; `assert_fits`
    // has checked with checked arithmetic that the largest of these offsets is inside its slice, hence
    // also that it fits isize (no slice of f32 is longer than isize::MAX bytes). `c` is borrowed mutably, so
    // it overlaps neither input; with `c_rs >= n` its elements are distinct.
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

/// Panics unless all elements of a matrix lie inside a slice of `length`.
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

/// `c = a * b + beta * c`: `c` is row-major, its rows `c_rs` apart.
///
/// # Panics
///
/// As [`gemm`], and where the inner dimensions differ.
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

/// `c = a * b + beta * c` with `a` m x k, `b` k x n, all without gaps: a forward product.
///
/// # Panics
///
/// As [`gemm`].
pub fn nn(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], beta: f32, c: &mut [f32]) {
    gemm(m, n, k, 1.0, a, k, 1, b, n, 1, beta, c, n);
}

/// `c = a * b^T + beta * c` with `a` m x k, `b` n x k, all without gaps: the gradient of an input.
///
/// # Panics
///
/// As [`gemm`].
pub fn nt(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], beta: f32, c: &mut [f32]) {
    gemm(m, n, k, 1.0, a, k, 1, b, 1, k, beta, c, n);
}

/// `c = a^T * b + beta * c` with `a` k x m, `b` k x n, all without gaps: the gradient of a weight.
///
/// # Panics
///
/// As [`gemm`].
pub fn tn(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], beta: f32, c: &mut [f32]) {
    gemm(m, n, k, 1.0, a, 1, m, b, n, 1, beta, c, n);
}
