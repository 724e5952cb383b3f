//! The stored form of the windows that no verdict has judged yet.

use serde::{Deserialize, Serialize};
use zillion_stream::validation::{ClosedWindow, Histogram};

/// A window that was closed since the last verdict.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecentWindow {
    /// The number of the batch that closed the window, in a state of an earlier version.
    #[serde(default, rename = "batch", skip_serializing)]
    _batch: Option<u64>,
    window: ClosedWindow,
    /// The scores of the live model, which the window does not serialise.
    scores: Histogram,
}

impl RecentWindow {
    /// Creates the stored form of a window.
    pub(super) fn new(window: &ClosedWindow) -> Self {
        Self { _batch: None, window: window.clone(), scores: window.scores.clone() }
    }

    /// Returns the window with all its scores.
    pub(super) fn into_window(self) -> ClosedWindow {
        ClosedWindow { scores: self.scores, ..self.window }
    }
}
