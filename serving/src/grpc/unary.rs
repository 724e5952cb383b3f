//! The message and the answer of a unary call without the generic reader and writer of gRPC.
//!
//! Nearly all calls come as one message that is not compressed. Its bytes are taken as they are.
//! Any other body goes to the generic reader with all its bytes, so that its errors stay the same.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Frame;

use super::framed::PREFIX;

/// The header that names the compression of a message.
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// The body of a call after it was received.
#[derive(Debug)]
pub(super) enum Received {
    /// The body was one message.
    Message(Bytes),
    /// The body is for the generic reader.
    Other(Body),
}

type Piece = Result<Frame<Bytes>, axum::Error>;

/// Receives the body of a call with these headers, whose message has at most `most` bytes.
pub(super) async fn receive(headers: &HeaderMap, mut body: Body, most: usize) -> Received {
    if headers.contains_key(ENCODING) {
        return Received::Other(body);
    }
    // A small message is one piece, which is not copied.
    let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
    let next = loop {
        // The generic reader refuses what is too large before it takes more.
        if first.len() + joined.len() > most.saturating_add(PREFIX) {
            break None;
        }
        match body.frame().await {
            None => break None,
            Some(Err(error)) => break Some(Err(error)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(piece) if first.is_empty() && joined.is_empty() => first = piece,
                Ok(piece) => {
                    joined.extend_from_slice(&std::mem::take(&mut first));
                    joined.extend_from_slice(&piece);
                }
                Err(other) => break Some(Ok(other)),
            },
        }
    };
    let bytes = if joined.is_empty() { first } else { joined.freeze() };
    match next.is_none() && is_message(&bytes, most) {
        true => Received::Message(bytes.slice(PREFIX..)),
        false => Received::Other(Body::new(Again { bytes: Some(bytes), next, rest: body })),
    }
}

/// Returns whether bytes are one message that is not compressed.
fn is_message(bytes: &[u8], most: usize) -> bool {
    let Some((&[0, a, b, c, d], message)) = bytes.split_first_chunk::<PREFIX>() else {
        return false;
    };
    u32::from_be_bytes([a, b, c, d]) as usize == message.len() && message.len() <= most
}

/// A body that was received in part, from its beginning.
struct Again {
    bytes: Option<Bytes>,
    next: Option<Piece>,
    rest: Body,
}

impl HttpBody for Again {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(bytes) = self.bytes.take().filter(|bytes| !bytes.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match self.next.take() {
            Some(next) => Poll::Ready(Some(next)),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }
}

/// Returns the response to a call that was answered with this message, which has its prefix.
pub(super) fn respond(framed: Bytes) -> Response {
    let body = Answer { message: Some(framed), has_ended: false };
    let mut response = Response::new(Body::new(body));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The body of an answer: a message, and the status behind it.
#[derive(Debug)]
struct Answer {
    message: Option<Bytes>,
    has_ended: bool,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut self.has_ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        let name = HeaderName::from_static("grpc-status");
        trailers.insert(name, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use tonic::codegen::tokio_stream;

    use super::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(work)
    }

    fn body(pieces: &[&[u8]]) -> Body {
        let frames: Vec<Piece> =
            pieces.iter().map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
        Body::new(StreamBody::new(tokio_stream::iter(frames)))
    }

    /// Receives a body in these pieces. A body for the generic reader must have all its bytes.
    fn received(pieces: &[&[u8]], most: usize) -> Option<Vec<u8>> {
        match block_on(receive(&HeaderMap::new(), body(pieces), most)) {
            Received::Message(message) => Some(message.to_vec()),
            Received::Other(other) => {
                let all = block_on(other.collect()).unwrap().to_bytes();
                assert_eq!(all, pieces.concat());
                None
            }
        }
    }

    #[test]
    fn one_plain_message_is_taken_and_other_bodies_are_whole() {
        assert_eq!(received(&[b"\0\0\0\0\x03abc"], 3).unwrap(), b"abc");
        assert_eq!(received(&[b"\0\0", b"\0\0\x03a", b"", b"bc"], 3).unwrap(), b"abc");
        assert_eq!(received(&[b"\0\0\0\0\0"], 3).unwrap(), b"");
        for (pieces, most) in [
            (&[&b"\0\0\0\0\x03abc"[..]][..], 2),
            (&[b"\0\0\0\0\x03ab"], 9),
            (&[b"\0\0\0\0\x03abcd"], 9),
            (&[b"\x01\0\0\0\x03abc"], 9),
            (&[b"\0\0\0\0\x0aabcdefgh", b"ij", b"more"], 3),
            (&[b"\0\0\0\0"], 9),
            (&[], 9),
        ] {
            assert_eq!(received(pieces, most), None, "{pieces:?}");
        }
        let headers = HeaderMap::from_iter([(ENCODING, HeaderValue::from_static("gzip"))]);
        let other = block_on(receive(&headers, body(&[b"\0\0\0\0\0"]), 9));
        assert!(matches!(other, Received::Other(_)));
    }

    #[test]
    fn a_body_that_breaks_off_breaks_off_again() {
        let broken = || axum::Error::new("gone");
        let frames = [Ok(Frame::data(Bytes::from_static(b"\0\0"))), Err(broken())];
        let body = Body::new(StreamBody::new(tokio_stream::iter(frames)));
        let Received::Other(mut other) = block_on(receive(&HeaderMap::new(), body, 9)) else {
            panic!("no message is here");
        };
        let first = block_on(other.frame()).unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), b"\0\0"[..]);
        assert_eq!(block_on(other.frame()).unwrap().unwrap_err().to_string(), "gone");
    }

    #[test]
    fn an_answer_is_a_message_and_its_status() {
        let response = respond(Bytes::from_static(b"\0\0\0\0\x03abc"));
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/grpc");
        let body = response.into_body();
        assert!(!body.is_end_stream() && body.size_hint().exact().is_none());
        let all = block_on(body.collect()).unwrap();
        assert_eq!(all.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(all.to_bytes(), b"\0\0\0\0\x03abc"[..]);
    }
}
