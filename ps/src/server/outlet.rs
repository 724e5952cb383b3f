//! The way back to the client of a connection, which sessions keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::{Notify, mpsc};

use super::clock::milliseconds;
use crate::wire::Frame;

/// The number of answers that may wait for a client to read them.
const ANSWERS: usize = 256;

/// The way to the client of a connection.
#[derive(Clone, Debug)]
pub(super) struct Outlet {
    frames: mpsc::Sender<Arc<Frame>>,
    /// Tells the reading side to close a connection whose client does not take its answers.
    overflow: Arc<Notify>,
    /// The milliseconds since the start of the process at which the client was heard last.
    heard: Arc<AtomicU64>,
    is_closed: Arc<AtomicBool>,
}

impl Outlet {
    /// Makes an outlet. Returns it with the answers to write, and with the notice of a client that
    /// does not take its answers.
    pub(super) fn new() -> (Self, mpsc::Receiver<Arc<Frame>>, Arc<Notify>) {
        let (frames, outgoing) = mpsc::channel(ANSWERS);
        let overflow = Arc::new(Notify::new());
        let outlet = Self {
            frames,
            overflow: overflow.clone(),
            heard: Arc::new(AtomicU64::new(milliseconds(Instant::now()))),
            is_closed: Arc::new(AtomicBool::new(false)),
        };
        (outlet, outgoing, overflow)
    }

    /// Records that the client was heard at this moment.
    pub(super) fn hear(&self) {
        self.heard.store(milliseconds(Instant::now()), Ordering::Relaxed);
    }

    /// Records that the connection is closed.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Sends a frame without waiting. Does nothing if the connection is closed. If the client has
    /// left too many answers unread, the connection is closed.
    pub(super) fn send(&self, frame: Arc<Frame>) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.frames.try_send(frame) {
            self.overflow.notify_one();
        }
    }

    /// Returns whether the connection is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Returns the milliseconds since the start of the process at which the client was heard last.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }
}
