//! The events of one stream: rows, impressions or feedback that its messages hold.

use zillion_feature::{
    Batch, FeatureKey, FeatureKind, FeatureSpec, Schema, Statistics, TableId, TimeUnit,
};
use zillion_reader::{MessageDecoder, RejectedMessage, SideTables, WriterSchema};

use super::columns::RowShape;
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
    pub(super) missing: Vec<FeatureKey>,
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
    pub(super) keys: Vec<Vec<FeatureKey>>,
    /// The place behind the last row of each message.
    pub(super) ends: Vec<usize>,
    /// The rejected messages in their order.
    pub(super) rejected: Vec<RejectedMessage>,
    pub(super) missing: Vec<FeatureKey>,
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
            time: None,
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
                    event_date_order: schema.event_date_order,
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
