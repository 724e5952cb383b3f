//! The products of dense layers on machines for which we have no kernels. The general product,
//! which supports more machines, computes the sums, and then the epilogue is applied.

use super::product::{Epilogue, Right};
use super::{View, gemm};

/// Computes [`super::linear`] by the general product.
pub(super) fn linear(
    x: View<'_>,
    w: Right<'_>,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    let (m, (k, n)) = (x.rows, w.shape());
    if m == 0 || n == 0 {
        return;
    }
    assert_eq!(x.columns, k, "inner dimensions differ");
    assert!(epilogue.bias.is_none_or(|bias| bias.len() >= n), "too short a bias");
    w.check();
    let beta = if epilogue.accumulate { 1.0 } else { 0.0 };
    let mut columns_by = |first: usize, columns: usize, right: &[f32], right_row: usize| {
        let (left_row, left_step) = (x.row_stride, x.column_stride);
        let out = &mut out[first..];
        gemm(
            m, columns, k, 1.0, x.values, left_row, left_step, right, right_row, 1, beta, out,
            out_row,
        );
    };
    match w {
        Right::Plain(view) => columns_by(0, n, view.values, view.row_stride),
        Right::Packed(panels) => {
            for panel in panels {
                columns_by(panel.first, panel.columns, panel.values(), panel.step());
            }
        }
    }
    for i in 0..m {
        let row = &mut out[i * out_row..][..n];
        if let Some(bias) = epilogue.bias {
            for (value, bias) in row.iter_mut().zip(bias) {
                *value += bias;
            }
        }
        if epilogue.relu {
            for value in row {
                *value = if *value < 0.0 { 0.0 } else { *value };
            }
        }
    }
}

/// Computes [`super::outer_product`] by the general product.
pub(super) fn outer_product(
    x: View<'_>,
    g: View<'_>,
    accumulate: bool,
    out: &mut [f32],
    out_row: usize,
) {
    super::product(x.transposed(), g, if accumulate { 1.0 } else { 0.0 }, out, out_row);
}
