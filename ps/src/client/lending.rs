//! The part of the contract by which a trainer borrows rows with their optimizer state.

use std::collections::VecDeque;

use zillion_embedding::LentRows;
use zillion_feature::{Step, TableId};

use crate::error::Result;

/// The part of a client that lends the rows of its tables to the trainer. All steps are then done
/// by the trainer, and the holder of the tables keeps old copies of the rows. The trainer gives
/// changed rows back before a checkpoint, a version, a validation, and before it drops a row.
///
/// Rows are lent to one trainer, which is the only one of its run. After the first question for
/// rows, pulls and pushes are refused until the tables are restored.
pub trait Lending: Send {
    /// Asks for the rows of keys, without waiting for them. Several questions may be open.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be lent, or if a server cannot be reached.
    fn ask_for_rows(&mut self, step: Step, keys: Vec<LentRows>) -> Result<()>;

    /// Waits for the rows of the oldest open question. Keys without a row are left out.
    ///
    /// # Errors
    /// Returns an error if no question is open, if a server has refused it, or if a server cannot
    /// be reached.
    fn take_rows(&mut self) -> Result<Vec<LentRows>>;

    /// Waits for all rows of a table, which has a fixed vocabulary. `add` takes them in the order
    /// of their slots, and those of a slot in the order of their keys.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be lent, if a server cannot be reached, or the error of
    /// `add`.
    fn take_table(
        &mut self,
        step: Step,
        table: TableId,
        add: &mut dyn FnMut(LentRows) -> Result<()>,
    ) -> Result<()>;

    /// Gives rows back that `next` returns, until it returns `None`.
    ///
    /// # Errors
    /// Returns an error if rows do not fit the tables, or if a server cannot be reached.
    fn give_back(&mut self, step: Step, next: &mut dyn FnMut() -> Option<LentRows>) -> Result<()>;
}

/// The answers to open questions of a lender that answers at once.
pub(crate) type Answered = VecDeque<Vec<LentRows>>;

/// The number of words of rows that one frame brings, if rows come back or if a whole table is
/// lent. A frame has more if a slot has.
pub(crate) const PIECE_WORDS: usize = 8 << 10;
