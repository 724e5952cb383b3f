//! The state of a joiner, and the rows that leave it.

use std::path::Path;

use zillion_device::Files;

use super::counters::Counters;
use super::error::{JoinError, JoinResult};
use super::events::{JoinedRow, Reason};
use super::feedback::{FeedbackStore, FeedbackValue};
use super::index::ROW_BYTES;
use super::key::Key;
use super::pending::{self, Pending, Sizes};
use super::record::HEAD;
use super::settings::{Emit, SamplingCorrection, Settings};
use super::weights::Sampling;
use crate::partition::EventTime;
use crate::watermark::Watermarks;

/// The present extent of a joiner, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The number of pending rows.
    pub rows: u64,
    /// The bytes of the records of pending rows.
    pub row_bytes: u64,
    /// The size of all segments in bytes.
    pub disk_bytes: u64,
    /// The number of bytes that the bound of memory counts.
    pub memory_bytes: u64,
    /// The number of feedback values of pending rows.
    pub joined_feedback: u64,
    /// The number of feedback values without an impression.
    pub early_feedback: u64,
}

/// A joiner of impressions and feedback.
#[derive(Debug)]
pub struct Joiner {
    pub(super) settings: Settings,
    pub(super) sampling: Sampling,
    pub(super) files: Files,
    pub(super) watermarks: Watermarks,
    pub(super) pending: Pending,
    pub(super) feedback: FeedbackStore,
    pub(super) counters: Counters,
    /// The sequence number of the next impression.
    pub(super) sequence: u64,
    /// Whether the stream has ended, so that every pending row is due.
    pub(super) is_ending: bool,
    /// Whether all rows of the last input were taken.
    pub(super) is_drained: bool,
    /// Whether an error may have left a change half done.
    pub(super) has_failed: bool,
    /// The row that the last input emits before all others. Its bytes are in `record`, and its
    /// feedback is in `values`.
    pub(super) immediate: Option<Emission>,
    /// The record of the row that is being emitted.
    pub(super) record: Vec<u8>,
    /// The feedback of the row that is being emitted.
    pub(super) values: Vec<FeedbackValue>,
}

/// A row to emit, without its bytes and its feedback.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emission {
    pub(super) time: i64,
    pub(super) weight: f32,
    pub(super) cancels: f32,
    pub(super) reason: Reason,
}

impl Joiner {
    /// Creates a joiner without pending rows. Its segments will be in `folder`, which belongs to
    /// the joiner alone. Leftovers of an earlier joiner in this folder are removed.
    ///
    /// # Errors
    /// Returns an error if a setting is unusable, or if the folder cannot be prepared.
    pub fn create(folder: impl AsRef<Path>, files: Files, settings: Settings) -> JoinResult<Self> {
        settings.validate()?;
        pending::prepare_folder(folder.as_ref(), &files)?;
        let watermarks = Watermarks::new(settings.times);
        Ok(Self::empty(folder.as_ref(), files, settings, watermarks, 0))
    }

    pub(super) fn empty(
        folder: &Path,
        files: Files,
        settings: Settings,
        watermarks: Watermarks,
        next_segment: u64,
    ) -> Self {
        let corrects_weight = settings.negatives.correction == SamplingCorrection::Weight;
        let sizes = Sizes {
            segment_bytes: settings.segment_bytes(),
            max_disk_bytes: settings.bounds.max_disk_bytes,
        };
        Self {
            settings,
            sampling: Sampling::new(settings.negatives.keep, corrects_weight),
            watermarks,
            pending: Pending::new(folder, files.clone(), sizes, next_segment),
            files,
            feedback: FeedbackStore::default(),
            counters: Counters::default(),
            sequence: 0,
            is_ending: false,
            is_drained: true,
            has_failed: false,
            immediate: None,
            record: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Returns the next row to emit, or `None` if the last input makes no further row due.
    ///
    /// # Errors
    /// Returns an error if a segment cannot be read or removed, or is not as it was written.
    pub fn next_row(&mut self) -> JoinResult<Option<JoinedRow<'_>>> {
        if self.has_failed {
            return Err(JoinError::Stopped);
        }
        let next = match self.immediate.take() {
            Some(emission) => Some(emission),
            None => {
                let next = self.next_due();
                self.watch(next)?
            }
        };
        let Some(Emission { time, weight, cancels, reason }) = next else {
            self.is_drained = true;
            self.is_ending = false;
            return Ok(None);
        };
        let row = &self.record[HEAD..];
        let time = EventTime(time);
        Ok(Some(JoinedRow { row, time, weight, cancels, feedback: &self.values, reason }))
    }

    /// Returns the numbers of everything that was taken, emitted and given up.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the watermarks of the partitions and of the join.
    pub fn watermarks(&self) -> &Watermarks {
        &self.watermarks
    }

    /// Returns the present extent.
    pub fn extent(&self) -> Extent {
        let (joined_feedback, early_feedback) = self.feedback.counts();
        Extent {
            rows: self.pending.rows(),
            row_bytes: self.pending.live_bytes(),
            disk_bytes: self.pending.disk_bytes(),
            memory_bytes: self.memory_bytes(),
            joined_feedback,
            early_feedback,
        }
    }

    /// Remembers that an error may have left a change half done.
    pub(super) fn watch<T>(&mut self, result: JoinResult<T>) -> JoinResult<T> {
        self.has_failed |= result.is_err();
        result
    }

    /// Returns the next row that is due or beyond a bound. Rows that were emitted before leave
    /// silently.
    fn next_due(&mut self) -> JoinResult<Option<Emission>> {
        while let Some(oldest) = self.pending.oldest() {
            let reason = if self.has_passed(self.window_end(oldest.time)) {
                Reason::Window
            } else if self.is_ending {
                Reason::End
            } else if self.is_beyond_bounds() {
                self.counters.evicted_rows += 1;
                Reason::Bound
            } else {
                return Ok(None);
            };
            let Some((head, has_feedback)) = self.pending.pop_oldest(&mut self.record)? else {
                return Ok(None);
            };
            self.values.clear();
            if has_feedback {
                self.feedback.take(head.key, &mut self.values);
            }
            if self.settings.emit != Emit::Window {
                continue;
            }
            let emission = self.emission(head.key, head.rank.time, head.weight, reason);
            if emission.is_some() {
                return Ok(emission);
            }
        }
        Ok(None)
    }

    /// Makes the emission of a row whose feedback is in `values`; `None` if the row is a negative
    /// that the sampling leaves out.
    pub(super) fn emission(
        &mut self,
        key: Key,
        time: i64,
        weight: f32,
        reason: Reason,
    ) -> Option<Emission> {
        let weight = if !self.values.is_empty() {
            self.counters.positives += 1;
            weight
        } else if let Some(weight) = self.sampling.negative_weight(key, weight) {
            self.counters.negatives += 1;
            weight
        } else {
            self.counters.sampled_out += 1;
            return None;
        };
        Some(Emission { time, weight, cancels: 0.0, reason })
    }

    /// Returns the last moment of the window of an impression. Feedback of this moment counts.
    pub(super) fn window_end(&self, time: i64) -> i64 {
        time.saturating_add_unsigned(self.settings.wait)
    }

    /// Returns whether no further event at `time` or before it is expected. The mark of a partition
    /// itself may still come: an event may be late by exactly the allowed disorder.
    pub(super) fn has_passed(&self, time: i64) -> bool {
        self.watermarks.watermark().is_some_and(|watermark| watermark.0 > time)
    }

    fn memory_bytes(&self) -> u64 {
        self.settings.fixed_bytes() + self.pending.rows() * ROW_BYTES + self.feedback.bytes()
    }

    fn is_beyond_bounds(&self) -> bool {
        let bounds = &self.settings.bounds;
        self.pending.rows() > bounds.max_rows
            || self.pending.live_bytes() > bounds.max_disk_bytes / 2
            || self.memory_bytes() > bounds.max_memory_bytes
    }
}
