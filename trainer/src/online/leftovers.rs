//! The rows of a message that was taken when a checkpoint was written, but that are not all used.

use std::ops::Range;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde::{Deserialize, Serialize};
use zillion_feature::FeatureKey;
use zillion_stream::Partition;

use super::events::{EventReader, Events};
use super::row_codec::{self, WrongRow};
use crate::error::Result;

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
