//! The errors of rows and tables, each with its remedy.

use std::path::PathBuf;

use zillion_device::DeviceError;

/// The result of an operation on rows or tables.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The errors of rows and tables.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of a table is out of range.
    #[error("`{key}`: {reason}")]
    Spec {
        /// The path of the setting: `tables.<table>.<segment>.<key>`.
        key: String,
        /// The values that are allowed, or the remedy.
        reason: String,
    },
    /// A plan, buffer or file does not fit a table.
    #[error("table `{table}`: {reason}")]
    Mismatch {
        /// The name of the table.
        table: String,
        /// The mismatch, and the remedy.
        reason: String,
    },
    /// An operation on several tables is not possible now.
    #[error("{reason}")]
    Misuse {
        /// The reason, and the remedy.
        reason: String,
    },
    /// A dense table would outgrow its cap.
    #[error(
        "table `{table}`: the vocabulary has {rows} rows and the table may have {cap}; raise `max_rows`, or make the \
         table dynamic (`dense = false`)"
    )]
    TooManyRows {
        /// The name of the table.
        table: String,
        /// The number of rows of the vocabulary.
        rows: u64,
        /// The number of rows that the table may have.
        cap: u64,
    },
    /// One shard of a table has used all its row numbers.
    #[error("table `{table}`: a shard holds at most 4294967293 rows; use more shards")]
    ShardFull {
        /// The name of the table.
        table: String,
    },
    /// A vocabulary is not sorted, or has a key twice.
    #[error(
        "table `{table}`: the vocabulary must be sorted by key and without duplicates, and key {index} ({key:#018x}) is \
         not above the one before it"
    )]
    Vocabulary {
        /// The name of the table.
        table: String,
        /// The position of the offending key.
        index: usize,
        /// The offending key itself.
        key: u64,
    },
    /// A dynamic table was to be filled before training.
    #[error(
        "table `{table}`: only a dense table is filled before training, and this one is dynamic; set `dense = true`, or \
         do not fill it"
    )]
    NotDense {
        /// The name of the table.
        table: String,
    },
    /// A file of a checkpoint or of a version differs from its manifest.
    #[error("{path}: {reason}")]
    Part {
        /// The path of the file.
        path: PathBuf,
        /// The fault, its position, and the remedy.
        reason: String,
    },
    /// The file of a table that spills is not as it was written.
    #[error("{path}: {reason}")]
    Spill {
        /// The path of the file.
        path: PathBuf,
        /// The fault, its position, and the remedy.
        reason: String,
    },
    /// The machine has no memory, or a file cannot be read or written.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A row source outside of this crate failed.
    #[error("{0}")]
    Source(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Returns the error of a plan, buffer or file that does not fit `table`.
    pub fn mismatch(table: &str, reason: impl Into<String>) -> Self {
        Self::Mismatch { table: table.to_owned(), reason: reason.into() }
    }

    /// Returns the error of an operation on several tables that is not possible now.
    pub fn misuse(reason: impl Into<String>) -> Self {
        Self::Misuse { reason: reason.into() }
    }
}
