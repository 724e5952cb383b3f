//! The contents of an Arrow file: mapped into memory, or read from a bucket block by block.

use std::ops::Range;
use std::sync::Arc;

use arrow_ipc::Block;
use bytes::Bytes;

use crate::error::{self, ReaderError};
use crate::input::Input;
use crate::stores::ObjectFile;

/// The problem of a block of the directory whose place is impossible.
const OUTSIDE: &str = "a block of its directory lies outside of the file";

/// The bytes of an Arrow file.
pub(super) enum Contents {
    Mapped(Bytes),
    Object(Arc<ObjectFile>),
}

impl Contents {
    /// Opens the contents of a file.
    ///
    /// # Errors
    /// Returns an error if a file of this machine cannot be mapped.
    pub(super) fn open(input: &Input) -> error::Result<Self> {
        match input {
            Input::Local(path) => {
                let bytes = zillion_device::mmap::map(path).map_err(|error| {
                    let error = std::io::Error::other(error.to_string());
                    ReaderError::io("map the file into memory", path)(error)
                })?;
                Ok(Self::Mapped(bytes))
            }
            Input::Object(object) => Ok(Self::Object(object.clone())),
        }
    }

    /// Returns the number of bytes of the file.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Mapped(bytes) => bytes.len(),
            Self::Object(object) => usize::try_from(object.bytes()).unwrap_or(usize::MAX),
        }
    }

    /// Returns a part of the file, or the text of the problem.
    pub(super) fn read(&self, range: Range<usize>) -> Result<Bytes, String> {
        if range.start > range.end || range.end > self.len() {
            return Err(OUTSIDE.to_owned());
        }
        match self {
            Self::Mapped(bytes) => Ok(bytes.slice(range)),
            Self::Object(object) => {
                object.read(range.start as u64..range.end as u64).map_err(|e| e.to_string())
            }
        }
    }

    /// Begins to read several parts of a file in a bucket.
    pub(super) fn read_ahead(&self, ranges: impl Iterator<Item = Range<u64>>) {
        if let Self::Object(object) = self {
            ranges.for_each(|range| object.read_ahead(range));
        }
    }

    /// Returns the bytes of a block of the directory.
    pub(super) fn read_block(&self, block: &Block) -> Result<Bytes, String> {
        self.read_places(range_of(block))
    }

    /// Returns at least the head of a block of the directory, which has no values.
    pub(super) fn read_head(&self, block: &Block) -> Result<Bytes, String> {
        // A block must lie in the file as a whole, although only its head is read.
        let whole = range_of(block);
        match self {
            Self::Mapped(_) => self.read_places(whole),
            Self::Object(object) => {
                let fits = whole.is_some_and(|whole| whole.end <= object.bytes());
                self.read_places(head_of(block).filter(|_| fits))
            }
        }
    }

    fn read_places(&self, range: Option<Range<u64>>) -> Result<Bytes, String> {
        let place = |at: u64| usize::try_from(at).map_err(|_| OUTSIDE.to_owned());
        let range = range.ok_or(OUTSIDE)?;
        self.read(place(range.start)?..place(range.end)?)
    }
}

/// Returns the place of a block in its file, or `None` if its directory is damaged.
pub(super) fn range_of(block: &Block) -> Option<Range<u64>> {
    let head = head_of(block)?;
    let body = u64::try_from(block.bodyLength()).ok()?;
    Some(head.start..head.end.checked_add(body)?)
}

/// Returns the place of the head of a block, or `None` if its directory is damaged.
pub(super) fn head_of(block: &Block) -> Option<Range<u64>> {
    let start = u64::try_from(block.offset()).ok()?;
    let length = u64::try_from(block.metaDataLength()).ok()?;
    Some(start..start.checked_add(length)?)
}
