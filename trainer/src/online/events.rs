//! The events of one stream: rows, impressions or feedback that its messages hold.

use std::ops::Range;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde::{Deserialize, Serialize};
use zillion_feature::{
    Batch, FeatureKey, FeatureKind, FeatureSpec, Schema, Statistics, TableId, TimeUnit,
};
use zillion_reader::{MessageDecoder, RejectedMessage, SideTables, WriterSchema};
use zillion_stream::Partition;

use super::columns::RowShape;
use super::row_codec::{self, WrongRow};
use crate::error::Result;
use crate::job::{Job, StreamConfig, StreamRole};

/// A reader of the events of one stream.
#[derive(Debug)]
pub(super) struct EventReader {
    decoder: MessageDecoder,
    unit: TimeUnit,
    /// The columns of the rows of the stream.
    pub(super) shape: RowShape,
    /// The keys that stand for a missing value in each column of the join key.
    missing: Vec<FeatureKey>,
    /// The kind of feedback of the stream; `None` if the stream has rows or impressions.
    pub(super) kind: Option<u16>,
}

/// The events of some messages.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The rows, without the columns of the join key.
    pub(super) batch: Batch,
    /// The event times in milliseconds.
    pub(super) times: Vec<i64>,
    /// The columns of the join key.
    keys: Vec<Vec<FeatureKey>>,
    /// The place behind the last row of each message.
    pub(super) ends: Vec<usize>,
    /// The rejected messages in their order.
    pub(super) rejected: Vec<RejectedMessage>,
    missing: Vec<FeatureKey>,
}

impl EventReader {
    /// Creates the reader of a stream of a job.
    pub(super) fn new(
        job: &Job,
        stream: &StreamConfig,
        sides: &SideTables,
        statistics: &Statistics,
    ) -> Result<Self> {
        let key = job.join.as_ref().map(|join| join.key.as_slice()).unwrap_or_default();
        let name = |column: &str| format!("join.key.{column}");
        let features = key.iter().map(|column| FeatureSpec {
            name: name(column),
            column: column.clone(),
            kind: FeatureKind::Id {
                raw: job
                    .join
                    .as_ref()
                    .map_or_else(Default::default, |join| join.type_of(column, &job.schema)),
                table: TableId(0),
            },
            side: None,
        });
        let mut schema = job.schema.clone();
        match stream.role {
            StreamRole::Rows => {}
            StreamRole::Impressions => {
                schema.features.extend(features);
                schema.labels.clear();
            }
            StreamRole::Feedback => {
                schema = Schema {
                    features: features.collect(),
                    tables: schema.tables.clone(),
                    event_time: schema.event_time.clone(),
                    event_time_unit: schema.event_time_unit,
                    ..Schema::default()
                }
            }
        }
        let label = |name: &String| job.schema.labels.iter().position(|l| l.name == *name);
        let format = stream.decoder_format()?;
        let decoder = MessageDecoder::new(format, &job.data, &schema, sides, statistics)?;
        if stream.role == StreamRole::Impressions {
            // The columns of the key are not stored, but the labels are.
            schema.features.truncate(job.schema.features.len());
            schema.labels.clone_from(&job.schema.labels);
        } else if stream.role == StreamRole::Feedback {
            schema.features.clear();
        }
        Ok(Self {
            decoder,
            shape: RowShape::of(&schema),
            unit: schema.event_time_unit.unwrap_or(TimeUnit::Millisecond),
            missing: match stream.role {
                StreamRole::Rows => Vec::new(),
                _ => key.iter().map(|column| FeatureKey::missing(&name(column))).collect(),
            },
            kind: stream.label.as_ref().and_then(label).map(|label| label as u16),
        })
    }

    /// Returns the id of the schema of a message, if the message names one that is not known.
    #[inline]
    pub(super) fn unknown_schema(&self, message: &[u8]) -> Option<u32> {
        self.decoder.unknown_schema(message)
    }

    /// Adds a schema that messages name by its id.
    pub(super) fn add_schema(&mut self, id: u32, schema: &WriterSchema) {
        self.decoder.add_schema(id, schema);
    }

    /// Decodes messages to events.
    ///
    /// # Errors
    /// Returns an error if the messages together have too many ids.
    pub(super) fn read<'a>(&self, messages: impl IntoIterator<Item = &'a [u8]>) -> Result<Events> {
        let decoded = self.decoder.decode(messages)?;
        let mut batch = decoded.batch;
        // The columns of the key are the last ones.
        let keys = batch.sparse.split_off(batch.sparse.len() - self.missing.len());
        let times = batch.event_time.clone().unwrap_or_default();
        let mut end = 0;
        let ends = decoded.rows.iter().map(|rows| {
            end += rows;
            end
        });
        let ends = ends.collect();
        // The decoder refuses times that are not plausible.
        let times: Vec<i64> =
            times.iter().map(|&time| self.unit.to_ms(time).unwrap_or_default()).collect();
        Ok(Events {
            batch,
            times,
            keys: keys.into_iter().map(|column| column.keys).collect(),
            ends,
            rejected: decoded.rejected,
            missing: self.missing.clone(),
        })
    }
}

impl Events {
    /// Fills `bytes` with the join key of a row. Returns `false` if a column of the key is missing.
    pub(super) fn key(&self, row: usize, bytes: &mut Vec<u8>) -> bool {
        bytes.clear();
        for (column, missing) in self.keys.iter().zip(&self.missing) {
            if column[row] == *missing {
                return false;
            }
            bytes.extend(column[row].0.to_le_bytes());
        }
        true
    }
}

/// The rows of a message that was taken, but whose rows are not all used yet.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Leftovers {
    /// The stream of the message.
    pub(super) stream: usize,
    pub(super) partition: Option<Partition>,
    /// The rows in their order: the join key, the event time in milliseconds, and the encoded row,
    /// both as base64.
    rows: Vec<(String, i64, String)>,
    /// The message, which becomes a dead letter if one of its rows cannot be used; absent in a
    /// state of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<SavedMessage>,
}

/// The message of a [`Leftovers`] as it is stored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMessage {
    offset: u64,
    /// The bytes as base64; empty if the message has a dead letter already.
    bytes: String,
    has_letter: bool,
}

/// A message that was taken, but whose rows are not all used yet.
#[derive(Debug)]
pub(super) struct LeftMessage {
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
    /// Whether the message was written to the dead letters.
    pub(super) has_letter: bool,
}

impl Leftovers {
    /// Returns the message of the rows, if the state has it.
    pub(super) fn message(&self) -> Option<Result<LeftMessage>> {
        let SavedMessage { offset, bytes, has_letter } = self.message.as_ref()?;
        let message = STANDARD.decode(bytes).map_err(|_| WrongRow.into());
        Some(message.map(|bytes| LeftMessage { offset: *offset, bytes, has_letter: *has_letter }))
    }
}

impl EventReader {
    /// Copies the rows of a range, which belong to one message, for a checkpoint.
    pub(super) fn save(
        &self,
        events: &Events,
        (stream, partition): (usize, Partition),
        rows: Range<usize>,
        message: Option<&LeftMessage>,
    ) -> Leftovers {
        let save = |row: usize| {
            let (mut key, mut bytes) = (Vec::new(), Vec::new());
            for column in &events.keys {
                key.extend(column[row].0.to_le_bytes());
            }
            row_codec::encode(&events.batch, &self.shape, row, &mut bytes);
            (STANDARD.encode(key), events.times[row], STANDARD.encode(bytes))
        };
        let message = message.map(|message| SavedMessage {
            offset: message.offset,
            bytes: match message.has_letter {
                true => String::new(),
                false => STANDARD.encode(&message.bytes),
            },
            has_letter: message.has_letter,
        });
        Leftovers { stream, partition: Some(partition), rows: rows.map(save).collect(), message }
    }

    /// Makes events from the rows of a checkpoint.
    ///
    /// # Errors
    /// Returns an error if the rows do not have the columns of the stream.
    pub(super) fn restore(&self, leftovers: &Leftovers) -> Result<Events> {
        let mut batch = self.shape.empty();
        let mut keys = vec![Vec::new(); self.missing.len()];
        let mut times = Vec::new();
        for (key, time, row) in &leftovers.rows {
            let key = STANDARD.decode(key).map_err(|_| WrongRow)?;
            let (words, rest) = key.as_chunks::<8>();
            if words.len() != keys.len() || !rest.is_empty() {
                return Err(WrongRow.into());
            }
            for (column, word) in keys.iter_mut().zip(words) {
                column.push(FeatureKey(u64::from_le_bytes(*word)));
            }
            let row = STANDARD.decode(row).map_err(|_| WrongRow)?;
            row_codec::decode(&mut batch, &self.shape, &row)?;
            times.push(*time);
        }
        let (missing, ends) = (self.missing.clone(), vec![times.len()]);
        Ok(Events { batch, times, keys, ends, rejected: Vec::new(), missing })
    }
}
