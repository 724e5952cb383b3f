//! The frame: a header, a body and a checksum.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Op, WireError, WireResult};

/// The first four bytes of every frame.
pub(crate) const MAGIC: [u8; 4] = *b"ZPS1";

/// The number of bytes of a header.
pub(crate) const HEADER_BYTES: usize = 64;

/// The number of bytes of the checksum after a body.
pub(crate) const TRAILER_BYTES: usize = 8;

/// The seed of the checksum of headers.
const HEADER_SEED: u64 = 0x5a50_5348;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) op: Op,
    /// The generation of the run to which the frame belongs.
    pub(crate) generation: u64,
    /// The number that a client drew for its session.
    pub(crate) session: u64,
    /// The number of the frame in its session, counted from 1. An answer has the number of its
    /// question. Frames outside of a session have the number 0.
    pub(crate) number: u64,
    /// The greatest number whose answer the client has received. The server can forget the answers
    /// up to this number.
    pub(crate) received: u64,
    /// The step to which the frame belongs; 0 outside of a step.
    pub(crate) step: u64,
    /// The number of bytes of the body.
    pub(crate) body: u64,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.op.number().to_le_bytes());
        let fields =
            [self.generation, self.session, self.number, self.received, self.step, self.body];
        for (place, field) in bytes[8..56].chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let check = xxh3_64_with_seed(&bytes[..56], HEADER_SEED);
        bytes[56..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a header, and checks it before any of its numbers is used.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a header of this version, or if the body would have
    /// more than `most` bytes.
    pub(crate) fn read(bytes: &[u8; HEADER_BYTES], most: u64) -> WireResult<Self> {
        if bytes[..4] != MAGIC {
            return Err(WireError::new(
                "the bytes are not a frame of a parameter service; connect a program of the same \
                 version",
            ));
        }
        let number = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(field)
        };
        if number(56) != xxh3_64_with_seed(&bytes[..56], HEADER_SEED) {
            return Err(WireError::new(
                "the checksum of a header is wrong; the connection has changed its bytes",
            ));
        }
        let code = u16::from_le_bytes([bytes[4], bytes[5]]);
        let op = Op::of_number(code).filter(|_| bytes[6..8] == [0, 0]).ok_or_else(|| {
            WireError::new(format!(
                "the operation {code} is unknown; use the same version of the program on all hosts"
            ))
        })?;
        let body = number(48);
        if body > most {
            return Err(WireError::new(format!(
                "the body of `{}` has {body} bytes, but at most {most} are allowed; make batches \
                 smaller, or raise `ps.max_frame_bytes` of the server",
                op.name()
            )));
        }
        Ok(Self {
            op,
            generation: number(8),
            session: number(16),
            number: number(24),
            received: number(32),
            step: number(40),
            body,
        })
    }
}

/// A whole frame in memory, as it is sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
}

impl Frame {
    /// Returns memory to which the caller appends the body of a frame, and which
    /// [`Frame::finish`] takes. The `memory` of an earlier frame is reused.
    pub(crate) fn begin(mut memory: Vec<u8>) -> Vec<u8> {
        memory.clear();
        memory.resize(HEADER_BYTES, 0);
        memory
    }

    /// Makes a frame from the memory that [`Frame::begin`] has returned.
    pub(crate) fn finish(mut memory: Vec<u8>, header: Header) -> Self {
        let check = xxh3_64_with_seed(&memory[HEADER_BYTES..], header.number);
        let body = (memory.len() - HEADER_BYTES) as u64;
        memory.extend(check.to_le_bytes());
        memory[..HEADER_BYTES].copy_from_slice(&Header { body, ..header }.to_bytes());
        Self { bytes: memory }
    }

    /// Changes the number up to which answers have been received, before a frame is sent again.
    pub(crate) fn set_received(&mut self, received: u64) {
        self.bytes[32..40].copy_from_slice(&received.to_le_bytes());
        let check = xxh3_64_with_seed(&self.bytes[..56], HEADER_SEED);
        self.bytes[56..HEADER_BYTES].copy_from_slice(&check.to_le_bytes());
    }

    /// Returns the bytes to send.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the memory of the frame, so that another frame can use it.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        self.bytes
    }
}

/// Checks the checksum that follows a body.
///
/// # Errors
/// Returns an error if the checksum is wrong.
pub(crate) fn check_body(
    header: &Header,
    body: &[u8],
    trailer: [u8; TRAILER_BYTES],
) -> WireResult<()> {
    if xxh3_64_with_seed(body, header.number) == u64::from_le_bytes(trailer) {
        return Ok(());
    }
    Err(WireError::new(format!(
        "the checksum of the body of `{}` is wrong; the connection has changed its bytes",
        header.op.name()
    )))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(frame: &Frame) -> ([u8; HEADER_BYTES], &[u8], [u8; TRAILER_BYTES]) {
        let bytes = frame.as_bytes();
        let end = bytes.len() - TRAILER_BYTES;
        (
            bytes[..HEADER_BYTES].try_into().unwrap(),
            &bytes[HEADER_BYTES..end],
            bytes[end..].try_into().unwrap(),
        )
    }

    proptest! {
        #[test]
        fn a_frame_reads_as_it_was_built_and_no_flipped_bit_passes(
            op in prop::sample::select(Op::ALL),
            fields in prop::array::uniform5(any::<u64>()),
            body in prop::collection::vec(any::<u8>(), 0..100),
            received in any::<u64>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let [generation, session, number, before, step] = fields;
            let header =
                Header { op, generation, session, number, received: before, step, body: 0 };
            let mut memory = Frame::begin(Vec::new());
            memory.extend(&body);
            let mut frame = Frame::finish(memory, header);
            frame.set_received(received);
            let (head, sent, trailer) = split(&frame);
            let read = Header::read(&head, 100).unwrap();
            prop_assert_eq!(read, Header { received, body: body.len() as u64, ..header });
            prop_assert_eq!(sent, &body[..]);
            prop_assert!(check_body(&read, sent, trailer).is_ok());

            let mut damaged = Frame { bytes: frame.bytes.clone() };
            let bit = flip.index(damaged.bytes.len() * 8);
            damaged.bytes[bit / 8] ^= 1 << (bit % 8);
            let (head, sent, trailer) = split(&damaged);
            let passes = Header::read(&head, 100).is_ok_and(|h| check_body(&h, sent, trailer).is_ok());
            prop_assert!(!passes);
        }
    }

    #[test]
    fn a_body_above_the_limit_is_refused_by_its_header() {
        let header = Header {
            op: Op::Push,
            generation: 1,
            session: 2,
            number: 3,
            received: 0,
            step: 9,
            body: 0,
        };
        let mut memory = Frame::begin(Vec::new());
        memory.extend([0; 101]);
        let frame = Frame::finish(memory, header);
        let error = Header::read(&split(&frame).0, 100).unwrap_err().to_string();
        assert!(error.contains("`push`") && error.contains("ps.max_frame_bytes"), "{error}");
    }
}
