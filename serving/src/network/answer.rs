//! The answer to a request on its way to the client: its bytes keep their place in the budget, and
//! the request counts as open, until the protocol has dropped the last of them.
//!
//! hyper takes a body long before its client does, so that the end of the body says little. The
//! memory itself owns the guard: what hyper or h2 still holds is still counted. An answer leaves in
//! slices, and the protocol asks for the next slice only as the client makes room for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::activity::{Activity, OpenStream};
use crate::budget::HeldBytes;

/// The largest number of bytes that the protocol takes at once.
const SLICE_BYTES: usize = 16 << 10;

/// An answer that is being sent, until the value is dropped.
#[derive(Debug)]
struct Sending {
    open: OpenStream,
    _held: Option<Arc<HeldBytes>>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.open.activity().end_sending();
    }
}

/// The bytes of an answer, with the guard that counts them.
struct Counted {
    bytes: Bytes,
    _sending: Sending,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body of an answer that has an end. Its request is open, and its bytes are in flight, until
/// the protocol has dropped all of them.
#[derive(Debug)]
pub(super) struct AnswerBody {
    body: Body,
    /// The bytes that the protocol did not take yet.
    rest: Bytes,
    activity: Arc<Activity>,
    /// The guard of the answer, until its bytes own it.
    sending: Option<Sending>,
}

impl AnswerBody {
    /// Creates the body of the answer to the request `open`, whose scores hold bytes of the budget.
    pub(super) fn new(body: Body, open: OpenStream, held: Option<Arc<HeldBytes>>) -> Self {
        let activity = open.activity().clone();
        activity.begin_sending();
        Self { body, rest: Bytes::new(), activity, sending: Some(Sending { open, _held: held }) }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            let bytes = match frame.into_data() {
                Ok(bytes) => bytes,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            };
            // An answer is one piece, and trailers may follow it.
            this.rest = match this.sending.take() {
                Some(sending) => Bytes::from_owner(Counted { bytes, _sending: sending }),
                None => bytes,
            };
        }
        let length = this.rest.len().min(SLICE_BYTES);
        this.activity.record_handed(length);
        Poll::Ready(Some(Ok(Frame::data(this.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(body.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::budget::{Budget, Holder};

    /// Takes all slices of an answer and keeps them, as a protocol does whose client reads nothing.
    fn take_all(answer: AnswerBody) -> Vec<Bytes> {
        let mut answer = Body::new(answer);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut slices = Vec::new();
            while let Some(frame) = answer.frame().await {
                slices.extend(frame.unwrap().into_data());
            }
            slices
        })
    }

    #[test]
    fn bytes_are_in_flight_until_the_protocol_drops_them() {
        let (budget, activity) = (Arc::new(Budget::default()), Arc::new(Activity::new()));
        let content: Vec<u8> = (0..40_000u32).map(|i| i as u8).collect();
        let mut held = budget.empty(Holder::Principal("p"));
        held.set(content.len());
        let body = Body::from(content.clone());
        let answer = AnswerBody::new(body, activity.begin_request(true), Some(Arc::new(held)));
        assert_eq!(answer.size_hint().exact(), Some(40_000));
        // The body is dropped with the last slice.
        let mut slices = take_all(answer);
        assert_eq!(slices.iter().map(Bytes::len).collect::<Vec<_>>(), [16_384, 16_384, 7_232]);
        assert_eq!(slices.concat(), content);
        for _ in 0..2 {
            slices.remove(0);
            assert_eq!(budget.used(), 40_000);
            assert!(activity.idle().is_none() && activity.is_sending());
        }
        drop(slices);
        assert_eq!(budget.used(), 0);
        assert!(activity.idle().is_some() && !activity.is_sending());
    }

    #[test]
    fn an_answer_that_is_dropped_is_not_open() {
        let activity = Arc::new(Activity::new());
        let answer = AnswerBody::new(Body::from("abc"), activity.begin_request(false), None);
        assert!(activity.idle().is_none());
        drop(answer);
        assert!(activity.idle().is_some() && !activity.is_sending());
        // An answer without bytes, as that to HEAD, ends with its body.
        let answer = AnswerBody::new(Body::empty(), activity.begin_request(false), None);
        assert!(answer.is_end_stream() && take_all(answer).is_empty());
        assert!(activity.idle().is_some());
    }
}
