//! A chunk of records to a block of columns: one loop for all grammars.

use super::cell::{self, TextCell};
use super::chunks::Chunk;
use super::json::{JsonPlan, JsonRows};
use super::lines::Lines;
use super::records::{Records, Step};
use super::svm::{SvmPlan, SvmRows};
use super::{Grammar, TextSettings};
use crate::block::{Block, Column};
use crate::field::Field;
use crate::value::Refusal;

/// What of a record is decoded, into which fields.
#[derive(Clone, Debug)]
pub(crate) struct TextPlan {
    pub(crate) settings: TextSettings,
    pub(crate) rows: RowPlan,
}

/// The same by grammar.
#[derive(Clone, Debug)]
pub(crate) enum RowPlan {
    Cells(CellPlan),
    Json(JsonPlan),
    Svm(SvmPlan),
}

/// Which cells of a record are decoded.
#[derive(Clone, Debug)]
pub(crate) struct CellPlan {
    /// Cells of every record.
    pub(crate) width: usize,
    /// (cell, field), ascending.
    pub(crate) cells: Vec<(usize, usize)>,
}

/// A row that cannot be decoded: the chunk's row, counted from 0, and the byte at which it starts in the
/// decompressed text. Whoever knows the rows before the chunk makes a message of it.
#[derive(Debug)]
pub(crate) struct BadRow {
    pub(crate) row: u64,
    pub(crate) byte: u64,
    pub(crate) problem: Problem,
}

/// What is wrong with a row.
#[derive(Debug)]
pub(crate) enum Problem {
    CellCount {
        found: usize,
        expected: usize,
    },
    /// Ends the file: where the next row would start is not known.
    OpenQuote,
    /// The row is not what its grammar says.
    Record(String),
    /// A value of the numbered field.
    Value {
        field: usize,
        explanation: String,
    },
}

/// The rows of a chunk, one after another.
pub(super) trait Rows {
    /// Goes to the next row; `false` at the end.
    fn advance(&mut self) -> Result<bool, Problem>;

    /// Where the row starts in the chunk.
    fn start(&self) -> usize;

    /// Appends the row to the columns of the fields. After a problem some columns have it and some do not.
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem>;
}

/// Number of records of a chunk.
pub(crate) fn count(chunk: &Chunk, settings: &TextSettings) -> usize {
    let mut rows = 0;
    match settings.grammar {
        Grammar::Cells(dialect) => {
            let mut records = Records::new(dialect, &chunk.bytes);
            while matches!(records.advance(), Step::Record | Step::LastRecord) {
                rows += 1;
            }
        }
        grammar => {
            let mut lines = Lines::new(grammar, &chunk.bytes);
            while lines.advance().is_some() {
                rows += 1;
            }
        }
    }
    rows
}

/// Decodes a chunk without its first `skip` rows.
pub(crate) fn decode(
    chunk: &Chunk,
    plan: &TextPlan,
    fields: &[Field],
    skip: usize,
) -> Result<Block, BadRow> {
    let settings = &plan.settings;
    match (&plan.rows, settings.grammar) {
        (RowPlan::Cells(cells), Grammar::Cells(dialect)) => {
            let records = Records::new(dialect, &chunk.bytes);
            let rows = CellRows { records, start: 0, plan: cells, settings };
            decode_rows(rows, chunk, fields, skip, 4 * cells.width)
        }
        (RowPlan::Json(json), grammar) => {
            let lines = Lines::new(grammar, &chunk.bytes);
            decode_rows(JsonRows::new(lines, json, settings), chunk, fields, skip, 8 * fields.len())
        }
        (RowPlan::Svm(svm), grammar) => {
            let lines = Lines::new(grammar, &chunk.bytes);
            decode_rows(SvmRows::new(lines, svm, settings), chunk, fields, skip, 16)
        }
        (RowPlan::Cells(_), grammar) => unreachable!("{grammar:?} has no cells"),
    }
}

/// `row_bytes` is a guess that is right within a factor of two for most logs, and only a guess.
fn decode_rows<R: Rows>(
    mut rows: R,
    chunk: &Chunk,
    fields: &[Field],
    skip: usize,
    row_bytes: usize,
) -> Result<Block, BadRow> {
    let capacity = chunk.bytes.len() / (row_bytes + 1) + 1;
    let mut columns: Vec<Column> =
        fields.iter().map(|field| Column::with_capacity(&field.role, capacity)).collect();
    let mut row = 0;
    loop {
        let bad = |problem, start: usize| BadRow {
            row: row as u64,
            byte: chunk.offset + start as u64,
            problem,
        };
        match rows.advance() {
            Ok(true) => {}
            Ok(false) => break,
            Err(problem) => return Err(bad(problem, rows.start())),
        }
        if row >= skip
            && let Err(problem) = rows.decode(&mut columns, fields)
        {
            return Err(bad(problem, rows.start()));
        }
        row += 1;
    }
    Ok(Block { rows: row.saturating_sub(skip), columns })
}

/// Records of cells: CSV and TSV.
struct CellRows<'a> {
    records: Records<'a>,
    start: usize,
    plan: &'a CellPlan,
    settings: &'a TextSettings,
}

impl Rows for CellRows<'_> {
    #[inline]
    fn advance(&mut self) -> Result<bool, Problem> {
        self.start = self.records.consumed();
        match self.records.advance() {
            Step::Record | Step::LastRecord => Ok(true),
            Step::OpenQuote => Err(Problem::OpenQuote),
            Step::End => Ok(false),
        }
    }

    fn start(&self) -> usize {
        self.start
    }

    #[inline]
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem> {
        let (found, expected) = (self.records.cells(), self.plan.width);
        if found != expected {
            return Err(Problem::CellCount { found, expected });
        }
        for &(cell, field) in &self.plan.cells {
            let text = self.records.cell(cell);
            let settings = self.settings;
            let role = &fields[field].role;
            if let Err(refusal) =
                cell::push(&mut columns[field], role, &TextCell { text, settings })
            {
                return Err(bad_value(field, fields, refusal, Some(text)));
            }
        }
        Ok(())
    }
}

/// The problem of a value that was refused.
#[cold]
pub(super) fn bad_value(
    field: usize,
    fields: &[Field],
    refusal: Refusal,
    text: Option<&[u8]>,
) -> Problem {
    let shown = text.filter(|_| refusal != Refusal::Missing);
    Problem::Value { field, explanation: refusal.explain(&fields[field], shown) }
}
