//! The decoding of rows that are lines (JSON lines, libsvm) to columns.

use super::cell::{Cell, push};
use super::lines::Lines;
use super::rows::{Problem, Rows, bad_value};
use super::settings::TextSettings;
use crate::block::Column;
use crate::field::{Field, Role};

/// The plan for a grammar whose rows are lines, which reads a line and finds the value of each
/// field.
pub(super) trait LinePlan {
    /// The type of a line that has been read; the memory is reused for the next line.
    type Row<'a>: Default;
    /// The type of a value of a row.
    type Cell<'a>: Cell
    where
        Self: 'a;

    /// Reads a line.
    ///
    /// # Errors
    /// Returns a message with the problem and the remedy if the line does not follow the grammar.
    fn read<'a>(&self, row: &mut Self::Row<'a>, line: &'a [u8]) -> Result<(), String>;

    /// Checks that a row has the form of the first rows of its file.
    ///
    /// # Errors
    /// Returns a message with the problem and the remedy if the row has another form.
    fn check(&self, _row: &Self::Row<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Returns the value that a field reads.
    fn cell<'a>(
        &'a self,
        row: &'a Self::Row<'_>,
        field: usize,
        settings: &'a TextSettings,
    ) -> Self::Cell<'a>;
}

/// The rows of a chunk of lines.
pub(super) struct LineRows<'a, P: LinePlan> {
    lines: Lines<'a>,
    line: &'a [u8],
    row: P::Row<'a>,
    plan: &'a P,
    settings: &'a TextSettings,
}

impl<'a, P: LinePlan> LineRows<'a, P> {
    pub(super) fn new(plan: &'a P, text: &'a [u8], settings: &'a TextSettings) -> Self {
        let lines = Lines::new(settings.grammar, text);
        Self { lines, line: &[], row: P::Row::default(), plan, settings }
    }
}

impl<P: LinePlan> Rows for LineRows<'_, P> {
    #[inline]
    fn advance(&mut self) -> Result<bool, Problem> {
        let Some(line) = self.lines.advance() else { return Ok(false) };
        self.line = line;
        Ok(true)
    }

    fn start(&self) -> usize {
        self.lines.start()
    }

    fn text(&self) -> &[u8] {
        self.line
    }

    fn peek(&mut self, field: usize, role: &Role, column: &mut Column) -> Option<()> {
        self.plan.read(&mut self.row, self.line).ok()?;
        push(column, role, &self.plan.cell(&self.row, field, self.settings)).ok()
    }

    #[inline]
    fn decode(&mut self, columns: &mut [Column], fields: &[Field]) -> Result<(), Problem> {
        self.plan.read(&mut self.row, self.line).map_err(Problem::Record)?;
        self.plan.check(&self.row).map_err(Problem::Record)?;
        for (index, (column, field)) in columns.iter_mut().zip(fields).enumerate() {
            let cell = self.plan.cell(&self.row, index, self.settings);
            if let Err(refusal) = push(column, &field.role, &cell) {
                return Err(bad_value(index, fields, refusal, &cell.format()));
            }
        }
        Ok(())
    }
}
