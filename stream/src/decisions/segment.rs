//! The segments of a log: their names, their headers, and the reader of one segment.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;
use zillion_device::DeviceError;

use super::Decision;
use super::record::{HEADER_BYTES, Header, MAX_TEXT, TRAILER_BYTES, text_checksum};
use crate::error::{Error, Result};

const PREFIX: &str = "decisions-";
const SUFFIX: &str = ".log";
const MAGIC: [u8; 8] = *b"zillionD";
const VERSION: u32 = 1;

/// The number of bytes of the header of a segment.
pub(super) const SEGMENT_HEADER: u64 = 32;

/// The number of zeros at the end of a file that shows a torn record. No whole record contains so
/// many zeros in a row, even if one of its bytes is wrong. Fewer zeros show a torn record if they
/// are all that the file has behind a multiple of [`SECTOR`].
const TORN_ZEROS: u64 = 16;

/// The number of bytes that disks store as a whole. The end of a file may have fewer.
const SECTOR: u64 = 512;

const RESTORE: &str =
    "restore the file from a copy, or begin at a checkpoint that does not need it";
const NEWER: &str = "read the log with the version of the program that wrote it";

/// A segment of a log that was found in its folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Segment {
    /// The number of the first decision.
    pub(super) first: u64,
    /// The path of the file.
    pub(super) path: PathBuf,
}

impl Segment {
    /// Returns the segment of a log that begins with decision `first`.
    pub(super) fn new(folder: &Path, first: u64) -> Self {
        Self { first, path: folder.join(format!("{PREFIX}{first:020}{SUFFIX}")) }
    }

    /// Returns the header of the segment.
    pub(super) fn header(&self) -> [u8; SEGMENT_HEADER as usize] {
        let mut header = [0; SEGMENT_HEADER as usize];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&self.first.to_le_bytes());
        let check = xxh3_64(&header[..24]);
        header[24..].copy_from_slice(&check.to_le_bytes());
        header
    }
}

/// Lists the segments in a folder in the order of their numbers. A missing folder has none.
pub(super) fn list(folder: &Path) -> Result<Vec<Segment>> {
    let failed = |e| DeviceError::file("list the folder", folder, e);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e).into()),
    };
    let mut segments = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        let number = number.filter(|n| n.len() == 20 && n.bytes().all(|b| b.is_ascii_digit()));
        if let Some(first) = number.and_then(|number| number.parse().ok()) {
            segments.push(Segment::new(folder, first));
        }
    }
    segments.sort();
    Ok(segments)
}

/// The next item of a segment.
pub(super) enum Step {
    /// A whole record with the number of the decision.
    Record(u64, Decision),
    /// The end of the file, behind a whole record.
    End,
    /// A torn record, which begins at this place and reaches to the end of the file.
    Torn {
        /// The place of the record in the file.
        offset: u64,
        /// The number of bytes of the file behind this place.
        bytes: u64,
    },
}

/// A reader of the records of one segment. It keeps one record in memory.
#[derive(Debug)]
pub(super) struct SegmentReader {
    path: PathBuf,
    file: BufReader<File>,
    /// The size of the file when it was opened. A writer may append to it at the same time.
    length: u64,
    /// The place in the file of the next record.
    offset: u64,
    /// The number that the next record must have.
    next: u64,
    text: Vec<u8>,
}

impl SegmentReader {
    /// Opens a segment and checks its header.
    pub(super) fn open(segment: &Segment) -> Result<Self> {
        let path = segment.path.clone();
        let file = File::open(&path).map_err(|e| DeviceError::file("open", &path, e))?;
        let length = file.metadata().map_err(|e| DeviceError::file("read", &path, e))?.len();
        let file = BufReader::with_capacity(64 << 10, file);
        let mut reader =
            Self { path, file, length, offset: 0, next: segment.first, text: Vec::new() };
        if length < SEGMENT_HEADER {
            let problem = format!("the file has {length} bytes and no whole header");
            return Err(reader.damage(problem, RESTORE));
        }
        let mut header = [0; SEGMENT_HEADER as usize];
        reader.read(&mut header)?;
        let wanted = segment.header();
        if header != wanted {
            let is_newer = header[..8] == MAGIC
                && header[8..12] != wanted[8..12]
                && header[24..] == xxh3_64(&header[..24]).to_le_bytes();
            return Err(if is_newer {
                reader.damage("the file has another version of the format".to_owned(), NEWER)
            } else {
                reader.damage(
                    format!("the header is not that of a log from decision {}", segment.first),
                    RESTORE,
                )
            });
        }
        reader.offset = SEGMENT_HEADER;
        Ok(reader)
    }

    /// Returns the number of the next record.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Returns the place in the file of the next record.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next record.
    pub(super) fn step(&mut self) -> Result<Step> {
        let rest = self.length - self.offset;
        if rest == 0 {
            return Ok(Step::End);
        }
        let torn = Step::Torn { offset: self.offset, bytes: rest };
        if rest < HEADER_BYTES as u64 {
            return Ok(torn);
        }
        let mut bytes = [0; HEADER_BYTES];
        self.read(&mut bytes)?;
        let Some(header) = Header::decode(&bytes) else {
            return self.torn_or(torn, HEADER_BYTES as u64, "the header of a record is damaged");
        };
        if header.number != self.next {
            let problem = format!("decision {} is at the place of {}", header.number, self.next);
            return Err(self.damage(problem, RESTORE));
        }
        if header.length as usize > MAX_TEXT {
            let problem = format!("a decision has {} bytes, more than {MAX_TEXT}", header.length);
            return Err(self.damage(problem, RESTORE));
        }
        let record = (HEADER_BYTES + header.length as usize + TRAILER_BYTES) as u64;
        if record > rest {
            return Ok(torn);
        }
        // The length is within the file, so that a hostile one reserves no more than its size.
        let mut text = std::mem::take(&mut self.text);
        text.resize(header.length as usize, 0);
        self.read(&mut text)?;
        self.text = text;
        let mut check = [0; TRAILER_BYTES];
        self.read(&mut check)?;
        if check != text_checksum(&self.text, self.next).to_le_bytes() {
            return self.torn_or(torn, record, "the text of a decision is damaged");
        }
        let decision = serde_json::from_slice(&self.text).map_err(|error| {
            self.damage(format!("decision {} is unknown ({error})", self.next), NEWER)
        })?;
        self.offset += record;
        self.next += 1;
        Ok(Step::Record(self.next - 1, decision))
    }

    /// Returns `torn` if only zeros follow from a place in the first `record` bytes to the end of
    /// the file, else the error of a damaged record.
    fn torn_or(&mut self, torn: Step, record: u64, problem: &str) -> Result<Step> {
        let written = self.find_end()? - self.offset;
        let zeros = self.length - self.offset - written;
        // A file whose last sector was not stored ends in zeros, which may be few.
        let last_sector = (self.length - 1) % SECTOR + 1;
        if written < record && zeros >= TORN_ZEROS.min(last_sector) {
            return Ok(torn);
        }
        Err(self.damage(problem.to_owned(), RESTORE))
    }

    /// Returns the place behind the last byte of the file that is not zero, or the place of the
    /// next record if only zeros follow.
    fn find_end(&self) -> Result<u64> {
        let failed = |e| DeviceError::file("read", &self.path, e);
        let mut file = File::open(&self.path).map_err(failed)?;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(self.offset)).map_err(failed)?;
        let mut file = file.take(self.length - self.offset);
        let mut buffer = [0; 16 << 10];
        let (mut at, mut end) = (self.offset, self.offset);
        loop {
            let count = file.read(&mut buffer).map_err(failed)?;
            if count == 0 {
                return Ok(end);
            }
            if let Some(last) = buffer[..count].iter().rposition(|byte| *byte != 0) {
                end = at + last as u64 + 1;
            }
            at += count as u64;
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact(bytes);
        read.map_err(|e| DeviceError::file("read", &self.path, e).into())
    }

    /// Returns the error of damage at the place of the next record.
    pub(super) fn damage(&self, problem: String, remedy: &'static str) -> Error {
        Error::Damaged { path: self.path.clone(), offset: self.offset, problem, remedy }
    }

    /// Returns the error of a torn record in a segment that is not the last one.
    pub(super) fn torn_inside(&self, bytes: u64) -> Error {
        let problem =
            format!("the last {bytes} bytes are not a whole record, but later files exist");
        self.damage(problem, RESTORE)
    }
}
