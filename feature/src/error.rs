//! What can be wrong with a schema.

use crate::config::ConfigError;

/// A schema that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A key of the job file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The statistics that a feature's transform needs are absent.
    #[error(
        "no statistics for feature `{feature}`: they are collected from the training data before the first step; {hint}"
    )]
    MissingStatistics {
        /// The feature.
        feature: String,
        /// What to do.
        hint: &'static str,
    },
}
