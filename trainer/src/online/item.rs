//! The items that a feed hands over, in the order of the log of decisions.

use std::sync::Arc;

use zillion_feature::{Batch, LookupPlan};
use zillion_stream::{CutReason, EventTime};

use super::newest::NewestRows;
use super::snapshot::SnapshotLink;
use super::status::FeedStatus;

/// One item of a feed.
#[derive(Debug)]
pub(crate) enum Item {
    /// A batch to train on.
    Batch(Box<FedBatch>),
    /// A version is published after the last batch.
    Publish(Box<FedVersion>),
    /// A checkpoint is written after the last batch. The feed has written its state.
    Checkpoint(SnapshotLink),
    /// The present state of the feed, about which nothing is decided.
    Status(Box<FeedStatus>),
    /// The feed has ended, because it was asked to stop.
    End,
}

/// A version that the feed wants.
#[derive(Debug)]
pub(crate) struct FedVersion {
    /// The messages of the parity rows.
    pub(crate) newest: NewestRows,
    pub(crate) repetition: Repetition,
}

/// The place of a version in a log that is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    /// The version was decided now, and nothing is repeated.
    New,
    /// The version is repeated, and the log has a later one. This one may not exist all the same:
    /// the feed decides before the run has judged and published.
    Earlier,
    /// The version is repeated, and it is the last one of the log.
    Last,
}

/// A batch of a stream.
#[derive(Debug)]
pub(crate) struct FedBatch {
    /// The number of the batch, counted from 1 over the life of the log.
    pub(crate) number: u64,
    pub(crate) batch: Batch,
    /// The lookup plan of the batch.
    pub(crate) plan: Arc<LookupPlan>,
    /// For each row, the weight of an earlier negative that the row takes back; `None` if no row
    /// takes one back.
    pub(crate) cancels: Option<Vec<f32>>,
    /// The reason for the end of the batch.
    pub(crate) reason: CutReason,
    /// The watermark at the end of the batch.
    pub(crate) watermark: Option<EventTime>,
}
