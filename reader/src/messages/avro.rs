//! The decoding of messages with one record of Avro each.
//!
//! A message begins with the key of its schema: an id of a registry of schemas, or a fingerprint.
//! Columns are found by their names. The columns that a message has and no field reads are skipped.
//!
//! # Bounds
//! A schema in which items of an array take no bytes is refused, because a message of a few bytes
//! could claim billions of them. So each item takes a byte of the message at least.
//!
//! # Concurrency
//! The decoders of Avro keep rows between two calls. Each call takes decoders out of a store behind
//! a lock, once for each change of the schema, and puts them back.

mod references;
mod schemas;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use arrow_avro::reader::{Decoder, DecoderMode, ReaderBuilder};
use arrow_avro::schema::{AvroSchema, Fingerprint, FingerprintAlgorithm, SchemaStore};

use self::references::resolve;
use self::schemas::parse_frame;
pub use self::schemas::{AvroFraming, AvroSchemas};
use super::batch::{BatchPlan, Target};
use super::rejected::{AppendMessage, Failure, Rejection, unknown_schema};
use super::writer_schema::WriterSchema;
use crate::arrays::{DictionaryKeys, TextRules, without_panic};
use crate::block::Column;
use crate::config::DataConfig;
use crate::error::Result;
use crate::field::Field;

/// The key under which a schema is known to its own decoder.
const OWN: u32 = 0;

/// The plans by which Avro messages are decoded.
#[derive(Debug)]
pub(super) struct AvroMessages {
    framing: AvroFraming,
    rules: TextRules,
    plans: BTreeMap<u64, Plan>,
}

/// The plan for the messages of one schema.
#[derive(Debug)]
struct Plan {
    text: String,
    /// The plan for the columns, or the reason why no message of this schema can be used.
    columns: std::result::Result<BatchPlan, Rejection>,
    /// The decoders that no call uses.
    decoders: Mutex<Vec<Decoder>>,
}

/// A decoder of Avro messages. It keeps the decoder of the last schema.
pub(super) struct AvroState<'d> {
    avro: &'d AvroMessages,
    /// The plan of the last message, and its decoder.
    open: Option<(&'d Plan, Decoder)>,
    dictionaries: Vec<DictionaryKeys>,
}

impl AvroMessages {
    /// Makes the plans of all schemas.
    ///
    /// # Errors
    /// Returns an error if a schema is not supported.
    pub(super) fn new(
        schemas: &AvroSchemas,
        config: &DataConfig,
        fields: &[Field],
    ) -> Result<Self> {
        let mut plans = BTreeMap::new();
        for (key, text) in schemas.texts() {
            let plan = Plan::new(text, fields).map_err(|e| schemas.refuse(key, e))?;
            plans.insert(key, plan);
        }
        Ok(Self { framing: schemas.framing(), rules: TextRules::new(config), plans })
    }

    /// Returns the id of the schema of a message, if the message names one that is not known.
    #[inline]
    pub(super) fn unknown_schema(&self, message: &[u8]) -> Option<u32> {
        let (key, _) = parse_frame(self.framing, message).ok()?;
        let is_unknown = self.framing == AvroFraming::Confluent && !self.plans.contains_key(&key);
        if is_unknown { u32::try_from(key).ok() } else { None }
    }

    /// Adds a schema. If it cannot be used, its messages are rejected with the reason.
    pub(super) fn add_schema(&mut self, id: u32, schema: &WriterSchema, fields: &[Field]) {
        let plan = resolve(schema).and_then(|text| Plan::new(&text, fields));
        let plan = plan.unwrap_or_else(|problem| Plan {
            text: String::new(),
            columns: Err(Rejection::of_schema(format!("it cannot be used: {problem}"))),
            decoders: Mutex::default(),
        });
        self.plans.insert(id.into(), plan);
    }
}

impl Plan {
    /// Makes the plan for the messages of a schema.
    ///
    /// # Errors
    /// Returns the problem if the schema is not supported.
    fn new(text: &str, fields: &[Field]) -> std::result::Result<Self, String> {
        let whole = make_decoder(text, None)?;
        let columns = BatchPlan::new(&whole.schema(), fields);
        let columns = columns.map(BatchPlan::unpack_dictionaries);
        let mut decoders = Vec::new();
        if let Ok(columns) = &columns {
            decoders.push(make_decoder(text, Some(columns.roots()))?);
        }
        Ok(Self { text: text.to_owned(), columns, decoders: Mutex::new(decoders) })
    }
}

/// Creates a decoder of single records of a schema. With `columns`, only these are decoded.
fn make_decoder(text: &str, columns: Option<&[usize]>) -> std::result::Result<Decoder, String> {
    without_panic(|| {
        let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id);
        let own = Fingerprint::load_fingerprint_id(OWN);
        store.set(own, AvroSchema::new(text.to_owned()))?;
        let mut builder = ReaderBuilder::new()
            .with_writer_schema_store(store)
            .with_active_fingerprint(own)
            .with_decoder_mode(DecoderMode::UnframedDatum)
            .with_batch_size(1);
        if let Some(columns) = columns {
            builder = builder.with_projection(columns.to_vec());
        }
        builder.build_decoder()
    })
}

impl<'d> AvroState<'d> {
    pub(super) fn new(avro: &'d AvroMessages) -> Self {
        Self { avro, open: None, dictionaries: Vec::new() }
    }

    /// Appends the row of a message to the columns. Damaged bytes may cause a panic.
    fn append_row(
        &mut self,
        message: &[u8],
        target: Target<'_>,
    ) -> std::result::Result<usize, Failure> {
        let (key, body) = parse_frame(self.avro.framing, message).map_err(damaged)?;
        let framing = self.avro.framing;
        let plan = self.avro.plans.get(&key).ok_or_else(|| {
            let known = self.avro.plans.keys().map(|key| framing.show(*key));
            Failure::Rejected(unknown_schema(framing.show(key), known))
        })?;
        let columns = plan.columns.as_ref().map_err(|rejection| {
            let reason = format!("{} (schema {})", rejection.reason, framing.show(key));
            Failure::Rejected(Rejection { reason, ..rejection.clone() })
        })?;
        if self.open.as_ref().is_none_or(|(open, _)| !std::ptr::eq(*open, plan)) {
            self.put_back();
            let free = plan.decoders.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let decoder = match free {
                Some(decoder) => decoder,
                None => make_decoder(&plan.text, Some(columns.roots())).map_err(damaged)?,
            };
            self.open = Some((plan, decoder));
        }
        // The decoder is taken out, so that one that has failed in the middle of a record is not
        // used again.
        let Some((plan, mut decoder)) = self.open.take() else { return Ok(0) };
        let consumed = decoder.decode(body).map_err(|e| damaged(e.to_string()))?;
        if consumed != body.len() {
            let behind = body.len() - consumed;
            return Err(damaged(format!("{behind} bytes are behind the record")));
        }
        let batch = decoder.flush().map_err(|e| damaged(e.to_string()))?;
        self.open = Some((plan, decoder));
        let Some(batch) = batch else { return Err(damaged("it has no record".to_owned())) };
        self.dictionaries.resize_with(target.fields.len(), DictionaryKeys::default);
        columns.append(&batch, target, &self.avro.rules, &mut self.dictionaries, damaged)?;
        Ok(batch.num_rows())
    }

    fn put_back(&mut self) {
        if let Some((plan, decoder)) = self.open.take() {
            plan.decoders.lock().unwrap_or_else(PoisonError::into_inner).push(decoder);
        }
    }
}

impl Drop for AvroState<'_> {
    fn drop(&mut self) {
        self.put_back();
    }
}

impl<'a> AppendMessage<'a> for AvroState<'_> {
    fn append(
        &mut self,
        message: &'a [u8],
        columns: &mut [Column],
        fields: &[Field],
    ) -> std::result::Result<usize, Failure> {
        let target = Target { columns, fields, before: 0 };
        let appended = without_panic(|| Ok::<_, String>(self.append_row(message, target)));
        let appended = appended.unwrap_or_else(|panic| Err(damaged(panic)));
        // A message has one row, so that its number says nothing.
        appended.map_err(|failure| match failure {
            Failure::Rejected(rejection) => Failure::Rejected(Rejection { row: None, ..rejection }),
            other => other,
        })
    }
}

/// Returns the failure for a message that is not a readable record of Avro.
fn damaged(reason: String) -> Failure {
    Failure::Rejected(Rejection::of_format(format!(
        "not a readable record of Avro ({reason}); write one record with the key of its schema"
    )))
}
