//! A segment: a file of pending rows, sorted by event time and arrival.
//!
//! The file begins with 8 bytes that name the format. Records follow without gaps. A segment never
//! changes after it was written. Rows leave in the order of the file, so what is left of a
//! segment is the part behind a cursor.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use zillion_device::durable::Op;
use zillion_device::{DeviceError, Files};

use super::error::{JoinError, JoinResult};
use super::record::{self, HEAD, Head, Rank};

/// The first bytes of a segment: the name and the version of the format.
pub(crate) const MAGIC: &[u8; 8] = b"ZLNJSEG1";
/// The number of bytes that are read at once for a row whose size is unknown.
const FIRST_READ: usize = 1024;

/// The name of a segment and the hash of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFile {
    /// The number of the segment. Numbers are not used again.
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    pub(crate) hash: String,
}

/// A segment that was written to its file.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) file: SegmentFile,
    /// The position of the oldest pending row.
    pub(crate) cursor: u64,
    /// The rank of the oldest pending row.
    pub(crate) oldest: Rank,
    reader: Option<Reader>,
}

/// Returns the name of the file of a segment.
pub(crate) fn file_name(number: u64) -> String {
    format!("rows-{number:012}.segment")
}

impl Segment {
    /// Creates a segment from its file, whose first pending row is at `cursor`.
    pub(crate) fn new(path: PathBuf, file: SegmentFile, cursor: u64, oldest: Rank) -> Self {
        Self { path, file, cursor, oldest, reader: None }
    }

    /// Returns the number of bytes of rows that are pending.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.file.bytes - self.cursor
    }

    /// Takes the record at the cursor into `out`, which is replaced, and moves the cursor behind
    /// it. Returns the head, and whether a row is left. After an error, the cursor has not moved.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not as it was written.
    pub(crate) fn pop(
        &mut self,
        files: &Files,
        buffer: usize,
        out: &mut Vec<u8>,
    ) -> JoinResult<(Head, bool)> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => self.reader.insert(Reader::open(&self.path, self.file.bytes, buffer)?),
        };
        let head = reader.bytes(files, self.cursor, HEAD)?;
        let row = record::head(head).map_or(0, |head| head.row_bytes as usize);
        let record = reader.bytes(files, self.cursor, HEAD + row)?;
        let (head, _) = record::decode(record)
            .filter(|(head, _)| head.rank == self.oldest)
            .ok_or_else(|| report_altered(&self.path, self.cursor))?;
        out.clear();
        out.extend_from_slice(record);
        let next = self.cursor + out.len() as u64;
        if next >= self.file.bytes {
            self.reader = None;
            self.cursor = next;
            return Ok((head, false));
        }
        let oldest = record::head(reader.bytes(files, next, HEAD)?)
            .filter(|next| next.rank > head.rank)
            .ok_or_else(|| report_altered(&self.path, next))?
            .rank;
        (self.cursor, self.oldest) = (next, oldest);
        Ok((head, true))
    }

    /// Reads the record at any position into `out`, which is replaced.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not as it was written.
    pub(crate) fn read(&self, files: &Files, offset: u32, out: &mut Vec<u8>) -> JoinResult<()> {
        let mut reader = Reader::open(&self.path, self.file.bytes, FIRST_READ)?;
        let head = reader.bytes(files, offset.into(), HEAD)?;
        let row = record::head(head).map_or(0, |head| head.row_bytes as usize);
        out.clear();
        out.extend_from_slice(reader.bytes(files, offset.into(), HEAD + row)?);
        Ok(())
    }
}

/// A buffer over a part of a segment's file.
#[derive(Debug)]
struct Reader {
    path: PathBuf,
    file: File,
    file_bytes: u64,
    /// The number of bytes that are read at once.
    step: usize,
    buffer: Vec<u8>,
    /// The position of the buffer in the file.
    start: u64,
}

impl Reader {
    fn open(path: &Path, file_bytes: u64, step: usize) -> JoinResult<Self> {
        let file = File::open(path).map_err(|e| DeviceError::file("open", path, e))?;
        let path = path.to_path_buf();
        Ok(Self { path, file, file_bytes, step, buffer: Vec::new(), start: 0 })
    }

    /// Returns bytes of the file, and reads them if the buffer does not have them.
    fn bytes(&mut self, files: &Files, from: u64, count: usize) -> JoinResult<&[u8]> {
        let end = from + count as u64;
        if from < self.start || end > self.start + self.buffer.len() as u64 {
            if end > self.file_bytes {
                return Err(report_altered(&self.path, from));
            }
            let left = self.file_bytes - from;
            self.buffer.clear();
            self.buffer.resize(left.min(count.max(self.step) as u64) as usize, 0);
            self.start = from;
            let read = files
                .run_failpoints(Op::Read, &self.path)
                .and_then(|()| self.file.read_exact_at(&mut self.buffer, from));
            if let Err(error) = read {
                self.buffer.clear();
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    return Err(JoinError::damaged(&self.path, "is shorter than it was written"));
                }
                return Err(DeviceError::file("read", &self.path, error).into());
            }
        }
        let at = (from - self.start) as usize;
        Ok(&self.buffer[at..at + count])
    }
}

/// Returns the error of a record that is not as it was written.
fn report_altered(path: &Path, offset: u64) -> JoinError {
    JoinError::damaged(path, format!("is altered at byte {offset}"))
}

/// A writer of a segment's file that computes its hash.
pub(crate) struct SegmentWriter<'a> {
    out: &'a mut dyn Write,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<'a> SegmentWriter<'a> {
    pub(crate) fn begin(out: &'a mut dyn Write) -> io::Result<Self> {
        let mut writer = Self { out, hasher: blake3::Hasher::new(), bytes: 0 };
        writer.put(MAGIC)?;
        Ok(writer)
    }

    /// Adds a record and returns its position.
    pub(crate) fn put(&mut self, record: &[u8]) -> io::Result<u32> {
        let offset = self.bytes as u32;
        self.hasher.update(record);
        self.out.write_all(record)?;
        self.bytes += record.len() as u64;
        Ok(offset)
    }

    pub(crate) fn finish(self, number: u64) -> SegmentFile {
        let hash = self.hasher.finalize().to_hex().to_string();
        SegmentFile { number, bytes: self.bytes, hash }
    }
}

/// Reads a whole segment, compares its size and its hash, and passes the head and the position of
/// each record at or behind `cursor` to `visit`. Returns the rank of the first of them.
///
/// # Errors
/// Returns an error if the file is missing, cut off or altered, or if `cursor` is not at a record.
pub(crate) fn scan(
    path: &Path,
    file: &SegmentFile,
    cursor: u64,
    mut visit: impl FnMut(&Head, u32) -> JoinResult<()>,
) -> JoinResult<Rank> {
    let opened = File::open(path).map_err(|e| DeviceError::file("open", path, e))?;
    let bytes = opened.metadata().map_err(|e| DeviceError::file("read", path, e))?.len();
    if bytes != file.bytes {
        let problem = format!("has {bytes} bytes instead of {}", file.bytes);
        return Err(JoinError::damaged(path, problem));
    }
    let mut input = io::BufReader::with_capacity(256 << 10, opened);
    let mut hasher = blake3::Hasher::new();
    let mut read = |buffer: &mut [u8]| match input.read_exact(buffer) {
        Ok(()) => {
            hasher.update(buffer);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(JoinError::damaged(path, "is shorter than it was written"))
        }
        Err(error) => Err(DeviceError::file("read", path, error).into()),
    };
    let mut magic = [0; MAGIC.len()];
    read(&mut magic)?;
    if magic != *MAGIC {
        return Err(JoinError::damaged(path, "is no segment of this format"));
    }
    let mut at = MAGIC.len() as u64;
    let (mut oldest, mut last) = (None, None);
    let mut record = Vec::new();
    while at < bytes {
        record.resize(HEAD, 0);
        read(&mut record)?;
        let row = record::head(&record).map_or(0, |head| u64::from(head.row_bytes));
        if row > bytes - at {
            return Err(report_altered(path, at));
        }
        record.resize(HEAD + row as usize, 0);
        read(&mut record[HEAD..])?;
        let (head, _) = record::decode(&record).ok_or_else(|| report_altered(path, at))?;
        if last.is_some_and(|last| last >= head.rank) {
            return Err(report_altered(path, at));
        }
        last = Some(head.rank);
        if at >= cursor {
            if oldest.is_none() && at != cursor {
                return Err(report_altered(path, cursor));
            }
            oldest.get_or_insert(head.rank);
            visit(&head, at as u32)?;
        }
        at += record.len() as u64;
    }
    if hasher.finalize().to_hex().as_str() != file.hash {
        return Err(JoinError::damaged(path, "has another hash than its manifest"));
    }
    oldest.ok_or_else(|| report_altered(path, cursor))
}
