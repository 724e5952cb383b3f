//! The vectors of items in 4-bit integers, with which a search takes a first look at all items.
//!
//! A vector is rounded in three steps, because few steps of one size must serve all its elements:
//!
//! 1. The mean of all items is subtracted. It adds the same to the scores of all items for a user,
//!    and so does not change their order, but it may be longer than what distinguishes the items.
//! 2. A [`Rotation`] spreads large elements over all elements. It keeps inner products.
//! 3. Each vector has a step of its own: a negative eighth of the element with the largest
//!    magnitude. So this element is −8 exactly, and the others lie between −8 and 7.
//!
//! The layout is that of [`nibble_dots`], on huge pages, and the elements have the offset
//! [`OFFSET`] there. All sums of a search are of integers, so that every machine finds the same
//! items.

use zillion_device::lines::{LineArena, Run};
use zillion_device::simd::{NIBBLE_STEP, NIBBLE_VECTORS, nibble_dots, vectorised};
use zillion_feature::random::mix64;
use zillion_rows::layer::Throttle;

use crate::error::{Error, Result};
use crate::items::ItemVectors;

/// The number that is added to an element of an item, so that it has no sign.
const OFFSET: i32 = 8;
/// The largest element of an item, in steps.
const LARGEST: f32 = 7.0;
/// The smallest element of an item, in steps.
const SMALLEST: f32 = -8.0;
/// The largest magnitude of an element of a user, in steps.
const USER_LARGEST: f32 = 127.0;
/// The number of groups of items that are rounded between two pauses.
const GROUPS_AT_ONCE: usize = 256;
/// The largest number of cache lines that the system gives in one run.
const MOST_LINES: usize = 1 << 26;

/// The rounded vectors of items.
#[derive(Debug)]
pub struct RoundedItems {
    groups: Run,
    /// The step of each item.
    steps: Vec<f32>,
    rotation: Rotation,
}

/// The rounded vector of a user.
#[derive(Debug)]
pub(crate) struct RoundedUser {
    elements: Vec<i8>,
    /// The step of the elements, times the factor of the scores.
    step: f32,
    /// The part of each product that comes from the offset of the items.
    surplus: i32,
}

/// An orthogonal transform that spreads each element over all others. Signs are chosen by the place
/// of an element, and then comes a Walsh-Hadamard transform of the first elements, and one of the
/// last. Both have the largest power of two of elements, so that together they reach all.
#[derive(Debug)]
struct Rotation {
    /// The sign of each element, as a factor. The last elements are padding.
    signs: Vec<f32>,
    /// The number of elements of a Walsh-Hadamard transform.
    length: usize,
}

impl RoundedItems {
    /// Rounds the vectors of items.
    ///
    /// # Errors
    /// Returns an error if the rounded vectors have more than 4 GiB, or if the system has no memory
    /// for them.
    pub fn new(items: &ItemVectors, pace: &mut dyn Throttle) -> Result<Self> {
        let dim = items.dim();
        let rotation = Rotation::new(dim);
        let width = rotation.signs.len();
        let mean = mean_vector(items, pace);
        let group_lines = width / NIBBLE_STEP;
        let lines = items.len().div_ceil(NIBBLE_VECTORS).saturating_mul(group_lines);
        if lines > MOST_LINES {
            return Err(Error::Items(format!(
                "{} items of {dim} floats take more than 4 GiB when they are rounded for the \
                 approximate search; publish fewer items, or shorter vectors",
                items.len()
            )));
        }
        let mut groups = LineArena::new().allocate(lines).map_err(zillion_rows::Error::from)?;
        let mut steps = vec![0.0; items.len()];
        let vectors = items.vectors().chunks(dim * NIBBLE_VECTORS);
        let parts = groups.chunks_mut(group_lines).zip(steps.chunks_mut(NIBBLE_VECTORS));
        let mut turned = vec![0.0; width];
        for (number, ((group, steps), vectors)) in parts.zip(vectors).enumerate() {
            if number.is_multiple_of(GROUPS_AT_ONCE) {
                pace.piece();
            }
            for (lane, (vector, step)) in vectors.chunks_exact(dim).zip(steps).enumerate() {
                for ((out, x), mean) in turned.iter_mut().zip(vector).zip(&mean) {
                    *out = x - mean;
                }
                turned[dim..].fill(0.0);
                rotation.turn(&mut turned);
                let (size, inverse) = find_item_step(&turned);
                *step = size;
                let (pieces, _) = turned.as_chunks::<NIBBLE_STEP>();
                for (line, piece) in group.iter_mut().zip(pieces) {
                    line.0[lane] = pack_word(piece, inverse);
                }
            }
        }
        Ok(Self { groups, steps, rotation })
    }

    /// Returns the number of bytes in memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.groups[..]) + size_of_val(&self.steps[..])
    }

    /// Rounds the vector of a user. `scale` is the factor of the scores.
    pub(crate) fn round_user(&self, user: &[f32], scale: f32) -> RoundedUser {
        let mut turned = user.to_vec();
        turned.resize(self.rotation.signs.len(), 0.0);
        self.rotation.turn(&mut turned);
        let largest = turned.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let inverse = usable(USER_LARGEST / largest);
        let round = |x: &f32| {
            // The cast ends at the limits of the type.
            (x * inverse).round_ties_even().clamp(-USER_LARGEST, USER_LARGEST) as i8
        };
        let elements: Vec<i8> = turned.iter().map(round).collect();
        let surplus = OFFSET * elements.iter().map(|&x| i32::from(x)).sum::<i32>();
        let step = if inverse > 0.0 { largest / USER_LARGEST } else { 0.0 };
        RoundedUser { elements, step: step * scale, surplus }
    }

    /// Computes the approximate scores of up to `scores.len()` items from the position `first` on,
    /// without the score of the mean item. `sums` has room for the items in whole groups, and
    /// `first` is the begin of a group.
    pub(crate) fn scores(
        &self,
        user: &RoundedUser,
        first: usize,
        sums: &mut [i32],
        scores: &mut [f32],
    ) {
        let group_lines = user.elements.len() / NIBBLE_STEP;
        let groups = scores.len().div_ceil(NIBBLE_VECTORS);
        let sums = &mut sums[..groups * NIBBLE_VECTORS];
        let lines = &self.groups[first / NIBBLE_VECTORS * group_lines..][..groups * group_lines];
        nibble_dots(&user.elements, lines, sums);
        let steps = &self.steps[first..][..scores.len()];
        vectorised(
            #[inline(always)]
            || finish(user, sums, steps, scores),
        );
    }
}

/// Turns the sums of items into their approximate scores.
#[inline(always)]
fn finish(user: &RoundedUser, sums: &[i32], steps: &[f32], scores: &mut [f32]) {
    for ((score, sum), step) in scores.iter_mut().zip(sums).zip(steps) {
        *score = user.step * step * (*sum - user.surplus) as f32;
    }
}

impl Rotation {
    /// Returns the rotation of vectors of `dim` elements, which are padded to whole lines.
    fn new(dim: usize) -> Self {
        let width = dim.next_multiple_of(NIBBLE_STEP);
        let sign = |at: u64| if mix64(at) >> 63 == 0 { 1.0 } else { -1.0 };
        let length = 1 << width.max(1).ilog2();
        Self { signs: (0..width as u64).map(sign).collect(), length }
    }

    /// Rotates a padded vector in its place.
    fn turn(&self, vector: &mut [f32]) {
        vectorised(
            #[inline(always)]
            || {
                for (x, sign) in vector.iter_mut().zip(&self.signs) {
                    *x *= sign;
                }
                transform(&mut vector[..self.length]);
                let rest = vector.len() - self.length;
                if rest > 0 {
                    transform(&mut vector[rest..]);
                }
            },
        );
    }
}

/// Computes the orthogonal Walsh-Hadamard transform of a power of two of elements.
#[inline(always)]
fn transform(vector: &mut [f32]) {
    let mut half = vector.len() / 2;
    while half > 0 {
        for pair in vector.chunks_exact_mut(2 * half) {
            let (left, right) = pair.split_at_mut(half);
            for (a, b) in left.iter_mut().zip(right) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half /= 2;
    }
    let factor = 1.0 / (vector.len() as f32).sqrt();
    vector.iter_mut().for_each(|x| *x *= factor);
}

/// Returns the mean of the vectors of items.
fn mean_vector(items: &ItemVectors, pace: &mut dyn Throttle) -> Vec<f32> {
    let mut sums = vec![0.0f64; items.dim()];
    for vectors in items.vectors().chunks(items.dim() * NIBBLE_VECTORS * GROUPS_AT_ONCE) {
        pace.piece();
        vectorised(
            #[inline(always)]
            || {
                for vector in vectors.chunks_exact(sums.len()) {
                    for (sum, x) in sums.iter_mut().zip(vector) {
                        *sum += f64::from(*x);
                    }
                }
            },
        );
    }
    let count = items.len().max(1) as f64;
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// Returns the step of an item's vector, and one divided by the step; both are 0 for a vector of
/// zeros. The step has the sign that makes the element with the largest magnitude [`SMALLEST`].
fn find_item_step(vector: &[f32]) -> (f32, f32) {
    let lowest = vector.iter().fold(0.0f32, |lowest, x| lowest.min(*x));
    let highest = vector.iter().fold(0.0f32, |highest, x| highest.max(*x));
    let peak = if -lowest > highest { lowest } else { highest };
    let inverse = usable(SMALLEST / peak.abs()).copysign(-peak);
    if inverse == 0.0 { (0.0, 0.0) } else { (peak / SMALLEST, inverse) }
}

/// Returns a factor, or 0 instead of one that no element can be multiplied by.
fn usable(factor: f32) -> f32 {
    if factor.is_finite() { factor.abs() } else { 0.0 }
}

/// Rounds the neighbouring elements of a vector, which are divided by the step, into a word.
#[inline(always)]
fn pack_word(piece: &[f32; NIBBLE_STEP], inverse: f32) -> u32 {
    let nibble = |x: f32| {
        let rounded = (x * inverse).round_ties_even().clamp(SMALLEST, LARGEST);
        // A product that is not a number becomes 0.
        (rounded as i32 + OFFSET) as u32
    };
    (0..NIBBLE_STEP / 2).fold(0, |word, at| {
        let (lower, upper) = (nibble(piece[at]), nibble(piece[at + NIBBLE_STEP / 2]));
        word | (lower | upper << 4) << (8 * at)
    })
}

#[cfg(test)]
mod tests {
    use zillion_device::simd::dot;
    use zillion_rows::layer::Unthrottled;

    use super::*;
    use crate::items::ItemIds;

    fn float(i: usize) -> f32 {
        (mix64(i as u64) % 2001) as f32 / 1000.0 - 1.0
    }

    fn length(vector: &[f32]) -> f32 {
        dot(vector, vector).sqrt()
    }

    #[test]
    fn rounded_scores_are_near_the_exact_ones() {
        for (count, dim) in [(1, 1), (16, 4), (100, 7), (37, 64), (50, 100)] {
            let mut vectors: Vec<f32> = (0..count * dim).map(float).collect();
            // One vector of zeros, and one that is far larger.
            vectors[..dim].fill(0.0);
            vectors[(count - 1) * dim..].iter_mut().for_each(|x| *x *= 1e6);
            let ids = ItemIds::Ints((0..count as i64).collect());
            let items = ItemVectors::new(ids, vectors, dim, -2.0, Vec::new(), &mut Unthrottled);
            let items = items.unwrap();
            let rounded = RoundedItems::new(&items, &mut Unthrottled).unwrap();
            let user: Vec<f32> = (0..dim).map(|i| float(i + 7_000_000)).collect();
            let rounded_user = rounded.round_user(&user, items.scale());
            let (mut sums, mut scores) = (vec![0; count.next_multiple_of(16)], vec![0.0; count]);
            rounded.scores(&rounded_user, 0, &mut sums, &mut scores);
            let mean = mean_vector(&items, &mut Unthrottled);
            for (item, score) in scores.iter().enumerate() {
                let vector = &items.vectors()[item * dim..][..dim];
                let vector: Vec<f32> = vector.iter().zip(&mean).map(|(x, mean)| x - mean).collect();
                // An element is off by a step at most, and each step is an eighth of the largest
                // element at most, whose magnitude is at most the length. The user adds a little.
                let width = dim.next_multiple_of(NIBBLE_STEP) as f32;
                let most = 2.0 * length(&user) * length(&vector) * width.sqrt() * 1.1 / 8.0;
                let error = (score - items.scale() * dot(&user, &vector)).abs();
                assert!(error <= most + 1e-6, "{count} {dim} {item}: {error} {most}");
            }
            assert!(rounded.bytes() >= count * (dim / 2 + 4));
        }
    }

    #[test]
    fn a_rotation_keeps_inner_products_and_spreads_elements() {
        for dim in [1, 8, 12, 64, 100, 1000] {
            let rotation = Rotation::new(dim);
            let width = dim.next_multiple_of(NIBBLE_STEP);
            let padded = |seed: usize| -> Vec<f32> {
                (0..width).map(|i| if i < dim { float(seed + i) } else { 0.0 }).collect()
            };
            let (mut left, mut right) = (padded(0), padded(100_000));
            let before = dot(&left, &right);
            rotation.turn(&mut left);
            rotation.turn(&mut right);
            let error = (dot(&left, &right) - before).abs();
            assert!(error <= 1e-5 * length(&left) * length(&right), "{dim}: {error}");
            let mut one = vec![0.0; width];
            one[dim - 1] = 1.0;
            rotation.turn(&mut one);
            let largest = one.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            assert!(largest <= 2.0 / (rotation.length as f32).sqrt(), "{dim}: {largest}");
        }
    }

    #[test]
    fn huge_and_tiny_elements_have_integers() {
        let vectors = vec![f32::MAX, -f32::MAX, -f32::MAX, f32::MAX, 1e-45, 0.0, 0.0, -1e-45];
        let ids = ItemIds::Ints((0..4).collect());
        let items = ItemVectors::new(ids, vectors, 2, 1.0, Vec::new(), &mut Unthrottled).unwrap();
        let rounded = RoundedItems::new(&items, &mut Unthrottled).unwrap();
        let user = rounded.round_user(&[f32::MAX, 1.0], 1.0);
        let (mut sums, mut scores) = ([0; 16], [0.0; 4]);
        rounded.scores(&user, 0, &mut sums, &mut scores);
        assert!(scores.iter().all(|score| !score.is_nan()), "{scores:?}");
    }
}
