//! A writer of a file that leaves time to other work of the machine.

use std::io::{self, Write};

use super::Throttle;
use crate::arrow_writer::Hashed;

/// The number of bytes that are written and hashed between two calls of [`Throttle::piece`]. This
/// takes about 0.1 ms.
const PIECE_BYTES: usize = 64 << 10;

/// A writer that passes its bytes on in small pieces, hashes them, and calls the throttle after
/// each piece.
pub(super) struct Throttled<'a> {
    pub(super) hashed: Hashed<'a>,
    pub(super) throttle: &'a mut dyn Throttle,
}

impl Write for Throttled<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.hashed.write(&bytes[..bytes.len().min(PIECE_BYTES)])?;
        if written == PIECE_BYTES {
            self.throttle.piece();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hashed.flush()
    }
}
