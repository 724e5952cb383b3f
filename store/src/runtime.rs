//! The thread that sends the requests of a remote store, and the functions that wait for its
//! results.
//!
//! Open connections need work even if no response is expected, so the thread runs until the store
//! is dropped. The engines are synchronous: they send futures to the thread and wait for the
//! results. The thread is never joined, so an operation that hangs does not keep the process from
//! ending.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

/// A handle of the thread that sends the requests of a store. The thread ends when the handle is
/// dropped.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) handle: Handle,
    /// The sender that tells the thread to end. It does so when it is dropped.
    _end: oneshot::Sender<()>,
}

impl Network {
    pub(crate) fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Blocking threads resolve names and read files of credentials.
            .max_blocking_threads(4)
            .thread_name("zillion-store-names")
            .build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("zillion-store".to_owned()).spawn(move || {
            // An error means that the sender was dropped, which is the signal to end.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _end: end })
    }

    /// Runs a future on the thread and waits for its result. Returns `None` if the future panics.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (to_caller, answer) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // If the caller does not wait any more, the result is not needed.
            let _ = to_caller.send(future.await);
        });
        answer.recv().ok()
    }
}

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

    #[test]
    fn futures_run_on_the_thread_while_others_wait() {
        let network = Network::start().unwrap();
        let name = network.wait(async { std::thread::current().name().map(str::to_owned) });
        assert_eq!(name.flatten().as_deref(), Some("zillion-store"));
        assert_eq!(network.wait(async { panic!("on purpose") }), None::<()>);
        assert_eq!(network.wait(async { 3 }), Some(3));
    }

    #[test]
    fn a_stop_ends_hanging_operations() {
        let network = Network::start().unwrap();
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
