//! What a parameter service refuses, and what to do about it.

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between a trainer and its tables.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call that the step's contract does not allow now.
    #[error("{remedy}: `{call}` came {moment}")]
    Order {
        /// The call that was refused.
        call: &'static str,
        /// Where in the step it came.
        moment: String,
        /// What must come first.
        remedy: &'static str,
    },
    /// An argument that no table could use.
    #[error("{reason}: `{call}`")]
    Argument {
        /// The call that was refused.
        call: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// An update failed half way, so that some rows have moved and others have not.
    #[error("restore a checkpoint: an update of the tables failed half way ({cause})")]
    Broken {
        /// The error that did it.
        cause: String,
    },
    /// The tables refused.
    #[error(transparent)]
    Tables(#[from] zillion_embedding::Error),
}
