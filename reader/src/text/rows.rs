//! The trait for the rows of a chunk, and the problems that a row may have.

use crate::block::Column;
use crate::explain::explain;
use crate::field::{Field, Role};
use crate::value::Refusal;

/// A cursor over the rows of a chunk. Each grammar implements this trait.
pub(super) trait Rows {
    /// Moves to the next row. Returns `false` at the end.
    ///
    /// # Errors
    /// Returns the problem of the next row if the end of this row cannot be found.
    fn advance(&mut self) -> Result<bool, Problem>;

    /// Returns the position in the chunk of the first byte of the row.
    fn start(&self) -> usize;

    /// Returns the text of the row. It may include line ends before and after the row.
    fn text(&self) -> &[u8];

    /// Appends the value of one field of the row to a column. Returns `None` if the row or the
    /// value is bad. The problem is reported later, when the row is decoded.
    fn peek(&mut self, field: usize, role: &Role, column: &mut Column) -> Option<()>;

    /// Appends the row to the columns of the fields.
    ///
    /// # Errors
    /// Returns the problem if the row is bad. In this case, some of the columns may already hold
    /// the row.
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem>;
}

/// A row that cannot be decoded. `row` is its index in the chunk, counted from 0, and `byte` is its
/// position in the decompressed text. The caller knows how many rows of the file come before the
/// chunk, and writes the error message.
#[derive(Debug)]
pub(crate) struct BadRow {
    pub(crate) row: u64,
    pub(crate) byte: u64,
    pub(crate) problem: Problem,
    /// The text of the row if the row is left out; otherwise empty.
    pub(crate) line: Vec<u8>,
}

/// The problem of a row that cannot be decoded.
#[derive(Debug)]
pub(crate) enum Problem {
    /// The record has more or fewer cells than the header.
    CellCount { found: usize, expected: usize },
    /// A quote is never closed. This problem ends the reading, because the start of the next row is
    /// unknown.
    OpenQuote,
    /// The row does not follow the grammar.
    Record(String),
    /// A value of the field with this index is refused.
    Value { field: usize, refusal: Refusal, explanation: String },
}

impl Problem {
    /// Returns whether the problem concerns only this row, so that the row can be left out.
    pub(crate) fn is_about_one_row(&self) -> bool {
        match self {
            Self::CellCount { .. } | Self::Record(_) => true,
            Self::OpenQuote => false,
            Self::Value { refusal, .. } => refusal.is_about_one_row(),
        }
    }
}

/// Returns the problem that a value of a field was refused. `text` is the value as text.
#[cold]
pub(crate) fn bad_value(field: usize, fields: &[Field], refusal: Refusal, text: &[u8]) -> Problem {
    let shown = (refusal != Refusal::Missing).then_some(text);
    Problem::Value { field, refusal, explanation: explain(refusal, &fields[field], shown) }
}
