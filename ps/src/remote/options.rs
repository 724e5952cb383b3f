//! The settings of a client.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::client::{Pace, TrainerPlace};
use crate::error::{Result, start_error};
use crate::map::Directory;
use crate::tls::ClientTls;
use crate::token::Token;

/// The largest number of servers. Each server owns at least 64 of the 4,096 slots.
pub(super) const MOST_SERVERS: usize = 64;

/// The settings of a client of servers.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// The addresses of the servers, in the order of their numbers: `host:port`. The list is empty
    /// if a directory names the servers.
    pub servers: Vec<String>,
    /// The directory that names the servers and holds the log of generations; `None` if the
    /// servers are listed. The log is then in the store.
    pub directory: Option<RegisteredServers>,
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
    /// The TLS settings; `None` if the servers do not speak TLS.
    pub tls: Option<ClientTls>,
    /// The pace of the trainers; `None` if every step has a part of every trainer.
    pub pace: Option<Pace>,
    /// Whether the caller rounds the gradients of rows to the type bf16. They are then sent in two
    /// bytes each.
    pub bf16_gradients: bool,
    /// The time after which a server that does not answer is lost.
    pub deadline: Duration,
    /// The generation that has ended; 0 at the first start.
    pub after: u64,
    /// The clock of this trainer if it wants to continue with the tables of the generation
    /// `after`; `None` if it begins anew.
    pub clock: Option<u64>,
    /// The time for which the client waits for servers that are not reachable yet, and for trainer
    /// 0 to begin a generation.
    pub patience: Duration,
    /// The flag that the caller sets to end a wait for servers or trainers.
    pub stop: Stop,
}

/// The servers of a run that a directory names.
#[derive(Clone, Debug)]
pub struct RegisteredServers {
    /// The directory in which the servers have registered.
    pub directory: Arc<dyn Directory>,
    /// The number of servers. Those with the numbers from 0 on hold the tables.
    pub count: usize,
}

/// The flag that the caller sets to end the waits of a client.
#[derive(Clone, Debug, Default)]
pub struct Stop(pub Arc<AtomicBool>);

impl Stop {
    /// Returns an error if the caller wants to stop. `awaited` is that for which the client waits.
    pub(super) fn check(&self, awaited: &str) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(start_error(format!("stopped while the trainer waited for {awaited}"))),
            false => Ok(()),
        }
    }
}

impl RemoteOptions {
    /// Returns the number of servers.
    pub(super) fn server_count(&self) -> usize {
        self.directory.as_ref().map_or(self.servers.len(), |registered| registered.count)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error that names the first wrong setting.
    pub(super) fn check(&self) -> Result<()> {
        if self.directory.is_some() && !self.servers.is_empty() {
            return Err(start_error(
                "`ps.servers` and `ps.etcd` are both set; list the servers or let etcd name them",
            ));
        }
        let count = self.server_count();
        if count == 0 || count > MOST_SERVERS {
            return Err(start_error(match &self.directory {
                None => format!("`ps.servers` has {count} addresses; give 1 to {MOST_SERVERS}"),
                Some(_) => format!("`ps.server_count` is {count}; give 1 to {MOST_SERVERS}"),
            }));
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
