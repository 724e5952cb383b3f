//! The writer of a log of decisions.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use zillion_device::durable::AppendFile;
use zillion_device::{DeviceError, Files};

use super::Decision;
use super::lock::{LogLock, Writing, is_taken};
use super::record::encode;
use super::replay::{Replay, read_decisions};
use super::segment::{SEGMENT_HEADER, Segment, SegmentReader, Step, list};
use crate::error::{Error, Result};

/// The number of bytes of decisions that are kept in memory before they are written to the file.
const BUFFER_BYTES: usize = 256 << 10;

/// The settings of a log of decisions.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// The number of bytes after which the log goes on in a new segment. A segment is removed as a
    /// whole, so that this number bounds the space of decisions that are no longer needed.
    pub segment_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20 }
    }
}

/// The end of a log that was cut off at its opening, because a crash had interrupted its writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The last file of the log.
    pub path: PathBuf,
    /// The place in the file behind the last whole record.
    pub offset: u64,
    /// The number of bytes that were cut off.
    pub bytes: u64,
}

/// An open log of decisions, which only this value writes to.
///
/// ```
/// use zillion_device::Files;
/// use zillion_stream::{Decision, DecisionLog, LogOptions, Partition};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let mut log = DecisionLog::open(&Files::new(), folder.path(), LogOptions::default())?;
/// let idle = Decision::Idle { partition: Partition { stream: 0, number: 3 } };
/// let number = log.append(&idle)?;
/// log.sync()?;
/// // The decision is durable now and may take effect.
/// let replayed = log.replay(0)?.collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(replayed, [(number, idle)]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DecisionLog {
    files: Files,
    folder: PathBuf,
    options: LogOptions,
    /// The existing segments. The last one is `file`.
    segments: Vec<Segment>,
    file: AppendFile,
    /// The records that are not written to the file yet.
    buffer: Vec<u8>,
    /// The number of the first decision in `buffer`.
    buffered: u64,
    /// The number of the next decision.
    next: u64,
    /// The number of the first decision that is not durable.
    synced: u64,
    has_failed: bool,
    torn: Option<TornTail>,
    _writing: Writing,
}

impl DecisionLog {
    /// Returns whether a process has the lock of the log in a folder. Nothing of the log changes,
    /// and a process that takes the lock at the same moment waits a little.
    ///
    /// # Errors
    /// Returns an error if the file of the lock cannot be opened.
    pub fn is_in_use(folder: impl AsRef<Path>) -> Result<bool> {
        is_taken(folder.as_ref())
    }

    /// Opens the log in `folder`, or creates it. Reads the last segment, cuts off a torn record at
    /// its end, and syncs the rest. The other segments are checked when they are replayed.
    ///
    /// # Errors
    /// Returns an error if another process has the lock of the log, if the last segment is damaged
    /// in another way than by a torn record, or if a file operation fails.
    pub fn open(files: &Files, folder: impl AsRef<Path>, options: LogOptions) -> Result<Self> {
        Self::open_locked(files, &LogLock::take(files, folder)?, options)
    }

    /// Opens the log whose lock this process has, as [`DecisionLog::open`] does.
    ///
    /// # Errors
    /// Returns an error if the process has the log open already, and in the cases of
    /// [`DecisionLog::open`].
    pub fn open_locked(files: &Files, lock: &LogLock, options: LogOptions) -> Result<Self> {
        let (writing, folder) = (lock.begin_writing()?, lock.folder());
        files.sweep(folder)?;
        let mut segments = list(folder)?;
        if segments.is_empty() {
            let segment = Segment::new(folder, 0);
            files.write_bytes(&segment.path, &segment.header())?;
            segments.push(segment);
        }
        // The list has a segment, because one was created if there was none.
        let last = segments.last().cloned().unwrap_or_else(|| Segment::new(folder, 0));
        let mut reader = SegmentReader::open(&last)?;
        let torn = loop {
            match reader.step()? {
                Step::Record(..) => {}
                Step::End => break None,
                Step::Torn { offset, bytes } => {
                    break Some(TornTail { path: last.path.clone(), offset, bytes });
                }
            }
        };
        let next = reader.next_number();
        let mut file = files.open_append(&last.path, reader.offset())?;
        // A killed process may have written records without syncing them. A replay gives them their
        // effect, so that they must be durable.
        file.sync()?;
        files.sync_dir(folder)?;
        Ok(Self {
            files: files.clone(),
            folder: folder.to_owned(),
            options,
            segments,
            file,
            buffer: Vec::new(),
            buffered: next,
            next,
            synced: next,
            has_failed: false,
            torn,
            _writing: writing,
        })
    }

    /// Returns the folder of the log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the torn record that the opening has cut off, if there was one.
    pub fn torn_tail(&self) -> Option<&TornTail> {
        self.torn.as_ref()
    }

    /// Returns the number of the first decision that the log still has.
    pub fn first(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.first)
    }

    /// Returns the number of the next decision.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of the first decision that is not durable. All decisions before it may
    /// take effect.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Appends a decision and returns its number. The decision is not durable before
    /// [`DecisionLog::sync`].
    ///
    /// # Errors
    /// Returns an error if the decision is too long, if it cannot be written, or if an earlier
    /// operation failed.
    pub fn append(&mut self, decision: &Decision) -> Result<u64> {
        self.check()?;
        let number = self.next;
        encode(&mut self.buffer, number, decision)?;
        self.next += 1;
        if self.buffer.len() >= BUFFER_BYTES {
            self.run(Self::write)?;
        }
        Ok(number)
    }

    /// Makes all appended decisions durable, with one sync of the file.
    ///
    /// # Errors
    /// Returns an error if the decisions cannot be written and synced, or if an earlier operation
    /// failed. Then no further decision can be appended: the log must be opened again.
    pub fn sync(&mut self) -> Result<()> {
        self.check()?;
        if self.synced == self.next {
            return Ok(());
        }
        self.run(|log| {
            log.write()?;
            log.file.sync()?;
            log.synced = log.next;
            Ok(())
        })
    }

    /// Returns the durable decisions from number `from` on.
    ///
    /// # Errors
    /// Returns an error if the log does not have decision `from` and does not end before it.
    pub fn replay(
        &self,
        from: u64,
    ) -> Result<impl Iterator<Item = Result<(u64, Decision)>> + use<>> {
        if from > self.synced {
            let (folder, first, next) = (self.folder.clone(), self.first(), self.synced);
            return Err(Error::Missing { folder, needed: from, first, next });
        }
        let replay: Replay = read_decisions(&self.folder, from)?;
        // The file may have further decisions that are not durable.
        let count = usize::try_from(self.synced - from).unwrap_or(usize::MAX);
        Ok(replay.take(count))
    }

    /// Removes the segments that lie wholly before decision `number`, which is the first decision
    /// that a kept checkpoint needs. Returns the number of removed segments.
    ///
    /// # Errors
    /// Returns an error if a segment cannot be removed, or if an earlier append or sync failed. The
    /// log is still without gaps then, and a removal that failed can be tried again.
    pub fn remove_before(&mut self, number: u64) -> Result<usize> {
        self.check()?;
        let mut removed = 0;
        while self.segments.get(1).is_some_and(|segment| segment.first <= number) {
            // The oldest segment is removed first, so that a crash leaves no gap.
            let removal = self.files.remove_file(&self.segments[0].path);
            match removal {
                // An earlier call has removed the file and then failed to sync the folder.
                Err(DeviceError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    self.files.sync_dir(&self.folder)?;
                }
                removal => removal?,
            }
            self.segments.remove(0);
            removed += 1;
        }
        Ok(removed)
    }

    /// Writes the buffered records to the file, or to a new segment if the file is full.
    fn write(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        if self.file.length() >= self.options.segment_bytes.max(SEGMENT_HEADER + 1) {
            // A segment is complete on the disk before the next one exists.
            self.file.sync()?;
            self.synced = self.buffered;
            let segment = Segment::new(&self.folder, self.buffered);
            self.files.write_bytes(&segment.path, &segment.header())?;
            self.file = self.files.open_append(&segment.path, SEGMENT_HEADER)?;
            self.segments.push(segment);
        }
        self.file.append(&self.buffer)?;
        self.buffer.clear();
        self.buffered = self.next;
        Ok(())
    }

    /// Runs an operation, after whose failure the log refuses further ones.
    fn run(&mut self, operation: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let done = operation(self);
        self.has_failed = done.is_err();
        done
    }

    fn check(&self) -> Result<()> {
        if self.has_failed { Err(Error::Failed(self.folder.clone())) } else { Ok(()) }
    }
}
