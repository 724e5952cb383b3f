//! What can go wrong with versions and when scoring.

use std::path::PathBuf;

use crate::version::VersionId;

/// The result of everything fallible here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with versions and when scoring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The rows could not be had.
    #[error(transparent)]
    Rows(#[from] zillion_rows::Error),
    /// A store that cannot be opened, or that refuses an operation.
    #[error(transparent)]
    Store(#[from] zillion_store::Error),
    /// A name that is no name.
    #[error(
        "a {what} is named by up to 100 letters, digits, `_`, `-` and `.`, and begins with a letter or digit: `{name}`"
    )]
    Name {
        /// What was named.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// There is no such model.
    #[error(
        "the registry has no version of it; `zillion publish` makes the first: model `{model}`"
    )]
    NoModel {
        /// The model.
        model: String,
    },
    /// There is no such version.
    #[error(
        "there is no version {version}; `zillion model list` shows those there are: model `{model}`"
    )]
    NoVersion {
        /// The model.
        model: String,
        /// The version.
        version: VersionId,
    },
    /// The pointer was never set.
    #[error("it points to nothing yet; `zillion model promote` sets it: pointer `{pointer}`")]
    NoPointer {
        /// The pointer.
        pointer: String,
    },
    /// Somebody else made the move first.
    #[error(
        "{by} moved it to version {to} at the same time; look at it again before you move it: pointer `{pointer}`"
    )]
    PointerMoved {
        /// The pointer.
        pointer: String,
        /// Where it stands now.
        to: VersionId,
        /// Who moved it.
        by: String,
    },
    /// Somebody else published first.
    #[error(
        "somebody else published it at the same time, and nothing of yours became visible; publish again on top \
         of it: version {version} of model `{model}`"
    )]
    VersionTaken {
        /// The model.
        model: String,
        /// The number that was taken.
        version: VersionId,
    },
    /// An object of the registry is not what it must be.
    #[error("{reason}; restore it from a copy, or publish a new base: `{path}`")]
    Manifest {
        /// The object.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A chain of versions does not hold.
    #[error("{reason}: version {version} of model `{model}`")]
    Chain {
        /// The model.
        model: String,
        /// The version whose link is broken.
        version: VersionId,
        /// What is wrong.
        reason: String,
    },
    /// A file of a version is not there, or not what was published.
    #[error(
        "{reason}; move a whole copy into its place (never write into a file of a registry: servers map it), go back with \
         `zillion model rollback`, or publish a base: {path}"
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What a version would consist of does not fit together.
    #[error("{0}")]
    Refused(String),
    /// The machine.
    #[error(transparent)]
    Device(#[from] zillion_device::DeviceError),
}
