//! Keys about files and epochs that a job over streams must not set.

use zillion_config::ConfigError;
use zillion_reader::DataConfig;

use super::{Job, TrainConfig};
use crate::error::Result;

impl Job {
    /// Refuses the keys of files that have no meaning for a run over streams. Keys that earlier
    /// versions ignored are refused in a job file only, because the job of an old checkpoint may
    /// have them.
    pub(super) fn check_keys_of_files(&self, is_job_file: bool) -> Result<()> {
        for (key, is_set) in [
            ("train.accumulate", self.train.accumulate.get() > 1),
            ("train.plateau", self.train.plateau.is_some()),
            ("publish.every", self.publish.as_ref().is_some_and(|p| p.every.is_some())),
            ("data.negatives", self.data.negatives.is_some()),
            ("data.sample", self.data.sample.is_some()),
        ] {
            if is_set {
                let message =
                    "has no meaning for a stream, which has no epochs and no end; remove it";
                return Err(ConfigError::at(key, message).into());
            }
        }
        if is_job_file { self.check_idle_keys() } else { Ok(()) }
    }

    /// Refuses keys that have no effect on a run over streams, if they are not at their defaults.
    /// The job in a checkpoint of an earlier version may have them.
    fn check_idle_keys(&self) -> Result<()> {
        let (train, data) = (TrainConfig::default(), DataConfig::default());
        for (key, is_set, instead) in [
            ("train.epochs", self.train.epochs != train.epochs, "a stream has no end; remove it"),
            (
                "train.drop_last",
                self.train.drop_last != train.drop_last,
                "every batch of a stream is learned from; remove it",
            ),
            (
                "train.checkpoint_every",
                self.train.checkpoint_every.is_some(),
                "checkpoints of a run over streams follow `online.checkpoint_seconds`; set that key",
            ),
            (
                "data.shuffle",
                self.data.shuffle != data.shuffle,
                "rows of a stream are learned from in the order of their arrival; remove it",
            ),
            (
                "data.shuffle_window",
                self.data.shuffle_window != data.shuffle_window,
                "rows of a stream are learned from in the order of their arrival; remove it",
            ),
        ] {
            if is_set {
                let message = format!("has no effect with a stream: {instead}");
                return Err(ConfigError::at(key, message).into());
            }
        }
        Ok(())
    }
}
