//! The errors of progressive validation.

/// An error of progressive validation, with the remedy for the operator.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValidationError {
    /// A setting has a value that cannot be used.
    #[error("`validation.{setting}` = {value} cannot be used; choose {remedy}")]
    Setting {
        /// The name of the setting in its section.
        setting: &'static str,
        /// The value as text.
        value: String,
        /// The range of usable values.
        remedy: &'static str,
    },
    /// A stored state belongs to other settings.
    #[error(
        "the stored windows of validation have another `validation.{setting}`; restore its former \
         value, or begin with new windows"
    )]
    Changed {
        /// The name of the setting that was changed.
        setting: &'static str,
    },
    /// The columns of a batch do not have one value for each row.
    #[error("{column} of a batch have {found} values for {rows} rows; give one value for each row")]
    Length {
        /// The values that do not fit.
        column: String,
        /// The number of values.
        found: usize,
        /// The number of rows of the batch.
        rows: usize,
    },
    /// A batch does not have the declared segments.
    #[error(
        "a batch has {found} columns of segments; give the {declared} of `validation.segments`"
    )]
    Segments {
        /// The number of columns of the batch.
        found: usize,
        /// The number of declared columns.
        declared: usize,
    },
    /// A row cannot be counted.
    #[error("row {row} of a batch: {problem}")]
    Row {
        /// The index of the row in the batch.
        row: usize,
        /// The problem and its remedy, as a clause.
        problem: &'static str,
    },
}
