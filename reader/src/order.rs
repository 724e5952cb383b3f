//! The order of rows, which is a pure function of the seed, the epoch and the files.
//!
//! A unit is a row group of a Parquet file, a record batch of an Arrow file, or a whole text file.
//! The units are permuted. Their rows, one unit after another, form a stream. The stream is cut
//! into windows of equal size, and the rows of each window are permuted. Two numbers, a
//! [`Cursor`](zillion_feature::Cursor), describe a position in this order. They do not depend on
//! the number of threads.

use zillion_feature::random::{combine, permutation};

use crate::groups::shuffle_groups;

const UNITS: u64 = 0x756e_6974;
const WINDOWS: u64 = 0x7769_6e64;

/// The order of the rows of one epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    pub(crate) shuffle: bool,
}

impl Order {
    /// Returns the index of the unit at each position of the order.
    pub(crate) fn units(&self, units: usize) -> Vec<u32> {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        if self.shuffle {
            permutation(combine(combine(self.seed, UNITS), self.epoch), units)
        } else {
            (0..units).collect()
        }
    }

    /// Returns the index of the row at each position of a window, or `None` if the rows keep their
    /// order.
    pub(crate) fn window(&self, window: u64, rows: usize) -> Option<Vec<u32>> {
        let stream = combine(combine(self.seed, WINDOWS), self.epoch);
        self.shuffle.then(|| permutation(combine(stream, window), rows as u32))
    }

    /// Returns the index of the row at each position of a window whose groups begin at `begins`, or
    /// `None` if the rows keep their order.
    pub(crate) fn window_of_groups(
        &self,
        window: u64,
        begins: &[u32],
        rows: usize,
    ) -> Option<Vec<u32>> {
        let stream = combine(combine(self.seed, WINDOWS), self.epoch);
        self.shuffle.then(|| shuffle_groups(combine(stream, window), begins, rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_depends_on_seed_epoch_and_window_and_on_nothing_else() {
        let order = |seed, epoch| Order { seed, epoch, shuffle: true };
        assert_eq!(order(1, 2).units(50), order(1, 2).units(50));
        assert_ne!(order(1, 2).units(50), order(1, 3).units(50));
        assert_ne!(order(1, 2).units(50), order(2, 2).units(50));
        assert_ne!(order(1, 2).window(0, 50), order(1, 2).window(1, 50));
        assert_eq!(Order { shuffle: false, ..order(1, 2) }.units(3), [0, 1, 2]);
        assert_eq!(Order { shuffle: false, ..order(1, 2) }.window(0, 3), None);
    }
}
