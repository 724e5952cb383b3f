//! The way from a record batch of a message to the columns of the fields.

use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::Schema;

use super::rejected::{Failure, Rejection};
use crate::arrays::{Bad, DictionaryKeys, TextRules, append};
use crate::block::Column;
use crate::explain::explain;
use crate::field::Field;
use crate::ipc::{Forms, ROWS};

/// The plan by which record batches of one schema are read.
#[derive(Clone, Debug)]
pub(super) struct BatchPlan {
    forms: Forms,
    /// The positions in the schema of the columns that are decoded, ascending.
    roots: Vec<usize>,
    /// For each field, the index of its column in `roots`.
    positions: Vec<usize>,
}

/// The columns to which rows are appended.
pub(super) struct Target<'t> {
    pub(super) columns: &'t mut [Column],
    pub(super) fields: &'t [Field],
    /// The number of rows of the message before the record batch.
    pub(super) before: usize,
}

impl BatchPlan {
    /// Finds the columns of the fields by their names, and checks their types.
    ///
    /// # Errors
    /// Returns a rejection if a column is missing or has another type.
    pub(super) fn new(schema: &Schema, fields: &[Field]) -> Result<Self, Rejection> {
        // The name of a file occurs only in a part of the error that the rejection leaves out.
        let (columns, forms) = Forms::of_fields(schema, fields, Path::new("message"), None)
            .map_err(Rejection::of_columns)?;
        let mut roots = columns.clone();
        roots.sort_unstable();
        roots.dedup();
        let position = |column: &usize| roots.partition_point(|root| root < column);
        let positions = columns.iter().map(position).collect();
        Ok(Self { forms, roots, positions })
    }

    /// Returns the same plan, by which dictionaries are turned into plain texts. It is for sources
    /// that make a dictionary anew for each batch.
    pub(super) fn unpack_dictionaries(mut self) -> Self {
        self.forms.unpack_dictionaries();
        self
    }

    /// Returns the positions in the schema of the columns that are decoded, ascending.
    pub(super) fn roots(&self) -> &[usize] {
        &self.roots
    }

    /// Returns the position in the schema of the column that a field reads.
    pub(super) fn column_of(&self, field: usize) -> usize {
        self.roots[self.positions[field]]
    }

    /// Returns whether the dictionaries of a column stay dictionaries.
    pub(super) fn keeps_dictionary(&self, root: usize) -> bool {
        self.forms.keeps_dictionary(root)
    }

    /// Appends the rows of a record batch, which has the columns `roots`. `damaged` makes the
    /// failure for damaged arrays.
    ///
    /// # Errors
    /// Returns the reason if a value cannot be used.
    pub(super) fn append(
        &self,
        batch: &RecordBatch,
        target: Target<'_>,
        rules: &TextRules,
        dictionaries: &mut [DictionaryKeys],
        damaged: fn(String) -> Failure,
    ) -> Result<(), Failure> {
        let Target { columns, fields, before } = target;
        for start in (0..batch.num_rows()).step_by(ROWS) {
            let rows = ROWS.min(batch.num_rows() - start);
            // All columns are decoded, even after a bad value, so that the first bad row is
            // reported, as for files.
            let mut first_bad: Option<(Bad, &Field)> = None;
            for (i, field) in fields.iter().enumerate() {
                let position = self.positions[i];
                let array = batch.column(position).slice(start, rows);
                let array = self.forms.plain(&array, self.roots[position]).map_err(damaged)?;
                let (column, keys) = (&mut columns[i], &mut dictionaries[i]);
                let Err(bad) = append(column, &field.role, &array, rules, keys) else {
                    continue;
                };
                if !bad.refusal.is_about_one_row() {
                    return Err(Failure::TooManyIds);
                }
                if first_bad.as_ref().is_none_or(|(known, _)| bad.row < known.row) {
                    first_bad = Some((bad, field));
                }
            }
            if let Some((bad, field)) = first_bad {
                let row = before + start + bad.row + 1;
                let reason = explain(bad.refusal, field, bad.text.as_deref());
                let rejection = Rejection::of_value(field, Some(row), reason);
                return Err(Failure::Rejected(rejection));
            }
        }
        Ok(())
    }
}
