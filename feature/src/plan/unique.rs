//! The set of the unique keys of one table in a batch.
//!
//! The set is open-addressed. The first cell of a key follows from a hash with a secret seed, so
//! that a client cannot choose ids that share their cells. The set also counts the steps of its
//! searches. If a table takes more steps than random keys need, whatever the reason, its keys are
//! placed anew with another seed.
//!
//! # Invariants
//! Indices are given in order of first occurrence, for every seed.

use crate::key::FeatureKey;
use crate::seeded::SeededHash;

/// The smallest number of cells of the set.
const FEWEST_CELLS: usize = 64;

/// The unique keys of one table.
#[derive(Debug, Default)]
pub(super) struct UniqueKeys {
    cells: Vec<Cell>,
    /// The number that marks the cells in use, which makes clearing free.
    generation: u32,
    hash: SeededHash,
    /// The number of bits by which a hash is shifted to give a cell.
    shift: u32,
    /// The number of cells of this table less one. A small table does not spread over the cells of
    /// a large one.
    mask: usize,
    /// The number of cells that searches of this table have read in vain.
    steps: usize,
    /// The number of steps at which the keys are placed anew.
    most_steps: usize,
    /// The number of steps that the current seed may take.
    allowance: usize,
    /// The unique keys in order of first occurrence.
    pub(super) keys: Vec<FeatureKey>,
    /// The number of occurrences of each key.
    pub(super) counts: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    key: FeatureKey,
    generation: u32,
    index: u32,
}

impl UniqueKeys {
    /// Creates an empty set that uses this hash.
    pub(super) fn new(hash: SeededHash) -> Self {
        Self { hash, ..Self::default() }
    }

    /// Returns the number of bytes that the set holds.
    pub(super) fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<Cell>()
            + self.keys.capacity() * size_of::<FeatureKey>()
            + self.counts.capacity() * size_of::<u32>()
    }

    /// Empties the set and makes room for a table of `values` values.
    pub(super) fn clear(&mut self, values: usize) {
        let wanted = (values * 2).next_power_of_two().max(FEWEST_CELLS);
        if self.cells.len() < wanted {
            self.cells = vec![Cell::default(); wanted];
            self.generation = 0;
        }
        self.mask = wanted - 1;
        self.shift = u64::BITS - wanted.trailing_zeros();
        self.steps = 0;
        // Random keys take half a step a value on average, because half of the cells stay empty.
        self.allowance = values + FEWEST_CELLS;
        self.most_steps = self.allowance;
        self.begin_generation();
        self.keys.clear();
        self.counts.clear();
    }

    /// Empties all cells of the set.
    fn begin_generation(&mut self) {
        self.generation = self.generation.checked_add(1).unwrap_or_else(|| {
            self.cells.fill(Cell::default());
            1
        });
    }

    /// Returns the cell in which the search for a key begins.
    #[inline(always)]
    fn home(&self, key: FeatureKey) -> usize {
        (self.hash.hash(key) >> self.shift) as usize
    }

    /// Counts one occurrence of a key and returns the index of the key.
    #[inline]
    pub(super) fn index_of(&mut self, key: FeatureKey) -> u32 {
        let mut at = self.home(key);
        loop {
            let cell = &mut self.cells[at];
            if cell.generation != self.generation {
                let index = self.keys.len() as u32;
                *cell = Cell { key, generation: self.generation, index };
                self.keys.push(key);
                self.counts.push(1);
                return index;
            }
            if cell.key == key {
                self.counts[cell.index as usize] += 1;
                return cell.index;
            }
            at = (at + 1) & self.mask;
            self.steps += 1;
            if self.steps > self.most_steps {
                self.place_anew();
                at = self.home(key);
            }
        }
    }

    /// Places the keys with another seed, and with a further one if that seed takes too many steps
    /// as well. Each seed may take twice as many steps as the one before, so that the loop ends.
    #[cold]
    fn place_anew(&mut self) {
        loop {
            self.hash = self.hash.next();
            self.allowance = self.allowance.saturating_mul(2);
            self.most_steps = self.steps.saturating_add(self.allowance);
            self.begin_generation();
            if (0..self.keys.len()).all(|index| self.place(index)) {
                return;
            }
        }
    }

    /// Places the key of an index into a free cell. Returns `false` if the seed takes too many
    /// steps.
    fn place(&mut self, index: usize) -> bool {
        let key = self.keys[index];
        let mut at = self.home(key);
        while self.cells[at].generation == self.generation {
            at = (at + 1) & self.mask;
            self.steps += 1;
            if self.steps > self.most_steps {
                return false;
            }
        }
        self.cells[at] = Cell { key, generation: self.generation, index: index as u32 };
        true
    }

    #[cfg(test)]
    pub(super) fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::mix64;
    use crate::seeded::tests::crafted_keys;

    const KEYS: u64 = 1 << 14;

    /// Returns the number of cells that a set reads to number these keys.
    fn cells_read(set: &mut UniqueKeys, keys: &[FeatureKey]) -> usize {
        set.clear(keys.len());
        keys.iter().for_each(|&key| _ = set.index_of(key));
        keys.len() + set.steps
    }

    /// Returns the number of cells that a set with this seed reads for random keys.
    fn cells_for_random_keys(seed: u64) -> usize {
        let keys: Vec<_> = (0..KEYS).map(|i| FeatureKey(mix64(mix64(seed) ^ i))).collect();
        cells_read(&mut UniqueKeys::new(SeededHash::new(seed)), &keys)
    }

    #[test]
    fn crafted_keys_cost_what_random_ones_cost() {
        for seed in 0..40 {
            let random = cells_for_random_keys(seed);
            for (name, keys) in crafted_keys(KEYS) {
                let crafted = cells_read(&mut UniqueKeys::new(SeededHash::new(seed)), &keys);
                assert!(2 * crafted <= 3 * random, "{name}, seed {seed}: {crafted}, {random}");
            }
        }
    }

    #[test]
    fn a_bad_seed_is_replaced_before_it_costs_much() {
        // With this hash, all small keys have the same first cell.
        let mut set = UniqueKeys::new(SeededHash::worst());
        let keys: Vec<_> = (0..KEYS).map(FeatureKey).collect();
        let crafted = cells_read(&mut set, &keys);
        let random = cells_for_random_keys(1);
        assert!(crafted < 3 * random, "{crafted} cells, and {random} for random keys");
        assert_eq!(set.keys, keys);
        // The good seed stays for the next tables.
        let again = cells_read(&mut set, &keys);
        assert!(2 * again <= 3 * random, "{again} cells, and {random} for random keys");
    }

    #[test]
    fn one_far_key_that_repeats_does_not_cost_its_distance_each_time() {
        let mut set = UniqueKeys::new(SeededHash::worst());
        let far = FeatureKey(100);
        let keys = (0..100).map(FeatureKey).chain(std::iter::repeat_n(far, 1 << 16));
        let cells = cells_read(&mut set, &keys.collect::<Vec<_>>());
        assert!(cells < 3 << 16, "{cells} cells");
        assert_eq!((set.keys.len(), set.counts[100]), (101, 1 << 16));
    }

    #[test]
    fn a_small_table_does_not_spread_over_the_cells_of_a_large_one() {
        let mut set = UniqueKeys::default();
        set.clear(1 << 16);
        set.clear(10);
        assert!((0..1000).all(|i| set.home(FeatureKey(i)) < FEWEST_CELLS));
        assert!(set.bytes() >= (1 << 17) * size_of::<Cell>());
    }
}
