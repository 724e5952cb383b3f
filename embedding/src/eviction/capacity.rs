//! The eviction in a group of slots at its limit: the number of rows that are evicted at the end of
//! a step, and the rows that are compared to choose them.
//!
//! A table has one group or several (see [`groups`](crate::groups)). A small table is one group.
//!
//! # Headroom
//! A step creates new rows before it evicts rows at its end. If a group stayed at its limit, it
//! would therefore refuse every new key. So the eviction at the end of a step leaves room for twice
//! the number of rows that the step needed. If the next step needs even more rows, its last keys
//! are refused in that step.
//!
//! If a group has at least as much room as a step has keys, all keys of the step have room, and no
//! lookup is needed to know this. So the eviction also leaves room for the number of keys that the
//! last step had, if this number is a small part of the group.
//!
//! # Which rows are evicted
//! Comparing every row of a large table would stop training. Keys are mixed, so a slot is a fair
//! sample of its group. A step visits some slots, with several rows for each row that must be
//! evicted, and evicts the visited rows with the lowest priority. The number of the step decides
//! which slots it visits. In a small table, all slots are visited, and exactly the rows with the
//! lowest priority are evicted. In a large table, two and a half to five rows are visited for each
//! evicted row. Every evicted row is then in the lowest two fifths of the visited rows, and on
//! average an evicted row is at the lowest seventh. A cache that compares six random rows for each
//! eviction reaches the same average.
//!
//! # Spare room
//! A table of many groups would visit at least one slot of each group in every step, which are many
//! rows if the slots are large. So if the rows that a step needs are a small part of a slot, a
//! visit makes *spare* room for several steps, and the group has a turn only once in this number of
//! steps. Between its turns, the group is visited only if the room for the next step is missing.
//!
//! Every decision depends only on numbers of rows of one group and on the step. No state is kept
//! between steps or saved in a checkpoint. The numbers of shards and of processes change nothing.

use std::ops::Range;

use crate::eviction::Turn;
use crate::groups::Group;

/// The smallest number of rows that are visited for two evicted rows. The actual number is up to
/// twice as large, because the periods of slots are powers of two.
const LOOKS_FOR_TWO: u64 = 5;
/// The smallest number of rows that a step visits in all groups, which takes 0.2 ms. A table of one
/// group that has at most this size loses exactly the rows with the lowest priority.
const FEWEST_LOOKS: u64 = 8192;
/// The largest number of rows that one step visits in all groups, unless a single slot of each
/// group has more. Such a visit takes some milliseconds.
const MOST_LOOKS: u64 = 1 << 20;
/// The divisor of a limit that gives the smallest number of rows to keep free.
const SPARE: u64 = 256;
/// The divisor of a limit that gives the largest number of rows to keep free.
const MOST_SPARE: u64 = 4;
/// The divisor of a limit that gives a number of rows. If a step has at most this number of keys,
/// room for all of its keys is kept free, which saves the lookup of the keys before the push.
const SKIPS_LOOKUP: u64 = 64;
/// The largest number of steps for which a visit makes room.
const MOST_STEPS: u64 = 64;

/// The demand of a step on a group: its keys, and the rows that it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// The number of keys that were pushed.
    pub(crate) keys: u64,
    /// The number of rows that the step created, plus the number of rows that it did not create for
    /// lack of room.
    pub(crate) rows: u64,
}

impl Group {
    /// Returns the number by which the next step may need more of the group than this step, which
    /// needed `count`. For a whole table it is `usual`. In one of several groups, numbers differ
    /// more from step to step, because the keys of a step are divided among the groups by chance.
    fn allowance(self, count: u64, usual: u64) -> u64 {
        if self.is_whole() { usual } else { usual.max(2 * count.isqrt()) }
    }
}

impl Demand {
    /// Returns the number of rows to leave free for the next step, in a group that may have `most`
    /// rows.
    pub(crate) fn room(self, most: u64, group: Group) -> u64 {
        let usual = self.keys / 16;
        let skips_lookup = match self.keys + usual <= most / SKIPS_LOOKUP {
            true => self.keys + group.allowance(self.keys, usual),
            false => 0,
        };
        let twice = self.rows.saturating_mul(2);
        (twice + group.allowance(self.rows, 0)).max(skips_lookup)
    }

    /// Returns the number of free rows that a group of `rows` rows could use.
    pub(crate) fn wanted(self, rows: u64, group: Group) -> u64 {
        match group.is_whole() {
            true => self.room(rows, group),
            false => {
                let room = self.room(rows, group).max(headroom(rows, self, group));
                room + Spare::new(rows, self, group).rows
            }
        }
    }

    /// Adds the demand on another part of the group.
    pub(crate) fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.rows += other.rows;
    }
}

/// The room that a visit makes in addition to the headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spare {
    /// The number of rows to keep free in addition.
    rows: u64,
    /// The number of steps between two turns of the group, which is a power of two.
    steps: u64,
}

impl Spare {
    const NONE: Self = Self { rows: 0, steps: 1 };

    /// Returns the spare room of a group that may have `limit` rows, if each step has this demand.
    fn new(limit: u64, demand: Demand, group: Group) -> Self {
        let slot = limit / group.width() as u64;
        if group.is_whole() || demand.rows == 0 || slot <= FEWEST_LOOKS / group.count as u64 {
            return Self::NONE;
        }
        // A visit of one slot may evict two fifths of its rows. A part of the spare room is left
        // for steps that need more rows than usual.
        let rows = slot * 3 / 8;
        match rows * 3 / 4 / demand.rows {
            0 | 1 => Self::NONE,
            steps => Self { rows, steps: 1 << steps.min(MOST_STEPS).ilog2() },
        }
    }

    /// Returns whether `step` is a turn of the group. In each period of as many turns as the group
    /// has slots, every slot is visited once. The turns of a longer period are turns of a shorter
    /// one too, so no slot misses its turn if the demand differs from step to step. Groups have
    /// their turns in different steps.
    fn is_turn(self, step: u32, group: Group) -> bool {
        let width = group.width() as u64;
        let (round, slot) = (u64::from(step) / width, u64::from(step) % width);
        (round + slot + group.index as u64).is_multiple_of(self.steps)
    }
}

/// A visit at the end of a step: the slots of a group to visit, and the number of rows to evict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Visit {
    /// The group that is visited.
    pub(crate) group: Group,
    /// The slots that are visited, among those of the group.
    turn: Turn,
    /// The number of rows that must be evicted.
    pub(crate) excess: u64,
    /// Whether all slots of the group are visited.
    pub(crate) is_whole: bool,
}

/// Returns the number of rows that the end of this step keeps free for the next step.
pub(crate) fn headroom(limit: u64, demand: Demand, group: Group) -> u64 {
    (limit / SPARE).max(demand.room(limit, group)).min(limit.div_ceil(MOST_SPARE))
}

impl Visit {
    /// Plans the visit at the end of `step` for a group of `rows` rows that may have `limit` rows.
    /// `demand` is the demand of the step. Returns `None` if no row must be evicted.
    pub(crate) fn new(
        rows: u64,
        limit: u64,
        demand: Demand,
        step: u32,
        group: Group,
    ) -> Option<Self> {
        let taken = rows + headroom(limit, demand, group);
        let spare = Spare::new(limit, demand, group);
        let excess = (taken + spare.rows).saturating_sub(limit).min(rows);
        if excess == 0 || taken <= limit && !spare.is_turn(step, group) {
            return None;
        }
        let (width, groups) = (group.width() as u64, group.count as u64);
        let looks = excess.saturating_mul(LOOKS_FOR_TWO) / 2;
        let looks = looks.clamp(FEWEST_LOOKS / groups, MOST_LOOKS / groups);
        let slots = (looks * width).div_ceil(rows).clamp(1, width);
        // The period is a power of two. So if the demand differs from step to step, one period
        // divides the other, and no slot misses its turn.
        let period = 1 << (width / slots).ilog2();
        Some(Self { group, turn: Turn::of_slots(step, period), excess, is_whole: period == 1 })
    }

    /// Returns the visited slots in a range, in ascending order.
    pub(crate) fn slots(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        let own = self.group.slots();
        let start = range.start.max(own.start);
        self.turn.slots(start..range.end.min(own.end).max(start))
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
mod tests;
