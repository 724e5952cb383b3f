//! The body of a call, counted against the budget of bytes in flight while it arrives.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::budget::HeldBytes;

/// A body whose bytes count as in flight until it is dropped.
pub(super) struct CountedBody {
    body: Body,
    held: HeldBytes,
    most: usize,
    /// Whether the budget refused a piece of the body.
    refused: Arc<AtomicBool>,
}

impl CountedBody {
    /// Creates a body that counts against a budget of `most` bytes, and sets `refused` if the
    /// budget is used up.
    pub(super) fn new(body: Body, held: HeldBytes, most: usize, refused: Arc<AtomicBool>) -> Self {
        Self { body, held, most, refused }
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(piece) = frame.data_ref()
        {
            let (bytes, most) = (piece.len(), self.most);
            if !self.held.grow(bytes, most) {
                self.refused.store(true, Ordering::Relaxed);
                let reason = "the bytes in flight reached their limit";
                return Poll::Ready(Some(Err(axum::Error::new(reason))));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
