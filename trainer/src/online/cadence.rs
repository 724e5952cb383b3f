//! The moments at which versions and checkpoints are due, and at which a batch has waited enough.

use std::time::{Duration, Instant};

use crate::job::OnlineConfig;

/// The clock of a live feed. Its answers become decisions of the log, so that a replay needs no
/// clock.
#[derive(Debug)]
pub(super) struct Cadence {
    linger: Duration,
    publish: Duration,
    publish_rows: u64,
    checkpoint: Duration,
    /// The time at which the batch got its first row.
    first_row: Option<Instant>,
    published: Instant,
    /// The number of batches and of rows since the last version.
    unpublished: (u64, u64),
    checkpointed: Instant,
    /// Whether anything was decided since the last checkpoint.
    has_moved: bool,
}

impl Cadence {
    pub(super) fn new(online: &OnlineConfig) -> Self {
        let now = Instant::now();
        Self {
            linger: Duration::from_secs_f64(online.linger_seconds),
            publish: Duration::from_secs_f64(online.publish_seconds),
            publish_rows: online.publish_rows.map_or(u64::MAX, |rows| rows.get()),
            checkpoint: Duration::from_secs_f64(online.checkpoint_seconds),
            first_row: None,
            published: now,
            unpublished: (0, 0),
            checkpointed: now,
            has_moved: false,
        }
    }

    /// Records the number of rows of the batch, whose wait begins with its first row.
    pub(super) fn note_rows(&mut self, rows: usize) {
        if rows == 0 {
            self.first_row = None;
        } else if self.first_row.is_none() {
            self.first_row = Some(Instant::now());
        }
    }

    /// Records that something was decided.
    pub(super) fn note_decision(&mut self) {
        self.has_moved = true;
    }

    /// Records a batch that was cut.
    pub(super) fn note_cut(&mut self, rows: u64) {
        self.first_row = None;
        self.unpublished.0 += 1;
        self.unpublished.1 += rows;
        self.has_moved = true;
    }

    /// Records that a version was published.
    pub(super) fn note_publish(&mut self) {
        self.published = Instant::now();
        self.unpublished = (0, 0);
    }

    /// Records that the present state waits for a publication, because the last one failed.
    pub(super) fn note_unpublished(&mut self) {
        self.unpublished.0 += 1;
    }

    /// Records that a checkpoint was written.
    pub(super) fn note_checkpoint(&mut self) {
        self.checkpointed = Instant::now();
        self.has_moved = false;
    }

    /// Returns whether the first row of the batch has waited long enough.
    pub(super) fn has_lingered(&self) -> bool {
        self.first_row.is_some_and(|at| at.elapsed() >= self.linger)
    }

    /// Returns whether a version is due.
    pub(super) fn wants_version(&self) -> bool {
        let (batches, rows) = self.unpublished;
        batches > 0 && (rows >= self.publish_rows || self.published.elapsed() >= self.publish)
    }

    /// Returns whether there are batches that no version has.
    pub(super) fn has_unpublished(&self) -> bool {
        self.unpublished.0 > 0
    }

    /// Returns whether a checkpoint is due.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.has_moved && self.checkpointed.elapsed() >= self.checkpoint
    }
}
