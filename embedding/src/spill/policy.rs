//! The policy that decides the order in which rows leave memory.
//!
//! The worth of a row is the logarithm of its number of pushes, minus its age in half-lives. A row
//! that is needed often stays in memory for a long time after its last use. A row that is used only
//! once, by a scan of old data, leaves memory earlier. So a scan does not displace the rows in
//! frequent use. The record of a row stores its number of pushes and its last step, so both are
//! known when the row comes back to memory.
//!
//! A half-life is measured in turnovers of the memory, because the time that a row can stay in
//! memory depends on them. A turnover is the time in which the number of rows that leave equals the
//! number of rows that the memory holds.

use zillion_feature::FeatureKey;

use zillion_rows::row::Meta;

/// The length of a half-life in turnovers of the rows in memory.
const TURNOVERS: f32 = 4.0;
/// The smallest length of a half-life in steps.
const SHORTEST: f32 = 64.0;
/// The number of rows that are compared at a time.
pub(crate) const COMPARED: usize = 256;
/// The divisor of the number of compared rows. The quotient is the number of rows that leave at a
/// time.
pub(crate) const LEAVING: usize = 8;

/// The policy that chooses the rows that leave memory.
#[derive(Debug)]
pub(crate) struct Policy {
    /// The number of steps after which the weight of a row's pushes is halved.
    half_life: f32,
    /// The number of rows that have left memory since the turnover began.
    left: u64,
    /// The step at which the turnover began.
    since: u32,
    /// The newest step that has been recorded.
    step: u32,
    /// The index of the slot to examine next, counted from the first slot of the shard.
    pub(crate) hand: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self { half_life: SHORTEST, left: 0, since: 0, step: 0, hand: 0 }
    }
}

impl Policy {
    /// Records a step, if it is newer than all recorded steps.
    pub(crate) fn note_step(&mut self, step: u32) {
        self.step = self.step.max(step);
    }

    /// Records that `rows` rows have left a memory that can hold `capacity` rows.
    pub(crate) fn note_left(&mut self, rows: u64, capacity: u64) {
        self.left += rows;
        if self.left >= capacity {
            let turnover = self.step.saturating_sub(self.since) as f32;
            self.half_life = (turnover * TURNOVERS).max(SHORTEST);
            (self.left, self.since) = (0, self.step);
        }
    }

    /// Returns the worth of a row. Rows of less worth leave memory earlier.
    pub(crate) fn worth(&self, meta: Meta) -> f32 {
        let age = self.step.saturating_sub(meta.last_step) as f32;
        (meta.count.max(1) as f32).log2() - age / self.half_life
    }
}

/// Removes from `rows` all rows except the `count` rows with the lowest value. Rows with equal
/// values are ordered by key, so the choice does not depend on the order of `rows`.
pub(crate) fn least(rows: &mut Vec<(f32, FeatureKey, u32)>, count: usize) {
    if count >= rows.len() {
        return;
    }
    let by_worth = |a: &(f32, FeatureKey, u32), b: &(f32, FeatureKey, u32)| {
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
    };
    if count > 0 {
        rows.select_nth_unstable_by(count - 1, by_worth);
    }
    rows.truncate(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(count: u32, last_step: u32) -> Meta {
        Meta { count, last_step, dirty_epoch: 0 }
    }

    #[test]
    fn a_scan_leaves_before_what_is_asked_for_often_and_old_fame_fades() {
        let mut policy = Policy::default();
        policy.note_step(100);
        assert!(policy.worth(meta(1, 100)) < policy.worth(meta(8, 50)));
        assert!(policy.worth(meta(1, 90)) < policy.worth(meta(1, 100)));
        policy.note_step(100_000);
        assert!(policy.worth(meta(1000, 50)) < policy.worth(meta(1, 100_000)));
    }

    #[test]
    fn a_half_life_follows_the_turnover() {
        let mut policy = Policy::default();
        for step in 1..=1000 {
            policy.note_step(step);
            policy.note_left(1, 500);
        }
        assert_eq!(policy.half_life, 2000.0);
    }

    #[test]
    fn the_least_are_the_least_whatever_the_order() {
        let rows: Vec<(f32, FeatureKey, u32)> =
            (0..50).map(|i| ((i * 7 % 10) as f32, FeatureKey(i * 31 % 50), i as u32)).collect();
        let mut sorted = rows.clone();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for count in [0, 1, 7, 50, 60] {
            let mut found = rows.clone();
            found.reverse();
            least(&mut found, count);
            found.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            assert_eq!(found, sorted[..count.min(50)]);
        }
    }
}
