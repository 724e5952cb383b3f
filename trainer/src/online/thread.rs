//! The thread of a feed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SendError, SyncSender, sync_channel};
use std::thread::JoinHandle;

use zillion_device::DeviceError;
use zillion_stream::LogLock;

use super::feed::{Feed, Live};
use super::item::Item;
use super::setup::FeedSetup;
use crate::error::{Error, Result};

/// The number of items that wait for training.
const AHEAD: usize = 2;

/// A feed on a thread of its own. Dropping the value stops the thread and waits for its end.
#[derive(Debug)]
pub(crate) struct FeedThread {
    items: Option<Receiver<Result<Item>>>,
    is_abandoned: Arc<AtomicBool>,
    forget: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl FeedThread {
    /// Opens a feed and starts its thread. The flag `stop` asks the feed to end its last batch and
    /// to write a last checkpoint.
    ///
    /// # Errors
    /// Returns an error if the feed cannot be opened or the system refuses a thread.
    pub(crate) fn start(setup: FeedSetup, lock: &LogLock, stop: Arc<AtomicBool>) -> Result<Self> {
        let (sender, items) = sync_channel(AHEAD);
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let forget = Arc::new(AtomicU64::new(0));
        let mut feed = Feed::open(setup, lock)?;
        let flags = (stop, is_abandoned.clone(), forget.clone());
        let run = move || {
            let (stop, is_abandoned, forget) = flags;
            if let Err(error) = run_feed(&mut feed, &sender, &stop, &is_abandoned, &forget)
                && let Err(SendError(Err(error))) = sender.send(Err(error))
            {
                // The run has ended for another reason, so nothing receives the error.
                tracing::warn!("the feed has failed after the end of its run: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("feed".to_owned()).spawn(run);
        let thread =
            thread.map_err(|source| Error::Device(DeviceError::Thread { index: 0, source }))?;
        Ok(Self { items: Some(items), is_abandoned, forget, thread: Some(thread) })
    }

    /// Waits for the next item.
    ///
    /// # Errors
    /// Returns the error that has ended the feed.
    pub(crate) fn next(&self) -> Result<Item> {
        let Some(items) = &self.items else { return Ok(Item::End) };
        items.recv().unwrap_or(Err(Error::FeedEnded))
    }

    /// Says that no kept checkpoint needs the decisions before `number`.
    pub(crate) fn forget_before(&self, number: u64) {
        self.forget.fetch_max(number, Ordering::Relaxed);
    }
}

impl Drop for FeedThread {
    fn drop(&mut self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
        // A thread that waits to hand an item over notices that the receiver is gone.
        self.items = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the feed has panicked");
        }
    }
}

fn run_feed(
    feed: &mut Feed,
    sender: &SyncSender<Result<Item>>,
    stop: &AtomicBool,
    is_abandoned: &AtomicBool,
    forget: &AtomicU64,
) -> Result<()> {
    let mut sink = |item| sender.send(Ok(item)).is_ok() && !is_abandoned.load(Ordering::Relaxed);
    if feed.replay(&[stop, is_abandoned], &mut sink)? && !feed.only_replays() {
        feed.run(&mut Live::new(stop, forget), &mut sink)?;
    } else {
        sink(Item::End);
    }
    Ok(())
}
