//! The values that quantised rows and columns stand for. Training computes with them in f32, so
//! that it sees the rounding of the products of this module.

use super::super::View;
use super::{Scale, magnitude_bits, round};
use crate::simd::vectorised;

impl Scale {
    /// Returns the value that a quantised value stands for: its integer times the scale.
    #[inline(always)]
    fn round_trip(self, value: f32) -> f32 {
        match self.inverse {
            Some(inverse) => f32::from(round(value * inverse) as i8) * self.scale,
            None => f32::NAN,
        }
    }
}

/// Writes each row of a row-major matrix as [`Int8Rows`](super::Int8Rows) quantise it. Rows of
/// `out` are `out_row` floats apart.
///
/// # Panics
///
/// Panics if the columns of the view are not neighbours, or if a row is outside of its slice.
pub fn fake_quantize_rows(x: View<'_>, out: &mut [f32], out_row: usize) {
    assert!(x.column_stride == 1 || x.columns <= 1, "quantised rows must be row-major");
    for row in 0..x.rows {
        let values = &x.values[row * x.row_stride..][..x.columns];
        let out = &mut out[row * out_row..][..x.columns];
        vectorised(
            #[inline(always)]
            || round_row(values, out),
        );
    }
}

#[inline(always)]
fn round_row(values: &[f32], out: &mut [f32]) {
    let magnitude = values.iter().fold(0, |most, &value| magnitude_bits(value).max(most));
    let scale = Scale::from_magnitude(magnitude);
    for (out, &value) in out.iter_mut().zip(values) {
        *out = scale.round_trip(value);
    }
}

/// Writes each column of a row-major matrix as an [`Int8Weight`](super::Int8Weight) has it. Rows of
/// `out` are `out_row` floats apart.
///
/// # Panics
///
/// Panics for the reasons of [`fake_quantize_rows`].
pub fn fake_quantize_columns(weight: View<'_>, out: &mut [f32], out_row: usize) {
    let columns = weight.columns;
    assert!(weight.column_stride == 1 || columns <= 1, "the weight must be row-major");
    let row = |row: usize| &weight.values[row * weight.row_stride..][..columns];
    let mut magnitudes = vec![0u32; columns];
    for values in (0..weight.rows).map(row) {
        for (most, &value) in magnitudes.iter_mut().zip(values) {
            *most = magnitude_bits(value).max(*most);
        }
    }
    let scales: Vec<Scale> = magnitudes.into_iter().map(Scale::from_magnitude).collect();
    for (number, values) in (0..weight.rows).map(row).enumerate() {
        let out = &mut out[number * out_row..][..columns];
        for ((out, &value), scale) in out.iter_mut().zip(values).zip(&scales) {
            *out = scale.round_trip(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::{Epilogue, Int8Rows, Int8Weight, linear_int8};

    #[test]
    fn products_of_the_values_are_the_quantised_products() {
        let (rows, inner, columns) = (5, 37, 19);
        let value = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0;
        let mut x: Vec<f32> = (0..rows * inner).map(value).collect();
        x[inner..2 * inner].fill(0.0);
        let mut weight: Vec<f32> = (0..inner * columns).map(|i| value(i + 77_777)).collect();
        weight.iter_mut().step_by(columns).for_each(|w| *w *= 1e-3);
        let (left, right) = (View::packed(&x, rows, inner), View::packed(&weight, inner, columns));
        let (mut fake_x, mut fake_w) = (vec![7.0; rows * inner], vec![7.0; inner * columns]);
        fake_quantize_rows(left, &mut fake_x, inner);
        fake_quantize_columns(right, &mut fake_w, columns);
        let mut quantised = Int8Rows::default();
        quantised.quantize(left);
        let packed = Int8Weight::pack(right).unwrap();
        let mut expected = vec![0.0; rows * columns];
        linear_int8(&quantised, &packed, Epilogue::default(), &mut expected, columns);
        for row in 0..rows {
            for column in 0..columns {
                let product = (0..inner).map(|p| {
                    f64::from(fake_x[row * inner + p]) * f64::from(fake_w[p * columns + column])
                });
                let (sum, wanted) = (product.sum::<f64>(), expected[row * columns + column]);
                let error = (sum - f64::from(wanted)).abs();
                assert!(error <= 1e-5 * f64::from(wanted.abs()) + 1e-12, "{sum} {wanted}");
            }
        }
        assert!(fake_x[inner..2 * inner].iter().all(|&x| x == 0.0));
        // The rounding is at most half a step, and a second rounding changes nothing.
        let mut again = vec![0.0; rows * inner];
        fake_quantize_rows(View::packed(&fake_x, rows, inner), &mut again, inner);
        for (once, twice) in fake_x.iter().zip(&again) {
            assert!((once - twice).abs() <= 1e-6, "{once} {twice}");
        }
    }

    #[test]
    fn a_row_with_a_nan_is_nan() {
        let mut out = [0.0; 4];
        fake_quantize_rows(View::packed(&[1.0, f32::NAN, 2.0, 3.0], 2, 2), &mut out, 2);
        assert!(out[..2].iter().all(|x| x.is_nan()), "{out:?}");
        // A step of the second row is 3 / 127.
        assert!((out[2] - 85.0 * 3.0 / 127.0).abs() < 1e-6 && (out[3] - 3.0).abs() < 1e-6);
    }
}
