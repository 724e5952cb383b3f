//! A file that is read at given positions. Several decoders can share one file descriptor, because
//! they do not share an offset.
//!
//! A memory mapping was rejected: if another process truncates the file while it is read, a read
//! returns an error, but a mapping causes a SIGBUS.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::error::{self, ReaderError};
use crate::input::Input;
use crate::stores::ObjectFile;

/// A file, with its length at the time of opening.
#[derive(Clone, Debug)]
pub(crate) struct PositionedFile {
    place: Place,
    length: u64,
}

#[derive(Clone, Debug)]
enum Place {
    File(Arc<File>),
    /// A file in a bucket, with the places of the column chunks that are read, sorted.
    Object(Arc<ObjectFile>, Arc<[Range<u64>]>),
}

impl PositionedFile {
    /// Opens a file. `chunks` holds the places of the column chunks that will be read, sorted. Of a
    /// file in a bucket, the reading of these places begins at once.
    pub(crate) fn open(input: &Input, chunks: Vec<Range<u64>>) -> error::Result<Self> {
        match input {
            Input::Local(path) => {
                let failed = ReaderError::io("open the file", path);
                let file = File::open(path).map_err(failed)?;
                let length = file.metadata().map_err(failed)?.len();
                Ok(Self { place: Place::File(Arc::new(file)), length })
            }
            Input::Object(object) => {
                object.read_ahead_all(&chunks);
                let place = Place::Object(object.clone(), chunks.into());
                Ok(Self { place, length: object.bytes() })
            }
        }
    }
}

/// Reads the bytes behind a position of a column chunk ahead.
fn read_ahead(object: &ObjectFile, chunks: &[Range<u64>], at: u64) {
    let chunk = chunks.partition_point(|chunk| chunk.start <= at).checked_sub(1);
    if let Some(end) = chunk.map(|chunk| chunks[chunk].end).filter(|&end| at < end) {
        object.read_ahead(at..end.min(at.saturating_add(object.ahead_bytes())));
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
        let end = start.checked_add(length as u64).filter(|&end| end <= self.length);
        let Some(end) = end else {
            return Err(ParquetError::EOF(format!(
                "bytes {start} to {start} + {length} of a file of {} bytes",
                self.length
            )));
        };
        match &self.place {
            Place::File(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, start)?;
                Ok(bytes.into())
            }
            Place::Object(object, chunks) => {
                read_ahead(object, chunks, start);
                Ok(object.read(start..end)?)
            }
        }
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
        let read = match &self.file.place {
            Place::File(file) => file.read_at(buffer, self.position)?,
            Place::Object(object, _) => object.read_from(self.position).read(buffer)?,
        };
        self.position += read as u64;
        Ok(read)
    }
}
