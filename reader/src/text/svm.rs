//! The formats libsvm (`label [qid:N] index:value ..`) and libffm (`label field:index:value ..`).
//!
//! Each row is one sparse vector. In libsvm, the entries of the vector form one list column,
//! `features`: the index of an entry is the id, and its value is the weight. In libffm, there is
//! one such column for each field: `field_0`, `field_1` and so on. The other columns are `label`
//! and, if the rows contain it, `qid`. The character `#` begins a comment.

mod cell;
mod row;

use std::collections::BTreeSet;
use std::path::Path;

pub use row::{SvmColumn, SvmEntry, SvmRow};

use super::chunks::beyond_first_rows;
use super::decode::{Decoding, OtherColumns, RowPlan, TextBlock};
use super::line_rows::{LinePlan, LineRows};
use super::lines::read_some;
use super::rows::BadRow;
use super::settings::{Grammar, TextSettings};
use crate::error::{ReaderError, Result as ReaderResult};
use crate::field::{Field, Role};
use crate::value;
use cell::SvmCell;
use row::{FEATURES, FIELD, LABEL, QUERY};

/// The plan for libsvm and libffm: the columns of the file that the fields read.
#[derive(Clone, Debug)]
pub(super) struct SvmPlan {
    /// Whether the entries of the first rows have fields, as in libffm.
    with_fields: bool,
    reads: Vec<SvmColumn>,
    others: OtherColumns,
}

impl SvmPlan {
    /// Returns the plan that decodes the fields. `others` is the rule for columns that no field
    /// reads.
    ///
    /// # Errors
    /// Returns an error if the role of a field does not fit the column that it reads.
    pub(super) fn new(
        columns: &[String],
        fields: &[Field],
        path: &Path,
        others: OtherColumns,
    ) -> ReaderResult<Self> {
        let mut reads = Vec::with_capacity(fields.len());
        for field in fields {
            // The column is one of the columns that `columns` returned, so it has a known name.
            let read = SvmColumn::of(&field.column).unwrap_or(SvmColumn::Features);
            let fits = matches!(
                (read, &field.role),
                (SvmColumn::Label | SvmColumn::Query, _)
                    | (
                        SvmColumn::Features | SvmColumn::Field(_),
                        Role::Ids { .. } | Role::RawIds { .. }
                    )
                    | (
                        SvmColumn::Field(_),
                        Role::Id { .. } | Role::RawId { .. } | Role::Text | Role::SideRow(_)
                    )
            );
            if !fits {
                return Err(ReaderError::ColumnType {
                    column: field.column.clone(),
                    mismatch: format!(
                        "a list of indices and values, which {} cannot read; declare `kind = \"ids\"`, which reads the values as weights",
                        field.used_by
                    ),
                    path: path.to_owned(),
                });
            }
            reads.push(read);
        }
        let with_fields = !columns.iter().any(|name| name == FEATURES);
        Ok(Self { with_fields, reads, others })
    }

    /// Returns an error message if a row has a column that no field reads.
    fn refuse_others(&self, row: &SvmRow<'_>) -> Result<(), String> {
        let is_read = |read: SvmColumn| self.reads.contains(&read);
        let refuse = |what: String| Err(beyond_first_rows(&what));
        if row.query.is_some() && !is_read(SvmColumn::Query) {
            return refuse("qid".to_owned());
        }
        let fields = row.entries.iter().filter_map(|entry| entry.field);
        match fields.into_iter().find(|&number| !is_read(SvmColumn::Field(number))) {
            Some(number) => refuse(format!("{FIELD}{number}")),
            None => Ok(()),
        }
    }
}

impl RowPlan for SvmPlan {
    fn decode(&self, task: &Decoding<'_>) -> Result<TextBlock, BadRow> {
        task.run(LineRows::new(self, &task.chunk.bytes, task.settings), 16)
    }
}

impl LinePlan for SvmPlan {
    type Row<'a> = SvmRow<'a>;
    type Cell<'a> = SvmCell<'a>;

    #[inline]
    fn read<'a>(&self, row: &mut SvmRow<'a>, line: &'a [u8]) -> Result<(), String> {
        row.read(line)
    }

    #[inline]
    fn check(&self, row: &SvmRow<'_>) -> Result<(), String> {
        let with_fields = self.with_fields;
        if let Some(other) = row.entries.iter().find(|e| e.field.is_some() != with_fields) {
            let index = value::shorten(other.index);
            return Err(match with_fields {
                true => format!(
                    "the entry with index {index} has no field, but the first rows have fields; write it as `field:index:value`"
                ),
                false => format!(
                    "the entry with index {index} has a field, but the first rows have none; write it as `index:value`"
                ),
            });
        }
        match self.others {
            OtherColumns::PassOver => Ok(()),
            OtherColumns::Refuse => self.refuse_others(row),
        }
    }

    #[inline]
    fn cell<'a>(
        &'a self,
        row: &'a SvmRow<'_>,
        field: usize,
        settings: &'a TextSettings,
    ) -> SvmCell<'a> {
        SvmCell { read: self.reads[field], row, settings }
    }
}

/// Returns the columns of the rows in a text. A row that cannot be read is ignored if any other row
/// can be read.
///
/// # Errors
/// Returns the problem of the first row if none of the rows can be read.
pub(super) fn columns(text: &[u8]) -> Result<Vec<String>, String> {
    let mut with_query = false;
    // The first entry shows whether entries have fields. Rows of the other form are refused later,
    // when they are read.
    let mut with_fields = None;
    let mut numbers = BTreeSet::new();
    let mut row = SvmRow::default();
    read_some(Grammar::Svm, text, |line| {
        row.read(line)?;
        with_query |= row.query.is_some();
        for entry in &row.entries {
            with_fields.get_or_insert(entry.field.is_some());
            numbers.extend(entry.field);
        }
        Ok(())
    })?;
    let mut columns = vec![LABEL.to_owned()];
    columns.extend(with_query.then(|| QUERY.to_owned()));
    match with_fields.unwrap_or(false) {
        true => columns.extend(numbers.into_iter().map(|number| format!("{FIELD}{number}"))),
        false => columns.push(FEATURES.to_owned()),
    }
    Ok(columns)
}
