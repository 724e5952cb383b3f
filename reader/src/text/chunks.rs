//! The division of a stream of bytes into chunks of whole records.
//!
//! This part of reading text is sequential. The records of different chunks are split into cells
//! and decoded in parallel. Memory is bounded: a chunk has at most [`CHUNK`] bytes, or one longer
//! record of at most [`MAX_RECORD`] bytes.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::lines::is_blank;
use super::open::Bytes;
use super::records::{Dialect, Records, Step, last_record_end};
use super::settings::Grammar;
use crate::error::{Near, Place, ReaderError, Result};

/// The target number of bytes of a chunk.
pub(super) const CHUNK: usize = 1 << 20;

/// The maximum number of bytes of a record. A longer record is an error, because its cause is
/// probably a quote that is never closed.
const MAX_RECORD: usize = 16 << 20;

/// The number of rows at the start of a file from which its columns are determined if the file has
/// no header.
pub(super) const FIRST_ROWS: usize = 1000;

/// Returns the message about a row with a column that is missing in the first rows of the file.
pub(super) fn beyond_first_rows(column: &str) -> String {
    format!(
        "the row has a column `{column}` that none of the first {FIRST_ROWS} rows of the file has, so its values \
         would be lost; write it in the first row too, as null or empty"
    )
}

/// A part of a text file that contains whole records.
#[derive(Debug)]
pub struct Chunk {
    /// The bytes of the records.
    pub bytes: Vec<u8>,
    /// The position in the decompressed text of the first byte of the chunk.
    pub offset: u64,
}

/// A reader that divides a source of bytes into chunks of whole records.
pub struct Chunks {
    source: Bytes,
    path: PathBuf,
    grammar: Grammar,
    /// The bytes that have been read but not returned yet. `offset` is the position in the
    /// decompressed text of their first byte.
    buffer: Vec<u8>,
    offset: u64,
    at_end: bool,
    /// Whether no chunk has been returned yet.
    fresh: bool,
}

impl std::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunks")
            .field("path", &self.path)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl Chunks {
    /// Opens a source at its beginning. `path` is the name of the source in messages.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read, has no bytes, or begins with the byte order
    /// mark of UTF-16.
    pub fn new(source: Bytes, path: &Path, grammar: Grammar) -> Result<Self> {
        let mut chunks = Self {
            source,
            path: path.to_owned(),
            grammar,
            buffer: Vec::new(),
            offset: 0,
            at_end: false,
            fresh: true,
        };
        // These bytes are enough for a byte order mark and for most headers.
        chunks.read_up_to(4096)?;
        if chunks.buffer.is_empty() {
            return Err(ReaderError::EmptyFile { path: chunks.path });
        }
        if chunks.buffer.starts_with(&[0xff, 0xfe]) || chunks.buffer.starts_with(&[0xfe, 0xff]) {
            return Err(ReaderError::Encoding { encoding: "UTF-16", path: chunks.path });
        }
        if chunks.buffer.starts_with("\u{feff}".as_bytes()) {
            chunks.drop_front(3);
        }
        Ok(chunks)
    }

    /// Removes the first record, which is the header, and returns its cells as the names of the
    /// columns.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read, has no record, or is not UTF-8.
    pub fn take_header(&mut self, dialect: Dialect) -> Result<Vec<String>> {
        loop {
            let mut records = Records::new(dialect, &self.buffer);
            let step = records.advance();
            match step {
                Step::End if self.at_end => {
                    return Err(ReaderError::EmptyFile { path: self.path.clone() });
                }
                Step::OpenQuote if self.at_end => {
                    let place = Place { row: 0, near: Near::Byte(self.offset) };
                    return Err(ReaderError::OpenQuote { place, path: self.path.clone() });
                }
                Step::End | Step::LastRecord | Step::OpenQuote if !self.at_end => {
                    self.read_more()?;
                    continue;
                }
                _ => {}
            }
            let names: Option<Vec<String>> = (0..records.cells())
                .map(|i| std::str::from_utf8(records.cell(i)).ok().map(|n| n.trim().to_owned()))
                .collect();
            let end = records.consumed();
            self.drop_front(end);
            return names.ok_or_else(|| ReaderError::Encoding {
                encoding: "in an unknown encoding",
                path: self.path.clone(),
            });
        }
    }

    /// Returns whether the next chunk contains the first row of the data.
    pub fn is_at_first_row(&self) -> bool {
        self.fresh
    }

    /// Returns whether there is at least one more record.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn has_more(&mut self) -> Result<bool> {
        loop {
            let Some(blank) = self.blank_front() else { return Ok(true) };
            if self.at_end {
                return Ok(false);
            }
            self.drop_front(blank);
            self.read_more()?;
        }
    }

    /// Returns the number of bytes without a row at the front of the buffer (empty lines, and in
    /// some formats comments), or `None` if the buffer contains a row.
    fn blank_front(&self) -> Option<usize> {
        if let Grammar::Cells(_) = self.grammar {
            let blank = self.buffer.iter().take_while(|&&b| b == b'\n' || b == b'\r').count();
            return (blank == self.buffer.len()).then_some(blank);
        }
        let mut start = 0;
        while let Some(at) = memchr::memchr(b'\n', &self.buffer[start..]) {
            if !is_blank(self.grammar, &self.buffer[start..start + at]) {
                return None;
            }
            start += at + 1;
        }
        // Whether the line is a row is known only at the end of the line or of the file.
        let rest = &self.buffer[start..];
        (is_blank(self.grammar, rest)).then_some(if self.at_end {
            self.buffer.len()
        } else {
            start
        })
    }

    /// Returns the columns of a file without a header. The function `of` finds the columns in the
    /// bytes of the first rows. The bytes of these rows stay in the buffer. A file without rows has
    /// no columns.
    ///
    /// # Errors
    /// Returns an error if the source or its first rows cannot be read.
    pub fn columns(
        &mut self,
        of: fn(&[u8]) -> std::result::Result<Vec<String>, String>,
    ) -> Result<Vec<String>> {
        if !self.has_more()? {
            return Ok(Vec::new());
        }
        let end = loop {
            let mut ends = memchr::memchr_iter(b'\n', &self.buffer).map(|at| at + 1);
            let end = match ends.by_ref().nth(FIRST_ROWS - 1) {
                Some(end) => Some(end),
                None if self.at_end => Some(self.buffer.len()),
                None if self.buffer.len() < CHUNK => None,
                None => memchr::memrchr(b'\n', &self.buffer).map(|at| at + 1),
            };
            match end {
                Some(end) => break end,
                None => self.read_more()?,
            }
        };
        of(&self.buffer[..end]).map_err(|problem| ReaderError::Record {
            place: Place { row: 1, near: Near::Byte(self.offset) },
            problem,
            path: self.path.clone(),
        })
    }

    /// Returns the next chunk, or `None` at the end.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read, or if a record is too long.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>> {
        let missing = CHUNK.saturating_sub(self.buffer.len());
        self.read_up_to(missing)?;
        loop {
            let end = if self.at_end {
                (!self.buffer.is_empty()).then_some(self.buffer.len())
            } else {
                match self.grammar {
                    Grammar::Cells(dialect) => last_record_end(dialect, &self.buffer),
                    _ => memchr::memrchr(b'\n', &self.buffer).map(|at| at + 1),
                }
            };
            if let Some(end) = end {
                // The rest is shorter than one record, so it is copied, and the chunk keeps the
                // large allocation.
                let rest = self.buffer[end..].to_vec();
                let mut bytes = std::mem::replace(&mut self.buffer, rest);
                bytes.truncate(end);
                let offset = self.offset;
                self.offset += end as u64;
                self.fresh = false;
                return Ok(Some(Chunk { bytes, offset }));
            }
            if self.at_end {
                return Ok(None);
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> Result<()> {
        if self.buffer.len() > MAX_RECORD {
            return Err(ReaderError::RecordTooLong {
                limit: MAX_RECORD >> 20,
                byte: self.offset,
                path: self.path.clone(),
            });
        }
        // Doubling the buffer keeps the search for a record's end linear in the length of the
        // record.
        let more = self.buffer.len().max(4096);
        self.read_up_to(more.min(MAX_RECORD + 1 - self.buffer.len()))
    }

    fn read_up_to(&mut self, bytes: usize) -> Result<()> {
        if bytes == 0 || self.at_end {
            return Ok(());
        }
        self.buffer.reserve(bytes);
        let read = self.source.by_ref().take(bytes as u64).read_to_end(&mut self.buffer);
        self.at_end = read.map_err(ReaderError::io("read", &self.path))? < bytes;
        Ok(())
    }

    fn drop_front(&mut self, bytes: usize) {
        self.buffer.drain(..bytes);
        self.offset += bytes as u64;
    }
}
