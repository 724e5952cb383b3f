//! The errors of a parameter service.

/// The result of a fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a call that a trainer makes to its tables.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call that the contract of a step does not allow at this moment.
    #[error("`{call}` was called {moment}; {remedy}")]
    Order {
        /// The call that was refused.
        call: &'static str,
        /// A description of the moment in the step at which the call was made.
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
    /// A call after an update that failed half way. Only some of the rows are updated.
    #[error(
        "the tables are only partly updated, because an update failed ({cause}); restore a \
         checkpoint"
    )]
    Broken {
        /// The error that stopped the update.
        cause: String,
    },
    /// An error of the tables.
    #[error(transparent)]
    Tables(#[from] zillion_embedding::Error),
}
