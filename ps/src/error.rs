//! The errors of a parameter service.

use crate::code::ErrorCode;

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
    /// An error that a server has returned.
    #[error("server {server}: {text} ({code})")]
    Remote {
        /// The address of the server.
        server: String,
        /// The stable code of the error.
        code: ErrorCode,
        /// The text of the error, with the problem and the remedy.
        text: String,
    },
    /// A server or a client that cannot start.
    #[error("{problem}")]
    Start {
        /// The problem and the remedy.
        problem: String,
    },
    /// A server, or a home of the map of a cluster, that cannot be reached at present. The call can
    /// be made again.
    #[error("{problem}")]
    Unreachable {
        /// The problem and the remedy.
        problem: String,
    },
    /// The end of a generation. A server or a trainer was lost, or was started again, so the state
    /// of the tables after the last checkpoint is lost. Every trainer must continue from the newest
    /// checkpoint.
    #[error(
        "generation {generation} of the run has ended, because {cause}; continue from the newest \
         checkpoint"
    )]
    Rewound {
        /// The generation that has ended.
        generation: u64,
        /// The event that has ended the generation.
        cause: String,
    },
    /// The end of a generation by an operator, who has set the run back to a checkpoint. Every
    /// trainer must continue from it.
    #[error(
        "generation {generation} of the run has ended, because {cause}; continue from this \
         checkpoint"
    )]
    Restored {
        /// The generation that has ended.
        generation: u64,
        /// The request of the operator.
        cause: String,
    },
    /// A later generation of the run, which another process has begun on other servers. This
    /// process must not write checkpoints any more.
    #[error(
        "another process has begun generation {newest} of the run `{run}`, and this process is in \
         generation {generation}, so it writes no checkpoint; stop one of the two processes"
    )]
    Superseded {
        /// The name of the run.
        run: String,
        /// The generation of this process.
        generation: u64,
        /// The number of the newest generation.
        newest: u64,
    },
    /// The end of the run, because another trainer has ended with an error of its own.
    #[error("the run has ended, because {cause}; mend this, and resume the run")]
    Aborted {
        /// The number and the error of the other trainer.
        cause: String,
    },
}

impl Error {
    /// Returns whether the run can continue from its newest checkpoint under a new generation.
    pub fn is_rewound(&self) -> bool {
        matches!(self, Self::Rewound { .. } | Self::Restored { .. })
    }

    /// Returns the stable code of the error, by which logs and other processes can recognize it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Order { .. } => ErrorCode::Order,
            Self::Argument { .. } => ErrorCode::Argument,
            Self::Broken { .. } => ErrorCode::Broken,
            Self::Tables(error) => ErrorCode::of_tables(error),
            Self::Remote { code, .. } => *code,
            Self::Start { .. } | Self::Unreachable { .. } => ErrorCode::Start,
            Self::Rewound { .. } => ErrorCode::Rewound,
            Self::Restored { .. } => ErrorCode::Restored,
            Self::Aborted { .. } | Self::Superseded { .. } => ErrorCode::Aborted,
        }
    }
}

/// Returns the error of a server or a client that cannot start.
pub(crate) fn start_error(problem: impl Into<String>) -> Error {
    Error::Start { problem: problem.into() }
}
