//! A sequential reader of an object. The store's thread requests several ranges at the same time
//! and delivers them in order.
//!
//! The first range is small and requested alone, because many readers look only at the beginning of
//! an object. Each delivered range raises the number of requests at the same time by one and
//! doubles the size of the next range, up to the limits of the settings.
//!
//! Memory is bounded: `at_once` ranges in progress, one that waits, and one that the reader uses.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::object::{Object, RangeFailure, read_range};
use crate::remote::{Remote, Shared};
use crate::stats::Outcome;

/// The number of bytes of the first range, if the settings do not ask for smaller ranges.
const FIRST_RANGE: u64 = 256 << 10;

/// A reader of the bytes of an object, from the first byte to the last.
pub struct ObjectStream {
    /// The store, whose thread runs as long as the handle exists.
    _remote: Arc<Remote>,
    pieces: mpsc::Receiver<Result<Bytes>>,
    piece: Bytes,
}

impl std::fmt::Debug for ObjectStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectStream").finish_non_exhaustive()
    }
}

impl ObjectStream {
    pub(crate) fn begin(remote: Arc<Remote>, object: Arc<Object>) -> Self {
        let (to_reader, pieces) = mpsc::channel(1);
        let shared = remote.shared.clone();
        remote.network.handle().spawn(async move { deliver(shared, object, to_reader).await });
        Self { _remote: remote, pieces, piece: Bytes::new() }
    }
}

impl Read for ObjectStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece.map_err(io::Error::other)?,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// The requests in progress. They are cancelled when the value is dropped.
struct Open(VecDeque<JoinHandle<Result<Bytes, RangeFailure>>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Requests the ranges of an object and sends them to the reader in order. Ends after the last
/// range, after an error, and when the reader is dropped.
async fn deliver(shared: Arc<Shared>, object: Arc<Object>, to_reader: mpsc::Sender<Result<Bytes>>) {
    let most_bytes = shared.policy.options.fetch_bytes as u64;
    let most_open = shared.policy.options.at_once;
    let (mut at, mut step, mut limit) = (0, FIRST_RANGE.min(most_bytes), 1);
    let mut open = Open(VecDeque::new());
    loop {
        while open.0.len() < limit && at < object.bytes {
            let range = at..object.bytes.min(at + step);
            at = range.end;
            step = (step * 2).min(most_bytes);
            let (shared, object) = (shared.clone(), object.clone());
            open.0
                .push_back(tokio::spawn(async move { read_range(&shared, &object, range).await }));
        }
        let Some(next) = open.0.pop_front() else { return };
        let piece = next.await.unwrap_or_else(|stopped| {
            Err(RangeFailure::Failed(Failure::new(Outcome::Refused, stopped.to_string())))
        });
        let is_last = piece.is_err();
        let piece: Result<Bytes, Error> = piece.map_err(|failure| failure.error(&shared, &object));
        if to_reader.send(piece).await.is_err() || is_last {
            return;
        }
        limit = (limit + 1).min(most_open);
    }
}
