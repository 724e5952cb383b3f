//! The wire between trainers and parameter servers: frames and the bodies of messages. This module
//! does no I/O.
//!
//! A connection carries frames in both directions. A frame has a header of [`HEADER_BYTES`] bytes,
//! a body, and a checksum of [`TRAILER_BYTES`] bytes. The header names the operation, the
//! generation of the run, the session and the number of the frame in the session. All numbers are
//! little-endian.
//!
//! Messages for steps (plans, rows, gradients) have binary bodies, because they are large. All
//! other messages have JSON bodies, because they are rare and must be easy to extend.
//!
//! # Invariants
//! * A length that comes from another process is checked before memory is allocated for it. A body
//!   can cost at most a small multiple of its own bytes.
//! * The rows of a table are sent without the padding that they have in memory, and no float is
//!   changed on its way.

mod bytes;
mod floats;
mod frame;
mod lent;
mod message;
mod op;
mod plan;
mod rows;
mod untrusted;

pub(crate) use bytes::{Reader, Writer};
pub(crate) use frame::{Frame, HEADER_BYTES, Header, MAGIC, TRAILER_BYTES, check_body};
pub(crate) use lent::{LentPart, read_lent, write_lent};
pub(crate) use message::*;
pub(crate) use op::Op;
pub(crate) use plan::{read_plan, write_plan};
pub(crate) use rows::{place_rows, take_gradients, take_rows, write_gradients, write_rows};

pub use untrusted::{read_message, sample_messages};

/// An error of bytes that came from another process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(pub(crate) String);

impl WireError {
    pub(crate) fn new(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}

/// The result of reading bytes that came from another process.
pub(crate) type WireResult<T> = Result<T, WireError>;

/// The version of the wire. A server refuses clients of another version.
pub(crate) const WIRE_VERSION: u32 = 3;
