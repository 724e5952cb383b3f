//! The decoding of a chunk of rows to a block of columns. All grammars share one loop.

use std::fmt;

use super::chunks::Chunk;
use super::rows::{BadRow, Rows};
use super::settings::TextSettings;
use crate::block::{Block, Column};
use crate::field::Field;
use crate::policy::{Draw, Kept, Picker};
use crate::rejects::LINE;

/// A plan by which the rows of a text file are decoded. Each grammar implements this trait.
pub(crate) trait RowPlan: fmt::Debug + Send + Sync {
    /// Decodes the rows of a chunk to a block.
    ///
    /// # Errors
    /// Returns the first bad row that may not be left out.
    fn decode(&self, task: &Decoding<'_>) -> Result<TextBlock, BadRow>;
}

/// The rule for columns that no field reads, in formats in which each row names its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherColumns {
    /// Such columns are ignored.
    PassOver,
    /// A row with such a column is an error, because its values would be lost.
    Refuse,
}

/// The block of a decoded chunk, and the bad rows that were left out.
#[derive(Debug)]
pub(crate) struct TextBlock {
    pub(crate) block: Block,
    pub(crate) bad: Vec<BadRow>,
}

/// The task of decoding one chunk.
pub(crate) struct Decoding<'a> {
    pub(super) chunk: &'a Chunk,
    pub(super) fields: &'a [Field],
    /// The number of rows to skip at the beginning of the chunk.
    pub(super) skip: usize,
    /// The index in the file of the chunk's first row. It is used only if rows are sampled.
    pub(super) first: u64,
    pub(super) picker: &'a Picker,
    pub(super) settings: &'a TextSettings,
}

impl Decoding<'_> {
    /// Decodes the rows of the chunk. `row_bytes` is an estimate of the mean number of bytes of a
    /// row, which is right within a factor of two for most logs. It determines only how much memory
    /// is reserved.
    pub(super) fn run<R: Rows>(&self, mut rows: R, row_bytes: usize) -> Result<TextBlock, BadRow> {
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
            columns.iter_mut().for_each(|column| column.as_rows().keep_first(kept.rows));
            rejected.push(kept.span as u32);
            kept.leave();
            let line = without_line_ends(rows.text());
            bad.push(BadRow { line: line[..line.len().min(LINE)].to_vec(), ..refused });
            if bad.len() as u64 > picker.max_bad {
                // The bad rows so far are enough to refuse the pass.
                break;
            }
        }
        let Kept { span, rows, places } = kept;
        Ok(TextBlock { block: Block { rows, columns, span, kept: places, rejected }, bad })
    }
}

/// The draw that decides which rows with label 0 are kept.
struct NegativeDraw {
    field: usize,
    draw: Draw,
    /// A column that is used to decode the label of the current row.
    label: Column,
}

impl NegativeDraw {
    /// Returns whether the current row is kept. Decodes only the label of the row. `number` is the
    /// index of the row in the file.
    fn keeps<R: Rows>(&mut self, number: u64, rows: &mut R, fields: &[Field]) -> bool {
        if self.draw.keeps(number) {
            return true;
        }
        self.label.as_rows().keep_first(0);
        let role = &fields[self.field].role;
        let seen = rows.peek(self.field, role, &mut self.label);
        let is_masked = self.label.view::<[bool]>() == [false];
        seen.is_none() || is_masked || self.label.view::<[f32]>() != [0.0]
    }
}

/// Returns the text of a record, without the line ends before it and after it.
fn without_line_ends(record: &[u8]) -> &[u8] {
    let is_text = |&byte: &u8| byte != b'\n' && byte != b'\r';
    let start = record.iter().position(is_text).unwrap_or(record.len());
    let end = record.iter().rposition(is_text).map_or(start, |last| last + 1);
    &record[start..end]
}
