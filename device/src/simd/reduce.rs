//! Sums whose order is fixed and wide, so that they vectorise and still give the same bits at every
//! level: sixteen partial sums, element `i` goes to partial sum `i % 16`, and the partial sums are
//! added by halves.

use super::vectorised;

/// Partial sums: one 512-bit register, two of 256 bits, four of 128.
const LANES: usize = 16;

/// The sum of `values`.
pub fn sum(values: &[f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || fold(values, values, |value, _| value),
    )
}

/// The sum of the squares of `values`.
pub fn sum_of_squares(values: &[f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || fold(values, values, |value, _| value * value),
    )
}

/// The inner product of `left` and `right`, over the shorter of the two.
pub fn dot(left: &[f32], right: &[f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || fold(left, right, |left, right| left * right),
    )
}

/// The sum of `term` over pairs, for use inside a [`vectorised`] closure.
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
