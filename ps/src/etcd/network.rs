//! The thread that sends the requests to etcd, and the function that waits for its results.
//!
//! Open connections need work even if no response is expected, so the thread runs until the
//! directory is dropped. It is never joined, so a request that hangs does not keep the process from
//! ending.

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A handle of the thread. The thread ends when the handle is dropped.
#[derive(Debug)]
pub(super) struct Network {
    handle: Handle,
    /// The sender that tells the thread to end. It does so when it is dropped.
    _end: oneshot::Sender<()>,
}

impl Network {
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // A blocking thread resolves names.
            .max_blocking_threads(2)
            .thread_name("zillion-etcd-names")
            .build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("zillion-etcd".to_owned()).spawn(move || {
            // An error means that the sender was dropped, which is the signal to end.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _end: end })
    }

    /// Returns a handle with which tasks can be started on the thread.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a future on the thread and waits for its result. Returns `None` if the future panics.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (to_caller, answer) = oneshot::channel();
        self.handle.spawn(async move {
            // If the caller does not wait any more, the result is not needed.
            let _ = to_caller.send(future.await);
        });
        answer.blocking_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn futures_run_on_the_thread_while_others_wait() {
        let network = Network::start().unwrap();
        let name = network.wait(async { std::thread::current().name().map(str::to_owned) });
        assert_eq!(name.flatten().as_deref(), Some("zillion-etcd"));
        assert_eq!(network.wait(async { panic!("on purpose") }), None::<()>);
        assert_eq!(network.wait(async { 3 }), Some(3));
        // A task that goes on does not keep the thread.
        network.handle().spawn(std::future::pending::<()>());
        drop(network);
    }
}
