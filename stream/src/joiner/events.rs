//! The inputs of a joiner, its answers to them, and the rows that it emits.

use super::feedback::FeedbackValue;
use crate::partition::EventTime;
use crate::watermark::RefusedTime;

/// An impression: an item was shown, and feedback may follow.
#[derive(Clone, Copy, Debug)]
pub struct Impression<'a> {
    /// The bytes that the impression shares with its feedback, for example request and item.
    pub key: &'a [u8],
    /// The time of the impression; `None` if the event has none.
    pub time: Option<EventTime>,
    /// The encoded row. The joiner does not read it.
    pub row: &'a [u8],
    /// The weight of the row, a finite number of at least 0. Weights of up to 10^23 are always
    /// accepted.
    pub weight: f32,
}

/// Feedback: an event that belongs to an impression.
#[derive(Clone, Copy, Debug)]
pub struct Feedback<'a> {
    /// The bytes that the feedback shares with its impression.
    pub key: &'a [u8],
    /// The time of the feedback; `None` if the event has none.
    pub time: Option<EventTime>,
    /// The kind and the value, a finite number.
    pub value: FeedbackValue,
}

/// The use that the joiner makes of an event. Everything but `Taken` and `Early` is counted as
/// given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a refused event belongs in the dead letters"]
pub enum Outcome {
    /// The impression is pending, or the feedback was joined to its impression.
    Taken,
    /// The feedback waits for its impression.
    Early,
    /// The event came after its window. It is dropped.
    Late,
    /// The key, or the key with this kind, is known. The event is dropped.
    Duplicate,
    /// The feedback came before its impression, and the bound of early feedback is full of later
    /// feedback. It is dropped.
    Evicted,
    /// The event is wrong in itself. It changes nothing, the watermark included.
    Refused(Refusal),
}

/// The reason why an event is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The event has an unusable time.
    Time(RefusedTime),
    /// The row of the impression is larger than a segment.
    Large,
    /// The weight is negative, the weight or the value is not finite, or the weight is so large
    /// that sampling and a correction could make it infinite.
    Number,
}

/// The reason why a row is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The window of the impression has passed.
    Window,
    /// The impression has just arrived, and rows are emitted at once.
    Now,
    /// Feedback came after the row was emitted.
    Correction,
    /// The pending rows have reached a bound, and this row was the oldest.
    Bound,
    /// The stream has ended.
    End,
}

/// A row that the joiner emits.
///
/// A row without feedback is a negative. A correction concerns only the kinds in `feedback`: the
/// labels of other kinds are not learned from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JoinedRow<'a> {
    /// The encoded row of the impression.
    pub row: &'a [u8],
    /// The time of the impression.
    pub time: EventTime,
    /// The weight, with the correction for sampled negatives.
    pub weight: f32,
    /// The weight of the earlier negative that a correction takes back; 0 in all other rows.
    /// [`correction_weight`](super::correction_weight) makes one weight of both.
    pub cancels: f32,
    /// The feedback in the order of kinds.
    pub feedback: &'a [FeedbackValue],
    /// The reason why the row is emitted.
    pub reason: Reason,
}
