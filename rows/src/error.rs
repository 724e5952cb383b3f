//! The errors of rows and tables.

use std::path::PathBuf;

use zillion_device::DeviceError;
use zillion_device::gpu::GpuError;

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
        /// A text with the allowed values or with the remedy.
        reason: String,
    },
    /// A plan, buffer or file does not fit a table.
    #[error("table `{table}`: {reason}")]
    Mismatch {
        /// The name of the table.
        table: String,
        /// A description of the mismatch, and the remedy.
        reason: String,
    },
    /// An operation on several tables is not possible now.
    #[error("{reason}")]
    Misuse {
        /// The reason why the operation is not possible, and the remedy.
        reason: String,
    },
    /// The vocabulary of a dense table has more rows than the table may have.
    #[error(
        "table `{table}`: the vocabulary has {rows} rows, but the limit of the table is {cap}; \
         raise `max_rows`, or make the table dynamic (`dense = false`)"
    )]
    TooManyRows {
        /// The name of the table.
        table: String,
        /// The number of rows of the vocabulary.
        rows: u64,
        /// The number of rows that the table may have.
        cap: u64,
    },
    /// A shard of a table cannot hold another row, because all its row numbers are in use.
    #[error("table `{table}`: all row numbers of one shard are in use; use more shards")]
    ShardFull {
        /// The name of the table.
        table: String,
    },
    /// A vocabulary is not in ascending order, or contains a key twice.
    #[error(
        "table `{table}`: key {index} ({key:#018x}) of the vocabulary is not greater than the key \
         before it; sort the vocabulary by key and remove duplicates"
    )]
    Vocabulary {
        /// The name of the table.
        table: String,
        /// The position of the first key that is out of order, counted from 0.
        index: usize,
        /// The first key that is out of order.
        key: u64,
    },
    /// A caller tried to fill a dynamic table with a vocabulary before training.
    #[error(
        "table `{table}`: a dynamic table cannot be filled before training; set `dense = true`, or do not fill the \
         table"
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
        /// The fault, its position in the file, and the remedy.
        reason: String,
    },
    /// A spill file differs from the bytes that were written to it.
    #[error("{path}: {reason}")]
    Spill {
        /// The path of the file.
        path: PathBuf,
        /// The fault, its position in the file, and the remedy.
        reason: String,
    },
    /// The caller of a long operation has ended it early.
    #[error(
        "the merge of layers was ended early by its caller; begin it again if it is still needed"
    )]
    Stopped,
    /// The machine is out of memory, or a file cannot be read or written.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A GPU on which rows live cannot be used.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A row source outside of this crate failed.
    #[error("{0}")]
    Source(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Creates the error of a plan, buffer or file that does not fit the table with this name.
    pub fn mismatch(table: &str, reason: impl Into<String>) -> Self {
        Self::Mismatch { table: table.to_owned(), reason: reason.into() }
    }

    /// Creates the error of an operation on several tables that is not possible now.
    pub fn misuse(reason: impl Into<String>) -> Self {
        Self::Misuse { reason: reason.into() }
    }
}
