//! The decoding of messages with one Arrow IPC stream or file each.
//!
//! Columns are found by their names. The columns that a message has and no field reads are skipped.

mod budget;
mod layout;

use std::path::Path;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::MetadataVersion;
use arrow_ipc::reader::FileDecoder;
use arrow_schema::SchemaRef;

use super::rejected::{AppendMessage, Failure, Rejection};
use crate::arrays::{Bad, DictionaryKeys, TextRules, append, without_panic};
use crate::block::Column;
use crate::config::DataConfig;
use crate::explain::explain;
use crate::field::Field;
use crate::ipc::{Forms, ROWS, has_dictionary};
use budget::Budget;
use layout::{Block, Layout};

/// The settings by which Arrow messages are decoded.
#[derive(Debug)]
pub(super) struct ArrowMessages {
    rules: TextRules,
}

/// A decoder of Arrow messages. Messages with the schema of the message before share its plan.
pub(super) struct ArrowState<'d, 'a> {
    rules: &'d TextRules,
    /// The bytes of the schema of the last message, and the plan for it. `None` before the first
    /// message.
    known: Option<(&'a [u8], Plan)>,
    /// The keys of the entries of dictionaries; one entry for each field.
    dictionaries: Vec<DictionaryKeys>,
}

/// The plan by which messages of one schema are decoded.
#[derive(Clone)]
struct Plan {
    schema: SchemaRef,
    version: MetadataVersion,
    forms: Forms,
    /// The positions in the schema of the columns that are decoded, ascending.
    roots: Vec<usize>,
    /// For each field, the index of its column in `roots`.
    positions: Vec<usize>,
    needs_dictionaries: bool,
}

impl ArrowMessages {
    pub(super) fn new(config: &DataConfig) -> Self {
        Self { rules: TextRules::new(config) }
    }
}

impl<'a> AppendMessage<'a> for ArrowState<'_, 'a> {
    fn append(
        &mut self,
        message: &'a [u8],
        columns: &mut [Column],
        fields: &[Field],
    ) -> Result<usize, Failure> {
        without_panic(|| Ok::<_, String>(self.append_batches(message, columns, fields)))
            .unwrap_or_else(|panic| Err(damaged(panic)))
    }
}

impl<'d, 'a> ArrowState<'d, 'a> {
    pub(super) fn new(arrow: &'d ArrowMessages) -> Self {
        Self { rules: &arrow.rules, known: None, dictionaries: Vec::new() }
    }

    /// Appends the rows of all record batches of a message. Damaged bytes may cause a panic in this
    /// function.
    fn append_batches(
        &mut self,
        message: &'a [u8],
        columns: &mut [Column],
        fields: &[Field],
    ) -> Result<usize, Failure> {
        let mut budget = Budget::of(message.len());
        let layout = Layout::of(message, &mut budget).map_err(damaged)?;
        let plan = self.plan(&layout, fields)?;
        self.dictionaries.resize_with(fields.len(), DictionaryKeys::default);
        // The copy lies in memory as the arrays need it. Their buffers are not copied again.
        let bytes = Buffer::from_slice_ref(message);
        let mut decoder =
            FileDecoder::new(plan.schema.clone(), plan.version).with_projection(plan.roots.clone());
        let mut rows = 0;
        for Block { is_dictionary, block, range } in &layout.blocks {
            let bytes = bytes.slice_with_length(range.start, range.len());
            if *is_dictionary {
                if plan.needs_dictionaries {
                    decoder.read_dictionary(block, &bytes).map_err(|e| damaged(e.to_string()))?;
                }
                continue;
            }
            let batch = decoder.read_record_batch(block, &bytes);
            let batch = batch.map_err(|e| damaged(e.to_string()))?;
            let batch = batch.ok_or_else(|| damaged("it holds no record batch".to_owned()))?;
            for (array, &root) in batch.columns().iter().zip(&plan.roots) {
                budget.spend_array(array, plan.forms.keeps_dictionary(root)).map_err(damaged)?;
            }
            self.append_batch(&plan, &batch, (columns, fields), rows)?;
            rows += batch.num_rows();
        }
        Ok(rows)
    }

    /// Returns the plan for the schema of a message.
    fn plan(&mut self, layout: &Layout<'a>, fields: &[Field]) -> Result<Plan, Failure> {
        match &self.known {
            Some((schema, plan)) if *schema == layout.schema => Ok(plan.clone()),
            _ => {
                let plan = Plan::new(layout, fields)?;
                self.known = Some((layout.schema, plan.clone()));
                Ok(plan)
            }
        }
    }

    /// Appends the rows of a record batch. `before` is the number of rows of the message before it.
    fn append_batch(
        &mut self,
        plan: &Plan,
        batch: &RecordBatch,
        (columns, fields): (&mut [Column], &[Field]),
        before: usize,
    ) -> Result<(), Failure> {
        for start in (0..batch.num_rows()).step_by(ROWS) {
            let rows = ROWS.min(batch.num_rows() - start);
            // All columns are decoded, even after a bad value, so that the first bad row is
            // reported, as for files.
            let mut first_bad: Option<(Bad, &Field)> = None;
            for (i, field) in fields.iter().enumerate() {
                let position = plan.positions[i];
                let array = batch.column(position).slice(start, rows);
                let array = plan.forms.plain(&array, plan.roots[position]).map_err(damaged)?;
                let (column, keys) = (&mut columns[i], &mut self.dictionaries[i]);
                let Err(bad) = append(column, &field.role, &array, self.rules, keys) else {
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

impl Plan {
    fn new(layout: &Layout<'_>, fields: &[Field]) -> Result<Self, Failure> {
        let (schema, version) = layout.read_schema().map_err(damaged)?;
        // The name of a file occurs only in a part of the error that the rejection leaves out.
        let (columns, forms) = Forms::of_fields(&schema, fields, Path::new("message"), None)
            .map_err(|error| Failure::Rejected(Rejection::of_columns(error)))?;
        let mut roots = columns.clone();
        roots.sort_unstable();
        roots.dedup();
        let position = |column: &usize| roots.partition_point(|root| root < column);
        let positions = columns.iter().map(position).collect();
        let needs_dictionaries =
            roots.iter().any(|&root| has_dictionary(schema.field(root).data_type()));
        Ok(Self { schema, version, forms, roots, positions, needs_dictionaries })
    }
}

/// Returns the failure for a message that is not a readable Arrow IPC stream or file.
fn damaged(reason: String) -> Failure {
    Failure::Rejected(Rejection::of_format(format!(
        "not a readable Arrow IPC stream or file ({reason}); write each message as one whole stream"
    )))
}
