//! A chunk of records to a block of columns: one loop for all grammars.

use zillion_device::simd::vectorised;

use super::cell::{self, TextCell};
use super::chunks::Chunk;
use super::json::{JsonPlan, JsonRows};
use super::lines::Lines;
use super::records::{Records, Step};
use super::svm::{SvmPlan, SvmRows};
use super::{Grammar, TextSettings};
use crate::block::{Block, Column};
use crate::field::{Field, Role};
use crate::policy::{Draw, Kept, Picker};
use crate::rejects::LINE;
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
    /// Its text, where it is left out.
    pub(crate) line: Vec<u8>,
}

/// A decoded chunk, and the bad rows that were left out of it.
#[derive(Debug)]
pub(crate) struct TextBlock {
    pub(crate) block: Block,
    pub(crate) bad: Vec<BadRow>,
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
        refusal: Refusal,
        explanation: String,
    },
}

impl Problem {
    /// Whether the row alone is to blame, so that it can be left out.
    fn is_about_one_row(&self) -> bool {
        match self {
            Self::CellCount { .. } | Self::Record(_) => true,
            Self::OpenQuote => false,
            Self::Value { refusal, .. } => refusal.is_about_one_row(),
        }
    }
}

/// The rows of a chunk, one after another.
pub(super) trait Rows {
    /// Goes to the next row; `false` at the end.
    fn advance(&mut self) -> Result<bool, Problem>;

    /// Where the row starts in the chunk.
    fn start(&self) -> usize;

    /// The row as it is written, line ends before and behind it included.
    fn text(&self) -> &[u8];

    /// Appends one field of the row alone to a column. `None` where the row or the field is bad: what is
    /// wrong comes to light when it is decoded.
    fn peek(&mut self, field: usize, role: &Role, column: &mut Column) -> Option<()>;

    /// Appends the row to the columns of the fields. After a problem some columns have it and some do not.
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem>;
}

/// Number of records of a chunk.
pub(crate) fn count(chunk: &Chunk, settings: &TextSettings) -> usize {
    let mut rows = 0;
    match settings.grammar {
        Grammar::Cells(dialect) if dialect.quote.is_none_or(|q| !chunk.bytes.contains(&q)) => {
            rows = lines_of_cells(&chunk.bytes);
        }
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

/// Number of lines that are not empty: of records, where nothing is quoted. Either of the two characters
/// that end a line does, alone as well.
fn lines_of_cells(bytes: &[u8]) -> usize {
    let is_end = |byte: u8| (byte == b'\n') | (byte == b'\r');
    let first = bytes.first().map_or(0, |&byte| usize::from(!is_end(byte)));
    // A line begins where no end follows an end.
    let begins = vectorised(
        #[inline(always)]
        || {
            let behind = bytes.get(1..).unwrap_or_default();
            let pairs = bytes.iter().zip(behind);
            pairs.map(|(&a, &b)| usize::from(is_end(a) & !is_end(b))).sum::<usize>()
        },
    );
    first + begins
}

/// Decodes a chunk without its first `skip` rows. The chunk's first row is row `first` of its file, counted
/// from 0; where no row is drawn, that need not be right.
pub(crate) fn decode(
    chunk: &Chunk,
    plan: &TextPlan,
    fields: &[Field],
    skip: usize,
    first: u64,
    picker: &Picker,
) -> Result<TextBlock, BadRow> {
    let settings = &plan.settings;
    let task = Decoding { chunk, fields, skip, first, picker };
    match (&plan.rows, settings.grammar) {
        (RowPlan::Cells(cells), Grammar::Cells(dialect)) => {
            let records = Records::new(dialect, &chunk.bytes);
            let rows = CellRows { records, chunk: &chunk.bytes, start: 0, plan: cells, settings };
            task.run(rows, 4 * cells.width)
        }
        (RowPlan::Json(json), grammar) => {
            let lines = Lines::new(grammar, &chunk.bytes);
            task.run(JsonRows::new(lines, json, settings), 8 * fields.len())
        }
        (RowPlan::Svm(svm), grammar) => {
            let lines = Lines::new(grammar, &chunk.bytes);
            task.run(SvmRows::new(lines, svm, settings), 16)
        }
        (RowPlan::Cells(_), grammar) => unreachable!("{grammar:?} has no cells"),
    }
}

/// What decoding a chunk needs whatever its grammar.
struct Decoding<'a> {
    chunk: &'a Chunk,
    fields: &'a [Field],
    skip: usize,
    first: u64,
    picker: &'a Picker,
}

impl Decoding<'_> {
    /// `row_bytes` is a guess that is right within a factor of two for most logs, and only a guess.
    fn run<R: Rows>(&self, mut rows: R, row_bytes: usize) -> Result<TextBlock, BadRow> {
        let Self { chunk, fields, picker, .. } = *self;
        let capacity = chunk.bytes.len() / (row_bytes + 1) + 1;
        let mut columns: Vec<Column> =
            fields.iter().map(|field| Column::with_capacity(&field.role, capacity)).collect();
        let mut negatives = picker.negatives.map(|(field, draw)| {
            let label = Column::with_capacity(&fields[field].role, 1);
            NegativeDraw { field, draw, label }
        });
        let mut kept = Kept::default();
        let (mut bad, mut rejected) = (Vec::new(), Vec::new());
        for row in 0.. {
            let refused = |problem, start: usize| {
                let byte = chunk.offset + start as u64;
                BadRow { row: row as u64, byte, problem, line: Vec::new() }
            };
            match rows.advance() {
                Ok(true) => {}
                Ok(false) => break,
                Err(problem) => return Err(refused(problem, rows.start())),
            }
            if row < self.skip {
                continue;
            }
            let number = self.first + row as u64;
            let drawn = picker.samples(number)
                && negatives.as_mut().is_none_or(|n| n.keeps(number, &mut rows, fields));
            if !drawn {
                kept.leave();
                continue;
            }
            let Err(problem) = rows.decode(&mut columns, fields) else {
                kept.keep();
                continue;
            };
            let refused = refused(problem, rows.start());
            if picker.max_bad == 0 || !refused.problem.is_about_one_row() {
                return Err(refused);
            }
            columns.iter_mut().for_each(|column| column.truncate(kept.rows));
            rejected.push(kept.span as u32);
            kept.leave();
            let line = without_line_ends(rows.text());
            bad.push(BadRow { line: line[..line.len().min(LINE)].to_vec(), ..refused });
            if bad.len() as u64 > picker.max_bad {
                // Enough to refuse the pass.
                break;
            }
        }
        let Kept { span, rows, places } = kept;
        Ok(TextBlock { block: Block { rows, columns, span, kept: places, rejected }, bad })
    }
}

/// Who stays of the rows labelled 0.
struct NegativeDraw {
    field: usize,
    draw: Draw,
    /// The label of the row that is looked at.
    label: Column,
}

impl NegativeDraw {
    /// Whether a row stays, whose label is looked at before anything else of it.
    fn keeps<R: Rows>(&mut self, number: u64, rows: &mut R, fields: &[Field]) -> bool {
        if self.draw.keeps(number) {
            return true;
        }
        self.label.truncate(0);
        let role = &fields[self.field].role;
        let seen = rows.peek(self.field, role, &mut self.label);
        let is_negative = match &self.label {
            Column::Labels { values, mask } => {
                let is_there = mask.as_ref().is_none_or(|mask| mask.first() == Some(&true));
                values.first() == Some(&0.0) && is_there
            }
            other => unreachable!("a label decodes into {other:?}"),
        };
        seen.is_none() || !is_negative
    }
}

/// A record as it is written, without the empty lines before it and its own line end.
fn without_line_ends(record: &[u8]) -> &[u8] {
    let is_text = |&byte: &u8| byte != b'\n' && byte != b'\r';
    let start = record.iter().position(is_text).unwrap_or(record.len());
    let end = record.iter().rposition(is_text).map_or(start, |last| last + 1);
    &record[start..end]
}

/// Records of cells: CSV and TSV.
struct CellRows<'a> {
    records: Records<'a>,
    chunk: &'a [u8],
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

    fn text(&self) -> &[u8] {
        &self.chunk[self.start..self.records.consumed()]
    }

    fn peek(&mut self, field: usize, role: &Role, column: &mut Column) -> Option<()> {
        let &(cell, _) = self.plan.cells.iter().find(|&&(_, of)| of == field)?;
        if self.records.cells() != self.plan.width {
            return None;
        }
        let cell = TextCell { text: self.records.cell(cell), settings: self.settings };
        cell::push(column, role, &cell).ok()
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
    Problem::Value { field, refusal, explanation: refusal.explain(&fields[field], shown) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::Dialect;

    proptest! {
        #[test]
        fn lines_are_counted_as_records_are(text in "[ab,\n\r]{0,40}") {
            let dialect = Dialect { delimiter: b',', quote: None };
            let mut records = Records::new(dialect, text.as_bytes());
            let mut rows = 0;
            while matches!(records.advance(), Step::Record | Step::LastRecord) {
                rows += 1;
            }
            prop_assert_eq!(lines_of_cells(text.as_bytes()), rows, "{:?}", text);
        }
    }
}
