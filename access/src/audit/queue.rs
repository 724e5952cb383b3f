//! The way of refusals to the audit log: a bounded queue, and one thread that writes.
//!
//! A network's thread must not wait for a disk, nor for a control action that is being
//! synchronised. A refusal that finds the queue full is counted, and the count is written.
//!
//! # Crash consistency
//! Refusals in the queue are lost if the process is killed. Control actions do not pass it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::line::shorten;
use super::{AuditEvent, AuditLog};
use crate::error::{Error, Result};

/// The number of refusals that may wait. Each has at most 2 KiB.
const MOST_WAITING: usize = 1024;

/// The interval at which counts are written while no refusal comes.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// The longest time that the end of a queue waits for the disk.
const LONGEST_END: Duration = Duration::from_secs(1);

/// A queue of refusals before an audit log. Dropping it writes those that wait.
#[derive(Debug)]
pub struct AuditQueue {
    sender: Option<SyncSender<Waiting>>,
    lost: Arc<AtomicU64>,
    ended: Mutex<Receiver<()>>,
}

/// A refusal that waits to be written, with its time since 1970.
#[derive(Debug)]
struct Waiting {
    at: Duration,
    who: String,
    from: String,
    action: String,
    subject: String,
    outcome: String,
    detail: String,
}

impl AuditQueue {
    /// Starts the thread that writes. `clock` returns the time since 1970.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(
        log: Arc<AuditLog>,
        clock: impl Fn() -> Duration + Send + 'static,
    ) -> Result<Self> {
        let path = log.path.clone();
        let (sender, receiver) = mpsc::sync_channel(MOST_WAITING);
        let (end, ended) = mpsc::channel();
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        let write = move || {
            write_all(&log, &receiver, &counted, &clock);
            // The queue may not wait for the end.
            let _ = end.send(());
        };
        let thread = thread::Builder::new().name("audit".to_owned()).spawn(write);
        thread.map_err(Error::file("start the thread that writes", &path))?;
        Ok(Self { sender: Some(sender), lost, ended: Mutex::new(ended) })
    }

    /// Hands over a refusal to be written, without waiting. `now` is the time since 1970.
    pub fn push(&self, event: &AuditEvent<'_>, now: Duration) {
        let Some(sender) = &self.sender else { return };
        let own = |text: &str| shorten(text).to_owned();
        let waiting = Waiting {
            at: now,
            who: own(event.who),
            from: own(event.from),
            action: own(event.action),
            subject: own(event.subject),
            outcome: own(event.outcome),
            detail: own(event.detail),
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sender.try_send(waiting)
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for AuditQueue {
    fn drop(&mut self) {
        self.sender = None;
        // A thread that hangs in the kernel ends with the process.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(LONGEST_END);
    }
}

/// Writes refusals until the queue ends.
fn write_all(
    log: &AuditLog,
    receiver: &Receiver<Waiting>,
    lost: &AtomicU64,
    clock: &impl Fn() -> Duration,
) {
    let mut is_failing = false;
    loop {
        let received = receiver.recv_timeout(FLUSH_INTERVAL);
        match lost.swap(0, Ordering::Relaxed) {
            0 => {}
            number => log.count_refusals(number),
        }
        let (written, is_open) = match received {
            Ok(waiting) => (log.write_refusal(&waiting.event(), waiting.at), true),
            Err(RecvTimeoutError::Timeout) => (log.flush(clock(), false), true),
            Err(RecvTimeoutError::Disconnected) => (log.flush(clock(), true), false),
        };
        match written {
            Ok(()) => is_failing = false,
            // A full disk is reported once, and not for each refusal.
            Err(error) if !is_failing => {
                is_failing = true;
                tracing::error!("{error}");
            }
            Err(_) => {}
        }
        if !is_open {
            return;
        }
    }
}

impl Waiting {
    fn event(&self) -> AuditEvent<'_> {
        AuditEvent {
            who: &self.who,
            from: &self.from,
            action: &self.action,
            subject: &self.subject,
            outcome: &self.outcome,
            detail: &self.detail,
        }
    }
}
