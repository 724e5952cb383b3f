//! The partial sums of a norm or a loss: one for each table and each of the [`GROUPS`] groups of
//! slots.
//!
//! A process adds the values of its slots in slot order inside a group. A group is held by one
//! process, and the partial sums of the other processes are exactly zero there. So the partial sums
//! of several processes, added one by one, have the same bits as those of a single process, and so
//! has their total.

use zillion_feature::SLOTS;

use crate::error::{Error, Result};
use crate::groups::GROUPS;

/// The partial sums of a norm or a loss over all tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partials {
    /// The sums over the rows of whole tables, for each table of the set. They are zero for a table
    /// without a whole-table rule.
    pub wholes: Vec<[f64; GROUPS]>,
    /// The sums over the keys of the plan, for each table of the plan.
    pub runs: Vec<[f64; GROUPS]>,
}

impl Partials {
    /// Returns sums of zero, for `tables` tables of which a plan names `planned`.
    pub fn new(tables: usize, planned: usize) -> Self {
        Self { wholes: vec![[0.0; GROUPS]; tables], runs: vec![[0.0; GROUPS]; planned] }
    }

    /// Adds the partial sums of another process.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] if the sums are over other numbers of tables.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        if (self.wholes.len(), self.runs.len()) != (other.wholes.len(), other.runs.len()) {
            let reason = format!(
                "partial sums of {} tables and {} tables of a plan cannot be added to sums of {} \
                 and {}; add sums of the same step",
                other.wholes.len(),
                other.runs.len(),
                self.wholes.len(),
                self.runs.len()
            );
            return Err(Error::misuse(reason));
        }
        let own = self.wholes.iter_mut().chain(&mut self.runs).flatten();
        let others = other.wholes.iter().chain(&other.runs).flatten();
        own.zip(others).for_each(|(sum, x)| *sum += x);
        Ok(())
    }

    /// Returns the total of all sums, added in the order of tables and groups.
    pub fn total(&self) -> f64 {
        let mut total = 0.0;
        self.wholes.iter().chain(&self.runs).flatten().for_each(|x| total += x);
        total
    }
}

/// Adds the value of each slot to the sum of its group, in the order of `values`.
pub(super) fn add_slots(sums: &mut [f64; GROUPS], values: &[(usize, f64)]) {
    for (slot, x) in values {
        sums[slot * GROUPS / SLOTS] += x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_sums_add_up_in_one_order() {
        let values: Vec<(usize, f64)> =
            (0..SLOTS).map(|slot| (slot, 1.0 / (slot + 3) as f64)).collect();
        let mut whole = Partials::new(1, 2);
        add_slots(&mut whole.wholes[0], &values);
        add_slots(&mut whole.runs[1], &values);
        assert_eq!(whole.runs[1][1], values[64..128].iter().fold(0.0, |sum, (_, x)| sum + x));
        let bounds = [0, 1344, 2752, SLOTS];
        let mut sum = Partials::new(1, 2);
        for server in bounds.windows(2) {
            let mut part = Partials::new(1, 2);
            add_slots(&mut part.wholes[0], &values[server[0]..server[1]]);
            add_slots(&mut part.runs[1], &values[server[0]..server[1]]);
            sum.add(&part).unwrap();
        }
        assert_eq!(sum, whole);
        assert_eq!(sum.total().to_bits(), whole.total().to_bits());
        assert_eq!(whole.runs[0], [0.0; GROUPS]);
        let error = sum.add(&Partials::new(1, 1)).unwrap_err().to_string();
        assert!(error.contains("1 tables and 1 tables of a plan"), "{error}");
    }
}
