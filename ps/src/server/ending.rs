//! The end of a generation.

use crate::code::ErrorCode;

/// The event that has ended a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) cause: String,
    pub(super) kind: EndingKind,
}

/// The kind of an event that ends a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndingKind {
    /// A server or a trainer was lost or started again, or the run is done.
    Lost,
    /// An operator has asked for an earlier state: the checkpoint of a step, or the newest one.
    Restore(Option<u64>),
    /// A trainer has ended with an error of its own, so the run cannot go on.
    Aborted,
}

impl Ending {
    /// Returns the code of the error that trainers get.
    pub(super) fn code(&self) -> ErrorCode {
        match self.kind {
            EndingKind::Lost => ErrorCode::Rewound,
            EndingKind::Restore(_) => ErrorCode::Restored,
            EndingKind::Aborted => ErrorCode::Aborted,
        }
    }

    /// Returns the step to which an operator sets the run back, if it is not the newest checkpoint.
    pub(super) fn restores_to(&self) -> Option<u64> {
        match self.kind {
            EndingKind::Restore(step) => step,
            _ => None,
        }
    }
}
