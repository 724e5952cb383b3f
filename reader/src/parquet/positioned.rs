//! A file that is read at given positions. Several decoders can share one file descriptor, because
//! they do not share an offset.
//!
//! A memory mapping was rejected: if another process truncates the file while it is read, a read
//! returns an error, but a mapping causes a SIGBUS.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::error::{self, ReaderError};

/// A file, with its length at the time of opening.
#[derive(Clone, Debug)]
pub(crate) struct PositionedFile {
    file: Arc<File>,
    length: u64,
}

impl PositionedFile {
    pub(crate) fn open(path: &Path) -> error::Result<Self> {
        let failed = ReaderError::io("open the file", path);
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
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
        // A page header has a few dozen bytes. The data after the header is read by `get_bytes`.
        Ok(BufReader::with_capacity(512, From { file: self.clone(), position: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // The check comes before the allocation, so that a damaged length cannot request more
        // memory than the size of the file.
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

/// A reader of the bytes of a file from a position on.
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
