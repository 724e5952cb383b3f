//! The permits of a step in a table at its limit: the keys that may get a row.

use crate::index::Entry;
use std::ops::Range;

/// The keys of a step that may get a row, and the index entries that the decision has looked up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Permits {
    /// The runs of keys in groups that lack room, in ascending order. All other keys may get a row.
    pub(crate) runs: Vec<LimitedRun>,
    /// The index entry of the key at each position of the plan, or [`Entry::NONE`] for a key
    /// without a row. The whole list is `None` if some keys have not been looked up. With these
    /// entries a push needs no lookup of its own.
    pub(crate) rows: Option<Vec<Entry>>,
}

/// The keys of a plan in one group of slots that lacks room.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitedRun {
    /// The positions of the keys in the plan.
    pub(crate) keys: Range<usize>,
    /// The positions of the keys that may get a row, in ascending order.
    pub(crate) positions: Vec<u32>,
}

impl Permits {
    /// Returns the run that has a position of the plan, or `None` if its group has room for all of
    /// its keys.
    #[inline(always)]
    fn run(&self, position: usize) -> Option<&LimitedRun> {
        let next = self.runs.partition_point(|run| run.keys.end <= position);
        self.runs.get(next).filter(|run| run.keys.start <= position)
    }

    /// Returns whether the key at a position of the plan is in a group that lacks room.
    pub(crate) fn is_limited(&self, position: usize) -> bool {
        self.run(position).is_some()
    }

    /// Returns whether the key at a position of the plan may get a row.
    #[inline(always)]
    pub(crate) fn has(&self, position: usize) -> bool {
        match self.run(position) {
            None => true,
            Some(run) => run.positions.binary_search(&(position as u32)).is_ok(),
        }
    }

    /// Returns the index entries of the keys at these positions of the plan, or `None` if the keys
    /// have not been looked up.
    pub(crate) fn rows(&self, positions: Range<usize>) -> Option<&[Entry]> {
        self.rows.as_ref().map(|rows| &rows[positions])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_outside_of_limited_runs_have_permits() {
        let run = |keys, positions| LimitedRun { keys, positions };
        let runs = vec![run(2..5, vec![2, 4]), run(5..6, vec![]), run(9..11, vec![10])];
        let permits = Permits { runs, rows: None };
        let has: Vec<usize> = (0..13).filter(|&position| permits.has(position)).collect();
        assert_eq!(has, [0, 1, 2, 4, 6, 7, 8, 10, 11, 12]);
        let limited: Vec<usize> = (0..13).filter(|&at| permits.is_limited(at)).collect();
        assert_eq!(limited, [2, 3, 4, 5, 9, 10]);
        assert!((0..3).all(|position| Permits::default().has(position)));
    }
}
