//! The client of a trainer that borrows the rows of its steps, because a GPU computes them. Another
//! client has all rows and lends them: usually that of tables on servers.
//!
//! The borrowed rows are in tables of this process, with their state and metadata. These tables do
//! the whole work of a step, as if they were all there is, and a GPU can have a cache of them. So a
//! step asks the servers for nothing but rows that are not borrowed yet, and these are asked for
//! when their batch enters the window.
//!
//! # Invariants
//! * A step begins when all rows of its plan are borrowed. A key without a row then has none on the
//!   servers either, and the step creates it with the same numbers as a server would.
//! * A borrowed row is the newest one. So the answer about a row that is here already is dropped,
//!   and no answer is open while rows are removed.
//! * Rows that have changed go back before any call of the lender that reads rows, marks them, or
//!   ends an epoch. So checkpoints and versions have the bytes of a run on processors.
//! * An error of the lender ends the use of this client. The trainer then opens another one, whose
//!   rows are those of the newest checkpoint.

mod lender;
mod residency;
mod steps;

use std::collections::VecDeque;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_embedding::Counters;
use zillion_feature::LookupPlan;

use crate::client::{Lending, PIECE_WORDS, TableAccess as _, TrainClient};
use crate::error::{Error, Result};
use crate::local::LocalClient;
use crate::options::TableOptions;

/// The largest number of open questions for rows.
const MOST_QUESTIONS: usize = 8;

/// The number of borrowed rows for each slot of the GPU. Rows without a slot wait here for their
/// next batch.
const ROWS_OF_A_SLOT: u64 = 2;

/// The largest number of borrowed rows if no GPU has a cache of them.
const ROWS_ON_HOST: u64 = 4 << 20;

/// A [`TrainClient`] that borrows the rows of its steps from another one.
#[derive(Debug)]
pub struct BorrowingClient<L> {
    lender: L,
    local: LocalClient,
    options: TableOptions,
    workers: Arc<Workers>,
    /// The plans that were announced and whose step has not begun, in their order.
    told: VecDeque<Told>,
    /// The number of questions for rows that are open.
    open: usize,
    /// The plan whose rows are all here.
    present: Option<Arc<LookupPlan>>,
    /// The number of steps that have begun.
    steps: u64,
    /// Whether the tables that are borrowed whole are here.
    has_whole: bool,
    /// Whether rows may have changed since they were given back.
    is_changed: bool,
    /// The number of rows that were left after rows were removed for the last time.
    left: u64,
    /// The largest number of borrowed rows.
    most: u64,
    /// The events of each table in earlier borrowed tables.
    past: Vec<Counters>,
    /// For each table, the number of rows that were created here up to the last time when rows were
    /// given back.
    returned: Vec<u64>,
}

/// A plan that was announced.
#[derive(Debug)]
struct Told {
    plan: Arc<LookupPlan>,
    /// Whether the answer about its rows is open.
    is_open: bool,
    /// The value of `steps` when the rows were asked for.
    asked: u64,
}

impl<L: TrainClient + Lending> BorrowingClient<L> {
    /// Makes a client that borrows the rows of `lender`, whose tables have the options `options`.
    ///
    /// # Errors
    /// Returns an error if the rows of a table cannot be lent, or if an option is not valid.
    pub fn new(lender: L, options: TableOptions, workers: Arc<Workers>) -> Result<Self> {
        let options = TableOptions { follows_checkpoints: false, ..options };
        let place = lender.place();
        if place.count > 1 {
            let reason = format!(
                "rows are lent to a trainer that is alone, but the run has {} trainers; compute on \
                 processors",
                place.count
            );
            return Err(Error::Argument { call: "open", reason });
        }
        let local = borrowed_tables(&options, &workers)?;
        Ok(Self {
            past: vec![Counters::default(); options.tables.len()],
            returned: vec![0; options.tables.len()],
            lender,
            local,
            options,
            workers,
            told: VecDeque::new(),
            open: 0,
            present: None,
            steps: 0,
            has_whole: false,
            is_changed: false,
            left: 0,
            most: ROWS_ON_HOST,
        })
    }

    /// Announces a plan: asks for those of its rows that are not here.
    fn tell(&mut self, plan: &Arc<LookupPlan>) -> Result<()> {
        if self.told.iter().rev().any(|told| Arc::ptr_eq(&told.plan, plan)) {
            return Ok(());
        }
        let missing = self.local.missing_rows(plan)?;
        let is_open = !missing.is_empty();
        if is_open {
            if self.open == MOST_QUESTIONS {
                self.take_answer()?;
            }
            self.lender.ask_for_rows(self.local.present_step(), missing)?;
            self.open += 1;
        }
        self.told.push_back(Told { plan: plan.clone(), is_open, asked: self.steps });
        Ok(())
    }

    /// Waits for the answer to the oldest open question.
    fn take_answer(&mut self) -> Result<()> {
        let rows = self.lender.take_rows()?;
        self.open -= 1;
        if let Some(told) = self.told.iter_mut().find(|told| told.is_open) {
            told.is_open = false;
        }
        self.local.add_borrowed(&rows)
    }

    /// Waits until all rows of a plan are here. The plan is the next one of those that were
    /// announced, or none of them was.
    fn fetch(&mut self, plan: &Arc<LookupPlan>) -> Result<()> {
        if self.present.as_ref().is_some_and(|present| Arc::ptr_eq(present, plan)) {
            return Ok(());
        }
        self.take_whole_tables()?;
        if !self.told.iter().any(|told| Arc::ptr_eq(&told.plan, plan)) {
            // The plans that were announced before are those of a window that was dropped.
            self.forget_told()?;
            self.tell(plan)?;
        }
        while let Some(told) = self.told.front() {
            if told.is_open {
                self.take_answer()?;
                continue;
            }
            let is_plan = Arc::ptr_eq(&told.plan, plan);
            self.told.pop_front();
            if is_plan {
                break;
            }
        }
        self.present = Some(plan.clone());
        Ok(())
    }

    /// Borrows the tables with a fixed vocabulary, if they are not here.
    fn take_whole_tables(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_whole, true) {
            return Ok(());
        }
        let Self { lender, local, .. } = self;
        let step = local.present_step();
        for table in local.whole_loans() {
            lender.take_table(step, table, &mut |rows| local.add_borrowed(&[rows]))?;
            local.end_whole_loan(table)?;
        }
        Ok(())
    }

    /// Waits for all answers, and forgets the plans that were announced.
    fn forget_told(&mut self) -> Result<()> {
        while self.open > 0 {
            self.take_answer()?;
        }
        self.told.clear();
        Ok(())
    }

    /// Gives the rows back that have changed. They stay here too.
    fn give_back(&mut self) -> Result<()> {
        if !self.is_changed {
            return Ok(());
        }
        let Self { lender, local, .. } = self;
        local.end_loan_epoch()?;
        let step = local.present_step();
        let given = lender.give_back(step, &mut || local.next_changed(PIECE_WORDS));
        if let Err(error) = given {
            // The rows of the lost frames are in no list any more.
            local.lose_rows(&error);
            return Err(error);
        }
        self.is_changed = false;
        self.returned = self.created()?;
        Ok(())
    }

    /// Removes rows before a step if there are too many: those that were pushed the longest ago,
    /// but none of a batch of the window.
    fn make_room(&mut self) -> Result<()> {
        let slots = self.local.cache_slots();
        if slots > 0 {
            self.most = slots * ROWS_OF_A_SLOT;
        }
        // If the window alone has more rows, most steps still remove nothing.
        if self.local.borrowed_rows() <= self.most.max(2 * self.left) {
            return Ok(());
        }
        while self.open > 0 {
            self.take_answer()?;
        }
        self.give_back()?;
        let kept: Vec<&LookupPlan> = self.told.iter().map(|told| &*told.plan).collect();
        let most = usize::try_from(self.most / 2).unwrap_or(usize::MAX);
        let released = self.local.release_borrowed(&kept, most);
        self.present = None;
        self.left = self.local.borrowed_rows();
        tracing::debug!(released, left = self.left, "borrowed rows were given back");
        Ok(())
    }

    /// Forgets all borrowed rows, because those of the lender are about to be replaced or filled.
    fn drop_rows(&mut self) -> Result<()> {
        self.forget_told()?;
        for (past, own) in self.past.iter_mut().zip(self.local.stats()?) {
            past.add(own.counters);
        }
        self.local = borrowed_tables(&self.options, &self.workers)?;
        self.present = None;
        (self.has_whole, self.is_changed) = (false, false);
        self.left = 0;
        self.returned.fill(0);
        Ok(())
    }
}

/// Makes empty tables that borrow their rows.
fn borrowed_tables(options: &TableOptions, workers: &Arc<Workers>) -> Result<LocalClient> {
    let mut local = LocalClient::open(options.clone(), workers.clone())?;
    local.begin_borrowing()?;
    Ok(local)
}

#[cfg(test)]
mod tests;
