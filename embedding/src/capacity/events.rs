//! The events of the keys of one level of the sample, counted in memory of fixed size.
//!
//! All keys of a level are dropped from the sample together, and their events are dropped with
//! them. The remaining counts are the same as if the smaller sample had been used from the
//! beginning.

/// The number of time bins into which the steps of the pass are divided.
pub(super) const BINS: usize = 256;
/// The number of small distances that have a bin of their own. Above these distances, each octave
/// (doubling of the distance) has four bins.
const EXACT: u64 = 8;
const DISTANCE_BINS: usize = EXACT as usize + 4 * 61;

/// The counts of the events of one level of the sample.
#[derive(Clone, Debug)]
pub(super) struct Events {
    /// The number of keys whose first lookup is in each time bin.
    pub(super) first: Vec<u64>,
    /// For each limit of unseen steps and each time bin, the number of rows created minus the
    /// number of rows evicted. The first row of each key is not counted.
    pub(super) change: Vec<Vec<i64>>,
    /// The number of values for each number of admission thresholds. This is the number of
    /// thresholds that the key of the value had reached before the step.
    pub(super) reached: Vec<u64>,
    /// The number of values whose key had a row before, for each number of limits of unseen steps.
    /// This is the number of limits that the pause before the value exceeded. The field `returns`
    /// counts lookups in the same way.
    pub(super) returned: Vec<u64>,
    pub(super) returns: Vec<u64>,
    /// The number of lookups in each bin of distances. The first lookup of a key is not counted.
    /// The distance is the number of other keys that were looked up since the last lookup of the
    /// key.
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

    /// Adds the counts of another level of the sample.
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

    /// Makes every time bin twice as long.
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

/// Replaces each pair of neighbouring bins by one bin with their sum. The second half of the bins
/// is then zero.
pub(super) fn halve<T: Copy + Default + std::ops::Add<Output = T>>(bins: &mut [T]) {
    let half = bins.len() / 2;
    for at in 0..half {
        bins[at] = bins[2 * at] + bins[2 * at + 1];
    }
    bins[half..].fill(T::default());
}

/// Returns the index of the bin that contains a distance.
pub(super) fn distance_bin(distance: u64) -> usize {
    if distance < EXACT {
        return distance as usize;
    }
    let octave = distance.ilog2();
    let quarter = (distance >> (octave - 2)) & 3;
    EXACT as usize + 4 * (octave as usize - 3) + quarter as usize
}

/// Returns the smallest cache size, in rows, with which every lookup in a distance bin is a hit.
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
        // Powers of two are ends of bins, so that the numbers for them are exact.
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
