//! The trait for the rows of a chunk, and the problems that a row can have.

use crate::block::Column;
use crate::explain::explain;
use crate::field::{Field, Role};
use crate::value::Refusal;

/// A cursor over the rows of a chunk, which each grammar implements.
pub(super) trait Rows {
    /// Moves to the next row; returns `false` at the end.
    ///
    /// # Errors
    /// Returns the problem if the next row does not end.
    fn advance(&mut self) -> Result<bool, Problem>;

    /// Returns the byte of the chunk at which the row starts.
    fn start(&self) -> usize;

    /// Returns the text of the row, including the line ends before and behind it.
    fn text(&self) -> &[u8];

    /// Appends one field of the row to a column. Returns `None` if the row or the field is bad; the
    /// problem is reported when the row is decoded.
    fn peek(&mut self, field: usize, role: &Role, column: &mut Column) -> Option<()>;

    /// Appends the row to the columns of the fields.
    ///
    /// # Errors
    /// Returns the problem if the row is bad; some columns may then have the row and others not.
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem>;
}

/// A row that cannot be decoded: its number in the chunk, counted from 0, and the byte of the
/// decompressed text at which it starts. The caller knows the number of rows before the chunk and
/// makes the message.
#[derive(Debug)]
pub(crate) struct BadRow {
    pub(crate) row: u64,
    pub(crate) byte: u64,
    pub(crate) problem: Problem,
    /// The text of the row, if the row is left out.
    pub(crate) line: Vec<u8>,
}

/// The problem of a row that cannot be decoded.
#[derive(Debug)]
pub(crate) enum Problem {
    /// The record has more or fewer cells than the header.
    CellCount { found: usize, expected: usize },
    /// A quote is never closed. The problem ends the reading, because the start of the next row is
    /// unknown.
    OpenQuote,
    /// The row does not follow its grammar.
    Record(String),
    /// A value of the numbered field is refused.
    Value { field: usize, refusal: Refusal, explanation: String },
}

impl Problem {
    /// Returns whether the problem concerns this row alone, so that the row can be left out.
    pub(super) fn is_about_one_row(&self) -> bool {
        match self {
            Self::CellCount { .. } | Self::Record(_) => true,
            Self::OpenQuote => false,
            Self::Value { refusal, .. } => refusal.is_about_one_row(),
        }
    }
}

/// Returns the problem of a value that was refused.
#[cold]
pub(super) fn bad_value(field: usize, fields: &[Field], refusal: Refusal, text: &[u8]) -> Problem {
    let shown = (refusal != Refusal::Missing).then_some(text);
    Problem::Value { field, refusal, explanation: explain(refusal, &fields[field], shown) }
}
