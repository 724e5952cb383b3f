//! The errors of a parameter service.

/// The result of an operation of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error between a trainer and its tables.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call that the contract of a step does not allow at this moment.
    #[error("`{call}` was called {moment}: {remedy}")]
    Order {
        /// The call that was refused.
        call: &'static str,
        /// The moment of the call in its step.
        moment: String,
        /// The call that must come first.
        remedy: &'static str,
    },
    /// An invalid argument of a call.
    #[error("`{call}`: {reason}")]
    Argument {
        /// The call that was refused.
        call: &'static str,
        /// The problem with the argument.
        reason: String,
    },
    /// An update that failed half way, so only some of the rows are updated.
    #[error(
        "the tables are half updated, because an update failed ({cause}); restore a checkpoint"
    )]
    Broken {
        /// The error that stopped the update.
        cause: String,
    },
    /// An error of the tables.
    #[error(transparent)]
    Tables(#[from] zillion_embedding::Error),
}
