//! The open connections of a listener: how many there may be, in all and from one address, and
//! which one makes room when all are taken.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::activity::Activity;
use crate::config::Limits;

/// The open connections of a listener. Each listener has its own, so that connections that take all
/// places of one listener leave those of the others alone.
#[derive(Debug)]
pub(crate) struct Connections {
    state: Mutex<State>,
    /// The largest number of connections for which the process has file descriptors.
    most: usize,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    open: HashMap<u64, (IpAddr, Arc<Activity>)>,
    by_address: HashMap<IpAddr, usize>,
}

/// An open connection, until the value is dropped.
#[derive(Debug)]
pub(crate) struct Member {
    connections: Arc<Connections>,
    id: u64,
    activity: Arc<Activity>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.connections.lock().remove(self.id);
    }
}

impl Member {
    /// Returns the activity of the connection.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }
}

/// The reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// All connections are taken, and each has an open request.
    All,
    /// The address has as many connections as one address may have, each with an open request.
    Address,
}

impl Connections {
    /// Creates the connections of a listener that has file descriptors for `most` of them.
    pub(crate) fn new(most: usize) -> Self {
        Self { state: Mutex::default(), most }
    }

    /// Closes the connection that was idle for the longest time, and returns whether there was one.
    pub(crate) fn evict_idle(&self) -> bool {
        self.lock().evict_idle(None)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.lock().open.len()
    }

    /// Takes in a connection from `address`. If a limit is reached, the connection that was idle
    /// for the longest time (of the same address, or of all) is closed for it.
    ///
    /// # Errors
    /// Returns the limit that is reached if no connection is idle.
    pub(crate) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        limits: &Limits,
    ) -> Result<Member, Crowded> {
        let mut state = self.lock();
        let of_address = state.by_address.get(&address).copied().unwrap_or(0);
        if of_address >= limits.connections_per_address && !state.evict_idle(Some(address)) {
            return Err(Crowded::Address);
        }
        if state.open.len() >= limits.connections.min(self.most) && !state.evict_idle(None) {
            return Err(Crowded::All);
        }
        let id = state.next_id;
        state.next_id += 1;
        let activity = Arc::new(Activity::new());
        state.open.insert(id, (address, activity.clone()));
        *state.by_address.entry(address).or_default() += 1;
        Ok(Member { connections: self.clone(), id, activity })
    }
}

impl State {
    /// Closes the connection that was idle for the longest time, and returns whether there was one.
    fn evict_idle(&mut self, address: Option<IpAddr>) -> bool {
        let of_address =
            self.open.iter().filter(|(_, (of, _))| address.is_none_or(|address| *of == address));
        let idle = of_address.filter_map(|(id, (_, activity))| Some((activity.idle()?, *id)));
        let Some((_, id)) = idle.max() else { return false };
        if let Some((_, activity)) = self.open.get(&id) {
            activity.evict();
        }
        self.remove(id);
        true
    }

    fn remove(&mut self, id: u64) {
        let Some((address, _)) = self.open.remove(&id) else { return };
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_longest_idle_connection_makes_room() {
        let limits = Limits { connections: 3, connections_per_address: 2, ..Limits::default() };
        let connections = Arc::new(Connections::new(usize::MAX));
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let first = connections.admit(a, &limits).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let second = connections.admit(a, &limits).unwrap();
        let in_work = second.activity().begin_request(false);
        // A third connection of the same address takes the place of the idle one.
        let third = connections.admit(a, &limits).unwrap();
        assert_eq!(connections.count(), 2);
        let third_in_work = third.activity().begin_request(false);
        assert_eq!(connections.admit(a, &limits).unwrap_err(), Crowded::Address);
        let _fourth = connections.admit(b, &limits).unwrap().activity().begin_request(false);
        assert_eq!(connections.count(), 2, "a member that is dropped leaves");
        let fifth = connections.admit(b, &limits).unwrap();
        let fifth_in_work = fifth.activity().begin_request(false);
        assert_eq!(connections.admit(c, &limits).unwrap_err(), Crowded::All);
        drop(fifth_in_work);
        let _sixth = connections.admit(c, &limits).unwrap();
        drop((first, second, third, fifth));
        drop((in_work, third_in_work));
        assert_eq!(connections.count(), 1);
        assert_eq!(connections.lock().by_address.len(), 1);
    }

    #[test]
    fn file_descriptors_limit_the_connections() {
        let limits = Limits { connections: 100, ..Limits::default() };
        let connections = Arc::new(Connections::new(2));
        let address = IpAddr::from([10, 0, 0, 1]);
        let admit = || connections.admit(address, &limits);
        let members: Vec<Member> = (0..2).map(|_| admit().unwrap()).collect();
        let busy: Vec<_> = members.iter().map(|m| m.activity().begin_request(false)).collect();
        assert_eq!(admit().unwrap_err(), Crowded::All);
        assert!(!connections.evict_idle());
        drop(busy);
        assert!(connections.evict_idle() && connections.count() == 1);
        assert!(admit().is_ok());
    }
}
