//! The reader of a large object. The store's thread fetches several ranges at the same time and
//! delivers them in order.
//!
//! If the fetch of a range is interrupted, the range is requested again. The memory is bounded: it
//! holds only the ranges in progress, one range that waits for the reader, and the range that the
//! reader uses. If the reader pauses, fetching pauses too.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::remote::{Remote, Shared};
use crate::stats::{Operation, Outcome};
use crate::stop::StoreStop;

/// A large object that is being fetched, piece by piece.
pub struct Fetch {
    remote: Arc<Remote>,
    name: String,
    pieces: mpsc::Receiver<Result<Bytes, Failure>>,
}

impl Fetch {
    /// Begins to fetch an object that has `bytes` bytes.
    pub(crate) fn begin(remote: Arc<Remote>, path: Path, bytes: u64, stop: StoreStop) -> Self {
        let (to_reader, pieces) = mpsc::channel(1);
        let shared = remote.shared.clone();
        let name = path.to_string();
        remote.network.handle().spawn(async move {
            tokio::select! {
                () = read(shared, path, bytes, &to_reader) => {}
                () = stop.over() => {
                    let why = Failure::new(Outcome::Timeout,
                        "the process is stopping and does not wait for the store; start it again");
                    // If the reader has been dropped, the error is not needed.
                    let _ = to_reader.send(Err(why)).await;
                }
            }
        });
        Self { remote, name, pieces }
    }

    /// Waits for the next piece. Returns `None` after the last piece.
    ///
    /// # Errors
    /// Returns an error if the object is missing, if it has a different size, or if the store does
    /// not deliver it. No piece follows an error.
    pub fn next_piece(&mut self) -> Option<Result<Bytes>> {
        let piece = self.pieces.blocking_recv()?;
        Some(piece.map_err(|failure| match failure.outcome {
            Outcome::Missing => Error::Missing { path: self.name.clone() },
            _ => self.remote.error("read", &self.name, failure),
        }))
    }
}

/// The requests in progress. They are cancelled when the value is dropped.
struct Open(VecDeque<JoinHandle<Result<Bytes, Failure>>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

async fn read(
    shared: Arc<Shared>,
    path: Path,
    bytes: u64,
    to_reader: &mpsc::Sender<Result<Bytes, Failure>>,
) {
    let step = shared.policy.options.fetch_bytes as u64;
    let mut ranges = (0..bytes.div_ceil(step).max(1)).map(|i| i * step..bytes.min((i + 1) * step));
    let mut open = Open(VecDeque::new());
    loop {
        while open.0.len() < shared.policy.options.at_once
            && let Some(range) = ranges.next()
        {
            open.0.push_back(tokio::spawn(piece(shared.clone(), path.clone(), range, bytes)));
        }
        let Some(next) = open.0.pop_front() else { return };
        let piece = next
            .await
            .unwrap_or_else(|stopped| Err(Failure::new(Outcome::Refused, stopped.to_string())));
        let is_last = piece.is_err();
        if to_reader.send(piece).await.is_err() || is_last {
            return;
        }
    }
}

/// Fetches one range of an object that has `bytes` bytes.
async fn piece(
    shared: Arc<Shared>,
    path: Path,
    range: Range<u64>,
    bytes: u64,
) -> Result<Bytes, Failure> {
    let place = shared.place(&path);
    let objects = &shared.client.objects;
    let is_all = range == (0..bytes);
    let wanted = range.clone();
    let read = || async {
        let range = (!is_all).then(|| GetRange::Bounded(wanted.clone()));
        let answer =
            objects.get_opts(&place, GetOptions { range, ..GetOptions::default() }).await?;
        let size = answer.meta.size;
        // If the object has another size, its body is not read.
        if size != bytes {
            return Ok((size, Bytes::new()));
        }
        Ok((size, answer.bytes().await?))
    };
    let (size, piece) = shared.policy.retry(Operation::Get, read).await?;
    shared.policy.stats.received(piece.len());
    if size != bytes || piece.len() as u64 != range.end - range.start {
        let reason = format!(
            "the object has {size} bytes instead of the published {bytes}; publish the version again"
        );
        return Err(Failure::new(Outcome::Refused, reason));
    }
    Ok(piece)
}
