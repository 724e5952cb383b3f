//! The rows of a stream become batches, with or without a join.

use std::path::Path;

use serde::{Deserialize, Serialize};
use zillion_device::Files;
use zillion_feature::Batch;
use zillion_stream::joiner::{
    Feedback, FeedbackValue, Impression, JoinedRow, Outcome, Reason, Refusal,
};
use zillion_stream::watermark::{RefusedTime, TimeRules, WatermarkState};
use zillion_stream::{EventTime, Joiner, Partition, Watermarks};

use super::columns::{RowShape, append_rows, trim};
use super::events::Events;
use super::row_codec::{self, set_last_label};
use super::status::JoinStatus;
use crate::error::Result;

/// The batch that is being filled, and the rows that wait to enter it.
#[derive(Debug)]
pub(super) struct Assembler {
    shape: RowShape,
    /// The largest number of rows of a batch.
    most: usize,
    batch: Batch,
    /// The weight of the negative that each row of the batch takes back.
    cancels: Vec<f32>,
    way: Way,
    key: Vec<u8>,
    row: Vec<u8>,
}

/// The way of a row into a batch.
#[derive(Debug)]
enum Way {
    /// Rows enter in the order of their arrival.
    Direct(Watermarks),
    /// Impressions wait for their feedback.
    Joined(Box<Joiner>),
}

/// The part of an [`Assembler`] that a checkpoint stores. Its joiner is in a folder beside it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AssemblerState {
    watermarks: Option<WatermarkState>,
}

/// A batch that has ended.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) batch: Batch,
    pub(super) cancels: Option<Vec<f32>>,
}

/// A row that cannot be used.
#[derive(Debug)]
pub(super) struct RefusedRow {
    /// The place of the row among its events.
    pub(super) row: usize,
    /// The reason, and the remedy.
    pub(super) reason: &'static str,
    /// Whether the event time is the reason.
    pub(super) is_time: bool,
}

impl Assembler {
    /// Creates an assembler of batches of at most `most` rows that come from a joiner.
    pub(super) fn joined(shape: RowShape, most: usize, joiner: Joiner) -> Self {
        Self::new(shape, most, Way::Joined(Box::new(joiner)))
    }

    fn new(shape: RowShape, most: usize, way: Way) -> Self {
        let batch = shape.empty();
        let (key, row) = (Vec::new(), Vec::new());
        Self { shape, most, batch, cancels: Vec::new(), way, key, row }
    }

    /// Creates the assembler without a join from the state of a checkpoint.
    pub(super) fn restore(
        shape: RowShape,
        most: usize,
        rules: TimeRules,
        state: &AssemblerState,
    ) -> Self {
        let watermarks = state.watermarks.clone().unwrap_or_default();
        Self::new(shape, most, Way::Direct(Watermarks::restore(rules, watermarks)))
    }

    /// Writes the joiner to the folder `target` and returns the rest of the state. The batch must
    /// be empty.
    pub(super) fn checkpoint(&mut self, target: &Path) -> Result<AssemblerState> {
        debug_assert_eq!(self.batch.rows, 0, "a checkpoint lies between two batches");
        match &mut self.way {
            Way::Direct(watermarks) => {
                Ok(AssemblerState { watermarks: Some(watermarks.state().clone()) })
            }
            Way::Joined(joiner) => {
                joiner.checkpoint(target)?;
                Ok(AssemblerState { watermarks: None })
            }
        }
    }

    /// Returns the number of rows of the batch so far.
    pub(super) fn rows(&self) -> usize {
        self.batch.rows
    }

    /// Returns whether the batch has all its rows.
    pub(super) fn is_full(&self) -> bool {
        self.batch.rows >= self.most
    }

    /// Returns the number of rows after which the batch is full, or 1 if the number of rows that a
    /// message gives is not known in advance.
    pub(super) fn room(&self) -> usize {
        match self.way {
            Way::Direct(_) => self.most.saturating_sub(self.batch.rows),
            Way::Joined(_) => 1,
        }
    }

    /// Returns the watermarks of all partitions.
    pub(super) fn watermarks(&self) -> &Watermarks {
        match &self.way {
            Way::Direct(watermarks) => watermarks,
            Way::Joined(joiner) => joiner.watermarks(),
        }
    }

    /// Sets the rules of event times that hold from now on. Rows that become due by them follow.
    pub(super) fn set_rules(&mut self, rules: TimeRules) -> Result<()> {
        match &mut self.way {
            Way::Direct(watermarks) => watermarks.set_rules(rules),
            Way::Joined(joiner) => joiner.set_rules(rules),
        }
        self.drain()
    }

    /// Returns the state of the joiner, if there is one.
    pub(super) fn join_status(&self) -> Option<JoinStatus> {
        match &self.way {
            Way::Direct(_) => None,
            Way::Joined(joiner) => Some(JoinStatus::of(joiner)),
        }
    }

    /// Adds a partition, for which the watermark waits.
    pub(super) fn add_partition(&mut self, partition: Partition) -> Result<()> {
        match &mut self.way {
            Way::Direct(watermarks) => watermarks.add(partition),
            Way::Joined(joiner) => joiner.add_partition(partition)?,
        }
        self.drain()
    }

    /// Applies the decision that a partition is idle, or that it has come back.
    pub(super) fn set_idle(&mut self, partition: Partition, is_idle: bool) -> Result<()> {
        match (&mut self.way, is_idle) {
            (Way::Direct(watermarks), true) => watermarks.set_idle(partition)?,
            (Way::Direct(watermarks), false) => watermarks.set_back(partition)?,
            (Way::Joined(joiner), true) => joiner.set_idle(partition)?,
            (Way::Joined(joiner), false) => joiner.set_back(partition)?,
        }
        Ok(())
    }

    /// Moves the rows that the joiner has due into the batch, until the batch is full.
    pub(super) fn drain(&mut self) -> Result<()> {
        let Way::Joined(joiner) = &mut self.way else { return Ok(()) };
        while self.batch.rows < self.most {
            let Some(row) = joiner.next_row()? else { break };
            push_joined(&mut self.batch, &self.shape, &row)?;
            self.cancels.push(row.cancels);
        }
        Ok(())
    }

    /// Gives the rows `from..to` of some events to the batch or to the joiner, until the batch is
    /// full. Returns the place of the first row that was not given. Rows that cannot be used are
    /// added to `refused`.
    pub(super) fn give(
        &mut self,
        partition: Partition,
        kind: Option<u16>,
        events: &Events,
        (from, to): (usize, usize),
        refused: &mut Vec<RefusedRow>,
    ) -> Result<usize> {
        match self.way {
            Way::Direct(_) => self.give_directly(partition, events, (from, to), refused),
            Way::Joined(_) => self.give_to_joiner(partition, kind, events, (from, to), refused),
        }
    }

    fn give_directly(
        &mut self,
        partition: Partition,
        events: &Events,
        (from, to): (usize, usize),
        refused: &mut Vec<RefusedRow>,
    ) -> Result<usize> {
        let Way::Direct(watermarks) = &mut self.way else { return Ok(from) };
        // Neighbouring rows are copied together.
        let mut start = from;
        for row in from..to {
            if self.batch.rows + (row - start) >= self.most {
                append_rows(&mut self.batch, &events.batch, start..row);
                return Ok(row);
            }
            match watermarks.check(partition, Some(EventTime(events.times[row])))? {
                Ok(time) => watermarks.advance(partition, time)?,
                Err(time) => {
                    append_rows(&mut self.batch, &events.batch, start..row);
                    start = row + 1;
                    refused.push(RefusedRow::of_time(row, time));
                }
            }
        }
        append_rows(&mut self.batch, &events.batch, start..to);
        Ok(to)
    }

    fn give_to_joiner(
        &mut self,
        partition: Partition,
        kind: Option<u16>,
        events: &Events,
        (from, to): (usize, usize),
        refused: &mut Vec<RefusedRow>,
    ) -> Result<usize> {
        for row in from..to {
            if self.is_full() {
                return Ok(row);
            }
            if !events.key(row, &mut self.key) {
                let reason = "a column of `join.key` is missing; write it into every message";
                refused.push(RefusedRow { row, reason, is_time: false });
                continue;
            }
            let Way::Joined(joiner) = &mut self.way else { return Ok(row) };
            let time = Some(EventTime(events.times[row]));
            let outcome = match kind {
                Some(kind) => {
                    let value = FeedbackValue { kind, value: 1.0 };
                    joiner.add_feedback(partition, Feedback { key: &self.key, time, value })?
                }
                None => {
                    self.row.clear();
                    row_codec::encode(&events.batch, &self.shape, row, &mut self.row);
                    let weight = events.batch.weight.as_ref().map_or(1.0, |weights| weights[row]);
                    let impression = Impression { key: &self.key, time, row: &self.row, weight };
                    joiner.add_impression(partition, impression)?
                }
            };
            if let Outcome::Refused(refusal) = outcome {
                refused.push(RefusedRow::of(row, refusal));
            }
            self.drain()?;
        }
        Ok(to)
    }

    /// Ends the batch and begins the next one.
    pub(super) fn cut(&mut self) -> Cut {
        let mut batch = std::mem::replace(&mut self.batch, self.shape.empty());
        trim(&mut batch);
        let cancels = std::mem::take(&mut self.cancels);
        let cancels = Some(cancels).filter(|all| all.iter().any(|&weight| weight != 0.0));
        Cut { batch, cancels }
    }
}

impl RefusedRow {
    fn of_time(row: usize, time: RefusedTime) -> Self {
        let reason = match time {
            RefusedTime::Missing => "the event has no time; write its time",
            RefusedTime::Negative => "the time of the event is before 1970; correct the clock",
            _ => {
                "the event is too far ahead of the other events; correct the clock, or raise \
                 `online.max_ahead_seconds`"
            }
        };
        Self { row, reason, is_time: true }
    }

    fn of(row: usize, refusal: Refusal) -> Self {
        let reason = match refusal {
            Refusal::Time(time) => return Self::of_time(row, time),
            Refusal::Large => {
                "the row is larger than a segment of the join; raise `join.max_disk_bytes` and \
                 `join.max_memory_bytes`"
            }
            _ => "the weight of the row cannot be used; write a finite number of at least 0",
        };
        Self { row, reason, is_time: false }
    }
}

/// Appends a row of the joiner to a batch. Its feedback becomes labels. A correction is about one
/// label only, so that its other labels are unknown.
fn push_joined(batch: &mut Batch, shape: &RowShape, row: &JoinedRow<'_>) -> Result<()> {
    row_codec::decode(batch, shape, row.row)?;
    let is_correction = row.reason == Reason::Correction;
    for (kind, column) in batch.labels.iter_mut().enumerate() {
        let has_come = row.feedback.iter().any(|value| usize::from(value.kind) == kind);
        let value = if has_come { 1.0 } else { 0.0 };
        set_last_label(column, value, has_come || !is_correction);
    }
    if let Some(weight) = batch.weight.as_mut().and_then(|weights| weights.last_mut()) {
        *weight = row.weight;
    }
    Ok(())
}

/// Opens the joiner of a run, at a checkpoint if there is one.
pub(super) fn open_joiner(
    checkpoint: Option<&Path>,
    folder: &Path,
    files: &Files,
    settings: zillion_stream::joiner::Settings,
) -> Result<Joiner> {
    Ok(match checkpoint {
        Some(source) => Joiner::restore(source, folder, files.clone(), settings)?,
        None => Joiner::create(folder, files.clone(), settings)?,
    })
}
