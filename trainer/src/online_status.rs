//! The status of a resident run in a file, for people and scripts.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use zillion_device::Files;

use crate::online::FeedStatus;

/// The name of the file with the status, in the folder `stream` of a run.
pub const STATUS_FILE: &str = "status.json";

/// The time between two writings.
const INTERVAL: Duration = Duration::from_secs(1);

/// The status of a resident run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamStatus {
    /// The time of the status in milliseconds since 1970.
    pub at_ms: u64,
    /// The number of steps that the run has made.
    pub step: u64,
    /// The number of the newest version; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The event time for which the gate has held versions, in seconds; absent if the last one was
    /// published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_seconds: Option<f64>,
    /// The state of the streams.
    pub feed: FeedStatus,
}

/// A writer of the status of a run.
#[derive(Debug, Default)]
pub(crate) struct StatusWriter {
    written: Option<Instant>,
}

impl StatusWriter {
    /// Writes the status if the last one is old enough. The time of the status is set here.
    pub(crate) fn write_if_due(&mut self, files: &Files, folder: &Path, status: StreamStatus) {
        if self.written.is_none_or(|at| at.elapsed() >= INTERVAL) {
            self.write(files, folder, status);
        }
    }

    /// Writes the status, whose time is set here. A status that cannot be written is logged: it is
    /// no part of the result.
    pub(crate) fn write(&mut self, files: &Files, folder: &Path, status: StreamStatus) {
        self.written = Some(Instant::now());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let status = StreamStatus { at_ms: now.as_millis() as u64, ..status };
        let path = folder.join(STATUS_FILE);
        let written =
            serde_json::to_vec(&status).map_err(|error| error.to_string()).and_then(|bytes| {
                files.scratch().write_bytes(&path, &bytes).map_err(|e| e.to_string())
            });
        if let Err(error) = written {
            tracing::warn!("the status of the streams cannot be written: {error}");
        }
    }
}
