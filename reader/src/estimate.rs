//! The estimation of the number of distinct values, without a set of all values in memory.
//!
//! There are two estimators:
//!
//! - [`Sketch`] processes every value and stores none of them. It is HyperLogLog (Flajolet, Fusy,
//!   Gandouet, Meunier 2007) with linear counting for small numbers.
//! - [`extrapolate`] knows all values of a sample and estimates how many new values the rest has.
//!   The lower bound is Chao's estimator, in the form for extrapolation (Colwell et al. 2012). The
//!   upper bound continues the power law of the end of the sample (Heaps). The estimate is the
//!   geometric mean of the two bounds. The true number lies between the bounds because logs are
//!   skewed: new ids appear for longer than Chao's estimator assumes, but they become rarer faster
//!   than in a power law.
//!
//! [`extrapolate`]: Frequencies::extrapolate

use zillion_feature::FeatureKey;

/// The number of bits of a key that select a register.
const INDEX_BITS: u32 = 14;

/// A counter of distinct keys in 16 KiB, with a standard error of 0.8 %.
#[derive(Clone, Debug)]
pub struct Sketch {
    registers: Vec<u8>,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { registers: vec![0; 1 << INDEX_BITS] }
    }
}

impl Sketch {
    /// Counts one key. A key that has been counted before changes nothing.
    pub fn add(&mut self, key: FeatureKey) {
        let index = (key.0 >> (64 - INDEX_BITS)) as usize;
        let rest = key.0 << INDEX_BITS;
        let rank = rest.leading_zeros().min(64 - INDEX_BITS) as u8 + 1;
        let register = &mut self.registers[index];
        *register = (*register).max(rank);
    }

    /// Returns the estimated number of distinct keys.
    pub fn count(&self) -> f64 {
        let size = self.registers.len() as f64;
        let sum: f64 = self.registers.iter().map(|&r| (-f64::from(r)).exp2()).sum();
        let empty = self.registers.iter().filter(|&&r| r == 0).count();
        let raw = 0.7213 / (1.0 + 1.079 / size) * size * size / sum;
        match raw <= 2.5 * size && empty > 0 {
            true => size * (size / empty as f64).ln(),
            false => raw,
        }
    }
}

/// The frequencies of the values in a sample: the number of all values, of distinct values, and of
/// values that occur exactly once or twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frequencies {
    /// The number of values in the sample, including repeated values.
    pub values: u64,
    /// The number of distinct values in the sample.
    pub distinct: u64,
    /// The number of distinct values that occur exactly once.
    pub once: u64,
    /// The number of distinct values that occur exactly twice.
    pub twice: u64,
}

/// An estimate of a number of distinct values, with bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The lower bound of the estimate.
    pub low: f64,
    /// The most likely number.
    pub value: f64,
    /// The upper bound of the estimate.
    pub high: f64,
}

impl Frequencies {
    /// Returns the frequencies of a sample. `counts` holds the number of occurrences of each
    /// distinct value.
    pub fn of(counts: impl IntoIterator<Item = u64>) -> Self {
        let mut all = Self::default();
        for count in counts {
            all.values += count;
            all.distinct += 1;
            all.once += u64::from(count == 1);
            all.twice += u64::from(count == 2);
        }
        all
    }

    /// Estimates the number of distinct values in the whole data, which has `total` values. The
    /// receiver describes a sample of this data. The result is exact if the sample contains all
    /// values.
    pub fn extrapolate(&self, total: u64) -> Estimate {
        let seen = self.distinct as f64;
        if total <= self.values || self.distinct == 0 {
            return Estimate { low: seen, value: seen, high: seen };
        }
        let (n, more) = (self.values as f64, (total - self.values) as f64);
        let (once, twice) = (self.once as f64, self.twice as f64);
        let unseen = match self.twice {
            0 => once * (once - 1.0).max(0.0) / 2.0,
            _ => once * once / (2.0 * twice),
        };
        let low = match unseen > 0.0 {
            true => {
                let stays = (more * (-once / (n * unseen + once)).ln_1p()).exp();
                seen + unseen * (1.0 - stays)
            }
            false => seen,
        };
        // In a log-log plot, the number of distinct values has the slope once / distinct at the end
        // of the sample.
        let high = (seen * (total as f64 / n).powf(once / seen)).min(seen + more).max(low);
        Estimate { low, value: (low * high).sqrt(), high }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use zillion_feature::random::mix64;

    use super::*;

    #[test]
    fn a_sketch_counts_within_three_percent() {
        for count in [0u64, 1, 100, 10_000, 60_000, 1_000_000] {
            let mut sketch = Sketch::default();
            for i in 0..count {
                sketch.add(FeatureKey::from_u64(i));
                sketch.add(FeatureKey::from_u64(i / 2));
            }
            let error = (sketch.count() - count as f64).abs();
            assert!(error <= 0.03 * count as f64, "{count}: {}", sketch.count());
        }
    }

    /// Checks with a skewed sample that the true number lies between the bounds and that the
    /// estimate is close to it.
    #[test]
    fn the_truth_lies_between_the_bounds() {
        let draw = |i: u64| {
            let u = (mix64(i) >> 11) as f64 / (1u64 << 53) as f64;
            // The inverse of a power law with exponent 1.4, limited to ten million.
            ((1.0 - u).powf(-2.5) as u64).min(10_000_000)
        };
        let mut counts: HashMap<u64, u64> = HashMap::new();
        let mut sample = Frequencies::default();
        for i in 0..1_000_000 {
            *counts.entry(draw(i)).or_default() += 1;
            if i == 99_999 {
                sample = Frequencies::of(counts.values().copied());
            }
        }
        let truth = counts.len() as f64;
        let estimate = sample.extrapolate(1_000_000);
        assert!(estimate.low < truth && truth < estimate.high, "{estimate:?} {truth}");
        assert!((estimate.value / truth).ln().abs() < 0.35, "{estimate:?} {truth}");
        assert_eq!(Frequencies::of(counts.values().copied()).extrapolate(1_000_000).value, truth);
    }

    #[test]
    fn a_sample_that_has_seen_everything_expects_nothing() {
        let few = Frequencies::of([500, 300, 200]);
        assert_eq!(few.extrapolate(1_000_000).high, 3.0);
        let distinct = Frequencies::of(vec![1; 1000]).extrapolate(5000);
        assert_eq!(distinct.high, 5000.0);
        assert!(distinct.low > 4900.0 && distinct.value <= 5000.0, "{distinct:?}");
    }
}
