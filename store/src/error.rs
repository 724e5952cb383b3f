//! The errors of a store.

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A store that cannot be opened, or an operation that a store refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A URL that names no store.
    #[error(
        "cannot understand the store URL `{url}`: {reason} (write a folder, `s3://bucket/prefix`, \
         `gs://bucket/prefix`, `az://container/prefix` or `file:///folder`)"
    )]
    UnknownStore {
        /// The URL as it was given, without the parts that may be a secret.
        url: String,
        /// The problem with the URL.
        reason: String,
    },
    /// A setting or a credential of a store that cannot be used.
    #[error("{setting}: {reason}")]
    StoreSetting {
        /// The variable, the file or the profile.
        setting: String,
        /// The problem and its remedy.
        reason: String,
    },
    /// A store that does not exist, is not accessible, or is not fit for its use.
    #[error("cannot open the store `{url}`: {reason}")]
    StoreOpen {
        /// The URL of the store.
        url: String,
        /// The problem, and what to check.
        reason: String,
    },
    /// An object that must exist and does not.
    #[error("the object `{path}` is missing in the store")]
    Missing {
        /// The name of the object.
        path: String,
    },
    /// An operation that the store refused.
    #[error("cannot {action} `{path}` in the store: {reason}")]
    Store {
        /// The verb of the operation.
        action: &'static str,
        /// The name of the object.
        path: String,
        /// The store's own reason.
        reason: String,
    },
}
