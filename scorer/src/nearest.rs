//! The search for the items with the highest scores for a user.
//!
//! The search is exact: the score of every item is computed, as the scale times the inner product
//! of the two vectors. The scores have the bits of the model's own scores, because the inner
//! product has the order of additions of the model's operation. The items are cut into blocks,
//! which the idle threads of the pool share. Of two items with equal scores, the one that is
//! earlier in the file comes first, so that the answer does not depend on the number of threads.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use zillion_device::Workers;
use zillion_device::simd::scaled_dots;

use crate::error::{Error, Result};
use crate::items::ItemVectors;
use crate::scorer::LateCheck;

/// The maximum number of items whose scores are computed between two looks at the clock. Their
/// scores fit the first-level cache.
const BLOCK: usize = 4096;
/// The number of floats of items that are read between two looks at the clock, if a vector has not
/// more.
const BLOCK_FLOATS: usize = 1 << 18;

/// An item with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The position of the item in the file.
    pub item: u32,
    /// The score of the item for the user.
    pub score: f32,
}

/// The choice of items that a search may return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The positions of the only items that may be returned, or `None` if all items may be.
    pub only: Option<Vec<u32>>,
    /// The positions of items that may not be returned.
    pub exclude: Vec<u32>,
}

impl Eq for Found {}

impl PartialOrd for Found {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Found {
    /// Compares two items: the better one is greater.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.item.cmp(&self.item))
    }
}

/// The best items that were seen so far.
#[derive(Debug)]
struct Best {
    k: usize,
    heap: BinaryHeap<Reverse<Found>>,
}

impl Best {
    fn new(k: usize) -> Self {
        Self { k, heap: BinaryHeap::new() }
    }

    /// Returns whether an item is better than the worst that is kept.
    #[inline]
    fn takes(&self, found: Found) -> bool {
        self.heap.len() < self.k || self.heap.peek().is_some_and(|worst| found > worst.0)
    }

    fn push(&mut self, found: Found) {
        if self.heap.len() == self.k {
            self.heap.pop();
        }
        self.heap.push(Reverse(found));
    }
}

/// Returns the `k` items with the highest scores for the vector `user`, the best first. There are
/// fewer if `choice` leaves fewer.
///
/// # Errors
/// Returns [`Error::Late`] if `is_late` returns `true`, and an error if the vector of the user or
/// one of the best scores is not finite, or if the vector has another number of floats than those
/// of the items.
pub fn find_nearest(
    items: &ItemVectors,
    user: &[f32],
    k: usize,
    mut choice: Choice,
    workers: &Workers,
    is_late: Option<LateCheck<'_>>,
) -> Result<Vec<Found>> {
    if user.len() != items.dim() {
        return Err(Error::Items(format!(
            "its vectors have {} floats, but the user's vector has {}; publish the version again",
            items.dim(),
            user.len()
        )));
    }
    if !user.iter().all(|x| x.is_finite()) {
        return Err(Error::UserVector);
    }
    if k == 0 {
        return Ok(Vec::new());
    }
    choice.exclude.sort_unstable();
    let search = Search { items, user, k, exclude: &choice.exclude, is_late };
    let parts = match &mut choice.only {
        Some(only) => {
            only.sort_unstable();
            only.dedup();
            vec![search.among(only)?]
        }
        None => search.all(workers)?,
    };
    let mut found: Vec<Found> = parts.into_iter().flat_map(|best| best.heap).map(|f| f.0).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.truncate(k);
    // Finite vectors have such a score if their product is too large for a float.
    if !found.iter().all(|found| found.score.is_finite()) {
        return Err(Error::UserVector);
    }
    Ok(found)
}

/// The arguments of a search.
struct Search<'a> {
    items: &'a ItemVectors,
    user: &'a [f32],
    k: usize,
    /// The positions that are left out, in ascending order.
    exclude: &'a [u32],
    is_late: Option<LateCheck<'a>>,
}

impl Search<'_> {
    /// Returns the number of items between two looks at the clock.
    fn block(&self) -> usize {
        (BLOCK_FLOATS / self.items.dim().max(1)).clamp(1, BLOCK)
    }

    fn is_late(&self) -> bool {
        self.is_late.is_some_and(|is_late| is_late())
    }

    fn is_excluded(&self, item: u32) -> bool {
        self.exclude.binary_search(&item).is_ok()
    }

    /// Searches among the items at these positions.
    fn among(&self, only: &[u32]) -> Result<Best> {
        let dim = self.items.dim();
        let mut best = Best::new(self.k);
        let mut score = [0.0f32];
        for (number, &item) in only.iter().enumerate() {
            if number.is_multiple_of(self.block()) && self.is_late() {
                return Err(Error::Late);
            }
            let start = item as usize * dim;
            let Some(vector) = self.items.vectors().get(start..start + dim) else { continue };
            scaled_dots(self.user, vector, self.items.scale(), &mut score);
            let found = Found { item, score: score[0] };
            if best.takes(found) && !self.is_excluded(item) {
                best.push(found);
            }
        }
        Ok(best)
    }

    /// Searches among all items. Returns the best items of each part.
    fn all(&self, workers: &Workers) -> Result<Vec<Best>> {
        let block = self.block();
        let blocks = self.items.len().div_ceil(block);
        // A few parts for each thread share the work well, and each has a heap of its own.
        let parts = (4 * workers.threads()).clamp(1, blocks.max(1));
        let together = blocks.div_ceil(parts).max(1) * block;
        let mut parts: Vec<(usize, Result<Best>)> = (0..self.items.len())
            .step_by(together)
            .map(|first| (first, Ok(Best::new(self.k))))
            .collect();
        workers.for_each_mut(&mut parts, |_, (first, best)| {
            *best = self.part(*first, together);
        });
        parts.into_iter().map(|(_, best)| best).collect()
    }

    /// Searches among up to `count` items from the position `first` on.
    fn part(&self, first: usize, count: usize) -> Result<Best> {
        let (dim, block) = (self.items.dim(), self.block());
        let end = (first + count).min(self.items.len());
        let mut best = Best::new(self.k);
        let mut scores = vec![0.0f32; block];
        for start in (first..end).step_by(block) {
            if self.is_late() {
                return Err(Error::Late);
            }
            let rows = block.min(end - start);
            let vectors = &self.items.vectors()[start * dim..][..rows * dim];
            let scores = &mut scores[..rows];
            scaled_dots(self.user, vectors, self.items.scale(), scores);
            for (at, &score) in scores.iter().enumerate() {
                let found = Found { item: (start + at) as u32, score };
                if best.takes(found) && !self.is_excluded(found.item) {
                    best.push(found);
                }
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use zillion_device::simd::dot;
    use zillion_feature::random::mix64;
    use zillion_rows::layer::Unthrottled;

    use super::*;
    use crate::items::ItemIds;

    fn items(count: usize, dim: usize) -> ItemVectors {
        // Few different values, so that many scores are equal.
        let float = |i: usize| (mix64(i as u64) % 7) as f32 - 3.0;
        let vectors = (0..count * dim).map(float).collect();
        let ids = ItemIds::Ints((0..count as i64).collect());
        ItemVectors::new(ids, vectors, dim, 2.5, Vec::new(), &mut Unthrottled).unwrap()
    }

    fn workers(threads: usize) -> Workers {
        Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    fn brute_force(items: &ItemVectors, user: &[f32], k: usize, choice: &Choice) -> Vec<Found> {
        let may = |item: u32| {
            choice.only.as_ref().is_none_or(|only| only.contains(&item))
                && !choice.exclude.contains(&item)
        };
        let found = |item: u32| {
            let vector = &items.vectors()[item as usize * items.dim()..][..items.dim()];
            Found { item, score: items.scale() * dot(user, vector) }
        };
        let mut all: Vec<Found> =
            (0..items.len() as u32).filter(|&item| may(item)).map(found).collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.item.cmp(&b.item)));
        all.truncate(k);
        all
    }

    #[test]
    fn the_search_is_brute_force_for_any_number_of_threads() {
        let user = [0.5, -1.0, 2.0];
        for count in [0, 1, 10, BLOCK, 3 * BLOCK + 17] {
            let items = items(count, 3);
            let last = count.saturating_sub(1) as u32;
            let choices = [
                Choice::default(),
                Choice { only: None, exclude: (0..last).step_by(3).collect() },
                Choice { only: Some(vec![last, 0, last / 2, 0]), exclude: vec![last / 2] },
                Choice { only: Some(Vec::new()), exclude: Vec::new() },
            ];
            for (k, choice) in
                [1, 20, 1000].into_iter().flat_map(|k| choices.iter().map(move |c| (k, c)))
            {
                let expected = match count {
                    0 => Vec::new(),
                    _ => brute_force(&items, &user, k, choice),
                };
                for threads in [1, 3] {
                    let workers = workers(threads);
                    let found = find_nearest(&items, &user, k, choice.clone(), &workers, None);
                    assert_eq!(found.unwrap(), expected, "{count} {k} {choice:?} {threads}");
                }
            }
        }
    }

    #[test]
    fn a_late_search_stops_and_a_wrong_user_is_refused() {
        let (items, workers) = (items(3 * BLOCK, 3), workers(1));
        let find = |user: &[f32], late: bool| {
            let is_late = || late;
            find_nearest(&items, user, 5, Choice::default(), &workers, Some(&is_late))
        };
        assert!(matches!(find(&[1.0; 3], true), Err(Error::Late)));
        assert!(matches!(find(&[1.0, f32::NAN, 0.0], false), Err(Error::UserVector)));
        assert!(matches!(find(&[f32::MAX; 3], false), Err(Error::UserVector)));
        assert!(find(&[1.0; 4], false).unwrap_err().to_string().contains("has 4"));
        assert!(find(&[1.0; 3], false).is_ok());
        let none = find_nearest(&items, &[1.0; 3], 0, Choice::default(), &workers, None);
        assert_eq!(none.unwrap(), []);
    }
}
