//! The decoding of the messages of a stream to batches.
//!
//! A file is a sequence of rows that belong together, and its columns are checked once. A message
//! stands alone: each one is decoded or rejected by itself, and a rejected message does not disturb
//! the others. The values have the same rules and the same error messages as in files.
//!
//! # Invariants
//! * The rows of a batch have the order of their messages. All rows of a message are in the batch,
//!   or none: a message that is repaired and sent again doubles no row.
//! * Neither a bad message nor a damaged one causes a panic.
//! * The memory for a message is bounded by its size, whatever its bytes claim.

mod arrow;
mod avro;
mod batch;
mod json;
mod protobuf;
mod rejected;
mod writer_schema;

use std::sync::Arc;

use zillion_feature::{Batch, Schema, Statistics};

use crate::assembly::Assembly;
use crate::block::{Block, Column, Piece};
use crate::config::DataConfig;
use crate::error::{ReaderError, Result};
use crate::field::{self, Field};
use crate::side_tables::SideTables;
use crate::text::Encoding;
use arrow::{ArrowMessages, ArrowState};
pub use avro::{AvroFraming, AvroSchemas};
use avro::{AvroMessages, AvroState};
use json::{JsonMessages, JsonState};
pub use protobuf::ProtobufSchemas;
use protobuf::{ProtobufMessages, ProtobufState};
use rejected::{AppendMessage, Failure};
pub use rejected::{RejectedMessage, Rejection, RejectionKind};
pub use writer_schema::{ReferencedSchema, SchemaLanguage, WriterSchema};

/// The format of the messages of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageFormat {
    /// One JSON object in each message, which may contain line breaks. A message of white space has
    /// no row.
    Json,
    /// One whole Arrow IPC stream or file in each message, with any number of record batches.
    Arrow,
    /// One record of Avro in each message, behind the id or the fingerprint of its schema.
    Avro(AvroSchemas),
    /// One message of Protobuf in each message. If there are several types, a message begins with
    /// the id of its schema and the place of its type in it.
    Protobuf(ProtobufSchemas),
}

/// A decoder of messages to batches of a schema.
///
/// ```
/// use zillion_feature::{Schema, Statistics};
/// use zillion_reader::{DataConfig, MessageDecoder, MessageFormat, SideTables};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let job: toml::Value =
///     toml::from_str::<toml::Table>("[features.user]\nkind = 'id'\n[labels.click]")?.into();
/// let schema = Schema::from_job(&job)?;
/// let config = DataConfig::default();
/// let sides = SideTables::load(&config, &schema)?;
/// let statistics = Statistics::default();
///
/// let decoder =
///     MessageDecoder::new(MessageFormat::Json, &config, &schema, &sides, &statistics)?;
/// let messages = [r#"{"user": 7, "click": 1}"#, r#"{"user": 8}"#];
/// let decoded = decoder.decode(messages.map(str::as_bytes))?;
/// assert_eq!(decoded.batch.rows, 1);
/// assert_eq!(decoded.rejected[0].index, 1);
/// assert_eq!(decoded.rejected[0].rejection.column.as_deref(), Some("click"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MessageDecoder {
    format: FormatDecoder,
    fields: Vec<Field>,
    assembly: Assembly,
}

#[derive(Debug)]
enum FormatDecoder {
    Json(JsonMessages),
    Arrow(ArrowMessages),
    Avro(AvroMessages),
    Protobuf(ProtobufMessages),
}

/// The rows of some messages, and the messages without rows.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedMessages {
    /// The rows of the accepted messages, in the order of the messages.
    pub batch: Batch,
    /// The number of rows in the batch of each message; 0 for a rejected one.
    pub rows: Vec<usize>,
    /// The rejected messages, in their order.
    pub rejected: Vec<RejectedMessage>,
}

impl MessageDecoder {
    /// Returns a decoder of messages in the format `format` to batches of `schema`. The statistics
    /// are those of the transforms of the schema. Of `config`, the settings for missing values,
    /// lists and decimals are used. The settings for files and for the order and the sampling of
    /// rows do not concern messages.
    ///
    /// # Errors
    /// Returns an error if statistics that a transform needs are absent, if a value of a side table
    /// is infinite after its transform, or if a schema is not supported.
    pub fn new(
        format: MessageFormat,
        config: &DataConfig,
        schema: &Schema,
        sides: &SideTables,
        statistics: &Statistics,
    ) -> Result<Self> {
        if config.encoding != Encoding::default() {
            let problem = "messages are read as UTF-8; remove the setting";
            return Err(ReaderError::setting("data.encoding", problem));
        }
        let fields = field::resolved(schema, sides, statistics)?;
        let schema = Arc::new(schema.clone());
        let assembly = Assembly::new(&schema, sides, statistics, |_| true)?;
        let format = match format {
            MessageFormat::Json => FormatDecoder::Json(JsonMessages::new(config, &fields)),
            MessageFormat::Arrow => FormatDecoder::Arrow(ArrowMessages::new(config)),
            MessageFormat::Avro(schemas) => {
                FormatDecoder::Avro(AvroMessages::new(&schemas, config, &fields)?)
            }
            MessageFormat::Protobuf(schemas) => {
                FormatDecoder::Protobuf(ProtobufMessages::new(&schemas, config, &fields)?)
            }
        };
        Ok(Self { format, fields, assembly })
    }

    /// Decodes messages to one batch. Messages that cannot be decoded are listed with the reason,
    /// and all others are decoded.
    ///
    /// # Errors
    /// Returns an error if the messages together have 2^31 ids or more in one column.
    pub fn decode<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<DecodedMessages> {
        let messages = messages.into_iter();
        match &self.format {
            FormatDecoder::Json(json) => self.collect(JsonState::new(json), messages),
            FormatDecoder::Arrow(arrow) => self.collect(ArrowState::new(arrow), messages),
            FormatDecoder::Avro(avro) => self.collect(AvroState::new(avro), messages),
            FormatDecoder::Protobuf(protobuf) => {
                self.collect(ProtobufState::new(protobuf), messages)
            }
        }
    }

    /// Returns the id of the schema of a message, if the message names a schema by an id and the
    /// schema is not known. Such a message is rejected until [`MessageDecoder::add_schema`] was
    /// called.
    #[inline]
    pub fn unknown_schema(&self, message: &[u8]) -> Option<u32> {
        match &self.format {
            FormatDecoder::Json(_) | FormatDecoder::Arrow(_) => None,
            FormatDecoder::Avro(avro) => avro.unknown_schema(message),
            FormatDecoder::Protobuf(protobuf) => protobuf.unknown_schema(message),
        }
    }

    /// Adds a schema that messages name by its id. If it cannot be used, its messages are rejected
    /// with the reason, of the kind [`RejectionKind::Columns`]. Formats without ids ignore it.
    pub fn add_schema(&mut self, id: u32, schema: &WriterSchema) {
        match &mut self.format {
            FormatDecoder::Json(_) | FormatDecoder::Arrow(_) => {}
            FormatDecoder::Avro(avro) => avro.add_schema(id, schema, &self.fields),
            FormatDecoder::Protobuf(protobuf) => protobuf.add_schema(id, schema, &self.fields),
        }
    }

    fn collect<'a>(
        &self,
        mut decoder: impl AppendMessage<'a>,
        messages: impl Iterator<Item = &'a [u8]>,
    ) -> Result<DecodedMessages> {
        let count = messages.size_hint().0;
        let column = |field: &Field| Column::with_capacity(&field.role, count);
        let mut columns: Vec<Column> = self.fields.iter().map(column).collect();
        let (mut rows, mut rejected, mut total) = (Vec::with_capacity(count), Vec::new(), 0);
        for (index, message) in messages.enumerate() {
            let own = match decoder.append(message, &mut columns, &self.fields) {
                Ok(own) => own,
                Err(Failure::Rejected(rejection)) => {
                    columns.iter_mut().for_each(|column| column.as_rows().keep_first(total));
                    rejected.push(RejectedMessage { index, rejection });
                    0
                }
                Err(Failure::TooManyIds) => {
                    return Err(ReaderError::BatchTooLarge { rows: total + 1 });
                }
            };
            total += own;
            rows.push(own);
        }
        let block = Block { rows: total, columns, span: total, ..Block::default() };
        let batch = self.assembly.batch(&[Piece::whole(block)], &self.fields)?;
        Ok(DecodedMessages { batch, rows, rejected })
    }
}
