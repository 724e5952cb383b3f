//! The lending and the borrowing of rows by local tables. A server lends the rows of its tables,
//! and a trainer borrows them into tables of its own.

use zillion_embedding::{Counters, LentRows};
use zillion_feature::{LookupPlan, SLOTS, Step, TableId};

use super::{LocalClient, POLLED_PART};
use crate::client::{Lending, PIECE_WORDS};
use crate::error::{Error, Result};

/// The number of rows that a poll copies to an open checkpoint while rows are lent. No step pushes
/// rows then, by whose number the copying would go.
const POLLED_ROWS: u64 = 16 << 10;

impl LocalClient {
    /// Returns the number of words of a lent row of each table.
    #[cfg(feature = "server")]
    pub(crate) fn lent_words(&self) -> Vec<usize> {
        self.tables.lent_words()
    }

    /// Returns the rows of keys, with their optimizer state.
    pub(crate) fn lend(&mut self, keys: &[LentRows]) -> Result<Vec<LentRows>> {
        self.check_settled("take_rows")?;
        Ok(self.tables.lend(&self.workers, keys)?)
    }

    /// Takes rows back from the trainer that has borrowed them.
    pub(crate) fn take_lent(&mut self, rows: &[LentRows]) -> Result<()> {
        self.check_settled("give_back")?;
        let taken = self.tables.take_lent(&self.workers, rows);
        self.note_failure(taken)?;
        self.counted = Counters { pushed: POLLED_ROWS * POLLED_PART, ..Counters::default() };
        Ok(())
    }

    /// Makes empty tables that borrow their rows.
    pub(crate) fn begin_borrowing(&mut self) -> Result<()> {
        Ok(self.tables.begin_borrowing()?)
    }

    /// Returns the keys of a plan that have no row here.
    pub(crate) fn missing_rows(&self, plan: &LookupPlan) -> Result<Vec<LentRows>> {
        let tables = self.tables.layouts().len();
        if let Some(table) = plan.tables.iter().find(|table| table.table.index() >= tables) {
            let reason = format!("unknown number; the run has {tables} tables, numbered from 0");
            let name = table.table.0.to_string();
            return Err(zillion_embedding::Error::mismatch(&name, reason).into());
        }
        Ok(self.tables.missing_rows(&self.workers, plan))
    }

    /// Returns the rows of a table from a slot on, about `words` words of them, and the first slot
    /// that is left.
    pub(crate) fn lend_slots(
        &mut self,
        table: TableId,
        first: usize,
        words: usize,
    ) -> Result<(LentRows, usize)> {
        self.check_settled("take_table")?;
        Ok(self.tables.lend_slots(table, first, words)?)
    }

    /// Returns the tables that are borrowed whole.
    pub(crate) fn whole_loans(&self) -> Vec<TableId> {
        self.tables.whole_loans()
    }

    /// Ends the borrowing of a whole table.
    pub(crate) fn end_whole_loan(&mut self, table: TableId) -> Result<()> {
        Ok(self.tables.end_whole_loan(table)?)
    }

    /// Adds borrowed rows of keys that have none here.
    pub(crate) fn add_borrowed(&mut self, rows: &[LentRows]) -> Result<()> {
        self.check_whole()?;
        let added = self.tables.add_borrowed(&self.workers, rows);
        self.note_failure(added)
    }

    /// Ends an epoch of the loan. Then [`LocalClient::next_changed`] returns the changed rows.
    pub(crate) fn end_loan_epoch(&mut self) -> Result<()> {
        self.check_settled("give_back")?;
        self.settle()?;
        self.tables.end_loan_epoch();
        Ok(())
    }

    /// Returns some of the changed rows; `None` if all of them were returned.
    pub(crate) fn next_changed(&mut self, words: usize) -> Option<LentRows> {
        self.tables.next_changed(words)
    }

    /// Learns that rows could not be given back, so that no later checkpoint would have them.
    pub(crate) fn lose_rows(&mut self, error: &Error) {
        self.broken = Some(format!("changed rows could not be given back: {error}"));
    }

    /// Removes rows that were given back until `most` rows are left, except those of some plans.
    pub(crate) fn release_borrowed(&mut self, kept: &[&LookupPlan], most: usize) -> u64 {
        let released = self.tables.release_borrowed(kept, most);
        if let Some(resident) = &mut self.resident {
            resident.follow_host(&mut self.tables);
        }
        released
    }

    /// Returns the number of rows of the tables that are not borrowed whole.
    pub(crate) fn borrowed_rows(&self) -> u64 {
        self.tables.borrowed_rows()
    }

    /// Returns the number of rows for which a GPU has memory; 0 if it has none.
    pub(crate) fn cache_slots(&self) -> u64 {
        self.resident.as_ref().and_then(|of| of.cache_figures()).map_or(0, |figures| figures.slots)
    }

    /// Returns the step that has begun last.
    pub(crate) fn present_step(&self) -> Step {
        self.order.step()
    }
}

/// Local tables lend at once. Their answers wait until the borrower takes them.
impl Lending for LocalClient {
    fn ask_for_rows(&mut self, _step: Step, keys: Vec<LentRows>) -> Result<()> {
        let lent = self.lend(&keys)?;
        self.lent.push_back(lent);
        Ok(())
    }

    fn take_rows(&mut self) -> Result<Vec<LentRows>> {
        self.lent.pop_front().ok_or_else(|| {
            let reason = "no question for rows is open; call `ask_for_rows` first".to_owned();
            Error::Argument { call: "take_rows", reason }
        })
    }

    fn take_table(
        &mut self,
        _step: Step,
        table: TableId,
        add: &mut dyn FnMut(LentRows) -> Result<()>,
    ) -> Result<()> {
        let mut next = 0;
        while next < SLOTS {
            let (rows, left) = self.lend_slots(table, next, PIECE_WORDS)?;
            add(rows)?;
            next = left;
        }
        Ok(())
    }

    fn give_back(&mut self, _step: Step, next: &mut dyn FnMut() -> Option<LentRows>) -> Result<()> {
        while let Some(rows) = next() {
            self.take_lent(&[rows])?;
        }
        Ok(())
    }
}
