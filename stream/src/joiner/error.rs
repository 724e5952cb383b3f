//! The errors of the joiner.

use std::path::{Path, PathBuf};

use zillion_device::DeviceError;

use crate::watermark::UnknownPartition;

/// The result of a call of the joiner.
pub type JoinResult<T> = Result<T, JoinError>;

/// An error of the joiner, with the remedy for the operator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A file of the joiner cannot be written, read or removed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A setting has a value that cannot be used.
    #[error("`join.{setting}` = {value} cannot be used; choose {remedy}")]
    Setting {
        /// The name of the setting in its section.
        setting: &'static str,
        /// The value as text.
        value: String,
        /// The range of usable values.
        remedy: String,
    },
    /// An event or a decision names a partition that was not added.
    #[error(transparent)]
    UnknownPartition(#[from] UnknownPartition),
    /// An input or a checkpoint came while the last input still had rows to emit.
    #[error("the last input of the joiner still has rows; take all of them before {0}")]
    Undrained(&'static str),
    /// A call came after an error of the disk, which may have left a change half done.
    #[error("the joiner has stopped after an error; restore it from its last checkpoint")]
    Stopped,
    /// A file of a checkpoint or a segment is not as it was written.
    #[error("`{}` {problem}; restore the joiner from another checkpoint", path.display())]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The difference, as a phrase with a verb.
        problem: String,
    },
    /// A checkpoint was written with another meaning of the pending rows.
    #[error(
        "`join.{setting}` is {given}, but the checkpoint `{}` was written with {saved}; set it to \
         {saved}, or begin without this checkpoint", path.display()
    )]
    Different {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The name of the setting in its section.
        setting: &'static str,
        /// The value in the present settings.
        given: String,
        /// The value in the checkpoint.
        saved: String,
    },
}

impl JoinError {
    /// Creates the error of a file that is not as it was written.
    pub(crate) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), problem: problem.into() }
    }
}
