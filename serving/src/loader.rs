//! Hot loading: a thread that follows the registry, and loads versions beside those that answer.
//!
//! The thread works in slices. After each slice it measures the time of the slice, and while
//! requests are open it rests for as long as it worked, so that scoring always finds a free
//! processor. A version is invisible until it is complete. If a version cannot be loaded, the
//! loaded versions stay, and the loader tries again later. A version does not wait for the merges
//! of its layers, which have a thread of their own.
//!
//! # Panics
//! A version comes from a store that others can write to. A panic while it is loaded refuses the
//! version, and a panic elsewhere ends one round of the thread. Both are counted and shown as a
//! problem of the model, and the thread goes on.

mod follower;
mod refusals;
mod slices;
mod stagger;
#[cfg(test)]
mod tests;
mod watch;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zillion_device::machine::lower_thread_priority;
use zillion_device::{Files, Workers};
use zillion_registry::{Cache, Model};
use zillion_scorer::Error;
use zillion_store::{LAST_WORDS, StoreStop};

use self::follower::Follower;
use self::slices::{Slices, is_stop};
use crate::config::ServeConfig;
use crate::host::Host;
use crate::metrics::Metrics;

/// The longest wait for a thread that was told to stop. A thread that waits longer for a disk or a
/// store ends with the process.
const LONGEST_STOP: Duration = LAST_WORDS.saturating_add(Duration::from_millis(500));

/// The longest wait after a round that has ended with a panic.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The handle of the thread that loads the versions of one model.
#[derive(Debug)]
pub(crate) struct Loader {
    stop: Arc<AtomicBool>,
    /// The signal that ends the thread's operations on the store.
    store_stop: StoreStop,
    thread: Option<JoinHandle<()>>,
    /// The receiver of the end of the thread.
    ended: mpsc::Receiver<()>,
    /// The time until which the thread is waited for, after it was told to stop.
    until: Option<Instant>,
}

impl Loader {
    /// Starts to follow `model` and to publish its versions in `host`.
    pub(crate) fn start(
        model: Model,
        host: Arc<Host>,
        config: Arc<ServeConfig>,
        files: Files,
        workers: Arc<Workers>,
        busy: Arc<AtomicUsize>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        let mut cache = Cache::open(&config.cache, model.name(), files.clone())?;
        cache.set_in_memory(config.load_into_memory);
        cache.set_row_records(config.row_records);
        let stop = Arc::new(AtomicBool::new(false));
        let store_stop = StoreStop::default();
        let model = model.with_stop(store_stop.clone()).with_memory(&config.cache, files);
        let pace = Slices::new(busy, stop.clone(), metrics.clone());
        let mut follower = Follower::new(model, host, config, cache, workers, metrics, pace);
        let stopped = stop.clone();
        let (to_handle, ended) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("zillion-loader".to_owned())
            .spawn(move || {
                // A system that refuses gives the loader the priority of the other threads.
                let _ = lower_thread_priority();
                run(&mut follower, &stopped);
                follower.end_lease();
                drop(follower);
                // A handle that has gone does not wait.
                let _ = to_handle.send(());
            })
            .map_err(|e| Error::Refused(format!(
                "cannot start the thread of the loader ({e}); raise the limit of threads of the \
                 system")))?;
        Ok(Self { stop, store_stop, thread: Some(thread), ended, until: None })
    }

    /// Wakes the thread, so that it reads the registry now.
    pub(crate) fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Tells the thread to stop, without waiting for it. It ends a load that it has begun.
    pub(crate) fn stop(&mut self) {
        if self.until.is_some() {
            return;
        }
        self.stop.store(true, Ordering::Relaxed);
        // A store that hangs must not block the server that stops. The time suffices to end the
        // lease, which would also run out by itself.
        self.store_stop.within(LAST_WORDS);
        self.until = Some(Instant::now() + LONGEST_STOP);
        self.wake();
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop();
        let left =
            self.until.unwrap_or_else(Instant::now).saturating_duration_since(Instant::now());
        let ended = self.ended.recv_timeout(left);
        // A thread that hangs in the kernel ends with the process.
        let is_hanging = ended == Err(mpsc::RecvTimeoutError::Timeout);
        if let Some(thread) = self.thread.take().filter(|_| !is_hanging) {
            // The panic of a loader was reported already, and a panic while dropping would abort
            // the process.
            let _ = thread.join();
        }
    }
}

/// Runs rounds until the loader is to stop.
fn run(follower: &mut Follower, stopped: &AtomicBool) {
    let mut is_first = true;
    let mut panics = 0u32;
    while !stopped.load(Ordering::Relaxed) {
        let begin = std::mem::take(&mut is_first);
        let round = catch_unwind(AssertUnwindSafe(|| {
            if begin {
                follower.begin_from_cache();
            }
            follower.poll();
            follower.merge_layers();
        }));
        let poll = follower.poll_interval();
        let pause = match round {
            Ok(()) => {
                panics = 0;
                poll
            }
            Err(payload) if is_stop(payload.as_ref()) => return,
            Err(payload) => {
                follower.record_panic(&describe_panic(payload.as_ref()));
                panics = panics.saturating_add(1);
                let factor = 1u32 << panics.min(16);
                poll.saturating_mul(factor).min(LONGEST_PAUSE)
            }
        };
        std::thread::park_timeout(pause);
    }
}

/// Returns the message of a panic.
fn describe_panic(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").chars().take(200).collect()
}
