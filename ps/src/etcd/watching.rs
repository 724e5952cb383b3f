//! The watching of the servers in etcd, which goes on after times in which etcd is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::calls::Calls;
use super::directory::{Keys, end_of, list, read_member};
use super::messages::{Event, EventKind, WatchCreateRequest};
use crate::map::{Member, MemberChange, Notice, Upkeep};
use zillion_store::Network;

/// The pause before etcd is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// A task that ends when the value is dropped, and the thread on which it runs.
struct Watching {
    task: JoinHandle<()>,
    _network: Arc<Network>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Begins to watch the servers. The first changes are the differences from `known`.
pub(super) fn begin(
    network: &Arc<Network>,
    calls: Arc<Calls>,
    keys: Arc<Keys>,
    known: BTreeMap<u32, Member>,
    notice: Notice,
) -> Upkeep {
    let watcher = Watcher { calls, keys, known, notice, is_away: false };
    let task = network.handle().spawn(watcher.run());
    Upkeep::new(Watching { task, _network: network.clone() })
}

/// The watcher and the servers that it has seen last.
struct Watcher {
    calls: Arc<Calls>,
    keys: Arc<Keys>,
    known: BTreeMap<u32, Member>,
    notice: Notice,
    is_away: bool,
}

impl Watcher {
    async fn run(mut self) {
        loop {
            match list(&self.calls, &self.keys).await {
                Ok((members, revision)) => {
                    if std::mem::take(&mut self.is_away) {
                        tracing::info!("etcd has returned");
                    }
                    self.compare(members);
                    self.follow(revision + 1).await;
                }
                Err(error) if !self.is_away => {
                    self.is_away = true;
                    let error = error.into_error(&self.calls);
                    tracing::warn!("the run goes on without etcd: {error}");
                }
                Err(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Takes changes from a revision on, until the stream ends for any reason.
    async fn follow(&mut self, start_revision: i64) {
        let key = self.keys.servers();
        let request =
            WatchCreateRequest { range_end: end_of(&key), key: key.into(), start_revision };
        let Ok(mut stream) = self.calls.watch(request).await else { return };
        while let Ok(Some(response)) = stream.message().await {
            if response.canceled {
                return;
            }
            for event in response.events {
                self.take(&event);
            }
        }
    }

    /// Takes one change of a key.
    fn take(&mut self, event: &Event) {
        let Some(kv) = &event.kv else { return };
        if event.kind == i32::from(EventKind::Put) {
            if let Some(member) = read_member(&self.keys, kv) {
                self.set(member.id, Some(member));
            }
            return;
        }
        let name = String::from_utf8_lossy(&kv.key);
        let id = name.strip_prefix(&self.keys.servers()).and_then(|id| id.parse().ok());
        if let Some(id) = id {
            self.set(id, None);
        }
    }

    /// Takes the servers as they are, and reports the differences.
    fn compare(&mut self, members: BTreeMap<u32, Member>) {
        let gone: Vec<u32> =
            self.known.keys().copied().filter(|id| !members.contains_key(id)).collect();
        gone.into_iter().for_each(|id| self.set(id, None));
        members.into_iter().for_each(|(id, member)| self.set(id, Some(member)));
    }

    /// Sets a server, and reports the change if there is one.
    fn set(&mut self, id: u32, after: Option<Member>) {
        let before = match &after {
            Some(member) => self.known.insert(id, member.clone()),
            None => self.known.remove(&id),
        };
        let state = |member: &Option<Member>| {
            let member = member.as_ref();
            member.map(|m| (m.boot, m.address.clone(), m.is_leaving))
        };
        if state(&before) == state(&after) {
            return;
        }
        let change = MemberChange { id, before, after };
        tracing::info!(server = id, "etcd: {}", change.describe());
        (self.notice)(&change);
    }
}
