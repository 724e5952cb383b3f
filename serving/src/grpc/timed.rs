//! The body of a call whose work may be slow, and whose message may not.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

use super::status::status;
use crate::error::ServeError;

/// A body that must arrive within a time limit, which begins with the value.
pub(super) struct TimedBody {
    body: Body,
    limit: Duration,
    end: Pin<Box<Sleep>>,
}

impl TimedBody {
    /// Creates a body that has `limit` to arrive.
    pub(super) fn new(body: Body, limit: Duration) -> Self {
        Self { body, limit, end: Box::pin(tokio::time::sleep(limit)) }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        self.end.as_mut().poll(context).map(|()| {
            let late: Status = status(&ServeError::SlowBody { limit: self.limit });
            Some(Err(axum::Error::new(late)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};
    use tonic::codegen::tokio_stream;

    use super::*;

    #[test]
    fn a_message_that_does_not_come_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let limit = Duration::from_millis(20);
        runtime.block_on(async {
            let whole = TimedBody::new(Body::from("abc"), limit).collect().await.unwrap();
            assert_eq!(whole.to_bytes(), "abc");
            let never = tokio_stream::pending::<Result<Frame<Bytes>, axum::Error>>();
            let never = Body::new(StreamBody::new(never));
            let error = TimedBody::new(never, limit).collect().await.unwrap_err();
            let late = Status::from_error(error.into());
            assert_eq!(late.code(), status(&ServeError::SlowBody { limit }).code());
        });
    }
}
