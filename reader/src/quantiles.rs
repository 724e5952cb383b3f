//! The boundaries that cut a column into buckets of equal count.

use zillion_feature::random::mix64;

/// The default number of values that a sample keeps. Up to this number of values, boundaries are
/// exact.
const CAPACITY: usize = 1 << 24;

/// The values of a column, or a uniform sample of them.
///
/// Only the position of a value in the column decides whether the value is kept. If there are more
/// values than the capacity, a value is kept if its mixed position starts with `level` zero bits.
/// Each time that the sample is full, `level` increases.
#[derive(Debug)]
pub struct Sample {
    capacity: usize,
    level: u32,
    seen: u64,
    values: Vec<f32>,
    /// The positions in the column of the kept values. The list is empty as long as all values are
    /// kept.
    numbers: Vec<u64>,
}

impl Default for Sample {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl Sample {
    /// Returns an empty sample that keeps at most `capacity` values.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { capacity, level: 0, seen: 0, values: Vec::new(), numbers: Vec::new() }
    }

    /// Adds the next value of the column.
    pub fn add(&mut self, x: f64) {
        let number = self.seen;
        self.seen += 1;
        if !keeps(self.level, number) {
            return;
        }
        if self.values.len() == self.capacity {
            self.thin();
            if !keeps(self.level, number) {
                return;
            }
        }
        // Boundaries are 32-bit floats and must be finite.
        self.values.push((x as f32).clamp(f32::MIN, f32::MAX));
        if self.level > 0 {
            self.numbers.push(number);
        }
    }

    fn thin(&mut self) {
        if self.level == 0 {
            self.numbers = (0..self.values.len() as u64).collect();
        }
        while self.values.len() == self.capacity && self.level < 63 {
            self.level += 1;
            let kept: Vec<usize> =
                (0..self.values.len()).filter(|&i| keeps(self.level, self.numbers[i])).collect();
            self.values = kept.iter().map(|&i| self.values[i]).collect();
            self.numbers = kept.iter().map(|&i| self.numbers[i]).collect();
        }
    }

    /// Returns the boundaries of `buckets` buckets of equal count, ascending. A share of about `k /
    /// buckets` of the values lies below boundary `k`, counted from 1. The result has fewer than
    /// `buckets - 1` boundaries if one value fills a whole bucket, and none if there are no values.
    pub(crate) fn boundaries(mut self, buckets: u32) -> Vec<f32> {
        self.values.sort_unstable_by(f32::total_cmp);
        let Some(&smallest) = self.values.first() else { return Vec::new() };
        let at =
            |k: u32| (self.values.len() as u128 * u128::from(k) / u128::from(buckets)) as usize;
        let mut boundaries: Vec<f32> = (1..buckets).map(|k| self.values[at(k)]).collect();
        boundaries.dedup();
        // No value lies below the smallest one, so a boundary there would make an empty bucket.
        boundaries.retain(|&b| b > smallest);
        boundaries
    }
}

impl Sample {
    /// Returns the values that were kept, ascending.
    pub fn sorted(mut self) -> Vec<f32> {
        self.values.sort_unstable_by(f32::total_cmp);
        self.values
    }
}

fn keeps(level: u32, number: u64) -> bool {
    level == 0 || mix64(number) >> (64 - level) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(capacity: usize, values: impl Iterator<Item = f64>) -> Sample {
        let mut sample = Sample::with_capacity(capacity);
        values.for_each(|x| sample.add(x));
        sample
    }

    #[test]
    fn buckets_have_equal_counts() {
        let boundaries = sample(100, (0..12).rev().map(f64::from)).boundaries(4);
        assert_eq!(boundaries, [3.0, 6.0, 9.0]);
    }

    #[test]
    fn frequent_values_take_a_bucket_alone() {
        let values = || [0.0; 80].into_iter().chain((1..21).map(f64::from));
        assert_eq!(sample(100, values()).boundaries(5), [1.0]);
        assert_eq!(sample(100, [7.0; 5].into_iter()).boundaries(4), [0.0f32; 0]);
        assert_eq!(sample(100, std::iter::empty()).boundaries(4), [0.0f32; 0]);
    }

    #[test]
    fn beyond_its_capacity_a_sample_is_even_and_reproducible() {
        let values = || (0..200_000).map(|i| f64::from(i % 1000));
        let a = sample(4096, values());
        assert!(a.values.len() <= 4096 && a.values.len() > 1024, "{}", a.values.len());
        assert_eq!(a.values, sample(4096, values()).values);
        for (boundary, wanted) in a.boundaries(4).into_iter().zip([250.0, 500.0, 750.0]) {
            assert!((boundary - wanted).abs() < 40.0, "{boundary} {wanted}");
        }
    }
}
