//! The state of a feed at one moment, for people, scripts and metrics.

use serde::{Deserialize, Serialize};
use zillion_stream::joiner::Counters;
use zillion_stream::{Joiner, Partition};

/// The number of lost feedback events from which a join can be called wrong.
const FEW_FEEDBACK: u64 = 100;
/// The number of times that lost feedback must outnumber joined feedback.
const MOST_LOST: u64 = 9;

/// The state of a feed at one moment, for metrics and for `stream status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FeedStatus {
    /// The partitions in the order of the streams.
    pub partitions: Vec<PartitionStatus>,
    /// The watermark in milliseconds since 1970; `None` before there is one.
    pub watermark_ms: Option<i64>,
    /// The number of batches so far.
    pub batches: u64,
    /// The number of rows of these batches.
    pub rows: u64,
    /// The number of messages that were taken.
    pub messages: u64,
    /// The number of rejected messages.
    pub rejected: u64,
    /// The number of rows that were left out because of their time.
    pub refused_times: u64,
    /// The number of batches that ended because they were full.
    pub full: u64,
    /// The number of batches that ended because a row had waited long enough.
    pub lingered: u64,
    /// Whether the feed is paused.
    pub is_paused: bool,
    /// Whether the feed repeats the decisions of its log.
    pub is_replaying: bool,
    /// The state of the join; `None` without a join.
    pub join: Option<JoinStatus>,
}

/// The state of the join of impressions and feedback.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinStatus {
    /// The number of rows that wait for feedback.
    pub pending_rows: u64,
    /// The size of the files of pending rows in bytes.
    pub disk_bytes: u64,
    /// The memory of the joiner in bytes.
    pub memory_bytes: u64,
    /// The number of feedback values without an impression.
    pub early_feedback: u64,
    /// The counts of everything that was taken, emitted and given up.
    pub counters: Counters,
}

impl JoinStatus {
    /// Returns the problem of a join in which hardly any feedback finds its impression, or `None`.
    pub(crate) fn find_problem(&self) -> Option<String> {
        let Counters { joined_feedback: joined, unmatched_feedback, late_feedback, .. } =
            self.counters;
        let lost = unmatched_feedback + late_feedback;
        let is_wrong = lost >= FEW_FEEDBACK && lost / MOST_LOST >= joined.max(1);
        is_wrong.then(|| {
            format!(
                "{joined} feedback events were joined, but {unmatched_feedback} found no impression \
                 and {late_feedback} came after its window, so nearly all labels are negative; \
                 compare the columns of `join.key` in both streams, and `join.wait_seconds` with \
                 the delay of the feedback"
            )
        })
    }

    /// Returns the state of a joiner.
    pub(super) fn of(joiner: &Joiner) -> Self {
        let extent = joiner.extent();
        Self {
            pending_rows: extent.rows,
            disk_bytes: extent.disk_bytes,
            memory_bytes: extent.memory_bytes,
            early_feedback: extent.early_feedback,
            counters: *joiner.counters(),
        }
    }
}

/// The place of a feed in one partition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PartitionStatus {
    /// The numbers of the stream and of the partition, as in the log and in the dead letters;
    /// absent in a status of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Partition>,
    /// The name of the stream.
    pub stream: String,
    /// The name of the partition.
    pub partition: String,
    /// The offset of the next message.
    pub next: u64,
    /// The distance to the end of the partition, in the unit of its offsets.
    pub lag: u64,
    /// The time of the latest event in milliseconds since 1970; `None` before the first one.
    pub newest_ms: Option<i64>,
    /// Whether the watermark does not wait for the partition.
    pub is_idle: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_that_loses_nearly_all_feedback_is_a_problem() {
        let status = |joined_feedback, unmatched_feedback, late_feedback| JoinStatus {
            pending_rows: 0,
            disk_bytes: 0,
            memory_bytes: 0,
            early_feedback: 0,
            counters: Counters {
                joined_feedback,
                unmatched_feedback,
                late_feedback,
                ..Counters::default()
            },
        };
        assert_eq!(status(0, 99, 0).find_problem(), None, "too few to judge");
        assert_eq!(status(100, 100, 0).find_problem(), None);
        let problem = status(0, 100, 0).find_problem().unwrap();
        assert!(problem.contains("`join.key`"), "{problem}");
        let problem = status(10, 0, 500).find_problem().unwrap();
        assert!(problem.contains("500 came after its window"), "{problem}");
    }
}
