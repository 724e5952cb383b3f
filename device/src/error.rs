//! What can go wrong with the machine: files, memory, settings. One enum, so that a caller can tell
//! a full disk from a broken argument.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate. Every variant says what the operator can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The disk (or the quota) is full.
    #[error("disk full: free some space and start again; could not {action} {}", path.display())]
    DiskFull {
        /// What was being done, as a verb phrase.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Any other failure of a file operation.
    #[error("could not {action} ({}): {}", advice(source), path.display())]
    File {
        /// What was being done, as a verb phrase.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file that is to be read is a folder, a pipe or a device.
    #[error("not a regular file: name a file, not a folder or a pipe: {}", .0.display())]
    NotAFile(PathBuf),
    /// A file that is to be read has no bytes.
    #[error("file is empty: write it again or leave it out: {}", .0.display())]
    EmptyFile(PathBuf),
    /// The operating system gave no memory.
    #[error("out of memory: {bytes} bytes were refused: cap the tables or use a larger machine")]
    OutOfMemory {
        /// How much was asked for.
        bytes: usize,
        /// What the operating system said.
        source: io::Error,
    },
    /// A slab cannot hold rows of this size.
    #[error("row of {bytes} bytes does not fit a slab: use a row between 1 and {limit} bytes")]
    RowSize {
        /// The size of the row that was asked for.
        bytes: usize,
        /// The largest row.
        limit: usize,
    },
    /// A slab has handed out every row number.
    #[error("slab is full at {rows} rows: use more shards or cap the table")]
    TooManyRows {
        /// The number of live rows.
        rows: u64,
    },
    /// A pool needs at least one thread, and the operating system refused one.
    #[error("could not start worker thread {index}: lower the number of threads")]
    Thread {
        /// The number of the thread in the pool.
        index: usize,
        /// What the operating system said.
        source: io::Error,
    },
    /// A read was given up because the threads that read have ended.
    #[error("reading has ended: start again")]
    Readers,
    /// The setting of a failpoint does not parse.
    #[error("failpoint must be N:kill, N:torn, N:enospc or N:eio with N from 1 up, not {0:?}")]
    Failpoint(String),
}

impl DeviceError {
    /// Wraps an error of the operating system, telling a full disk from everything else.
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { action, path, source }
            }
            _ => Self::File { action, path, source },
        }
    }

    /// True where free disk space would help.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. })
    }
}

/// What to do about an error of the operating system, in a few words.
fn advice(error: &io::Error) -> String {
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
