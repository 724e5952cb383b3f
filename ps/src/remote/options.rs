//! The settings of a client.

use std::path::PathBuf;
use std::time::Duration;

use crate::client::{Pace, TrainerPlace};
use crate::error::{Result, start_error};
use crate::token::Token;

/// The largest number of servers. Each server owns at least 64 of the 4,096 slots.
pub(super) const MOST_SERVERS: usize = 64;

/// The settings of a client of servers.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// The addresses of the servers, in the order of their numbers: `host:port`.
    pub servers: Vec<String>,
    /// The place of this trainer.
    pub place: TrainerPlace,
    /// The name of the run, which is the same for all trainers.
    pub run: String,
    /// The BLAKE3 of the job, which is the same for all trainers.
    pub job_digest: String,
    /// The folder that servers and trainers share, as this process sees it.
    pub store: PathBuf,
    /// The token of the cluster; `None` if the servers need none.
    pub token: Option<Token>,
    /// The pace of the trainers; `None` if every step has a part of every trainer.
    pub pace: Option<Pace>,
    /// The time after which a server that does not answer is lost.
    pub deadline: Duration,
    /// The generation that has ended; 0 at the first start.
    pub after: u64,
    /// The time for which the client waits for servers that are not reachable yet, and for trainer
    /// 0 to begin a generation.
    pub patience: Duration,
}

impl RemoteOptions {
    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error that names the first wrong setting.
    pub(super) fn check(&self) -> Result<()> {
        if self.servers.is_empty() || self.servers.len() > MOST_SERVERS {
            return Err(start_error(format!(
                "`ps.servers` has {} addresses; give 1 to {MOST_SERVERS}",
                self.servers.len()
            )));
        }
        if let Some(twice) =
            self.servers.iter().enumerate().find(|(at, name)| self.servers[..*at].contains(name))
        {
            let name = twice.1;
            return Err(start_error(format!(
                "`ps.servers` has the address `{name}` twice; give each server once"
            )));
        }
        if self.place.index >= self.place.count {
            return Err(start_error(format!(
                "the trainer is trainer {} of {}; count trainers from 0",
                self.place.index, self.place.count
            )));
        }
        if self.deadline < Duration::from_millis(100) {
            return Err(start_error(format!(
                "`ps.deadline_seconds` is {}; give at least 0.1",
                self.deadline.as_secs_f64()
            )));
        }
        Ok(())
    }
}
