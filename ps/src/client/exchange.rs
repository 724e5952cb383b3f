//! The part of the contract for several trainers that train one model together.

use crate::error::{Error, Result};

/// The part of a client by which the trainers of one run exchange the parts of a step.
///
/// In synchronous training, T trainers take the batches of a step in turn: trainer `t` has batch
/// `t` of each step. One step of T trainers gives the same bytes as one step of a single trainer
/// that accumulates T batches.
pub trait Exchanging: Send {
    /// Returns the place of this trainer among the trainers of the run.
    fn place(&self) -> TrainerPlace {
        TrainerPlace::ALONE
    }

    /// Ends the preparation of the tables. Trainer 0 calls it after it has filled or restored the
    /// tables, with a note for the other trainers. The call of any other trainer waits for this.
    /// All calls return the note of trainer 0. Only trainer 0 fills and restores tables, writes
    /// checkpoints, and tracks changes.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached, or if the run was rewound.
    fn start(&mut self, note: Vec<u8>) -> Result<Vec<u8>> {
        Ok(note)
    }

    /// Gives this trainer's part of the present step, waits until every trainer has given its own
    /// part, and returns the parts together. Each trainer must make the call once in each step,
    /// also if the step has no batch for the trainer.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached, or if the run was rewound.
    fn exchange(&mut self, mine: Contribution) -> Result<Exchanged> {
        let Contribution { rows, dense, note } = mine;
        Ok(Exchanged { rows: rows as u64, dense, notes: vec![note] })
    }

    /// Ends the session in a generation whose end this trainer has learnt by `error`. The servers
    /// that do not know it yet learn it here, and other trainers from them. No other call may
    /// follow.
    fn leave(&mut self, error: &Error) {
        let _ = error;
    }

    /// Tells the other trainers that this one ends with an error, so that they end too instead of
    /// waiting for it. No other call may follow.
    fn abort(&mut self, error: &str) {
        let _ = error;
    }
}

/// The place of a trainer among the trainers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainerPlace {
    /// The number of the trainer, counted from 0. Trainer 0 writes checkpoints and publishes
    /// versions.
    pub index: usize,
    /// The number of trainers of the run.
    pub count: usize,
}

impl TrainerPlace {
    /// The place of the only trainer of a run.
    pub const ALONE: Self = Self { index: 0, count: 1 };

    /// Returns whether this trainer writes checkpoints and publishes versions.
    pub fn is_first(self) -> bool {
        self.index == 0
    }
}

/// The part of a step that one trainer gives to the other trainers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contribution {
    /// The number of rows of the trainer's batch, which is the weight of its gradients. It is 0 if
    /// the step has no batch for the trainer. The other fields are then empty.
    pub rows: usize,
    /// The gradients of the dense parameters, one after another.
    pub dense: Vec<f32>,
    /// Other values that each trainer needs from each other trainer, for example the statistics of
    /// batch norm. The service does not read them.
    pub note: Vec<u8>,
}

/// The parts of all trainers in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exchanged {
    /// The number of rows of all trainers' batches.
    pub rows: u64,
    /// The gradients of the mean loss over all rows: the sum of each trainer's gradients times its
    /// number of rows, added to 0 in the order of the trainers, then multiplied by `1 / rows` in
    /// `f32`. With a single trainer, these are its gradients without any change.
    pub dense: Vec<f32>,
    /// The notes of the trainers, in the order of their numbers. The note of a trainer without a
    /// batch is empty.
    pub notes: Vec<Vec<u8>>,
}
