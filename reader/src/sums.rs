//! The summation of many numbers with very small rounding errors. A mean therefore depends very
//! little on the order of the numbers.

/// The count, the minimum, the maximum, the mean and the standard deviation of a column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moments {
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// The first value of the column. The sums add the difference of each value to the first value,
    /// so that a large mean does not reduce the precision of the standard deviation.
    shift: f64,
    sum: Compensated,
    squares: Compensated,
}

impl Moments {
    pub(crate) fn add(&mut self, x: f64) {
        if self.count == 0 {
            (self.min, self.max, self.shift) = (x, x, x);
        }
        self.count += 1;
        self.min = self.min.min(x);
        self.max = self.max.max(x);
        let difference = x - self.shift;
        // This is exactly the rounding error of the difference (Knuth's two-sum).
        let back = difference - x;
        let lost = (x - (difference - back)) + (-self.shift - back);
        self.sum.add(difference);
        self.sum.add(lost);
        self.squares.add(difference * difference);
    }

    pub(crate) fn mean(&self) -> f64 {
        self.shift + self.sum.value() / self.count as f64
    }

    /// Returns the population standard deviation.
    pub(crate) fn std(&self) -> f64 {
        let n = self.count as f64;
        let mean = self.sum.value() / n;
        (self.squares.value() / n - mean * mean).max(0.0).sqrt()
    }
}

/// A sum that collects its rounding errors in a second number (Neumaier 1974).
#[derive(Clone, Copy, Debug, Default)]
struct Compensated {
    sum: f64,
    lost: f64,
}

impl Compensated {
    fn add(&mut self, x: f64) {
        let sum = self.sum + x;
        self.lost +=
            if self.sum.abs() >= x.abs() { (self.sum - sum) + x } else { (x - sum) + self.sum };
        self.sum = sum;
    }

    fn value(self) -> f64 {
        self.sum + self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: impl IntoIterator<Item = f64>) -> Moments {
        let mut moments = Moments::default();
        values.into_iter().for_each(|x| moments.add(x));
        moments
    }

    #[test]
    fn known_moments() {
        let m = moments([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((m.count, m.mean(), m.std(), m.min, m.max), (8, 5.0, 2.0, 2.0, 9.0));
        assert_eq!(moments([3.5; 1000]).std(), 0.0);
    }

    #[test]
    fn a_large_mean_does_not_swallow_the_spread() {
        let m = moments((0..100_000).map(|i| 1e12 + f64::from(i % 2)));
        assert_eq!(m.mean(), 1e12 + 0.5);
        assert_eq!(m.std(), 0.5);
    }

    #[test]
    fn small_values_survive_beside_large_ones() {
        let m = moments([1.0, 1e100, 1.0, -1e100]);
        assert_eq!(m.mean(), 0.5);
    }
}
