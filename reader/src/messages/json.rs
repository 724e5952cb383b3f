//! The decoding of messages with one JSON object each, by the rules of JSON lines.

use super::rejected::{AppendMessage, Failure, Rejection};
use crate::block::Column;
use crate::config::DataConfig;
use crate::field::Field;
use crate::format::TextFormat;
use crate::text::{JsonPlan, JsonRow, OtherColumns, Problem, TextSettings};

/// The mark with which some programs begin a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The plan by which JSON messages are decoded.
#[derive(Debug)]
pub(super) struct JsonMessages {
    plan: JsonPlan,
    settings: TextSettings,
}

/// A decoder of JSON messages. The memory of the parsed row is used for all messages.
pub(super) struct JsonState<'d, 'a> {
    json: &'d JsonMessages,
    row: JsonRow<'a>,
}

impl JsonMessages {
    pub(super) fn new(config: &DataConfig, fields: &[Field]) -> Self {
        Self {
            plan: JsonPlan::new(fields, OtherColumns::PassOver),
            settings: TextSettings::new(config, TextFormat::Json),
        }
    }
}

impl<'d> JsonState<'d, '_> {
    pub(super) fn new(json: &'d JsonMessages) -> Self {
        Self { json, row: JsonRow::default() }
    }
}

impl<'a> AppendMessage<'a> for JsonState<'_, 'a> {
    #[inline]
    fn append(
        &mut self,
        message: &'a [u8],
        columns: &mut [Column],
        fields: &[Field],
    ) -> Result<usize, Failure> {
        let text = message.strip_prefix(BYTE_ORDER_MARK).unwrap_or(message);
        if text.trim_ascii_start().is_empty() {
            return Ok(0);
        }
        let JsonMessages { plan, settings } = self.json;
        match plan.append(&mut self.row, text, settings, columns, fields) {
            Ok(()) => Ok(1),
            Err(problem) => Err(failure(problem, fields)),
        }
    }
}

#[cold]
fn failure(problem: Problem, fields: &[Field]) -> Failure {
    if !problem.is_about_one_row() {
        return Failure::TooManyIds;
    }
    Failure::Rejected(match problem {
        Problem::Value { field, explanation, .. } => {
            Rejection::of_value(&fields[field], None, explanation)
        }
        Problem::Record(reason) => Rejection::of_format(reason),
        other => unreachable!("{other:?} is a problem of cells, which JSON does not have"),
    })
}
