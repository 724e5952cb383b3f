//! The messages that cannot be decoded, and the trait of the decoders that find them.

use std::fmt;

use crate::block::Column;
use crate::error::ReaderError;
use crate::field::Field;

/// The maximum number of characters of a reason. A message may contain names of any length.
const SHOWN: usize = 1000;

/// A message whose rows are not in the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedMessage {
    /// The index of the message among those that were given to the decoder, counted from 0.
    pub index: usize,
    /// The reason for the rejection.
    pub rejection: Rejection,
}

/// The reason why a message is rejected. It is displayed as one line, for dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The kind of the reason.
    pub kind: RejectionKind,
    /// The number of the row in the message, counted from 1. `None` if the reason is not in one row
    /// of several.
    pub row: Option<usize>,
    /// The name of the column, if the reason lies in one column.
    pub column: Option<String>,
    /// The problem, and the remedy.
    pub reason: String,
}

/// The kind of the reason for a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectionKind {
    /// The message does not follow its format, or claims more than its size allows.
    Format,
    /// A column is missing, is there twice or has another type, or the schema of the message is
    /// unknown. The writer of the stream has changed it, so that all later messages are likely to
    /// be rejected too.
    Columns,
    /// A value cannot be used.
    Value,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.column, self.row) {
            (Some(column), Some(row)) => write!(f, "column `{column}`, row {row}: ")?,
            (Some(column), None) => write!(f, "column `{column}`: ")?,
            (None, Some(row)) => write!(f, "row {row}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.reason)
    }
}

impl Rejection {
    /// Returns the rejection of a message that does not follow its format.
    pub(super) fn of_format(reason: String) -> Self {
        Self { kind: RejectionKind::Format, row: None, column: None, reason: shorten(reason) }
    }

    /// Returns the rejection of a message whose schema is unknown or does not fit.
    pub(super) fn of_schema(reason: String) -> Self {
        Self { kind: RejectionKind::Columns, row: None, column: None, reason: shorten(reason) }
    }

    /// Returns the rejection for a value of a field that is refused.
    pub(super) fn of_value(field: &Field, row: Option<usize>, reason: String) -> Self {
        Self { kind: RejectionKind::Value, row, column: Some(field.column.clone()), reason }
    }

    /// Returns the rejection for an error about the columns of a message.
    pub(super) fn of_columns(error: ReaderError) -> Self {
        let (column, reason) = match error {
            ReaderError::MissingColumn { column, used_by, hint, .. } => {
                (Some(column), format!("the column of {used_by} is missing; {hint}"))
            }
            ReaderError::ColumnType { column, mismatch, .. } => {
                (Some(column), format!("the column is {mismatch}"))
            }
            ReaderError::AmbiguousColumn { column, times, .. } => {
                let reason = format!("the column appears {times} times; rename the other columns");
                (Some(column), reason)
            }
            other => (None, other.to_string()),
        };
        Self { kind: RejectionKind::Columns, row: None, column, reason: shorten(reason) }
    }
}

/// Returns the rejection of a message whose schema is not known. `known` are the known ones.
#[cold]
pub(super) fn unknown_schema(schema: String, known: impl Iterator<Item = String>) -> Rejection {
    let known = known.collect::<Vec<_>>().join(", ");
    Rejection::of_schema(format!(
        "the schema {schema} is unknown (known: {known}); add it to the schemas"
    ))
}

fn shorten(mut reason: String) -> String {
    if let Some((end, _)) = reason.char_indices().nth(SHOWN) {
        reason.truncate(end);
        reason.push_str("..");
    }
    reason
}

/// A decoder of messages of one format. It borrows from the messages, so that it can reuse what it
/// has learned from the last one.
pub(super) trait AppendMessage<'a> {
    /// Appends the rows of a message to the columns of the fields, and returns their number.
    ///
    /// # Errors
    /// Returns the reason if the message cannot be decoded. In this case, some of the columns may
    /// already hold some of its rows.
    fn append(
        &mut self,
        message: &'a [u8],
        columns: &mut [Column],
        fields: &[Field],
    ) -> Result<usize, Failure>;
}

/// The reason why the rows of a message are not in the columns.
pub(super) enum Failure {
    Rejected(Rejection),
    /// The ids of all messages together are too many for the offsets of a column.
    TooManyIds,
}
