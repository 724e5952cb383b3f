//! The frames that wait for the engine, the ways back to their clients, and answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};

use super::figures::Figures;
use super::pool::Share;
use super::questions::Question;
use crate::code::ErrorCode;
use crate::wire::{Failure, Frame, Header, Op, write_json};

/// Returns the milliseconds from the first call in this process to a moment.
pub(super) fn milliseconds(moment: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    moment.saturating_duration_since(start).as_millis() as u64
}

/// A command for the engine.
#[derive(Debug)]
pub(super) enum Command {
    /// A frame that has arrived.
    Request(Box<Request>),
    /// A question or request of an operator.
    Ask(Question),
    /// A look at the trainers that are silent.
    Tick,
    /// The end of the server.
    Stop,
}

/// A frame that has arrived, and the connection that it came from.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) header: Header,
    pub(super) body: Vec<u8>,
    pub(super) outlet: Outlet,
    pub(super) held: (Option<OwnedSemaphorePermit>, Option<Share>),
}

/// The way to the client of a connection.
#[derive(Clone, Debug)]
pub(super) struct Outlet {
    /// The number of the connection, greater than those of earlier connections.
    pub(super) number: u64,
    pub(super) frames: mpsc::Sender<Arc<Frame>>,
    /// Tells the reading side to close a connection whose client does not take its answers.
    pub(super) overflow: Arc<Notify>,
    /// The milliseconds since the start of the process at which the client was heard last.
    pub(super) heard: Arc<AtomicU64>,
    pub(super) is_closed: Arc<AtomicBool>,
}

impl Outlet {
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

/// Makes the answer to a frame.
pub(super) fn answer(header: &Header, fill: impl FnOnce(&mut Vec<u8>)) -> Frame {
    let mut memory = Frame::begin(Vec::new());
    fill(&mut memory);
    Frame::finish(memory, Header { op: Op::Answer, ..*header })
}

/// Answers a request with an error.
pub(super) fn refuse(request: &Request, code: ErrorCode, text: &str, generation: u64) {
    request.outlet.send(Arc::new(failure(&request.header, code, text, generation)));
}

/// Makes the answer to a frame that failed.
pub(super) fn failure(header: &Header, code: ErrorCode, text: &str, generation: u64) -> Frame {
    let mut memory = Frame::begin(Vec::new());
    write_json(&mut memory, &Failure { code: code.number(), text: text.to_owned(), generation });
    Frame::finish(memory, Header { op: Op::Failure, ..*header })
}

/// Counts a frame of an earlier generation.
pub(super) fn count_stale(figures: &Figures) {
    figures.stale_frames.fetch_add(1, Ordering::Relaxed);
}
