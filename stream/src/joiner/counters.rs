//! The counters of a joiner: what it took, what it gave out, and everything that it gave up.

use serde::{Deserialize, Serialize};

/// The numbers of events and rows since the joiner was created. A restored joiner goes on from the
/// numbers of the checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// The impressions that were taken.
    pub impressions: u64,
    /// The feedback that was joined to an impression.
    pub joined_feedback: u64,
    /// The rows that were emitted with feedback, corrections included.
    pub positives: u64,
    /// The rows that were emitted without feedback.
    pub negatives: u64,
    /// The rows that were emitted as corrections of an earlier row.
    pub corrections: u64,
    /// The impressions whose window had passed when they arrived. They are dropped.
    pub late_impressions: u64,
    /// The feedback after the window of its impression, or after its row was emitted. It is
    /// dropped.
    pub late_feedback: u64,
    /// The feedback whose impression did not come before its window had passed.
    pub unmatched_feedback: u64,
    /// The impressions with the key of a pending row. They are dropped.
    pub duplicate_impressions: u64,
    /// The feedback with a key and a kind that are known. It is dropped.
    pub duplicate_feedback: u64,
    /// The rows without feedback that the sampling of negatives left out.
    pub sampled_out: u64,
    /// The pending rows that left before their time because of a bound.
    pub evicted_rows: u64,
    /// The early feedback that was dropped because of the bound of memory.
    pub evicted_feedback: u64,
    /// The events without a time. They are refused.
    pub refused_missing: u64,
    /// The events with a time before 1970. They are refused.
    pub refused_negative: u64,
    /// The events with a time too far ahead. They are refused.
    pub refused_ahead: u64,
    /// The impressions whose row is too large for a segment. They are refused.
    pub refused_large: u64,
    /// The events whose weight or value is not a usable number. They are refused.
    pub refused_number: u64,
}
