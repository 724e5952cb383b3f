//! The helpers that both writers of Arrow files share.

use std::io::{self, Write};

use arrow_schema::ArrowError;

/// Converts an error of Arrow into an I/O error. A disk error keeps its kind, so that callers can
/// recognise a full disk.
pub(crate) fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}

/// A writer that hashes the bytes it passes on.
pub(crate) struct Hashed<'a> {
    /// The writer of the file.
    pub(crate) out: &'a mut dyn Write,
    /// The hash of all bytes so far.
    pub(crate) hasher: &'a mut blake3::Hasher,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
