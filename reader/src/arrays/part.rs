//! The decoder of some columns of one row group. It decodes a limited number of rows at a time.
//!
//! The decoder does not read the whole row group at once, because a row group may be larger than a
//! window. Several parts decode a large row group in parallel, each with its own columns.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;

use super::append::{append, append_or_reject};
use super::bad::Bad;
use super::numbers::scan;
use super::plan::{GroupBatches, GroupPlan, PagedFields, Start};
use super::texts::{DictionaryKeys, TextRules};
use crate::block::Column;
use crate::error::{Place, ReaderError, Result};
use crate::explain::explain;
use crate::field::{Field, Role};
use crate::policy::{Draw, Kept, Picker};
use crate::value;

/// A decoder of some fields of one row group.
pub(crate) struct Part {
    /// The fields of the pass that this part decodes.
    fields: Range<usize>,
    /// The decoder of the fields that need no Arrow arrays, or `None` if there are no such fields.
    paged: Option<Box<dyn PagedFields>>,
    /// The reader of the remaining fields, or `None` if there are no such fields.
    reader: Option<GroupBatches>,
    /// For each field, the index of its column in the batches of `reader`.
    positions: Vec<usize>,
    plan: Arc<GroupPlan>,
    dictionaries: Vec<DictionaryKeys>,
    /// The rows that the reader has returned but that are not decoded yet, or `None` if there are
    /// no such rows.
    rest: Option<RecordBatch>,
    /// The number of rows of the row group that have been decoded or skipped.
    row: u64,
    rules: TextRules,
    picker: Picker,
    /// The position of the label in the batches of the reader, and the draw that selects the rows
    /// with label 0 to keep. `None` if the part keeps all rows with label 0.
    negatives: Option<(usize, Draw)>,
    group: usize,
    /// The number of rows that come before the row group in the file.
    rows_before: u64,
    path: PathBuf,
}

/// The rows that a part has decoded.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// The columns, one for each field. A bad value is replaced by a stand-in.
    pub(crate) columns: Vec<Column>,
    /// The record of which rows are in the columns and which rows were left out.
    pub(crate) kept: Kept,
    /// The bad values, with the indices of their rows in the columns.
    pub(crate) bad: Vec<BadValue>,
}

/// A value that makes its row bad.
#[derive(Debug)]
pub(crate) struct BadValue {
    pub(crate) row: u32,
    pub(crate) error: ReaderError,
}

impl Decoded {
    /// Appends the columns of `next`, another part that has decoded other fields of the same rows.
    pub(crate) fn append_columns(&mut self, next: Self) {
        self.columns.extend(next.columns);
        self.bad.extend(next.bad);
        self.kept = next.kept;
    }
}

impl Part {
    pub(crate) fn open(
        path: &Path,
        plan: &Arc<GroupPlan>,
        (roles, fields): (&[Field], Range<usize>),
        start: Start,
        rules: TextRules,
        picker: Picker,
    ) -> Result<Self> {
        let mut part = Self {
            paged: None,
            reader: None,
            dictionaries: vec![DictionaryKeys::default(); fields.len()],
            fields,
            positions: Vec::new(),
            plan: plan.clone(),
            rest: None,
            row: start.row,
            rules,
            picker,
            negatives: None,
            group: start.group,
            rows_before: start.rows_before,
            path: path.to_owned(),
        };
        // The pages can be decoded only from the first row of the row group, and only without
        // sampling.
        if start.row == 0 && !picker.thins() {
            let columns = &plan.columns[part.fields.clone()];
            let roles = &roles[part.fields.clone()];
            part.paged = plan.source.open_pages(start.group, columns, roles, &part.rules)?;
        }
        part.open_reader()?;
        Ok(part)
    }

    /// Opens a reader at the current row of this part. The reader returns the columns that are not
    /// decoded directly from pages, and the label if the sampling needs it.
    fn open_reader(&mut self) -> Result<()> {
        let columns = &self.plan.columns[self.fields.clone()];
        let is_paged = |field: usize| self.paged.as_ref().is_some_and(|paged| paged.has(field));
        let others = columns.iter().enumerate().filter(|&(field, _)| !is_paged(field));
        let mut roots: Vec<usize> = others.map(|(_, &column)| column).collect();
        // Every part reads the label of the sampling, because this label decides which rows are
        // kept.
        let label = self.picker.negatives.map(|(field, draw)| (self.plan.columns[field], draw));
        roots.extend(label.map(|(column, _)| column));
        roots.sort_unstable();
        roots.dedup();
        let position = |column: &usize| roots.partition_point(|root| root < column);
        self.positions = columns.iter().map(position).collect();
        self.negatives = label.map(|(column, draw)| (position(&column), draw));
        self.rest = None;
        let start = Start { group: self.group, rows_before: self.rows_before, row: self.row };
        self.reader = match roots.is_empty() && self.paged.is_some() {
            true => None,
            false => Some(self.plan.source.open(roots, start)?),
        };
        Ok(())
    }

    /// Decodes the next `rows` rows into one column for each field.
    pub(crate) fn decode(&mut self, rows: usize, fields: &[Field]) -> Result<Decoded> {
        let label = self.picker.negatives.map(|(field, _)| &fields[field].role);
        let fields = &fields[self.fields.clone()];
        let empty = || fields.iter().map(|f| Column::with_capacity(&f.role, rows)).collect();
        let mut decoded = Decoded { columns: empty(), ..Decoded::default() };
        let paged = self.paged.as_mut();
        if paged.is_some_and(|paged| !paged.decode(rows, fields, &mut decoded.columns)) {
            // A page has something that this path cannot decode. From here on the rows are decoded
            // through arrays, which report the error.
            decoded.columns = empty();
            self.paged = None;
            self.open_reader()?;
        }
        if self.reader.is_none() {
            self.row += rows as u64;
            decoded.kept.keep_all(rows);
            return Ok(decoded);
        }
        let mut left = rows;
        while left > 0 {
            let batch = self.next_batch()?;
            let taken = batch.num_rows().min(left);
            if taken < batch.num_rows() {
                self.rest = Some(batch.slice(taken, batch.num_rows() - taken));
            }
            let batch = self.draw(batch.slice(0, taken), label, &mut decoded.kept)?;
            // After too many bad rows the pass fails, so the remaining rows are not decoded.
            if decoded.bad.len() as u64 <= self.picker.max_bad {
                self.append(&batch, fields, &mut decoded, rows - left)?;
            }
            self.row += taken as u64;
            left -= taken;
        }
        Ok(decoded)
    }

    /// Returns the rows of a batch that the sampling keeps, and records them in `kept`. `label` is
    /// the role of the label that the sampling depends on. The role decides which values of this
    /// label count as label 0.
    fn draw(
        &self,
        batch: RecordBatch,
        label: Option<&Role>,
        kept: &mut Kept,
    ) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        if !self.picker.thins() {
            kept.keep_all(rows);
            return Ok(batch);
        }
        let first = self.rows_before + self.row;
        let mut drawn: Vec<bool> = (first..).take(rows).map(|r| self.picker.samples(r)).collect();
        if let (Some((position, draw)), Some(Role::Label { rule, .. })) = (self.negatives, label) {
            let mut row = 0;
            // The sampling ignores a value that is not a label. The decoder of the label refuses it
            // later.
            let scanned = scan(batch.column(position), |x| {
                let is_negative = x.is_some_and(|x| value::label(x, rule) == Ok(0.0));
                drawn[row] &= !is_negative || draw.keeps(first + row as u64);
                row += 1;
                Ok(())
            });
            debug_assert!(scanned.is_ok(), "the scan itself refuses nothing");
        }
        drawn.iter().for_each(|&stays| if stays { kept.keep() } else { kept.leave() });
        filter_record_batch(&batch, &BooleanArray::from(drawn))
            .map_err(|error| self.plan.source.damaged(self.group, error.to_string()))
    }

    fn next_batch(&mut self) -> Result<RecordBatch> {
        if let Some(rest) = self.rest.take() {
            return Ok(rest);
        }
        let next = self.reader.as_mut().and_then(Iterator::next);
        next.unwrap_or_else(|| Err(format!("it ends after its row {}", self.row)))
            .map_err(|reason| self.plan.source.damaged(self.group, reason))
    }

    /// Decodes the kept rows of a batch and appends them to the columns. `begun` is the number of
    /// rows between the start of the piece and the batch, including rows that the sampling left
    /// out.
    fn append(
        &mut self,
        batch: &RecordBatch,
        fields: &[Field],
        decoded: &mut Decoded,
        begun: usize,
    ) -> Result<()> {
        let Decoded { columns, kept, bad } = decoded;
        let first = kept.rows - batch.num_rows();
        // The rows of the batch are numbered as rows of the file, from 1.
        let start = self.rows_before + self.row + 1;
        let (group, source) = (self.group, &self.plan.source);
        let path = &self.path;
        let error = |refused: &Bad, field: &Field| ReaderError::Value {
            column: field.column.clone(),
            place: Place {
                row: start + (kept.place(first + refused.row) - begun) as u64,
                near: source.near(group),
            },
            problem: explain(refused.refusal, field, refused.text.as_deref()),
            path: path.clone(),
        };
        // All columns are decoded, even after a bad value, because the reported row must not depend
        // on how the columns are divided between parts.
        let mut first_bad: Option<(Bad, &Field)> = None;
        for (i, field) in fields.iter().enumerate() {
            if self.paged.as_ref().is_some_and(|paged| paged.has(i)) {
                continue;
            }
            let array = batch.column(self.positions[i]);
            let (column, keys) = (&mut columns[i], &mut self.dictionaries[i]);
            let mut refused = Vec::new();
            let appended = if self.picker.max_bad == 0 {
                append(column, &field.role, array, &self.rules, keys)
            } else {
                append_or_reject(column, &field.role, array, &self.rules, keys, 0, &mut refused)
            };
            if let Err(bad) = appended
                && first_bad.as_ref().is_none_or(|(known, _)| bad.row < known.row)
            {
                first_bad = Some((bad, field));
            }
            bad.extend(refused.iter().map(|refused| BadValue {
                row: (first + refused.row) as u32,
                error: error(refused, field),
            }));
        }
        match first_bad {
            None => Ok(()),
            Some((bad, field)) => Err(error(&bad, field)),
        }
    }
}
