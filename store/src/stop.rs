//! The switch that ends the operations of a store.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// A switch that ends the operations of a store early. With this switch, a server that stops does
/// not have to wait for a store that hangs.
#[derive(Clone, Debug)]
pub struct StoreStop {
    until: watch::Sender<Option<Instant>>,
}

impl Default for StoreStop {
    fn default() -> Self {
        Self { until: watch::Sender::new(None) }
    }
}

impl StoreStop {
    /// Sets a time limit for all operations, including those in progress. An operation that is not
    /// complete after `time` fails.
    pub fn within(&self, time: Duration) {
        self.until.send_replace(Some(Instant::now() + time));
    }

    /// Returns whether the time limit has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() >= until)
    }

    /// Waits until the time limit has passed.
    pub(crate) async fn over(&self) {
        let mut changes = self.until.subscribe();
        loop {
            let until = *changes.borrow_and_update();
            match until {
                // The sender lives in `self`, so that it cannot be closed.
                None => drop(changes.changed().await),
                Some(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until.into()) => return,
                        _ = changes.changed() => {}
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;

    #[test]
    fn a_stop_ends_hanging_operations() {
        let network = Network::start("zillion-test").unwrap();
        let stop = StoreStop::default();
        let other = stop.clone();
        let waiting = std::thread::spawn(move || {
            network.wait(async move {
                tokio::select! {
                    () = std::future::pending() => false,
                    () = other.over() => true,
                }
            })
        });
        assert!(!stop.is_over());
        stop.within(Duration::ZERO);
        assert_eq!(waiting.join().unwrap(), Some(true));
        assert!(stop.is_over());
    }
}
