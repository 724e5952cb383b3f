//! The state of the streams that a resident run shows: in its file of status, and in warnings.

use std::path::Path;

use zillion_device::Files;

use super::super::Run;
use crate::observer::Observer;
use crate::online::FeedStatus;
use crate::online_report::OnlineReport;
use crate::online_status::{StatusWriter, StreamStatus};

/// The last state that the feed has handed over, and what was said about it.
#[derive(Default)]
pub(super) struct StreamState {
    writer: StatusWriter,
    last: Option<StreamStatus>,
    /// Whether the run has warned that the join loses nearly all feedback.
    has_warned: bool,
}

impl StreamState {
    /// Takes the state of the feed, and the seconds for which versions are held. Writes the file if
    /// it is old enough.
    pub(super) fn take(
        &mut self,
        run: &Run,
        report: &OnlineReport,
        (feed, held_seconds): (FeedStatus, Option<f64>),
        observer: &mut dyn Observer,
    ) {
        let problem = feed.join.as_ref().and_then(|join| join.find_problem());
        if let Some(problem) = problem.filter(|_| !self.has_warned) {
            observer.note(&format!("the join: {problem}"));
            self.has_warned = true;
        }
        let status = StreamStatus {
            at_ms: 0,
            step: run.position.step,
            version: report.published,
            held_seconds,
            feed,
        };
        self.writer.write_if_due(&run.options.files, &report.folder, status.clone());
        self.last = Some(status);
    }

    /// Writes the last state at the end of a run.
    pub(super) fn write_last(&mut self, files: &Files, folder: &Path) {
        if let Some(status) = self.last.take() {
            self.writer.write(files, folder, status);
        }
    }
}
