//! The eviction in a table at its limit: the number of rows that are evicted at the end of a step,
//! and the rows that are compared to choose them.
//!
//! # Headroom
//! A step creates new rows before it evicts rows at its end. If a table stayed at its limit, it
//! would therefore refuse every new key. So the eviction at the end of a step leaves room for twice
//! the number of rows that the step needed. If the next step needs even more rows, its last keys
//! are refused in that step.
//!
//! If a table has at least as much room as a step has keys, all keys of the step have room, and no
//! lookup is needed to know this. So the eviction also leaves room for the number of keys that the
//! last step had, if this number is a small part of the table.
//!
//! # Which rows are evicted
//! Comparing every row of a large table would stop training. Keys are mixed, so a slot is a fair
//! sample of the table. A step visits some slots, with several rows for each row that must be
//! evicted, and evicts the visited rows with the lowest priority. The number of the step decides
//! which slots it visits. In a small table, all slots are visited, and exactly the rows with the
//! lowest priority are evicted. In a large table, two and a half to five rows are visited for each
//! evicted row. Every evicted row is then in the lowest two fifths of the visited rows, and on
//! average an evicted row is at the lowest seventh. A cache that compares six random rows for each
//! eviction reaches the same average.
//!
//! Every decision depends only on numbers of rows over all shards and on the step. No state is kept
//! between steps or saved in a checkpoint, and the number of shards changes nothing.

use zillion_feature::SLOTS;

use crate::eviction::Turn;

/// The smallest number of rows that are visited for two evicted rows. The actual number is up to
/// twice as large, because the periods of slots are powers of two.
const LOOKS_FOR_TWO: u64 = 5;
/// The smallest number of rows that a step visits, which takes 0.2 ms. A table of at most this size
/// loses exactly the rows with the lowest priority.
const FEWEST_LOOKS: u64 = 8192;
/// The largest number of rows that one step visits, unless a single slot has more. Such a visit
/// takes some milliseconds.
const MOST_LOOKS: u64 = 1 << 20;
/// The divisor of a limit that gives the smallest number of rows to keep free.
const SPARE: u64 = 256;
/// The divisor of a limit that gives the largest number of rows to keep free.
const MOST_SPARE: u64 = 4;
/// The divisor of a limit that gives a number of rows. If a step has at most this number of keys,
/// room for all of its keys is kept free, which saves the lookup of the keys before the push.
const SKIPS_LOOKUP: u64 = 64;

/// The demand of a step on a table: its keys, and the rows that it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// The number of keys that were pushed.
    pub(crate) keys: u64,
    /// The number of rows that the step created, plus the number of rows that it did not create for
    /// lack of room.
    pub(crate) rows: u64,
}

impl Demand {
    /// Returns the number of rows to leave free for the next step, in a table that may have `most`
    /// rows.
    pub(crate) fn room(self, most: u64) -> u64 {
        // The number of keys differs a little from step to step.
        let all = self.keys + self.keys / 16;
        let skips_lookup = if all <= most / SKIPS_LOOKUP { all } else { 0 };
        self.rows.saturating_mul(2).max(skips_lookup)
    }
}

/// A visit at the end of a step: the slots to visit, and the number of rows to evict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Visit {
    /// The slots that are visited.
    pub(crate) turn: Turn,
    /// The number of rows that must be evicted.
    pub(crate) excess: u64,
    /// Whether all slots are visited.
    pub(crate) is_whole: bool,
}

/// Returns the number of rows that the end of this step keeps free for the next step.
pub(crate) fn headroom(limit: u64, demand: Demand) -> u64 {
    (limit / SPARE).max(demand.room(limit)).min(limit.div_ceil(MOST_SPARE))
}

impl Visit {
    /// Plans the visit at the end of `step` for a table of `rows` rows that may have `limit` rows.
    /// `demand` is the demand of the step. Returns `None` if no row must be evicted.
    pub(crate) fn new(rows: u64, limit: u64, demand: Demand, step: u32) -> Option<Self> {
        let excess = (rows + headroom(limit, demand)).saturating_sub(limit).min(rows);
        if excess == 0 {
            return None;
        }
        let looks = (excess.saturating_mul(LOOKS_FOR_TWO) / 2).clamp(FEWEST_LOOKS, MOST_LOOKS);
        let slots = (looks * SLOTS as u64).div_ceil(rows).clamp(1, SLOTS as u64);
        // The period is a power of two. So if the demand differs from step to step, one period
        // divides the other, and no slot misses its turn.
        let period = 1 << (SLOTS / slots as usize).ilog2();
        Some(Self { turn: Turn::of_slots(step, period), excess, is_whole: period == 1 })
    }

    /// Returns the number of rows to evict if `seen` rows were visited. If not all slots were
    /// visited, at most two of every [`LOOKS_FOR_TWO`] rows are evicted, so that slots keep about
    /// the same size. The next steps evict the other rows.
    pub(crate) fn evictions(&self, seen: u64) -> u64 {
        let most = if self.is_whole { seen } else { (2 * seen).div_ceil(LOOKS_FOR_TWO) };
        self.excess.min(most)
    }
}

/// The claim of one table on a part of the memory that several tables share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The bytes of memory that the table uses and cannot give back.
    pub(crate) least: u64,
    /// The bytes of memory that the table could use.
    pub(crate) most: u64,
}

/// Divides `total` bytes among the claims. A claim that is smaller than an equal part gets all the
/// bytes that it asks for. The other claims get equal parts of the rest. Every claim gets at least
/// the bytes that its table cannot give back.
pub(crate) fn shares(total: u64, claims: &[Claim]) -> Vec<u64> {
    let share = |level: u64| {
        let shares = claims.iter().map(|c| c.most.min(level).max(c.least));
        shares.collect::<Vec<u64>>()
    };
    let fits = |level: u64| share(level).iter().sum::<u64>() <= total;
    let (mut low, mut high) = (0, claims.iter().map(|c| c.most).max().unwrap_or(0));
    if fits(high) {
        return share(high);
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    share(low)
}

#[cfg(test)]
mod tests {
    use zillion_rows::memory::rows_within;

    use super::*;

    /// Returns the demand of a step that had `rows` keys and created a row for each of them.
    fn rows(rows: u64) -> Demand {
        Demand { keys: rows, rows }
    }

    #[test]
    fn room_is_made_for_twice_what_a_step_wants() {
        assert_eq!(headroom(1 << 20, rows(0)), 4096);
        assert_eq!(headroom(1 << 20, rows(10_000)), 20_000);
        assert_eq!(headroom(100, rows(1000)), 25);
        assert_eq!(headroom(1, rows(1)), 1);
        assert_eq!(Visit::new(900, 1000, rows(50), 7), None);
        let small = Visit::new(1000, 1000, rows(50), 7).unwrap();
        assert!(small.is_whole && small.excess == 100 && small.evictions(1000) == 100);
        assert_eq!(small.turn.slots(0..SLOTS).count(), SLOTS);
    }

    #[test]
    fn room_is_made_for_all_keys_of_a_step_where_they_are_few() {
        let keys = |keys| Demand { keys, rows: 2000 };
        assert_eq!(headroom(1 << 20, keys(8000)), 8500);
        assert_eq!(headroom(1 << 20, keys(15_000)), 15_937);
        assert_eq!(headroom(1 << 20, keys(16_000)), 4096, "that would be more than a 64th");
    }

    #[test]
    fn large_tables_are_looked_at_in_slices_that_cover_all_slots() {
        let most = 10_000_000;
        let visit = Visit::new(most, most, rows(20_000), 3).unwrap();
        assert_eq!(visit.excess, 40_000);
        let slots = visit.turn.slots(0..SLOTS).count() as u64;
        let looks = slots * most / SLOTS as u64;
        assert!((100_000..=210_000).contains(&looks), "{looks}");
        assert_eq!(visit.evictions(60_000), 24_000);
        let mut seen = vec![false; SLOTS];
        for step in 0..SLOTS as u32 {
            let turn = Visit::new(most, most, rows(20_000), step).unwrap().turn;
            turn.slots(0..SLOTS).for_each(|slot| seen[slot] = true);
        }
        assert!(seen.iter().all(|&seen| seen));
        // The number of rows that a step visits has a bound for every number of rows to evict.
        let all = Visit::new(most, most, rows(most), 3).unwrap();
        assert!(all.turn.slots(0..SLOTS).count() as u64 * most / SLOTS as u64 <= 2 * MOST_LOOKS);
    }

    #[test]
    fn no_slot_misses_its_turn_where_steps_differ() {
        let (rows, mut longest, mut shortest) = (10_000_000, 0, SLOTS);
        let mut last = vec![0; SLOTS];
        for step in 1..4000u32 {
            let wanted = 10_000 + u64::from(step.wrapping_mul(0x9e37_79b9) >> 16);
            let visit = Visit::new(rows, rows, Demand { keys: wanted, rows: wanted }, step);
            let slots: Vec<usize> = visit.unwrap().turn.slots(0..SLOTS).collect();
            longest = longest.max(SLOTS / slots.len());
            shortest = shortest.min(SLOTS / slots.len());
            slots.iter().for_each(|&slot| last[slot] = step);
            let waiting = last.iter().map(|&last| step - last).max();
            assert!(waiting.unwrap() as usize <= longest, "step {step}, {longest}");
        }
        assert!(longest >= 4 * shortest, "periods of {shortest} to {longest} steps");
    }

    #[test]
    fn the_most_rows_are_found_that_fit() {
        for limit in [0, 99, 100, 101, 199, 200, 1 << 40] {
            let rows = rows_within(limit, |rows| 100 * rows);
            assert_eq!(rows, (limit / 100).min((1 << 31) - 1));
        }
    }

    #[test]
    fn memory_is_shared_out_evenly_among_those_who_need_it() {
        let claim = |least, most| Claim { least, most };
        assert_eq!(shares(100, &[claim(0, 10), claim(0, 20)]), [10, 20]);
        assert_eq!(shares(100, &[claim(0, 10), claim(0, 80), claim(0, 1000)]), [10, 45, 45]);
        assert_eq!(shares(100, &[claim(70, 80), claim(0, 1000)]), [70, 30]);
        assert_eq!(shares(100, &[claim(90, 90), claim(90, 90)]), [90, 90]);
        assert!(shares(5, &[]).is_empty());
    }
}
