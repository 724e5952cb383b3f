//! The questions and requests of operators, and their answers.

use tokio::sync::oneshot;
use zillion_embedding::LiveKey;
use zillion_feature::FeatureKey;
use zillion_rows::TableSpec;

use crate::code::ErrorCode;

/// A question or request of an operator, with the way of the answer.
#[derive(Debug)]
pub(super) enum Question {
    /// The request to bring the figures of the server up to date.
    Show { answer: Answer<()> },
    /// The question for all data about a key.
    Explain { table: String, key: FeatureKey, answer: Answer<Explained> },
    /// The request for a checkpoint.
    Checkpoint { answer: Answer<Requested> },
    /// The request to set the run back to a checkpoint: that of a step, or the newest one.
    Restore { step: Option<u64>, answer: Answer<Reached> },
}

/// The way of an answer.
pub(super) type Answer<T> = oneshot::Sender<Result<T, Refused>>;

/// The reason for which a request is refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) code: ErrorCode,
    pub(super) text: String,
}

/// The data of a live table about a key.
#[derive(Debug)]
pub(super) struct Explained {
    pub(super) run: String,
    pub(super) generation: u64,
    pub(super) step: u64,
    /// The data; `None` if the server does not own the slot of the key.
    pub(super) found: Option<Found>,
}

/// The data about a key on its owner.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) spec: TableSpec,
    /// The number of rows of the table on this server.
    pub(super) rows: u64,
    pub(super) key: LiveKey,
}

/// A request for a checkpoint that the server keeps.
#[derive(Debug)]
pub(super) struct Requested {
    pub(super) run: String,
    pub(super) generation: u64,
    pub(super) boot: u64,
    pub(super) number: u64,
}

/// The state that a run had reached.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) run: String,
    pub(super) generation: u64,
    pub(super) step: u64,
}
