//! The map of a cluster: the log of the generations of each run, and the list of living servers.
//!
//! The log has two homes: numbered objects in the store that servers and trainers share (the
//! default), and etcd. Both create an entry only if there is no entry with its number. So the log
//! decides which of two processes begins a generation. The list of living servers is kept in etcd
//! only; without etcd, the settings list the servers.
//!
//! The map elects nothing and schedules nothing. The number of the generation in each frame keeps
//! old processes from having an effect.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Result;

/// An entry of the log of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapEntry {
    /// The change that the entry records.
    #[serde(default)]
    pub kind: EntryKind,
    /// The number of the entry, which is the number of the generation that it begins.
    pub generation: u64,
    /// The name of the run.
    pub run: String,
    /// The BLAKE3 of the job.
    pub job: String,
    /// The number of trainers.
    pub trainers: usize,
    /// The address of each server, and the number that it drew when it started.
    pub servers: Vec<(String, u64)>,
    /// The bounds of the slots of the servers: one more than there are servers.
    pub bounds: Vec<usize>,
    /// The number that the writing process drew for itself. With it, two processes never write the
    /// same bytes.
    #[serde(default)]
    pub process: u64,
}

/// The change that an entry of the log records. Each later kind of change takes the next number of
/// the log like a generation, so that the order of all changes is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EntryKind {
    /// The beginning of a generation.
    #[default]
    Generation,
}

/// A home of the log of generations.
///
/// # Contract
/// [`ClusterMap::create`] creates an entry at most once, whichever processes call it at the same
/// time. A process that has created an entry sees it in every later call, and so do all others.
pub trait ClusterMap: fmt::Debug + Send + Sync {
    /// Returns the number of the newest entry of a run, or 0 if there is none.
    ///
    /// # Errors
    /// Returns [`Error::Unreachable`](crate::Error::Unreachable) if the home cannot be reached at
    /// present, and another error if it refuses the call.
    fn newest(&self, run: &str) -> Result<u64>;

    /// Returns an entry, or `None` if there is no entry with this number.
    ///
    /// # Errors
    /// Returns an error as [`ClusterMap::newest`] does, and if the entry cannot be understood.
    fn entry(&self, run: &str, number: u64) -> Result<Option<MapEntry>>;

    /// Creates an entry. Returns `false` if another process has created an entry with this number.
    ///
    /// # Errors
    /// Returns an error as [`ClusterMap::newest`] does. The entry may then exist or not, and the
    /// call can be made again with the same entry.
    fn create(&self, entry: &MapEntry) -> Result<bool>;
}

/// A server that has put itself into a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// The number of the server, counted from 0.
    pub id: u32,
    /// The address by which trainers reach the server.
    pub address: String,
    /// The number that the server drew when it started.
    pub boot: u64,
    /// The seconds for which the directory keeps the server without a sign of life.
    pub lease_seconds: u64,
    /// Whether the server ends in good order.
    #[serde(default)]
    pub is_leaving: bool,
}

/// A change of a server in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// The number of the server.
    pub id: u32,
    /// The server before the change; `None` if it was not in the directory.
    pub before: Option<Member>,
    /// The server after the change; `None` if it is not in the directory any more.
    pub after: Option<Member>,
}

/// A function that is told of each change of a directory.
pub type Notice = Box<dyn Fn(&MemberChange) + Send + Sync>;

/// Something that goes on until this value is dropped: the signs of life of a registered server, or
/// the watching of a directory.
pub struct Upkeep {
    _task: Box<dyn Any + Send>,
}

impl Upkeep {
    /// Wraps a value that ends the upkeep when it is dropped.
    #[cfg(feature = "etcd")]
    pub(crate) fn new(task: impl Any + Send) -> Self {
        Self { _task: Box::new(task) }
    }
}

impl fmt::Debug for Upkeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upkeep(..)")
    }
}

/// The list of living servers beside the log of generations.
pub trait Directory: ClusterMap {
    /// Returns the servers of the directory by their numbers.
    ///
    /// # Errors
    /// Returns an error as [`ClusterMap::newest`] does.
    fn members(&self) -> Result<BTreeMap<u32, Member>>;

    /// Puts a server into the directory, and keeps it there until the result is dropped. If another
    /// server has this number, the call waits until that server's lease could have expired.
    ///
    /// # Errors
    /// Returns an error if another living server has this number, if the directory refuses the
    /// call, or if it cannot be reached for a minute.
    fn register(&self, member: Member) -> Result<Upkeep>;

    /// Tells `notice` of each change, beginning with the differences from `known`, until the result
    /// is dropped. The watching goes on after times in which the directory is away.
    fn watch(&self, known: BTreeMap<u32, Member>, notice: Notice) -> Upkeep;

    /// Returns the name of the directory for messages.
    fn name(&self) -> String;
}

impl MemberChange {
    /// Returns a text that says what has happened to the server.
    pub fn describe(&self) -> String {
        let id = self.id;
        match (&self.before, &self.after) {
            (None, Some(after)) => format!("server {id} came at {}", after.address),
            (_, Some(after)) if after.is_leaving => {
                format!("server {id} at {} ends in good order", after.address)
            }
            (Some(before), Some(after)) if before.boot == after.boot => {
                format!("server {id} moved from {} to {}", before.address, after.address)
            }
            (Some(before), Some(after)) => {
                format!("server {id} at {} was started again at {}", before.address, after.address)
            }
            (Some(before), None) if before.is_leaving => {
                format!("server {id} at {} has left", before.address)
            }
            (Some(before), None) => {
                format!("server {id} at {} went: its lease has expired", before.address)
            }
            (None, None) => format!("server {id} is unknown"),
        }
    }
}

impl MapEntry {
    /// Returns the entry as it is kept.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self)
            .expect("an entry is plain data with text keys, which JSON can always hold")
    }
}

/// Returns the part of a name or of a key that stands for a run, whose name can have any
/// characters.
pub(crate) fn run_hash(run: &str) -> String {
    blake3::hash(run.as_bytes()).to_hex()[..32].to_owned()
}

/// Returns the name of an entry. Names of greater numbers come later in the order of names.
pub(crate) fn entry_name(number: u64) -> String {
    format!("{number:020}")
}

/// Reads an entry of the log from its bytes.
pub(crate) fn read_entry(name: &str, bytes: &[u8]) -> Result<MapEntry> {
    serde_json::from_slice(bytes).map_err(|e| {
        crate::error::start_error(format!(
            "the entry `{name}` of the log of generations cannot be read ({e}); use the same \
             version of the program on all hosts"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_servers_are_described() {
        let member = |address: &str, boot: u64, is_leaving: bool| {
            Some(Member { id: 1, address: address.to_owned(), boot, lease_seconds: 10, is_leaving })
        };
        let describe = |before: Option<Member>, after: Option<Member>| {
            MemberChange { id: 1, before, after }.describe()
        };
        let old = || member("a:1", 1, false);
        assert_eq!(describe(None, old()), "server 1 came at a:1");
        assert_eq!(describe(old(), member("b:1", 1, false)), "server 1 moved from a:1 to b:1");
        let again = describe(old(), member("b:1", 2, false));
        assert_eq!(again, "server 1 at a:1 was started again at b:1");
        let ends = describe(old(), member("a:1", 1, true));
        assert_eq!(ends, "server 1 at a:1 ends in good order");
        assert_eq!(describe(member("a:1", 1, true), None), "server 1 at a:1 has left");
        assert_eq!(describe(old(), None), "server 1 at a:1 went: its lease has expired");
    }
}
