//! The decoding of messages with one Arrow IPC stream or file each.
//!
//! Columns are found by their names. The columns that a message has and no field reads are skipped.

mod budget;
mod layout;

use arrow_buffer::Buffer;
use arrow_ipc::MetadataVersion;
use arrow_ipc::reader::FileDecoder;
use arrow_schema::SchemaRef;

use super::batch::{BatchPlan, Target};
use super::rejected::{AppendMessage, Failure, Rejection};
use crate::arrays::{DictionaryKeys, TextRules, without_panic};
use crate::block::Column;
use crate::config::DataConfig;
use crate::field::Field;
use crate::ipc::has_dictionary;
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
    columns: BatchPlan,
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
        let mut decoder = FileDecoder::new(plan.schema.clone(), plan.version)
            .with_projection(plan.columns.roots().to_vec());
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
            for (array, &root) in batch.columns().iter().zip(plan.columns.roots()) {
                let keeps = plan.columns.keeps_dictionary(root);
                budget.spend_array(array, keeps).map_err(damaged)?;
            }
            let target = Target { columns: &mut *columns, fields, before: rows };
            plan.columns.append(&batch, target, self.rules, &mut self.dictionaries, damaged)?;
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
}

impl Plan {
    fn new(layout: &Layout<'_>, fields: &[Field]) -> Result<Self, Failure> {
        let (schema, version) = layout.read_schema().map_err(damaged)?;
        let columns = BatchPlan::new(&schema, fields).map_err(Failure::Rejected)?;
        let needs_dictionaries =
            columns.roots().iter().any(|&root| has_dictionary(schema.field(root).data_type()));
        Ok(Self { schema, version, columns, needs_dictionaries })
    }
}

/// Returns the failure for a message that is not a readable Arrow IPC stream or file.
fn damaged(reason: String) -> Failure {
    Failure::Rejected(Rejection::of_format(format!(
        "not a readable Arrow IPC stream or file ({reason}); write each message as one whole stream"
    )))
}
