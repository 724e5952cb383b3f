//! The metrics of the log of requests.

use prometheus::{
    IntCounterVec, IntGauge, Registry, register_int_counter_vec_with_registry,
    register_int_gauge_with_registry,
};

/// The series of the log of requests.
#[derive(Clone, Debug)]
pub(crate) struct LogMetrics {
    requests: IntCounterVec,
    rows: IntCounterVec,
    bytes: IntCounterVec,
    files: IntCounterVec,
    failures: IntCounterVec,
    disk_bytes: IntGauge,
    queue_bytes: IntGauge,
}

/// The outcome of a sampled request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logged {
    /// The lines were handed over to be written.
    Queued,
    /// The queue had no room.
    QueueFull,
    /// A line is longer than a trainer should take.
    TooLong,
    /// The version or the request does not fit the stream.
    Unfit,
    /// The log has ended, because the server stops.
    Ended,
}

impl Logged {
    const ALL: [Self; 5] = [Self::Queued, Self::QueueFull, Self::TooLong, Self::Unfit, Self::Ended];

    fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::QueueFull => "queue_full",
            Self::TooLong => "too_long",
            Self::Unfit => "unfit",
            Self::Ended => "ended",
        }
    }
}

/// The outcome of the rows that were handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOutcome {
    /// The lines are in a file.
    Written,
    /// The disk did not take the lines.
    Failed,
    /// The bound of bytes on the disk left no room for the lines.
    NoRoom,
}

impl RowOutcome {
    const ALL: [Self; 3] = [Self::Written, Self::Failed, Self::NoRoom];

    fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Failed => "failed",
            Self::NoRoom => "no_room",
        }
    }
}

/// The end of a file that was complete or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileEvent {
    /// The file is complete, so that a trainer sees it.
    Completed,
    /// The file was removed, because the log has reached its bound.
    Removed,
}

impl FileEvent {
    const ALL: [Self; 2] = [Self::Completed, Self::Removed];

    fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Removed => "removed",
        }
    }
}

impl LogMetrics {
    /// Registers the series.
    ///
    /// # Errors
    /// Returns an error if the registry has series of these names already.
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            register_int_counter_vec_with_registry!(name, help, labels, registry)
        };
        let gauge =
            |name: &str, help: &str| register_int_gauge_with_registry!(name, help, registry);
        Ok(Self {
            requests: counter(
                "zillion_serving_request_log_requests_total",
                "Requests of the sample of the request log, by outcome.",
                &["model", "outcome"],
            )?,
            rows: counter(
                "zillion_serving_request_log_rows_total",
                "Rows that were handed over to the request log, by outcome.",
                &["model", "outcome"],
            )?,
            bytes: counter(
                "zillion_serving_request_log_bytes_total",
                "Bytes written to the request log.",
                &["model"],
            )?,
            files: counter(
                "zillion_serving_request_log_files_total",
                "Files of the request log that were completed, or removed at its bound.",
                &["model", "event"],
            )?,
            failures: counter(
                "zillion_serving_request_log_failures_total",
                "Operations of the request log that the disk refused.",
                &["model"],
            )?,
            disk_bytes: gauge(
                "zillion_serving_request_log_disk_bytes",
                "Bytes of the files of the request log.",
            )?,
            queue_bytes: gauge(
                "zillion_serving_request_log_queue_bytes",
                "Bytes of lines that wait to be written to the request log.",
            )?,
        })
    }

    /// Creates the series of a model.
    pub(super) fn begin(&self, model: &str) {
        for outcome in Logged::ALL {
            self.requests.with_label_values(&[model, outcome.name()]).inc_by(0);
        }
        for outcome in RowOutcome::ALL {
            self.rows.with_label_values(&[model, outcome.name()]).inc_by(0);
        }
        for event in FileEvent::ALL {
            self.files.with_label_values(&[model, event.name()]).inc_by(0);
        }
        self.bytes.with_label_values(&[model]).inc_by(0);
        self.failures.with_label_values(&[model]).inc_by(0);
    }

    pub(crate) fn record_request(&self, model: &str, outcome: Logged) {
        self.requests.with_label_values(&[model, outcome.name()]).inc();
    }

    pub(crate) fn record_rows(&self, model: &str, outcome: RowOutcome, rows: u64, bytes: u64) {
        self.rows.with_label_values(&[model, outcome.name()]).inc_by(rows);
        if outcome == RowOutcome::Written {
            self.bytes.with_label_values(&[model]).inc_by(bytes);
        }
    }

    pub(crate) fn record_file(&self, model: &str, event: FileEvent) {
        self.files.with_label_values(&[model, event.name()]).inc();
    }

    pub(crate) fn record_failure(&self, model: &str) {
        self.failures.with_label_values(&[model]).inc();
    }

    /// Records the bytes of the files.
    pub(crate) fn set_disk_bytes(&self, bytes: u64) {
        self.disk_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Records the bytes of the lines that wait.
    pub(crate) fn set_queue_bytes(&self, bytes: usize) {
        self.queue_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Returns the recorded bytes of the files, for tests.
    #[cfg(test)]
    pub(crate) fn disk_bytes(&self) -> u64 {
        u64::try_from(self.disk_bytes.get()).unwrap_or_default()
    }

    /// Returns the number of rows with an outcome, for tests.
    #[cfg(test)]
    pub(crate) fn rows(&self, model: &str, outcome: RowOutcome) -> u64 {
        self.rows.with_label_values(&[model, outcome.name()]).get()
    }

    /// Returns the number of requests with an outcome, for tests.
    #[cfg(test)]
    pub(crate) fn requests(&self, model: &str, outcome: Logged) -> u64 {
        self.requests.with_label_values(&[model, outcome.name()]).get()
    }

    /// Returns the number of events of files, for tests.
    #[cfg(test)]
    pub(crate) fn files(&self, model: &str, event: FileEvent) -> u64 {
        self.files.with_label_values(&[model, event.name()]).get()
    }
}
