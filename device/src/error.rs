//! The errors of the machine: files, memory, settings. One enum tells a full disk from a broken
//! argument.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate. Every variant says what the operator can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The disk (or the quota) is full.
    #[error("could not {action} {}: the disk is full; free some space and start again", path.display())]
    DiskFull {
        /// The action that failed, as a verb phrase.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Any other failure of a file operation.
    #[error("could not {action} {}: {}", path.display(), describe(source))]
    File {
        /// The action that failed, as a verb phrase.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file that is to be read is a folder, a pipe or a device.
    #[error("{} is not a regular file: name a file, not a folder or a pipe", .0.display())]
    NotAFile(PathBuf),
    /// A file that is to be read has no bytes.
    #[error("{} is empty: write the file again or leave it out", .0.display())]
    EmptyFile(PathBuf),
    /// The operating system refused memory.
    #[error("out of memory: {bytes} bytes were refused; limit the tables or use a larger machine")]
    OutOfMemory {
        /// The number of bytes that were requested.
        bytes: usize,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A slab cannot hold rows of this size.
    #[error("row of {bytes} bytes does not fit a slab: use rows of 1 to {limit} bytes")]
    RowSize {
        /// The requested size of a row in bytes.
        bytes: usize,
        /// The largest size of a row in bytes.
        limit: usize,
    },
    /// A slab has handed out every row number.
    #[error("slab is full at {rows} rows: use more shards or limit the table")]
    TooManyRows {
        /// The number of live rows.
        rows: u64,
    },
    /// The operating system refused a thread; a pool needs at least one.
    #[error("worker thread {index} could not be started: use fewer threads")]
    Thread {
        /// The number of the thread in the pool.
        index: usize,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A read was abandoned because the reading threads have ended.
    #[error("the reading threads have ended: start again")]
    Readers,
    /// The setting of a failpoint does not parse.
    #[error("failpoint {0:?} is not valid: use N:kill, N:torn, N:enospc or N:eio with N from 1")]
    Failpoint(String),
}

impl DeviceError {
    /// Wraps an error of the operating system and tells a full disk from all other errors.
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { action, path, source }
            }
            _ => Self::File { action, path, source },
        }
    }

    /// Returns whether free disk space would help.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. })
    }
}

/// Describes an error of the operating system with a few words of advice.
fn describe(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "check that it exists",
        io::ErrorKind::PermissionDenied => "check its permissions",
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => {
            "remove it or choose another name"
        }
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only",
        _ => return error.to_string(),
    };
    format!("{error}; {hint}")
}
