//! The vectors of items in bytes, with which a search takes a first look at all items.
//!
//! Each vector has a step of its own, a 127th of its largest element. The layout is that of
//! [`byte_dots`], and the elements have the offset [`OFFSET`] there. All sums are of integers, so
//! that every machine finds the same items.

use zillion_device::simd::{BYTE_STEP, BYTE_VECTORS, byte_dots};
use zillion_rows::layer::Throttle;

use crate::items::ItemVectors;

/// The number that is added to an element of an item, so that it has no sign.
const OFFSET: i32 = 128;
/// The largest element, in steps.
const MOST: f32 = 127.0;
/// The number of groups of items that are rounded between two pauses.
const GROUPS_AT_ONCE: usize = 256;

/// The rounded vectors of items.
#[derive(Debug)]
pub struct RoundedItems {
    groups: Vec<u8>,
    /// The step of each item.
    steps: Vec<f32>,
    /// The number of elements of a vector, with zeros behind the last one.
    width: usize,
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

impl RoundedItems {
    /// Rounds the vectors of items.
    pub fn new(items: &ItemVectors, pace: &mut dyn Throttle) -> Self {
        let width = items.dim().next_multiple_of(BYTE_STEP);
        let group_bytes = width * BYTE_VECTORS;
        let mut groups = vec![OFFSET as u8; items.len().div_ceil(BYTE_VECTORS) * group_bytes];
        let mut steps = vec![0.0; items.len()];
        let vectors = items.vectors().chunks(items.dim() * BYTE_VECTORS);
        let parts = groups.chunks_mut(group_bytes).zip(steps.chunks_mut(BYTE_VECTORS));
        for (number, ((group, steps), vectors)) in parts.zip(vectors).enumerate() {
            if number.is_multiple_of(GROUPS_AT_ONCE) {
                pace.piece();
            }
            let vectors = vectors.chunks_exact(items.dim());
            for (lane, (vector, step)) in vectors.zip(steps).enumerate() {
                let (size, inverse) = find_step(vector);
                *step = size;
                for (at, x) in vector.iter().enumerate() {
                    let place = at / BYTE_STEP * (BYTE_STEP * BYTE_VECTORS);
                    let rounded = i32::from(round(x * inverse)) + OFFSET;
                    group[place + lane * BYTE_STEP + at % BYTE_STEP] = rounded as u8;
                }
            }
        }
        Self { groups, steps, width }
    }

    /// Returns the number of bytes in memory.
    pub fn bytes(&self) -> usize {
        self.groups.len() + size_of_val(&self.steps[..])
    }

    /// Rounds the vector of a user. `scale` is the factor of the scores.
    pub(crate) fn round_user(&self, user: &[f32], scale: f32) -> RoundedUser {
        let (step, inverse) = find_step(user);
        let mut elements: Vec<i8> = user.iter().map(|x| round(x * inverse)).collect();
        elements.resize(self.width, 0);
        let surplus = OFFSET * elements.iter().map(|&x| i32::from(x)).sum::<i32>();
        RoundedUser { elements, step: step * scale, surplus }
    }

    /// Computes the approximate scores of up to `scores.len()` items from the position `first` on.
    /// `sums` has room for the items in whole groups, and `first` is the begin of a group.
    pub(crate) fn scores(
        &self,
        user: &RoundedUser,
        first: usize,
        sums: &mut [i32],
        scores: &mut [f32],
    ) {
        let count = scores.len().next_multiple_of(BYTE_VECTORS);
        let sums = &mut sums[..count];
        byte_dots(&user.elements, &self.groups[first * self.width..][..count * self.width], sums);
        let steps = &self.steps[first..][..scores.len()];
        for ((score, sum), step) in scores.iter_mut().zip(sums).zip(steps) {
            *score = user.step * step * (*sum - user.surplus) as f32;
        }
    }
}

/// Returns the step of a vector, and one divided by the step; both are 0 for a vector of zeros.
fn find_step(vector: &[f32]) -> (f32, f32) {
    let largest = vector.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let inverse = MOST / largest;
    if inverse.is_finite() && inverse > 0.0 { (largest / MOST, inverse) } else { (0.0, 0.0) }
}

/// Rounds an element that is given in steps.
fn round(x: f32) -> i8 {
    // The cast ends at the limits of the type.
    x.round_ties_even().clamp(-MOST, MOST) as i8
}

#[cfg(test)]
mod tests {
    use zillion_device::simd::dot;
    use zillion_feature::random::mix64;
    use zillion_rows::layer::Unthrottled;

    use super::*;
    use crate::items::ItemIds;

    #[test]
    fn rounded_scores_are_near_the_exact_ones() {
        for (count, dim) in [(1, 1), (16, 4), (100, 7), (37, 64)] {
            let float = |i: usize| (mix64(i as u64) % 2001) as f32 / 1000.0 - 1.0;
            let mut vectors: Vec<f32> = (0..count * dim).map(float).collect();
            // One vector of zeros, and one that is far larger.
            vectors[..dim].fill(0.0);
            vectors[(count - 1) * dim..].iter_mut().for_each(|x| *x *= 1e6);
            let ids = ItemIds::Ints((0..count as i64).collect());
            let items = ItemVectors::new(ids, vectors, dim, -2.0, Vec::new(), &mut Unthrottled);
            let items = items.unwrap();
            let rounded = RoundedItems::new(&items, &mut Unthrottled);
            let user: Vec<f32> = (0..dim).map(|i| float(i + 7_000_000)).collect();
            let rounded_user = rounded.round_user(&user, items.scale());
            let (mut sums, mut scores) = (vec![0; count.next_multiple_of(16)], vec![0.0; count]);
            rounded.scores(&rounded_user, 0, &mut sums, &mut scores);
            let largest = |vector: &[f32]| vector.iter().fold(0.0f32, |a, x| a.max(x.abs()));
            for (item, score) in scores.iter().enumerate() {
                let vector = &items.vectors()[item * dim..][..dim];
                // Each element is off by half a step, and so is that of the user.
                let most = 2.0 * dim as f32 * largest(vector) * largest(&user) * 1.01 / 127.0;
                let error = (score - items.scale() * dot(&user, vector)).abs();
                assert!(error <= most + 1e-6, "{count} {dim} {item}: {error} {most}");
            }
            assert!(rounded.bytes() >= count * (dim + 4));
        }
    }
}
