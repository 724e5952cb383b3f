//! The decoding of rows that are lines, as in JSON lines and libsvm.

use super::cell::{Cell, push};
use super::lines::Lines;
use super::rows::{Problem, Rows, bad_value};
use super::settings::TextSettings;
use crate::block::Column;
use crate::field::{Field, Role};

/// A plan for a grammar in which each row is one line. The plan parses a line and finds the value
/// of each field.
pub(super) trait LinePlan {
    /// The type of a parsed line. Its memory is reused for the next line.
    type Row<'a>: Default;
    /// The type of a value in a row.
    type Cell<'a>: Cell
    where
        Self: 'a;

    /// Parses a line into `row`.
    ///
    /// # Errors
    /// Returns a message with the problem and the remedy if the line does not follow the grammar.
    fn read<'a>(&self, row: &mut Self::Row<'a>, line: &'a [u8]) -> Result<(), String>;

    /// Checks that a row has the same form as the first rows of its file.
    ///
    /// # Errors
    /// Returns a message with the problem and the remedy if the row has another form.
    fn check(&self, _row: &Self::Row<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Returns the value in a row that a field reads.
    fn cell<'a>(
        &'a self,
        row: &'a Self::Row<'_>,
        field: usize,
        settings: &'a TextSettings,
    ) -> Self::Cell<'a>;
}

/// A cursor over the lines of a chunk that hold a row.
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
        decode_line(self.plan, &mut self.row, self.line, self.settings, columns, fields)
    }
}

/// Parses a line into `row`, and appends the values of the fields to the columns.
///
/// # Errors
/// Returns the problem if the line is bad. In this case, some of the columns may already hold the
/// row.
#[inline]
pub(super) fn decode_line<'a, P: LinePlan>(
    plan: &P,
    row: &mut P::Row<'a>,
    line: &'a [u8],
    settings: &TextSettings,
    columns: &mut [Column],
    fields: &[Field],
) -> Result<(), Problem> {
    plan.read(row, line).map_err(Problem::Record)?;
    plan.check(row).map_err(Problem::Record)?;
    for (index, (column, field)) in columns.iter_mut().zip(fields).enumerate() {
        let cell = plan.cell(row, index, settings);
        if let Err(refusal) = push(column, &field.role, &cell) {
            return Err(bad_value(index, fields, refusal, &cell.format()));
        }
    }
    Ok(())
}
