//! The `[run]` section: where a job runs. No setting in it changes a byte of the result.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;

use super::device::DeviceChoice;
use super::spill::Memory;
use crate::error::Result;

/// The largest value of `run.ahead`. A batch has a few megabytes, so a larger number would only
/// take memory.
const MOST_AHEAD: usize = 4096;

/// The number of batches that are prepared ahead on a machine with many threads. More batches give
/// the threads no more work.
const DEFAULT_AHEAD: usize = 16;

/// The `[run]` section: the folders, threads and shards of a run. No setting in this section
/// changes a byte of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// The folder of the run, which holds its checkpoints; absent: `runs/<name of the job>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// The device that computes the training graph.
    pub device: DeviceChoice,
    /// The largest memory of a GPU that the run may use; absent: all that is free. Tables that do
    /// not fit have a cache of their rows there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<Memory>,
    /// The number of compute threads; absent: one for each core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<NonZeroUsize>,
    /// The largest number of batches that are decoded and planned before the steps that need them;
    /// absent: one for each compute thread, and at most 16. The memory of the batches grows with
    /// it. If a GPU has a cache of rows, the rows of as many batches are on their way there, and
    /// twice as many batches are prepared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<NonZeroUsize>,
    /// The number of shards of each table.
    pub shards: NonZeroUsize,
    /// The largest memory for the rows of a table, by the table's name. Rows beyond it are kept in
    /// files and are read when they are needed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub spill: BTreeMap<String, Memory>,
    /// The folder of the files with spilled rows; absent: `spill` below the run's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill_folder: Option<PathBuf>,
    /// The address that serves the metrics of the run, as in `127.0.0.1:9091`; absent: metrics are
    /// not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
}

impl Default for RunConfig {
    fn default() -> Self {
        let shards = NonZeroUsize::new(8).expect("a literal above zero");
        let (spill, spill_folder) = (BTreeMap::new(), None);
        Self {
            output: None,
            device: DeviceChoice::Auto,
            device_memory: None,
            threads: None,
            ahead: None,
            shards,
            spill,
            spill_folder,
            metrics: None,
        }
    }
}

impl RunConfig {
    /// Checks the settings that are numbers with a largest value.
    pub(super) fn check(&self) -> Result<()> {
        if self.ahead.is_some_and(|ahead| ahead.get() > MOST_AHEAD) {
            let reason = format!("must be 1 to {MOST_AHEAD}");
            return Err(ConfigError::at("run.ahead", &reason).into());
        }
        Ok(())
    }

    /// Returns the largest number of batches that are prepared ahead, in a run on this number of
    /// threads.
    pub(crate) fn ahead(&self, threads: usize) -> NonZeroUsize {
        let unset = NonZeroUsize::new(threads.min(DEFAULT_AHEAD)).unwrap_or(NonZeroUsize::MIN);
        self.ahead.unwrap_or(unset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_ahead_are_bounded_and_follow_the_threads() {
        let of =
            |ahead: usize| RunConfig { ahead: NonZeroUsize::new(ahead), ..RunConfig::default() };
        assert_eq!(of(0).ahead(1).get(), 1);
        assert_eq!(of(0).ahead(12).get(), 12);
        assert_eq!(of(0).ahead(200).get(), DEFAULT_AHEAD);
        assert_eq!(of(100).ahead(2).get(), 100);
        assert!(of(MOST_AHEAD).check().is_ok());
        let refused = of(MOST_AHEAD + 1).check().unwrap_err().to_string();
        assert!(refused.contains("run.ahead"), "{refused}");
    }
}
