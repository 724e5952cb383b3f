//! The errors of scoring and of loading a version.

use zillion_device::gpu::GpuError;
use zillion_nn::DenseType;
use zillion_registry::VersionId;

/// The result of a fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A model that cannot be scored, or a version that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A graph that has no logits, because it was not built for inference.
    #[error("the model has no output named \"logits\"; build the graph for inference")]
    NoLogits,
    /// An output that the graph does not have.
    #[error("the model has no output named {name:?}; train a model that has this output")]
    NoOutput {
        /// The name of the output.
        name: String,
    },
    /// A request that was stopped because its answer would have come too late.
    #[error(
        "the scoring was stopped, because its time limit was reached; score fewer rows at a time, \
         or raise the time limit"
    )]
    Late,
    /// A lookup of rows that failed.
    #[error(transparent)]
    Rows(#[from] zillion_rows::Error),
    /// A dense model that cannot be computed.
    #[error(transparent)]
    Model(zillion_nn::Error),
    /// A device that cannot be used, or whose memory is exhausted.
    #[error(transparent)]
    Device(#[from] GpuError),
    /// A version that the registry or the cache cannot provide.
    #[error(transparent)]
    Registry(#[from] zillion_registry::Error),
    /// A version whose contents do not fit together.
    #[error("{0}")]
    Refused(String),
    /// A dense model that is an ONNX file and cannot be computed.
    #[error("{0}")]
    Onnx(String),
    /// Vectors of items that cannot be used.
    #[error("the vectors of the items cannot be used: {0}")]
    Items(String),
    /// A request for the nearest items to a version that has no items.
    #[error(
        "version {version} has no items to retrieve; publish it with a catalogue of items \
         (`publish.items`)"
    )]
    NoItems {
        /// The number of the version.
        version: VersionId,
    },
    /// A user whose vector is not finite, because the model gives such a vector.
    #[error("the vector of the user is not finite; roll back, or train the model again")]
    UserVector,
    /// A score of an item that is too large for a float, of a finite vector of the user.
    #[error(
        "a score of the items is too large for a float; send other inputs, or train the model again"
    )]
    ItemScore,
    /// A version with a mapped file that has lost pages, because the file was truncated or its disk
    /// failed.
    #[error(
        "version {version} is turned off, because a file of the version was truncated or cannot be read from its disk; \
         check the disk of the cache, the version is fetched and loaded again"
    )]
    Damaged {
        /// The number of the version.
        version: VersionId,
    },
    /// An input value that does not fit the model.
    #[error(transparent)]
    Input(#[from] zillion_feature::RequestError),
    /// A version with a parity row whose score on this machine differs from the trainer's score.
    #[error(
        "version {version} is not loaded, because parity row {row} of label `{label}` has the score {found} here and \
         {wanted} in training; use a machine and a binary that compute the same scores, or publish a new version"
    )]
    Parity {
        /// The number of the version.
        version: VersionId,
        /// The name of the label.
        label: String,
        /// The index of the parity row, counted from 0.
        row: usize,
        /// The log odds that this machine has computed.
        found: f32,
        /// The log odds that the trainer has computed.
        wanted: f32,
    },
    /// A version with a parity row whose score is too far from the trainer's score, because dense
    /// layers are computed in a number type of fewer bits.
    #[error(
        "version {version} is not loaded with dense layers in {dense}, because parity row {row} of label `{label}` \
         has the score {found} in {dense} and {wanted} in training, and scores differ by {mean} in the mean; a row may \
         differ by {most} and the mean by {most_mean} (relative to scores above 1); load the version with dense layers \
         in f32 (`dense`), or publish a version whose inputs have similar magnitudes"
    )]
    Rounding {
        /// The number of the version.
        version: VersionId,
        /// The name of the label.
        label: String,
        /// The index of the parity row, counted from 0.
        row: usize,
        /// The log odds that this machine has computed.
        found: f32,
        /// The log odds that the trainer has computed.
        wanted: f32,
        /// The mean difference of the scores so far.
        mean: f32,
        /// The number type of the dense layers.
        dense: DenseType,
        /// The largest allowed difference.
        most: f32,
        /// The largest allowed mean difference.
        most_mean: f32,
    },
}

impl Error {
    /// Returns whether the memory of a device or its budget is exhausted.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        let is_memory = |error: &GpuError| {
            matches!(error, GpuError::Budget { .. } | GpuError::OutOfMemory { .. })
        };
        match self {
            Self::Device(error) | Self::Model(zillion_nn::Error::Gpu(error)) => is_memory(error),
            _ => false,
        }
    }
}

impl From<zillion_nn::Error> for Error {
    fn from(error: zillion_nn::Error) -> Self {
        match error {
            zillion_nn::Error::Late => Self::Late,
            other => Self::Model(other),
        }
    }
}
