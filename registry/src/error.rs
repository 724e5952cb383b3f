//! What can go wrong when scoring.

/// The result of everything fallible here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a batch was not scored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph was not built for inference by the model zoo's rules.
    #[error("the model has no output of the name \"logits\"")]
    NoLogits,
    /// The rows could not be had.
    #[error(transparent)]
    Rows(#[from] zillion_embedding::Error),
    /// The dense model refused.
    #[error(transparent)]
    Model(#[from] zillion_nn::Error),
}
