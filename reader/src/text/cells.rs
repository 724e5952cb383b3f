//! The decoding of CSV and TSV, whose rows are records of cells.

use super::cell::{TextCell, push};
use super::decode::{Decoding, RowPlan, TextBlock};
use super::records::{Dialect, Records, Step};
use super::rows::{BadRow, Problem, Rows, bad_value};
use super::settings::TextSettings;
use crate::block::Column;
use crate::field::{Field, Role};

/// The plan for CSV and TSV: the cells of each record that are decoded, and their fields.
#[derive(Debug)]
pub(super) struct CellPlan {
    pub(super) dialect: Dialect,
    /// The number of cells that each record must have.
    pub(super) width: usize,
    /// The index of a cell and the index of the field that reads it, sorted by cell.
    pub(super) cells: Vec<(usize, usize)>,
}

impl RowPlan for CellPlan {
    fn decode(&self, task: &Decoding<'_>) -> Result<TextBlock, BadRow> {
        let chunk = &task.chunk.bytes;
        let records = Records::new(self.dialect, chunk);
        let rows = CellRows { records, chunk, start: 0, plan: self, settings: task.settings };
        task.run(rows, 4 * self.width)
    }
}

/// A cursor over the records of a chunk.
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
        push(column, role, &cell).ok()
    }

    #[inline]
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem> {
        let (found, expected) = (self.records.cells(), self.plan.width);
        if found != expected {
            return Err(Problem::CellCount { found, expected });
        }
        for &(cell, field) in &self.plan.cells {
            let text = self.records.cell(cell);
            let cell = TextCell { text, settings: self.settings };
            if let Err(refusal) = push(&mut columns[field], &fields[field].role, &cell) {
                return Err(bad_value(field, fields, refusal, text));
            }
        }
        Ok(())
    }
}
