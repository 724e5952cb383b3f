//! The errors of the registry and of the cache.

use std::path::PathBuf;

use crate::reference::VersionId;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an operation on a registry or on a cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A failure to read the rows of a version.
    #[error(transparent)]
    Rows(#[from] zillion_rows::Error),
    /// A failure to open a store, or a failed operation of a store.
    #[error(transparent)]
    Store(#[from] zillion_store::Error),
    /// A name that is not allowed.
    #[error(
        "invalid {what} name `{name}`: use at most 100 letters, digits, `_`, `-` and `.`, and begin with a \
         letter or a digit"
    )]
    Name {
        /// The kind of the object with the name, for example `model`.
        what: &'static str,
        /// The name that was refused.
        name: String,
    },
    /// A model without any version.
    #[error(
        "model `{model}` has no version in the registry; publish a version with `zillion publish`"
    )]
    NoModel {
        /// The name of the model.
        model: String,
    },
    /// A version that the model does not have.
    #[error(
        "unknown version {version} of model `{model}`; list the versions with `zillion model list`"
    )]
    NoVersion {
        /// The name of the model.
        model: String,
        /// The number of the version.
        version: VersionId,
    },
    /// A pointer that does not point to a version yet.
    #[error("pointer `{pointer}` was never set; set it with `zillion model promote`")]
    NoPointer {
        /// The name of the pointer.
        pointer: String,
    },
    /// A move of a pointer that was too late: another operator moved the pointer at the same time.
    #[error(
        "pointer `{pointer}` was moved to version {to} by {by} at the same time; repeat your move \
         if it is still right"
    )]
    PointerMoved {
        /// The name of the pointer.
        pointer: String,
        /// The version that the pointer points to now.
        to: VersionId,
        /// The operator whose move was first.
        by: String,
    },
    /// A version that is in quarantine, or builds on a version in quarantine.
    #[error(
        "version {version} of model `{model}` is or builds on version {root}, which is in quarantine; \
         use another version, or lift the quarantine with `zillion model quarantine` if it was wrong"
    )]
    Quarantined {
        /// The name of the model.
        model: String,
        /// The version that was to be used.
        version: VersionId,
        /// The version that was put into quarantine.
        root: VersionId,
    },
    /// A publication that was too late: another publisher took the number at the same time.
    #[error(
        "version {version} of model `{model}` was published by another process at the same time, \
         so this publication was not completed; publish again"
    )]
    VersionTaken {
        /// The name of the model.
        model: String,
        /// The number of the version that the other publisher published.
        version: VersionId,
    },
    /// An object of the registry that is damaged.
    #[error(
        "`{path}` in the registry: {reason}; restore the object from a copy, or publish a new base"
    )]
    Manifest {
        /// The name of the object.
        path: String,
        /// The problem with the object.
        reason: String,
    },
    /// A broken chain of versions.
    #[error("version {version} of model `{model}`: {reason}")]
    Chain {
        /// The name of the model.
        model: String,
        /// The version with the broken link to its parent.
        version: VersionId,
        /// The problem with the link.
        reason: String,
    },
    /// A file of a version that is missing or damaged.
    #[error(
        "{path}: {reason}; restore it with a rename of a whole copy (never write into a file that \
         servers map), go back to an older version with `zillion model rollback`, or publish a base"
    )]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The problem with the file.
        reason: String,
    },
    /// The contents of a version do not fit together.
    #[error("{0}")]
    Refused(String),
    /// A key that cannot be used, or a signature that is missing, unknown or wrong.
    #[error(transparent)]
    Access(#[from] zillion_access::Error),
    /// A pointer move that is older than one that was taken before.
    #[error(
        "the registry has move {number} of pointer `{pointer}` of model `{model}`, but a \
         different move {taken} was accepted before, so moves were removed or replaced; restore \
         them, or move the pointer again (if this is a new registry, remove `{}`)",
        path.display()
    )]
    Replayed {
        /// The name of the model.
        model: String,
        /// The name of the pointer.
        pointer: String,
        /// The number of the move that was refused.
        number: u64,
        /// The number of the last move that was taken.
        taken: u64,
        /// The file that remembers the last move.
        path: PathBuf,
    },
    /// A pointer move whose validity has ended.
    #[error(
        "the validity of move {number} of pointer `{pointer}` of model `{model}` has ended; sign a new move \
         with `zillion model promote`"
    )]
    Expired {
        /// The name of the model.
        model: String,
        /// The name of the pointer.
        pointer: String,
        /// The number of the move.
        number: u64,
    },
    /// A memory of pointer moves that cannot be read.
    #[error(
        "`{}`, which remembers the last move of a pointer, cannot be read ({reason}); remove it \
         if the present moves of the registry are right",
        path.display()
    )]
    Memory {
        /// The file that remembers the last move.
        path: PathBuf,
        /// The problem with the file.
        reason: String,
    },
    /// A failure of the machine.
    #[error(transparent)]
    Device(#[from] zillion_device::DeviceError),
}

/// Describes the difference between a file and the published file: the bytes and the hash.
pub(crate) fn describe_other_bytes(bytes: u64, hash: &str, wanted: u64) -> String {
    format!(
        "its {bytes} bytes have hash {hash}, but the published file has {wanted} bytes and a different hash"
    )
}
