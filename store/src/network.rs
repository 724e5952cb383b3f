//! The thread that sends requests over the network, and the function that waits for their results.
//!
//! Open connections need work even if no response is expected, so the thread runs until its handle
//! is dropped. The engines are synchronous: they send futures to the thread and wait for the
//! results. The thread is never joined, so an operation that hangs does not keep the process from
//! ending.

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A handle of a thread that sends requests over the network. The thread ends when the handle is
/// dropped.
#[derive(Debug)]
pub struct Network {
    handle: Handle,
    /// The sender that tells the thread to end. It does so when it is dropped.
    _end: oneshot::Sender<()>,
}

impl Network {
    /// Starts a thread with a name.
    ///
    /// # Errors
    /// Returns an error if the system refuses the thread.
    pub fn start(name: &str) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Blocking threads resolve names and read files of credentials.
            .max_blocking_threads(4)
            .thread_name(format!("{name}-names"))
            .build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // An error means that the sender was dropped, which is the signal to end.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _end: end })
    }

    /// Returns a handle with which tasks can be started on the thread.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a future on the thread and waits for its result. Returns `None` if the future panics.
    pub fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (to_caller, answer) = std::sync::mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // If the caller does not wait any more, the result is not needed.
            let _ = to_caller.send(future.await);
        });
        answer.recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn futures_run_on_the_thread_while_others_wait() {
        let network = Network::start("zillion-test").unwrap();
        let name = network.wait(async { std::thread::current().name().map(str::to_owned) });
        assert_eq!(name.flatten().as_deref(), Some("zillion-test"));
        assert_eq!(network.wait(async { panic!("on purpose") }), None::<()>);
        assert_eq!(network.wait(async { 3 }), Some(3));
        // A task that goes on does not keep the thread.
        network.handle().spawn(std::future::pending::<()>());
        drop(network);
    }
}
