//! The errors of a store.

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A store that cannot be opened, or an operation that a store refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL does not name a store.
    #[error(
        "store URL `{url}` is invalid: {reason}; write a folder, `s3://bucket/prefix`, `gs://bucket/prefix`, \
         `az://container/prefix` or `file:///folder`"
    )]
    UnknownStore {
        /// The URL without the parts that may be secret.
        url: String,
        /// The problem with the URL, as a text.
        reason: String,
    },
    /// A setting or a credential of a store cannot be used.
    #[error("{setting}: {reason}")]
    StoreSetting {
        /// The name of the variable, the file or the profile.
        setting: String,
        /// The problem and how to solve it.
        reason: String,
    },
    /// The store does not exist, is not accessible, or does not support a required operation.
    #[error("store `{url}` cannot be opened: {reason}")]
    StoreOpen {
        /// The URL of the store.
        url: String,
        /// The problem and what the user must check.
        reason: String,
    },
    /// A required object does not exist.
    #[error("object `{path}` is missing in the store; check its name and the URL of the store")]
    Missing {
        /// The name of the object.
        path: String,
    },
    /// An object was replaced or removed after it was opened for reading.
    #[error(
        "object `{path}` {change} after it was opened; leave the objects of a run as they are, write \
         new data under new names, and start the run again"
    )]
    Changed {
        /// The name of the object.
        path: String,
        /// The change, as a verb in the past: `was replaced` or `was removed`.
        change: &'static str,
    },
    /// The store refused an operation.
    #[error("cannot {action} `{path}` in the store: {reason}")]
    Store {
        /// The verb that names the operation.
        action: &'static str,
        /// The name of the object.
        path: String,
        /// The reason for the refusal, from the store.
        reason: String,
    },
}

impl Error {
    /// Makes the error of a setting or a credential that cannot be used.
    pub(crate) fn setting(setting: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::StoreSetting { setting: setting.into(), reason: reason.into() }
    }
}
