//! Sums with a fixed order. There are sixteen partial sums. Element `i` is added to partial sum `i
//! % 16`, and then the partial sums are added by halves. So sums vectorise, and still give the same
//! bits at every level.

use super::vectorised;

/// The number of partial sums. They fill one register of 512 bits, two of 256 bits, or four of 128
/// bits.
const LANES: usize = 16;

/// Returns the sum of `values`.
pub fn sum(values: &[f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || fold(values, values, |value, _| value),
    )
}

/// Returns the sum of the squares of `values`.
pub fn sum_of_squares(values: &[f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || fold(values, values, |value, _| value * value),
    )
}

/// Returns the inner product of `left` and `right`, over the length of the shorter slice.
pub fn dot(left: &[f32], right: &[f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || fold(left, right, |left, right| left * right),
    )
}

/// Computes the inner product of `left` and each row of a row-major matrix, times `scale`. The
/// products have the bits of [`dot`]. A row has as many floats as `left`.
pub fn scaled_dots(left: &[f32], rows: &[f32], scale: f32, out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (out, row) in out.iter_mut().zip(rows.chunks_exact(left.len().max(1))) {
                *out = scale * fold(left, row, |left, right| left * right);
            }
        },
    );
}

/// Returns the sum of `term` over the pairs of elements with the same index. It is for use inside a
/// [`vectorised`] closure.
#[inline(always)]
pub(crate) fn fold(left: &[f32], right: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let length = left.len().min(right.len());
    let (left_blocks, left_tail) = left[..length].as_chunks::<LANES>();
    let (right_blocks, right_tail) = right[..length].as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (left, right) in left_blocks.iter().zip(right_blocks) {
        for lane in 0..LANES {
            lanes[lane] += term(left[lane], right[lane]);
        }
    }
    for (lane, (left, right)) in lanes.iter_mut().zip(left_tail.iter().zip(right_tail)) {
        *lane += term(*left, *right);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::super::{Level, vectorised_at};
    use super::*;

    #[test]
    fn sums_are_equal_at_every_level_and_near_the_exact_one() {
        for length in [0, 1, 15, 16, 17, 31, 100, 1000, 4099] {
            let left: Vec<f32> =
                (0..length).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.1).collect();
            let right: Vec<f32> = (0..length).map(|i| (i * 17 % 29) as f32 * 0.3).collect();
            let exact: f64 =
                left.iter().zip(&right).map(|(l, r)| f64::from(*l) * f64::from(*r)).sum();
            let expected = dot(&left, &right);
            assert!((f64::from(expected) - exact).abs() <= 1e-3 * length as f64, "{length}");
            for wanted in Level::ALL {
                let got = vectorised_at(
                    wanted,
                    #[inline(always)]
                    || fold(&left, &right, |left, right| left * right),
                );
                assert_eq!(got.to_bits(), expected.to_bits(), "{length} at {wanted:?}");
            }
            assert_eq!(sum_of_squares(&left), dot(&left, &left));
            assert_eq!(sum(&left), dot(&left, &vec![1.0; length]));
        }
    }

    #[test]
    fn products_with_rows_have_the_bits_of_single_products() {
        for length in [1, 5, 16, 37, 64] {
            let left: Vec<f32> = (0..length).map(|i| (i as f32 * 0.7).sin()).collect();
            let rows: Vec<f32> = (0..9 * length).map(|i| (i as f32 * 1.3).cos()).collect();
            let mut out = vec![0.0; 9];
            scaled_dots(&left, &rows, 3.0, &mut out);
            for (out, row) in out.iter().zip(rows.chunks(length)) {
                assert_eq!(out.to_bits(), (3.0 * dot(&left, row)).to_bits());
            }
        }
    }

    #[test]
    fn the_shorter_slice_counts() {
        assert_eq!(dot(&[1.0, 2.0, 3.0], &[4.0, 5.0]), 14.0);
    }
}
