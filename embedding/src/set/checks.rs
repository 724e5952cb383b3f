//! The checks of a push, before it changes a row.

use zillion_feature::{LookupPlan, RowBuffer, TablePlan, TableRows, Use};

use crate::error::{Error, Result};
use crate::set::TableSet;
use zillion_rows::RowShape;

impl TableSet {
    pub(crate) fn check_gradients(&self, plan: &LookupPlan, gradients: &RowBuffer) -> Result<()> {
        if plan.tables.len() != gradients.tables.len() {
            let reason = format!(
                "the plan has {} tables, but the gradients have {}; give gradients for each table \
                 of the plan",
                plan.tables.len(),
                gradients.tables.len()
            );
            return Err(Error::misuse(reason));
        }
        for (table, rows) in plan.tables.iter().zip(&gradients.tables) {
            self.check_keys(table, rows)?;
            let RowShape { layout, .. } = self.shape(table.table)?.row();
            if rows.stride != layout.stride || rows.values.len() != table.keys.len() * layout.stride
            {
                let reason = format!(
                    "{} keys with a stride of {} floats need {} floats of gradients, but {} \
                     floats with a stride of {} were given; give one row for each key",
                    table.keys.len(),
                    layout.stride,
                    table.keys.len() * layout.stride,
                    rows.values.len(),
                    rows.stride
                );
                return Err(Error::mismatch(&layout.name, reason));
            }
        }
        Ok(())
    }

    /// Checks a plan and the uses of its rows, of a step whose gradients are on a device.
    pub(crate) fn check_notes(&self, plan: &LookupPlan, notes: &RowBuffer) -> Result<()> {
        if plan.tables.len() != notes.tables.len() {
            let reason = format!(
                "the plan has {} tables, but {} entries were given; give one for each table of \
                 the plan",
                plan.tables.len(),
                notes.tables.len()
            );
            return Err(Error::misuse(reason));
        }
        let mut tables = plan.tables.iter().zip(&notes.tables);
        tables.try_for_each(|(table, rows)| self.check_keys(table, rows))
    }

    /// Checks what a push needs to know about the keys of a table.
    fn check_keys(&self, table: &TablePlan, rows: &TableRows) -> Result<()> {
        let RowShape { layout, spec, .. } = self.shape(table.table)?.row();
        let counted = table.occurrences.offsets.len();
        if !spec.admission.is_all() && counted != table.keys.len() + 1 {
            let reason = "the plan has no occurrences of keys, which admission needs; add them to \
                          the plan";
            return Err(Error::mismatch(&layout.name, reason));
        }
        self.check_uses(table, rows)
    }

    /// Checks that `rows` has the shows and clicks of rows exactly if the table keeps statistics of
    /// use.
    pub(crate) fn check_uses(&self, table: &TablePlan, rows: &TableRows) -> Result<()> {
        let RowShape { layout, spec, .. } = self.shape(table.table)?.row();
        let reason = match (&spec.statistics, &rows.uses) {
            (None, None) => return Ok(()),
            (None, Some(_)) => {
                "shows and clicks were pushed, but the table keeps none; set `statistics`, or \
                 push no shows and clicks"
                    .to_owned()
            }
            (Some(_), None) => {
                "the table keeps shows and clicks, but none were pushed; push them for each key"
                    .to_owned()
            }
            (Some(_), Some(uses)) if uses.len() != table.keys.len() => {
                format!(
                    "{} keys were pushed, but shows of {} keys; push shows and clicks for each key",
                    table.keys.len(),
                    uses.len()
                )
            }
            (Some(_), Some(uses)) => {
                let is_number = |u: &Use| u.shows.is_finite() && u.clicks.is_finite();
                match uses.iter().position(|u| !is_number(u)) {
                    None => return Ok(()),
                    Some(at) => {
                        format!(
                            "the shows or clicks of key {at} are not finite; push finite numbers"
                        )
                    }
                }
            }
        };
        Err(Error::mismatch(&layout.name, reason))
    }
}
