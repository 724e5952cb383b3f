//! The check of the benchmark, which compares each row with the values that it must have after the
//! pushes. A model that does not use the table computes these values.
//!
//! The check is needed because a table with defects, which loses rows or changes the wrong rows,
//! may be very fast. All pushes of this benchmark have the same gradient. Therefore a sum in `f64`
//! gives the values of a row from the initial row of its key and the number of its pushes. The
//! plans determine the numbers of pushes. The work of this module is never timed.

use anyhow::Result;
use serde::Serialize;
use zillion_device::Workers;
use zillion_embedding::TableSet;
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_rows::{DEFAULT_SHARDS, Dtype, OptimizerSpec, TableSpec};

/// The number of pushes for each id.
pub(crate) struct Pushes(Vec<u32>);

/// The result of checking all rows.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Checked {
    pub(crate) checked_rows: u64,
    /// The number of rows that are missing in the table.
    pub(crate) lost_rows: u64,
    /// The number of rows whose stored count is not the number of their pushes.
    pub(crate) miscounted_rows: u64,
    /// The number of rows whose weights differ from the weights of the model.
    pub(crate) wrong_rows: u64,
}

impl Pushes {
    /// Returns the counts after the table was filled: one push for each id.
    pub(crate) fn of_filled(rows: u64) -> Self {
        Self(vec![1; rows as usize])
    }

    /// Adds `calls` pushes. The plans were pushed in a cycle, starting with the first plan.
    pub(crate) fn add(&mut self, plans: &[LookupPlan], calls: u64) {
        let (rounds, rest) = (calls / plans.len() as u64, calls % plans.len() as u64);
        for (plan, at) in plans.iter().zip(0..) {
            let times = rounds as u32 + u32::from(at < rest);
            plan.tables[0].keys.iter().for_each(|key| self.0[key.unmix() as usize] += times);
        }
    }

    /// Returns the total change of a weight after 0, 1, 2 and more pushes of `gradient`, up to the
    /// largest number of pushes of an id.
    fn total_changes(&self, rule: OptimizerSpec, gradient: f64) -> Result<Vec<f64>> {
        let OptimizerSpec::RowwiseAdagrad { lr, initial_accumulator, eps } = rule else {
            anyhow::bail!("optimizer {rule:?}: the check supports rowwise_adagrad only");
        };
        let most = self.0.iter().copied().max().unwrap_or(0);
        let mut sum = 0.0;
        let mut accumulator = f64::from(initial_accumulator);
        let mut moved = vec![0.0];
        for _ in 0..most {
            accumulator += gradient * gradient;
            sum += f64::from(lr) * gradient / (accumulator.sqrt() + f64::from(eps));
            moved.push(sum);
        }
        Ok(moved)
    }

    /// Pulls all rows and compares them with the model, one range of ids at a time. `plan` makes
    /// the lookup plan for a range of ids.
    pub(crate) fn check(
        &self,
        workers: &Workers,
        tables: &mut TableSet,
        (spec, gradient): (&TableSpec, f32),
        ids_at_once: usize,
        mut plan: impl FnMut(std::ops::Range<u64>) -> LookupPlan,
    ) -> Result<Checked> {
        let moved = self.total_changes(spec.segments[0].optimizer, f64::from(gradient))?;
        // If a key has no row, a pull returns the values with which its row would begin.
        let mut beginning = TableSet::new(vec![spec.clone()], DEFAULT_SHARDS)?;
        let (mut rows, mut began) = (RowBuffer::default(), RowBuffer::default());
        let mut checked = Checked::default();
        let total = self.0.len() as u64;
        for first in (0..total).step_by(ids_at_once) {
            let plan = plan(first..(first + ids_at_once as u64).min(total));
            let missing = |tables: &TableSet| tables.statistics()[0].counters.missing;
            let before = missing(tables);
            tables.pull(workers, &plan, true, &mut rows)?;
            checked.lost_rows += missing(tables) - before;
            beginning.pull(workers, &plan, false, &mut began)?;
            let (rows, began) = (&rows.tables[0], &began.tables[0]);
            let counts = rows.counts.as_deref().unwrap_or_default();
            for (i, key) in plan.tables[0].keys.iter().enumerate() {
                let pushes = self.0[key.unmix() as usize];
                checked.checked_rows += 1;
                checked.miscounted_rows += u64::from(counts.get(i) != Some(&pushes));
                let moved = moved[pushes as usize];
                let weights = rows.row(i).iter().zip(began.row(i)).take(spec.segments[0].dim);
                let fits = |(&now, &then): (&f32, &f32)| {
                    let expected = f64::from(then) - moved;
                    (f64::from(now) - expected).abs() <= tolerance(spec.dtype, then, moved, pushes)
                };
                checked.wrong_rows += u64::from(!weights.into_iter().all(fits));
            }
        }
        Ok(checked)
    }
}

/// Returns the maximum difference that is allowed between a weight and the model. Each push rounds
/// the weight and the accumulator. Equal gradients are rounded in the same direction, so the errors
/// add up. One additional push may stay within this tolerance, but the count of the row shows the
/// error.
fn tolerance(dtype: Dtype, began: f32, moved: f64, pushes: u32) -> f64 {
    let last_place = match dtype {
        Dtype::F32 => f64::from(f32::EPSILON),
        Dtype::F16 => f64::from(2.0f32.powi(-10)),
        Dtype::Bf16 => f64::from(2.0f32.powi(-7)),
    };
    let largest = f64::from(began).abs().max(moved) + moved;
    last_place * largest * (8.0 + f64::from(pushes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_follows_the_rule_within_the_tolerance() {
        let rule = OptimizerSpec::RowwiseAdagrad { lr: 0.125, initial_accumulator: 0.5, eps: 0.0 };
        let moved = Pushes(vec![1, 3]).total_changes(rule, 2.0).unwrap();
        assert_eq!(moved.len(), 4);
        assert!((moved[1] - 0.25 / 4.5f64.sqrt()).abs() < 1e-9);
        assert!((moved[2] - moved[1] - 0.25 / 8.5f64.sqrt()).abs() < 1e-9);
        assert!(Pushes(vec![1]).total_changes(OptimizerSpec::Sgd { lr: 0.1 }, 1.0).is_err());
        // One push more or less has a far larger effect than the tolerance of f32.
        let one = moved[3] - moved[2];
        assert!(tolerance(Dtype::F32, 0.01, moved[3], 3) < one / 1000.0);
    }
}
