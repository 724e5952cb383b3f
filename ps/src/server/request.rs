//! The requests of clients on their way to the engine, and the answers to them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedSemaphorePermit;

use super::figures::Figures;
use super::outlet::Outlet;
use crate::code::ErrorCode;
use crate::wire::{Failure, Frame, Header, Op, write_json};

/// A command for the engine.
#[derive(Debug)]
pub(super) enum Command {
    /// A frame that has arrived.
    Request(Box<Request>),
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
    #[expect(dead_code, reason = "its drop lets other frames be read")]
    pub(super) permit: InFlight,
}

/// The bytes of a frame that waits for the tables. The bytes may be read again by others when the
/// value is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) _own: Option<OwnedSemaphorePermit>,
    pub(super) _total: OwnedSemaphorePermit,
    pub(super) bytes: u64,
    pub(super) figures: Arc<Figures>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.figures.bytes_in_flight.fetch_sub(self.bytes, Ordering::Relaxed);
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
