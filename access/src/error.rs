//! The errors of files that hold identities, keys, certificates and audit entries.

use std::io;
use std::path::{Path, PathBuf};

/// The result of an operation that can fail with an error of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error about a file of access control.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written.
    #[error(
        "cannot {verb} `{}` ({source}); check the path, its permissions and the free space of its disk",
        path.display()
    )]
    File {
        /// The verb of the operation, such as `read` or `write`.
        verb: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The failure that the system reported.
        source: io::Error,
    },
    /// A file whose content is not valid.
    #[error("`{}`: {reason}", path.display())]
    Invalid {
        /// The path of the file.
        path: PathBuf,
        /// The problem and its remedy.
        reason: String,
    },
    /// A durable write that failed.
    #[error(transparent)]
    Device(#[from] zillion_device::DeviceError),
    /// A signature that is missing, unknown or wrong.
    #[error("{subject}: {reason}")]
    Untrusted {
        /// The version or the pointer move that the signature belongs to.
        subject: String,
        /// The problem and its remedy.
        reason: String,
    },
    /// A failure of the operating system to provide random bytes.
    #[error(
        "the operating system returned no random bytes, so no key can be made; try again, or make \
         the key on another machine"
    )]
    Random,
}

impl Error {
    /// Creates the error of an invalid file.
    pub(crate) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_owned(), reason: reason.into() }
    }

    /// Returns a function that wraps the failure of a file operation.
    pub(crate) fn file(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { verb, path, source }
    }
}
