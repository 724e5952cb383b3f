//! The search for the items with the highest scores for a user.
//!
//! The exact search computes the score of every item, as the scale times the inner product of the
//! two vectors. The scores have the bits of the model's own scores, because the inner product has
//! the order of additions of the model's operation. The items are cut into blocks, which the idle
//! threads of the pool share. Of two items with equal scores, the one that is earlier in the file
//! comes first, so that the answer does not depend on the number of threads.
//!
//! The approximate search first ranks all items by their rounded vectors, which have an eighth of
//! the bytes, and then computes the exact scores of the best candidates. So a score is always
//! exact, and only an item can be missing. Its answer does not depend on the number of threads or
//! on the machine's instruction set either.

use std::cmp::Ordering;

use zillion_device::Workers;
use zillion_device::prefetch::prefetch_read;
use zillion_device::simd::{NIBBLE_VECTORS, scaled_dots, vectorised};

use crate::error::{Error, Result};
use crate::items::ItemVectors;
use crate::late::LateCheck;
use crate::rounded_items::{RoundedItems, RoundedUser};

/// The maximum number of items whose scores are computed between two looks at the clock. Their
/// scores fit the first-level cache.
const BLOCK: usize = 4096;
/// The number of floats of items that are read between two looks at the clock, if a vector has not
/// more.
const BLOCK_FLOATS: usize = 1 << 18;

/// The number of scores that are compared with the worst of the best at once.
const LOOK: usize = 16;
/// The number of items that are kept beyond the best before the worst of them are removed.
const SPARE: usize = 64;
/// The number of candidates whose vectors are on their way from memory.
const AHEAD: usize = 16;
/// The number of floats of a cache line.
const LINE_FLOATS: usize = 16;

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

/// The best items that were seen so far, in any order, with some more that were seen since the
/// worst were removed the last time.
#[derive(Debug)]
struct Best {
    k: usize,
    found: Vec<Found>,
    /// The worst of the best `k` items when items were removed the last time. A worse item need not
    /// be kept.
    floor: Option<Found>,
}

impl Best {
    fn new(k: usize) -> Self {
        Self { k, found: Vec::new(), floor: None }
    }

    /// Returns whether an item may be one of the best.
    #[inline]
    fn takes(&self, found: Found) -> bool {
        self.floor.is_none_or(|floor| found > floor)
    }

    /// Writes for each [`LOOK`] scores whether one of them may be one of the best. A loop without
    /// branches looks at many scores in one instruction.
    fn mark(&self, scores: &[f32], marks: &mut [bool]) {
        let Some(Found { score: floor, .. }) = self.floor else { return marks.fill(true) };
        // A score that is not a number may have any place in the order.
        let is_near = |score: f32| (score >= floor) | score.is_nan();
        vectorised(
            #[inline(always)]
            || {
                for (mark, scores) in marks.iter_mut().zip(scores.chunks(LOOK)) {
                    *mark = scores.iter().fold(false, |any, &score| any | is_near(score));
                }
            },
        );
    }

    fn push(&mut self, found: Found) {
        self.found.push(found);
        if self.found.len() >= self.k.saturating_add(self.k.max(SPARE)) {
            // No two items are equal, so the best ones do not depend on the order of the others.
            let (_, worst, _) = self.found.select_nth_unstable_by(self.k - 1, |a, b| b.cmp(a));
            self.floor = Some(*worst);
            self.found.truncate(self.k);
        }
    }
}

/// The number of candidates of the approximate search for each item of the answer.
const CANDIDATES: usize = 10;
/// The smallest number of candidates of the approximate search beyond those of the answer.
const MORE_CANDIDATES: usize = 900;

/// Returns the `k` items with the highest scores for the vector `user`, the best first. There are
/// fewer if `choice` leaves fewer. The search is exact.
///
/// # Errors
/// Returns [`Error::Late`] if `is_late` returns `true`, and an error if the vector of the user or
/// one of the best scores is not finite, or if the vector has another number of floats than those
/// of the items.
pub fn find_nearest(
    items: &ItemVectors,
    user: &[f32],
    k: usize,
    choice: Choice,
    workers: &Workers,
    is_late: Option<LateCheck<'_>>,
) -> Result<Vec<Found>> {
    find(items, None, user, k, choice, workers, is_late)
}

/// Returns items like [`find_nearest`], but by the approximate search: `rounded` has the rounded
/// vectors of `items`. If `choice` names the only items, the search is exact.
///
/// # Errors
/// Returns the errors of [`find_nearest`].
pub fn find_near(
    items: &ItemVectors,
    rounded: &RoundedItems,
    user: &[f32],
    k: usize,
    choice: Choice,
    workers: &Workers,
    is_late: Option<LateCheck<'_>>,
) -> Result<Vec<Found>> {
    find(items, Some(rounded), user, k, choice, workers, is_late)
}

/// Returns items like [`find_near`] if there are rounded vectors, and like [`find_nearest`] if
/// there are none.
///
/// # Errors
/// Returns the errors of [`find_nearest`].
fn find(
    items: &ItemVectors,
    rounded: Option<&RoundedItems>,
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
    let parts = match (&mut choice.only, rounded) {
        (Some(only), _) => {
            only.sort_unstable();
            only.dedup();
            vec![search.among(only)?]
        }
        (None, Some(rounded)) => {
            let candidates = search.candidates(rounded, workers)?;
            vec![search.among(&candidates)?]
        }
        (None, None) => {
            let scores = |first: usize, scores: &mut [f32]| search.scores(first, scores);
            search.all(k, workers, &scores)?
        }
    };
    let found = merge(parts, k);
    // Finite vectors have such a score if their product is too large for a float.
    if !found.iter().all(|found| found.score.is_finite()) {
        return Err(Error::ItemScore);
    }
    Ok(found)
}

/// Returns the best `k` items of all parts, the best first.
fn merge(parts: Vec<Best>, k: usize) -> Vec<Found> {
    let mut found: Vec<Found> = parts.into_iter().flat_map(|best| best.found).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.truncate(k);
    found
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
    /// Returns the number of items between two looks at the clock, in whole groups of rounded
    /// vectors.
    fn block(&self) -> usize {
        let items = (BLOCK_FLOATS / self.items.dim().max(1)).clamp(NIBBLE_VECTORS, BLOCK);
        items - items % NIBBLE_VECTORS
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
            if let Some(&later) = only.get(number + AHEAD) {
                let later = later as usize * dim;
                for float in (later..later + dim).step_by(LINE_FLOATS) {
                    prefetch_read(self.items.vectors(), float);
                }
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

    /// Computes the scores of items from the position `first` on.
    fn scores(&self, first: usize, scores: &mut [f32]) {
        let dim = self.items.dim();
        let vectors = &self.items.vectors()[first * dim..][..scores.len() * dim];
        scaled_dots(self.user, vectors, self.items.scale(), scores);
    }

    /// Returns the positions of the items with the best rounded scores, in ascending order.
    fn candidates(&self, rounded: &RoundedItems, workers: &Workers) -> Result<Vec<u32>> {
        let user: RoundedUser = rounded.round_user(self.user, self.items.scale());
        let scores = |first: usize, scores: &mut [f32]| {
            let mut sums = [0; BLOCK];
            rounded.scores(&user, first, &mut sums, scores);
        };
        let more = self.k.saturating_add(MORE_CANDIDATES);
        let count = self.k.saturating_mul(CANDIDATES).max(more).min(self.items.len());
        let found = merge(self.all(count, workers, &scores)?, count);
        let mut positions: Vec<u32> = found.into_iter().map(|found| found.item).collect();
        positions.sort_unstable();
        Ok(positions)
    }

    /// Searches among all items, whose scores `scores` computes from a position on. Returns the
    /// best `k` items of each part.
    fn all(
        &self,
        k: usize,
        workers: &Workers,
        scores: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Result<Vec<Best>> {
        let block = self.block();
        let blocks = self.items.len().div_ceil(block);
        // A few parts for each thread share the work well, and each has a heap of its own. A single
        // thread has one part, because each heap costs time until it is full of good items.
        let parts = match workers.threads() {
            1 => 1,
            threads => (4 * threads).clamp(1, blocks.max(1)),
        };
        let together = blocks.div_ceil(parts).max(1) * block;
        let mut parts: Vec<(usize, Result<Best>)> = (0..self.items.len())
            .step_by(together)
            .map(|first| (first, Ok(Best::new(k))))
            .collect();
        workers.for_each_mut(&mut parts, |_, (first, best)| {
            *best = self.part(*first, together, k, scores);
        });
        parts.into_iter().map(|(_, best)| best).collect()
    }

    /// Searches among up to `count` items from the position `first` on.
    fn part(
        &self,
        first: usize,
        count: usize,
        k: usize,
        compute: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Result<Best> {
        let end = (first + count).min(self.items.len());
        let mut best = Best::new(k);
        let block = self.block();
        let mut scores = vec![0.0f32; block];
        let mut marks = vec![false; block.div_ceil(LOOK)];
        for start in (first..end).step_by(block) {
            if self.is_late() {
                return Err(Error::Late);
            }
            let scores = &mut scores[..block.min(end - start)];
            compute(start, scores);
            best.mark(scores, &mut marks);
            let looks = scores.chunks(LOOK).zip(&marks).enumerate();
            for (number, (scores, _)) in looks.filter(|(_, (_, is_near))| **is_near) {
                for (at, &score) in scores.iter().enumerate() {
                    let found = Found { item: (start + number * LOOK + at) as u32, score };
                    if best.takes(found) && !self.is_excluded(found.item) {
                        best.push(found);
                    }
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
            let rounded = RoundedItems::new(&items, &mut Unthrottled).unwrap();
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
                    // All items are candidates of a search for so many.
                    let rounded = Some(&rounded).filter(|_| count <= 10 || k > count);
                    let found =
                        find(&items, rounded, &user, k, choice.clone(), &workers, None).unwrap();
                    assert_eq!(found, expected, "rounded: {count} {k} {choice:?} {threads}");
                }
            }
        }
    }

    #[test]
    fn the_approximate_search_finds_most_items_with_exact_scores() {
        // The blocks of the second are no multiple of a group of rounded vectors by themselves.
        for (count, dim) in [(20_000, 32), (20_000, 100)] {
            check_recall(count, dim, 100);
        }
    }

    fn check_recall(count: usize, dim: usize, k: usize) {
        let float = |i: u64| (mix64(i) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        let vectors = (0..(count * dim) as u64).map(float).collect();
        let ids = ItemIds::Ints((0..count as i64).collect());
        let items = ItemVectors::new(ids, vectors, dim, 2.5, Vec::new(), &mut Unthrottled).unwrap();
        let rounded = RoundedItems::new(&items, &mut Unthrottled).unwrap();
        let mut hits = 0;
        for number in 0..10u64 {
            let user: Vec<f32> =
                (0..dim as u64).map(|i| float((1 << 40) + number * 100 + i)).collect();
            let first = find_nearest(&items, &user, 1, Choice::default(), &workers(1), None);
            let exclude = vec![first.unwrap()[0].item];
            let choice = Choice { only: None, exclude };
            let exact = brute_force(&items, &user, k, &choice);
            let answers = [1, 3].map(|threads| {
                let workers = workers(threads);
                find(&items, Some(&rounded), &user, k, choice.clone(), &workers, None).unwrap()
            });
            assert_eq!(answers[0], answers[1]);
            assert_eq!(answers[0].len(), k);
            for found in &answers[0] {
                let vector = &items.vectors()[found.item as usize * dim..][..dim];
                let score = items.scale() * dot(&user, vector);
                assert_eq!(found.score.to_bits(), score.to_bits());
                assert!(!choice.exclude.contains(&found.item));
            }
            hits += answers[0].iter().filter(|found| exact.contains(found)).count();
        }
        assert!(hits >= 990, "{hits} of 1000");
    }

    #[test]
    fn a_late_search_stops_and_a_wrong_user_is_refused() {
        let (items, workers) = (items(3 * BLOCK, 3), workers(1));
        let search = |user: &[f32], late: bool| {
            let is_late = || late;
            find_nearest(&items, user, 5, Choice::default(), &workers, Some(&is_late))
        };
        assert!(matches!(search(&[1.0; 3], true), Err(Error::Late)));
        assert!(matches!(search(&[1.0, f32::NAN, 0.0], false), Err(Error::UserVector)));
        assert!(matches!(search(&[f32::MAX; 3], false), Err(Error::ItemScore)));
        assert!(search(&[1.0; 4], false).unwrap_err().to_string().contains("has 4"));
        assert!(search(&[1.0; 3], false).is_ok());
        let none = find_nearest(&items, &[1.0; 3], 0, Choice::default(), &workers, None);
        assert_eq!(none.unwrap(), []);
    }
}
