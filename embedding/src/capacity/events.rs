//! The events of the keys of one level of the sample, in counts of fixed size.
//!
//! The keys of a level leave the sample together, and their events leave with them: the remaining
//! counts are those that the smaller sample would have made from the beginning.

/// Stretches of time that the pass is cut into.
pub(super) const BINS: usize = 256;
/// Distances up to here have a bin each; above, an octave has four.
const EXACT: u64 = 8;
const DISTANCE_BINS: usize = EXACT as usize + 4 * 61;

/// Counts of one level.
#[derive(Clone, Debug)]
pub(super) struct Events {
    /// Keys that were first seen, by time.
    pub(super) first: Vec<u64>,
    /// Rows that come less rows that go, for each limit of unseen steps, by time; without the first
    /// seen.
    pub(super) change: Vec<Vec<i64>>,
    /// Values by how many of the admission thresholds had been reached before their step.
    pub(super) reached: Vec<u64>,
    /// Values that came back, by how many limits of unseen steps they had exceeded; and lookups
    /// that did.
    pub(super) returned: Vec<u64>,
    pub(super) returns: Vec<u64>,
    /// Lookups that were not their key's first, by the number of keys looked up since.
    pub(super) distances: Vec<u64>,
}

impl Events {
    pub(super) fn new(thresholds: usize, limits: usize) -> Self {
        Self {
            first: vec![0; BINS],
            change: vec![vec![0; BINS]; limits],
            reached: vec![0; thresholds + 1],
            returned: vec![0; limits + 1],
            returns: vec![0; limits + 1],
            distances: vec![0; DISTANCE_BINS],
        }
    }

    /// Adds another level's counts.
    pub(super) fn add(&mut self, other: &Self) {
        fn sum<T: Copy + std::ops::AddAssign>(to: &mut [T], from: &[T]) {
            to.iter_mut().zip(from).for_each(|(to, &from)| *to += from);
        }
        sum(&mut self.first, &other.first);
        self.change.iter_mut().zip(&other.change).for_each(|(to, from)| sum(to, from));
        sum(&mut self.reached, &other.reached);
        sum(&mut self.returned, &other.returned);
        sum(&mut self.returns, &other.returns);
        sum(&mut self.distances, &other.distances);
    }

    /// Makes every stretch of time twice as long.
    pub(super) fn halve_time(&mut self) {
        halve(&mut self.first);
        self.change.iter_mut().for_each(|bins| halve(bins));
    }

    pub(super) fn bytes(&self) -> usize {
        8 * (self.first.len() * (1 + self.change.len())
            + self.reached.len()
            + 2 * self.returned.len()
            + self.distances.len())
    }
}

/// Puts neighbours together; the second half is empty.
pub(super) fn halve<T: Copy + Default + std::ops::Add<Output = T>>(bins: &mut [T]) {
    let half = bins.len() / 2;
    for at in 0..half {
        bins[at] = bins[2 * at] + bins[2 * at + 1];
    }
    bins[half..].fill(T::default());
}

/// The bin of a distance.
pub(super) fn distance_bin(distance: u64) -> usize {
    if distance < EXACT {
        return distance as usize;
    }
    let octave = distance.ilog2();
    let quarter = (distance >> (octave - 2)) & 3;
    EXACT as usize + 4 * (octave as usize - 3) + quarter as usize
}

/// The largest cache that a lookup at any distance of a bin misses, plus one: with as many rows,
/// all of the bin hit.
pub(super) fn cache_rows(bin: usize) -> u64 {
    if bin < EXACT as usize {
        return bin as u64 + 1;
    }
    let (octave, quarter) = ((bin - EXACT as usize) / 4 + 3, (bin - EXACT as usize) % 4);
    ((5 + quarter as u64) << (octave - 2)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_ends_where_a_cache_would_hold_all_of_it() {
        for distance in (0..5000).chain([1 << 20, (1 << 40) - 1, 1 << 40]) {
            let bin = distance_bin(distance);
            assert!(distance < cache_rows(bin), "{distance}");
            assert!(bin == 0 || distance >= cache_rows(bin - 1), "{distance}");
        }
        // Powers of two are ends, so that figures for them are exact.
        let ends: Vec<u64> =
            (0..DISTANCE_BINS).map(cache_rows).take_while(|&c| c < 1 << 50).collect();
        assert!(ends.is_sorted_by(|a, b| a < b));
        assert!((0..50).all(|power| ends.contains(&(1 << power))));
    }

    #[test]
    fn halving_keeps_the_sum() {
        let mut bins = [1, 2, 3, 4, 5, 6];
        halve(&mut bins);
        assert_eq!(bins, [3, 7, 11, 0, 0, 0]);
    }
}
