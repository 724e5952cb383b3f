//! The report of a resident run.

use std::path::PathBuf;

use serde::Serialize;

use crate::online::FeedStatus;

/// The outcome of a resident run that was stopped.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OnlineReport {
    /// The number of batches over the life of the run.
    pub batches: u64,
    /// The number of steps over the life of the run.
    pub steps: u64,
    /// The number of rows that the run has learned from.
    pub rows: u64,
    /// The number of messages that were consumed.
    pub messages: u64,
    /// The number of rejected messages, which are in the file of dead letters.
    pub rejected: u64,
    /// The number of batches that ended because a row had waited long enough.
    pub lingered: u64,
    /// The number of the newest version of the run; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
    /// The folder with the log of decisions and the dead letters.
    pub folder: PathBuf,
}

impl OnlineReport {
    /// Takes over what the state of the feed says.
    pub(crate) fn take_status(&mut self, status: &FeedStatus) {
        self.messages = status.messages;
        self.rejected = status.rejected;
        self.lingered = status.lingered;
    }
}
