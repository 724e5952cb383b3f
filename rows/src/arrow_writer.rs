//! The functions for writing Arrow files that parts and layers share.

use std::io::{self, Write};

use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, Schema};

/// Converts an error of Arrow into an I/O error. An I/O error inside the error of Arrow keeps its
/// kind, so that callers can recognise a full disk.
fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}

/// Writes a file with one record batch.
pub(crate) fn write_batch(
    out: impl Write,
    schema: &Schema,
    batch: impl FnOnce() -> Result<RecordBatch, ArrowError>,
) -> io::Result<()> {
    let write = || {
        let mut writer = FileWriter::try_new(out, schema)?;
        writer.write(&batch()?)?;
        writer.finish()
    };
    write().map_err(io_error)
}

/// A writer that passes its bytes on to another writer and hashes them.
pub(crate) struct Hashed<'a> {
    /// The writer of the file.
    pub(crate) out: &'a mut dyn Write,
    /// The hasher of all bytes that have been written.
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
