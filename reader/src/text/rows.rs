//! The rows of a chunk, whatever their grammar, and what can be wrong with one.

use crate::block::Column;
use crate::explain::explain;
use crate::field::{Field, Role};
use crate::value::Refusal;

/// The rows of a chunk, one after another.
pub(super) trait Rows {
    /// Goes to the next row; `false` at the end.
    fn advance(&mut self) -> Result<bool, Problem>;

    /// Returns where the row starts in the chunk.
    fn start(&self) -> usize;

    /// Returns the row as it is written, line ends before and behind it included.
    fn text(&self) -> &[u8];

    /// Appends one field of the row to a column. `None` where the row or the field is bad: what is
    /// wrong comes to light when the row is decoded.
    fn peek(&mut self, field: usize, role: &Role, column: &mut Column) -> Option<()>;

    /// Appends the row to the columns of the fields. After a problem some columns have it and some
    /// do not.
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem>;
}

/// A row that cannot be decoded: the chunk's row, counted from 0, and the byte at which it starts
/// in the decompressed text. The caller, which knows the rows before the chunk, makes a message of
/// it.
#[derive(Debug)]
pub(crate) struct BadRow {
    pub(crate) row: u64,
    pub(crate) byte: u64,
    pub(crate) problem: Problem,
    /// The text of the row, where the row is left out.
    pub(crate) line: Vec<u8>,
}

/// The problem of a row that cannot be decoded.
#[derive(Debug)]
pub(crate) enum Problem {
    /// The record has more or fewer cells than the header.
    CellCount { found: usize, expected: usize },
    /// A quote is never closed. This ends the file: where the next row would start is not known.
    OpenQuote,
    /// The row does not follow its grammar.
    Record(String),
    /// A value of the numbered field is refused.
    Value { field: usize, refusal: Refusal, explanation: String },
}

impl Problem {
    /// Returns whether the row alone is to blame, so that it can be left out.
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
