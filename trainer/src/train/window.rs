//! The rows that were trained on since the last step report.

use std::time::{Duration, Instant};

use zillion_feature::{Batch, Cursor};

use crate::job::Job;
use crate::observer::StepReport;
use crate::recent_auc::RecentTasks;

/// The shortest time between two step reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// The loss and the AUCs of the rows that were trained on since the last figures.
pub(super) struct RecentFigures {
    /// The mean loss of these rows.
    pub(super) loss: f64,
    /// The AUC of the most recent predictions of each task.
    pub(super) aucs: Vec<(String, Option<f64>)>,
}

/// The sums over the rows since the last step report, and the most recent predictions.
pub(super) struct Window {
    epoch_rows: Option<u64>,
    /// The position in the order of rows at the last report.
    position: u64,
    began: Instant,
    rows: u64,
    loss_sum: f64,
    recent: RecentTasks,
}

impl Window {
    pub(super) fn new(epoch_rows: Option<u64>, cursor: Cursor, job: &Job) -> Self {
        Self {
            epoch_rows,
            position: cursor.row,
            began: Instant::now(),
            rows: 0,
            loss_sum: 0.0,
            recent: RecentTasks::new(job),
        }
    }

    /// Adds the number of rows and the mean loss of a batch.
    pub(super) fn add(&mut self, rows: u64, loss: f64) {
        self.rows += rows;
        self.loss_sum += loss * rows as f64;
    }

    /// Adds the predictions for a batch.
    pub(super) fn add_predictions(&mut self, logits: &[&[f32]], batch: &Batch) {
        self.recent.push(batch, logits);
    }

    /// Returns the mean loss and the AUCs of the rows since the last report, or `None` if there are
    /// no such rows.
    pub(super) fn rest(&self) -> Option<RecentFigures> {
        let loss = self.loss_sum / self.rows as f64;
        (self.rows > 0).then(|| RecentFigures { loss, aucs: self.recent.aucs() })
    }

    /// Returns a report if the last one is old enough and rows were trained on since.
    pub(super) fn report(&mut self, step: u64, cursor: Cursor) -> Option<StepReport> {
        let elapsed = self.began.elapsed();
        if elapsed < REPORT_INTERVAL {
            return None;
        }
        if self.rows == 0 {
            // Nothing was learned, as in a pause of a stream, so there is no loss to report.
            (self.position, self.began) = (cursor.row, Instant::now());
            return None;
        }
        let rate = self.rows as f64 / elapsed.as_secs_f64();
        // Rows that are left out count as passed, although they take no time.
        let passed = (cursor.row - self.position) as f64 / elapsed.as_secs_f64();
        let left = self.epoch_rows.map(|n| n.saturating_sub(cursor.row) as f64 / passed);
        let report = StepReport {
            step,
            cursor,
            epoch_rows: self.epoch_rows,
            loss: self.loss_sum / self.rows as f64,
            aucs: self.recent.aucs(),
            samples_per_second: rate,
            eta: left.and_then(|s| Duration::try_from_secs_f64(s).ok()),
        };
        self.position = cursor.row;
        self.began = Instant::now();
        self.rows = 0;
        self.loss_sum = 0.0;
        Some(report)
    }
}
