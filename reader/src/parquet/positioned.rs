//! A file read at positions, so that several decoders share one descriptor without a common offset.
//!
//! Not a mapping: a data file that is truncated while it is read gives an error here and
//! would give a SIGBUS there.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// A file and its length when it was opened.
#[derive(Clone, Debug)]
pub(crate) struct PositionedFile {
    file: Arc<File>,
    length: u64,
}

impl PositionedFile {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), length })
    }
}

impl Length for PositionedFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for PositionedFile {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        // Page headers are some tens of bytes; what follows them comes through `get_bytes`.
        Ok(BufReader::with_capacity(512, From { file: self.clone(), position: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // Before allocating: a damaged length must not ask for more than the file can hold.
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(ParquetError::EOF(format!(
                "bytes {start} to {start} + {length} of a file of {} bytes",
                self.length
            )));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// Reads on from a position.
#[derive(Debug)]
pub(crate) struct From {
    file: PositionedFile,
    position: u64,
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.file.read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}
