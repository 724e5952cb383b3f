//! The random choices of one history. A choice is a function of the seed and of the number of
//! earlier choices.

use zillion_feature::random::combine;

#[derive(Debug)]
pub(crate) struct Chance {
    seed: u64,
    drawn: u64,
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.drawn += 1;
        combine(self.seed, self.drawn)
    }

    /// Returns a random number below `n`. `n` must not be zero.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// Returns a random number from `low` to `high`, including both.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns a random number that is at least 0 and below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }
}
