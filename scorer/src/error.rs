//! The errors of scoring and of loading a version.

use zillion_registry::VersionId;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A model that cannot be scored, or a version that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A graph that was not built for inference by the rules of the model zoo.
    #[error("the model has no output named \"logits\"")]
    NoLogits,
    /// An output that the graph does not have.
    #[error("the model has no output named {name:?}")]
    NoOutput {
        /// The name of the output.
        name: String,
    },
    /// A lookup of rows that failed.
    #[error(transparent)]
    Rows(#[from] zillion_rows::Error),
    /// A dense model that cannot be computed.
    #[error(transparent)]
    Model(#[from] zillion_nn::Error),
    /// A version that the registry or the cache cannot provide.
    #[error(transparent)]
    Registry(#[from] zillion_registry::Error),
    /// A version whose contents do not fit together.
    #[error("{0}")]
    Refused(String),
    /// An input of a row that does not fit the model.
    #[error(transparent)]
    Input(#[from] zillion_feature::RequestError),
    /// A version that does not score its parity rows as the trainer did.
    #[error(
        "version {version} is not loaded: parity row {row} of label `{label}` scores {found} here and \
         {wanted} in training"
    )]
    Parity {
        /// The number of the version.
        version: VersionId,
        /// The name of the label.
        label: String,
        /// The number of the row, from 0.
        row: usize,
        /// The log odds that this machine computes.
        found: f32,
        /// The log odds that the trainer computed.
        wanted: f32,
    },
}
