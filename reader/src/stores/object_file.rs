//! A file that is an object of a bucket. It is read in blocks at positions, or as a stream.

use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use zillion_store::{Object, ObjectStream};

use super::blocks::{Blocks, Numbered};
use crate::error::ReaderError;

/// A file in a bucket, bound to one state of its object.
#[derive(Debug)]
pub(crate) struct ObjectFile {
    path: PathBuf,
    /// The number of the object in the table of blocks.
    number: u64,
    object: Arc<Object>,
    blocks: Arc<Blocks>,
    /// The reason of the last read, if that read failed.
    failure: Mutex<Option<String>>,
}

impl ObjectFile {
    pub(super) fn new(path: &Path, number: u64, object: Object, blocks: Arc<Blocks>) -> Self {
        let (path, object) = (path.to_owned(), Arc::new(object));
        Self { path, number, object, blocks, failure: Mutex::default() }
    }

    /// Returns the URL of the object as a path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the state of the object that is read.
    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    /// Returns the size of the object in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.object.bytes
    }

    fn numbered(&self) -> Numbered<'_> {
        Numbered { number: self.number, object: &self.object }
    }

    /// Begins to read a range, as far as the limit for reading ahead allows.
    pub(crate) fn read_ahead(&self, range: Range<u64>) {
        let range = range.start..range.end.min(self.bytes());
        if !range.is_empty() {
            self.blocks.read_ahead(&self.numbered(), range);
        }
    }

    /// Begins to read the first bytes of several ranges. The ranges share the limit for reading
    /// ahead.
    pub(crate) fn read_ahead_all(&self, ranges: &[Range<u64>]) {
        let share = self.blocks.ahead_limit() / ranges.len().max(1) as u64;
        for range in ranges {
            self.read_ahead(range.start..range.end.min(range.start.saturating_add(share)));
        }
    }

    /// Returns the number of bytes that a reader of a long range should request ahead.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        2 * self.blocks.request_bytes()
    }

    /// Returns the bytes of a range.
    ///
    /// # Errors
    /// Returns an error if the range lies outside of the object, if the object has been replaced or
    /// removed, or if the store does not deliver the bytes.
    pub(crate) fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        if range.start > range.end || range.end > self.bytes() {
            let size = self.bytes();
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("bytes {} to {} of a file of {size} bytes", range.start, range.end),
            ));
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let read = self.read_in_steps(range);
        let failure = read.as_ref().err().map(ToString::to_string);
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        read
    }

    /// Reads a long range in steps, so that its blocks leave the memory while it is read.
    fn read_in_steps(&self, range: Range<u64>) -> io::Result<Bytes> {
        let step = self.blocks.ahead_limit().max(self.blocks.request_bytes());
        if range.end - range.start <= step {
            return self.blocks.read(&self.numbered(), range);
        }
        let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(length);
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + step);
            bytes.extend_from_slice(&self.blocks.read(&self.numbered(), at..end)?);
            at = end;
        }
        Ok(bytes.into())
    }

    /// Returns the error of the last read, if that read failed. Decoders that only return texts
    /// lose the kind of their errors.
    pub(crate) fn failure(&self) -> Option<ReaderError> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        failure.map(|reason| ReaderError::io("read", &self.path)(io::Error::other(reason)))
    }

    /// Begins to read all bytes in order.
    pub(crate) fn stream(&self) -> ObjectStream {
        self.blocks.bucket().stream(&self.object)
    }

    /// Returns a reader of the bytes from a position on, which reads no more than is asked for.
    pub(crate) fn read_from(self: &Arc<Self>, position: u64) -> ObjectReader {
        ObjectReader { file: self.clone(), position }
    }
}

/// A reader of the bytes of an object from a position on, block by block.
#[derive(Debug)]
pub(crate) struct ObjectReader {
    file: Arc<ObjectFile>,
    position: u64,
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.file.bytes().saturating_sub(self.position);
        let length = left.min(buffer.len() as u64);
        let bytes = self.file.read(self.position..self.position + length)?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        self.position += length;
        Ok(bytes.len())
    }
}
