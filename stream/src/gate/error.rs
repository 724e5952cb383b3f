//! The errors of a gate.

use crate::validation::ValidationError;

/// An error of a gate, with the remedy for the operator.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// A setting has a value that cannot be used.
    #[error("`gate.{setting}` = {value} cannot be used; choose {remedy}")]
    Setting {
        /// The name of the setting in its section.
        setting: String,
        /// The value as text.
        value: String,
        /// The range of usable values.
        remedy: &'static str,
    },
    /// Scores or labels that do not fit.
    #[error(transparent)]
    Rows(#[from] ValidationError),
    /// A figure of the inputs cannot be used.
    #[error("the figure `{name}` of the inputs is {value}; give {remedy}")]
    Input {
        /// The name of the figure.
        name: String,
        /// The value as text.
        value: String,
        /// The range of usable values.
        remedy: &'static str,
    },
}
