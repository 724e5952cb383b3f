//! The errors of this crate, about files, memory, threads and settings. A full disk has its own
//! variant.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate, with the remedy for the operator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The disk (or the quota) is full.
    #[error(
        "could not {action} {}: the disk is full; free some space and start again",
        path.display()
    )]
    DiskFull {
        /// The action that failed, as a verb phrase.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file operation failed for another reason.
    #[error("could not {action} {}: {}", path.display(), describe(source))]
    File {
        /// The action that failed, as a verb phrase.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file to be read is a folder, a pipe or a device.
    #[error("`{}` is not a regular file; name a file instead of a folder, a pipe or a device", .0.display())]
    NotAFile(PathBuf),
    /// A file to be read has no bytes.
    #[error("`{}` is empty; write the file again, or remove it from the list", .0.display())]
    EmptyFile(PathBuf),
    /// The operating system refused memory.
    #[error(
        "memory is exhausted, because the system refused {bytes} bytes; limit the tables, or use \
         a larger machine"
    )]
    OutOfMemory {
        /// The number of bytes that were requested.
        bytes: usize,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A row is too large or too small for a slab.
    #[error("a row of {bytes} bytes is not supported; use rows of 1 to {limit} bytes")]
    RowSize {
        /// The requested size of a row in bytes.
        bytes: usize,
        /// The largest size of a row in bytes.
        limit: usize,
    },
    /// All row numbers of a slab are in use.
    #[error("one shard of a table is full with {rows} rows; use more shards, or limit the table")]
    TooManyRows {
        /// The number of live rows.
        rows: u64,
    },
    /// The operating system refused to start a thread. A pool needs at least one thread.
    #[error("thread {index} could not be started; use fewer threads")]
    Thread {
        /// The number of the thread in the pool.
        index: usize,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A read was abandoned because the reading threads had ended.
    #[error("a read was abandoned because the reading threads have ended; start the program again")]
    Readers,
    /// The text of a failpoint cannot be parsed.
    #[error("failpoint {0:?} is invalid; use N:kill, N:torn, N:enospc or N:eio with N from 1")]
    Failpoint(String),
}

impl DeviceError {
    /// Makes the error of a file operation. A full disk gets its own variant.
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { action, path, source }
            }
            _ => Self::File { action, path, source },
        }
    }

    /// Returns whether the error is a full disk.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. })
    }
}

/// Returns the text of an operating system's error, with a short piece of advice where one is
/// known.
fn describe(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "check that it exists",
        io::ErrorKind::PermissionDenied => "check its permissions",
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => {
            "remove it or choose another name"
        }
        io::ErrorKind::ReadOnlyFilesystem => "choose a folder on a writable file system",
        _ => return error.to_string(),
    };
    format!("{error}; {hint}")
}
