//! The set of the unique keys of one table in a batch.
//!
//! The set uses open addressing. A hash with a secret seed gives the first cell of a key, so a
//! client cannot choose ids that share a first cell. The set also counts the steps of its searches.
//! If a table takes many more steps than random keys would take, for any reason, the keys are
//! placed again with another seed.
//!
//! # Invariants
//! The indices of keys follow the order of first occurrence, for every seed.

use crate::key::FeatureKey;
use crate::seeded::SeededHash;

/// The minimum number of cells of the set.
const FEWEST_CELLS: usize = 64;

/// The unique keys of one table.
#[derive(Debug, Default)]
pub(super) struct UniqueKeys {
    cells: Vec<Cell>,
    /// The number that marks the cells in use. Increasing it empties all cells at once.
    generation: u32,
    hash: SeededHash,
    /// The number of bits by which a hash is shifted to the right to give the index of a cell.
    shift: u32,
    /// The number of cells that the current table uses, minus one. A small table uses only a part
    /// of the cells that a large table has left.
    mask: usize,
    /// The number of steps that searches of the current table have taken. A step goes from a cell
    /// with another key to the next cell.
    steps: usize,
    /// The number of steps above which the keys are placed again.
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

    /// Empties the set, and makes room for a table with `values` values.
    pub(super) fn clear(&mut self, values: usize) {
        let wanted = (values * 2).next_power_of_two().max(FEWEST_CELLS);
        if self.cells.len() < wanted {
            self.cells = vec![Cell::default(); wanted];
            self.generation = 0;
        }
        self.mask = wanted - 1;
        self.shift = u64::BITS - wanted.trailing_zeros();
        self.steps = 0;
        // On average, a random key takes at most half a step, because at least half of the cells
        // are empty.
        self.allowance = values + FEWEST_CELLS;
        self.most_steps = self.allowance;
        self.begin_generation();
        self.keys.clear();
        self.counts.clear();
    }

    /// Marks all cells of the set as empty.
    fn begin_generation(&mut self) {
        self.generation = self.generation.checked_add(1).unwrap_or_else(|| {
            self.cells.fill(Cell::default());
            1
        });
    }

    /// Returns the index of the cell in which the search for a key begins.
    #[inline(always)]
    fn home(&self, key: FeatureKey) -> usize {
        (self.hash.hash(key) >> self.shift) as usize
    }

    /// Counts one occurrence of a key, and returns the index of the key. A new key gets the next
    /// index.
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

    /// Places all keys again with another seed. Repeats this with further seeds while a seed takes
    /// too many steps. Each seed may take twice the steps of the previous seed, so the loop ends.
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

    /// Puts the key with the index `index` into a free cell. Returns `false` if the seed takes too
    /// many steps.
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

    /// Returns the number of cells that a set reads to find the indices of these keys.
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
        // With this hash, the first cell of all small keys is the same.
        let mut set = UniqueKeys::new(SeededHash::worst());
        let keys: Vec<_> = (0..KEYS).map(FeatureKey).collect();
        let crafted = cells_read(&mut set, &keys);
        let random = cells_for_random_keys(1);
        assert!(crafted < 3 * random, "{crafted} cells, and {random} for random keys");
        assert_eq!(set.keys, keys);
        // The set keeps the good seed for the next tables.
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
