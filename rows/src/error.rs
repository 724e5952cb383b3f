//! What can go wrong with tables, and what to do about it.

use std::path::PathBuf;

use zillion_device::DeviceError;

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with tables.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of a table is out of range.
    #[error("{reason}: `{key}`")]
    Spec {
        /// Where it stands: `tables.<table>.<segment>.<key>`.
        key: String,
        /// What it must be.
        reason: String,
    },
    /// A plan or buffer does not fit the tables it is used on.
    #[error("{reason}: table `{table}`")]
    Mismatch {
        /// The table.
        table: String,
        /// What does not fit.
        reason: String,
    },
    /// A dense table would outgrow its cap.
    #[error(
        "the vocabulary has {rows} rows and the table may have {cap}; raise `max_rows`, or make the table dynamic \
         (`dense = false`): table `{table}`"
    )]
    TooManyRows {
        /// The table.
        table: String,
        /// Rows that were asked for.
        rows: u64,
        /// Its `max_rows`.
        cap: u64,
    },
    /// One shard of a table has used all its row numbers.
    #[error("a shard holds at most 4294967293 rows of a table; use more shards: table `{table}`")]
    ShardFull {
        /// The table.
        table: String,
    },
    /// A vocabulary must be sorted and unique.
    #[error(
        "the vocabulary must be sorted by key and without duplicates, and key {index} ({key:#018x}) is not above the one \
         before it: table `{table}`"
    )]
    Vocabulary {
        /// The table.
        table: String,
        /// Position of the offending key.
        index: usize,
        /// The key.
        key: u64,
    },
    /// Prefilling is for dense tables.
    #[error(
        "only a dense table is filled before training, a dynamic one creates rows as keys arrive; set `dense = true` or \
         do not prefill: table `{table}`"
    )]
    NotDense {
        /// The table.
        table: String,
    },
    /// A checkpoint part is not what the manifest says.
    #[error("{reason}: {path}")]
    Part {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, where, and what to do.
        reason: String,
    },
    /// The file of a table that spills is not what was written.
    #[error("{reason}: {path}")]
    Spill {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, where, and what to do.
        reason: String,
    },
    /// The machine: files, memory.
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
}
