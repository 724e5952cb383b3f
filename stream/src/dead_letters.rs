//! Dead letters: the messages that were rejected, with the reason, in a file.
//!
//! # Format
//!
//! The file is JSON lines. The first line is `{"format":"zillion-dead-letters/1"}`. Each other line
//! is an object with the fields `stream`, `partition`, `offset`, `reason`, and the bytes of the
//! message: `text` if they are UTF-8, else `base64`. If `is_cut` is true, the bytes are only the
//! beginning of the message.
//!
//! # Crash consistency
//!
//! A checkpoint carries the length of the file ([`DeadLetterPosition`]). At the opening, what
//! follows this length is cut off, because the replay of the log rejects these messages again. So
//! an interrupted run ends with the same file. Every rejected message is written before an error
//! stops the run, and the file is synced with [`DeadLetters::sync`], before the checkpoint that
//! counts its bytes.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use zillion_device::durable::AppendFile;
use zillion_device::{DeviceError, Files};

use crate::error::{Error, Result};
use crate::partition::Partition;

const FIRST_LINE: &[u8] = b"{\"format\":\"zillion-dead-letters/1\"}\n";

/// The number of messages among which rejected ones are counted.
const WINDOW: u64 = 10_000;
/// The number of rejected messages that are kept in memory.
const RECENT: usize = 100;
/// The number of bytes of a message that are kept in memory.
const RECENT_BYTES: usize = 1024;

/// A rejected message. Those in memory have at most the first 1,024 bytes of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The partition of the message.
    pub partition: Partition,
    /// The offset of the message.
    pub offset: u64,
    /// The reason for the rejection, for people.
    pub reason: String,
    /// The bytes of the message.
    pub bytes: Vec<u8>,
    /// Whether the message has more bytes.
    pub is_cut: bool,
}

/// The state of dead letters that a checkpoint carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterPosition {
    /// The length of the file in bytes.
    file_bytes: u64,
    /// The number of rejected messages.
    rejected: u64,
    /// The number of all messages.
    messages: u64,
    /// The numbers of the last rejected messages among all messages, as many as the limit.
    window: VecDeque<u64>,
}

/// The file of rejected messages, and the limit that stops a run with too many of them.
#[derive(Debug)]
pub struct DeadLetters {
    file: AppendFile,
    /// The largest number of rejected messages in any 10,000 consecutive messages.
    max_rejected: u64,
    position: DeadLetterPosition,
    recent: VecDeque<DeadLetter>,
    /// Whether a write has failed, so that the end of the file is unknown.
    has_failed: bool,
}

impl DeadLetters {
    /// Opens the file at the position of a checkpoint, or creates it for a new run, whose position
    /// is the default. More than `max_rejected` rejected messages in any 10,000 consecutive
    /// messages stop the run.
    ///
    /// # Errors
    /// Returns an error if the file is not a file of dead letters, if it is shorter than the
    /// checkpoint says, or if a file operation fails.
    pub fn open(
        files: &Files,
        path: impl AsRef<Path>,
        max_rejected: u64,
        position: &DeadLetterPosition,
    ) -> Result<Self> {
        let path = path.as_ref();
        let mut position = position.clone();
        check_file(path, position.file_bytes)?;
        if position.file_bytes == 0 {
            files.write_bytes(path, FIRST_LINE)?;
            position.file_bytes = FIRST_LINE.len() as u64;
        }
        let file = files.open_append(path, position.file_bytes)?;
        Ok(Self { file, max_rejected, position, recent: VecDeque::new(), has_failed: false })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the last rejected messages since the opening, at most 100, the oldest first.
    pub fn recent(&self) -> impl ExactSizeIterator<Item = &DeadLetter> {
        self.recent.iter()
    }

    /// Returns the number of rejected messages of the run.
    pub fn rejected(&self) -> u64 {
        self.position.rejected
    }

    /// Counts messages that were not rejected.
    pub fn accept(&mut self, messages: u64) {
        self.position.messages += messages;
    }

    /// Writes a rejected message to the file.
    ///
    /// # Errors
    /// Returns an error if the message cannot be written, if an earlier write failed, or if too
    /// many messages were rejected. In the last case, the message is in the file.
    pub fn reject(&mut self, mut letter: DeadLetter) -> Result<()> {
        let line = encode(&letter).map_err(|error| Error::DeadLetters {
            path: self.path().to_owned(),
            problem: format!("{}, offset {}: {error}", letter.partition, letter.offset),
            remedy: "correct the message in the data",
        })?;
        self.run(|file| file.append(&line))?;
        let position = &mut self.position;
        position.file_bytes = self.file.length();
        position.rejected += 1;
        let number = position.messages;
        position.messages += 1;
        letter.is_cut |= letter.bytes.len() > RECENT_BYTES;
        letter.bytes.truncate(RECENT_BYTES);
        letter.bytes.shrink_to_fit();
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        let (partition, offset, reason) = (letter.partition, letter.offset, letter.reason.clone());
        self.recent.push_back(letter);

        position.window.push_back(number);
        while position.window.front().is_some_and(|first| number - first >= WINDOW) {
            position.window.pop_front();
        }
        if position.window.len() as u64 > self.max_rejected {
            self.run(AppendFile::sync)?;
            return Err(Error::TooManyRejected {
                path: self.path().to_owned(),
                limit: self.max_rejected,
                window: WINDOW,
                partition,
                offset,
                reason,
            });
        }
        Ok(())
    }

    /// Makes the file durable, and returns the state that a checkpoint carries.
    ///
    /// # Errors
    /// Returns an error if the sync or an earlier write fails.
    pub fn sync(&mut self) -> Result<DeadLetterPosition> {
        self.run(AppendFile::sync)?;
        Ok(self.position.clone())
    }

    /// Runs an operation on the file, after whose failure further ones are refused.
    fn run(
        &mut self,
        operation: impl FnOnce(&mut AppendFile) -> std::result::Result<(), DeviceError>,
    ) -> Result<()> {
        if self.has_failed {
            return Err(Error::DeadLetters {
                path: self.path().to_owned(),
                problem: "an earlier write failed".to_owned(),
                remedy: "solve its problem and open the file again at the last checkpoint",
            });
        }
        let done = operation(&mut self.file);
        self.has_failed = done.is_err();
        Ok(done?)
    }
}

/// A line of the file.
#[derive(Serialize)]
struct Line<'a> {
    stream: u16,
    partition: u32,
    offset: u64,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    is_cut: bool,
}

/// Returns the line of a rejected message.
fn encode(letter: &DeadLetter) -> serde_json::Result<Vec<u8>> {
    let text = std::str::from_utf8(&letter.bytes).ok();
    let line = Line {
        stream: letter.partition.stream,
        partition: letter.partition.number,
        offset: letter.offset,
        reason: &letter.reason,
        text,
        base64: text.is_none().then(|| STANDARD.encode(&letter.bytes)),
        is_cut: letter.is_cut,
    };
    let mut line = serde_json::to_vec(&line)?;
    line.push(b'\n');
    Ok(line)
}

/// Checks that a file may be opened with `recorded` bytes: it is a file of dead letters with at
/// least as many bytes, or nothing was recorded and it does not exist.
fn check_file(path: &Path, recorded: u64) -> Result<()> {
    let error = |problem: String, remedy| {
        Err(Error::DeadLetters { path: PathBuf::from(path), problem, remedy })
    };
    let present = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(e) if e.kind() == ErrorKind::NotFound => 0,
        Err(e) => return Err(DeviceError::file("read", path, e).into()),
    };
    if present < recorded {
        let problem = format!("the file has {present} bytes, but the checkpoint has {recorded}");
        return error(problem, "restore the file, or begin another run from the newest checkpoint");
    }
    if present > 0 {
        let mut first = [0; FIRST_LINE.len()];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
        match read {
            Err(e) if e.kind() != ErrorKind::UnexpectedEof => {
                return Err(DeviceError::file("read", path, e).into());
            }
            _ if first != FIRST_LINE => {
                let problem = "the file is not a file of dead letters".to_owned();
                return error(problem, "remove the file, or choose another name");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zillion_device::Failpoint;
    use zillion_device::durable::Fault;

    use super::*;

    fn letter(offset: u64, bytes: &[u8]) -> DeadLetter {
        let partition = Partition { stream: 1, number: 2 };
        let reason = "no label".to_owned();
        DeadLetter { partition, offset, reason, bytes: bytes.to_vec(), is_cut: false }
    }

    fn open(path: &Path, limit: u64, position: &DeadLetterPosition) -> Result<DeadLetters> {
        DeadLetters::open(&Files::new().scratch(), path, limit, position)
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn rejected_messages_are_written_with_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead.jsonl");
        let mut letters = open(&path, 10, &DeadLetterPosition::default()).unwrap();
        letters.reject(letter(7, b"{\"a\":\n\"\xc3\xa9\"}")).unwrap();
        letters.reject(DeadLetter { is_cut: true, ..letter(9, b"\xff\x00") }).unwrap();
        assert_eq!((letters.rejected(), letters.path()), (2, path.as_path()));
        let lines = lines(&path);
        assert_eq!(lines[0], serde_json::json!({"format": "zillion-dead-letters/1"}));
        let wanted = serde_json::json!({"stream": 1, "partition": 2, "offset": 7,
            "reason": "no label", "text": "{\"a\":\n\"é\"}", "is_cut": false});
        assert_eq!(lines[1], wanted);
        let wanted = serde_json::json!({"stream": 1, "partition": 2, "offset": 9,
            "reason": "no label", "base64": "/wA=", "is_cut": true});
        assert_eq!(lines[2], wanted);
    }

    #[test]
    fn an_interrupted_run_ends_with_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead.jsonl");
        let mut letters = open(&path, 3, &DeadLetterPosition::default()).unwrap();
        letters.reject(letter(1, b"one")).unwrap();
        letters.accept(50);
        let text = serde_json::to_string(&letters.sync().unwrap()).unwrap();
        letters.reject(letter(2, b"two")).unwrap();
        letters.reject(letter(3, b"three")).unwrap();
        drop(letters);
        let whole = fs::read(&path).unwrap();

        let position = serde_json::from_str(&text).unwrap();
        let mut letters = open(&path, 3, &position).unwrap();
        assert_eq!(lines(&path).len(), 2);
        letters.reject(letter(2, b"two")).unwrap();
        letters.reject(letter(3, b"three")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
        // The window has survived: this is the fourth of 54 messages.
        assert!(matches!(letters.reject(letter(4, b"")), Err(Error::TooManyRejected { .. })));
        // A run without a checkpoint begins anew.
        drop(open(&path, 3, &DeadLetterPosition::default()).unwrap());
        assert_eq!(lines(&path).len(), 1);
        let error = open(&path, 3, &position).unwrap_err().to_string();
        assert!(error.contains("the file has 36 bytes, but the checkpoint has"), "{error}");
    }

    #[test]
    fn too_many_rejected_messages_stop_the_run() {
        for (limit, accepted, stops) in
            [(0, 0, true), (1, 9_998, true), (1, 9_999, false), (2, 0, false), (2, 9_999, false)]
        {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("dead.jsonl");
            let mut letters = open(&path, limit, &DeadLetterPosition::default()).unwrap();
            let first = letters.reject(letter(1, b"first"));
            letters.accept(accepted);
            let last = letters.reject(letter(2, b"last"));
            assert_eq!(last.is_err(), stops, "{limit} {accepted}");
            assert_eq!(first.is_err(), limit == 0);
            // The message that stops the run is in the file.
            assert_eq!(lines(&path)[2]["text"], "last");
            if let Err(error) = last {
                let error = error.to_string();
                let problem = format!("more than {limit} of 10000 messages were rejected");
                assert!(error.contains(&problem), "{error}");
                assert!(error.contains("partition 2 of stream 1, offset 2 (no label)"), "{error}");
            }
        }
    }

    #[test]
    fn memory_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead.jsonl");
        let mut letters = open(&path, 500, &DeadLetterPosition::default()).unwrap();
        for offset in 0..300 {
            letters.reject(letter(offset, &[b'x'; 2000])).unwrap();
            letters.accept(99);
        }
        assert_eq!(letters.recent().len(), 100);
        let offsets: Vec<u64> = letters.recent().map(|letter| letter.offset).collect();
        assert_eq!(offsets, (200..300).collect::<Vec<_>>());
        assert!(letters.recent().all(|letter| letter.bytes.len() == 1024 && letter.is_cut));
        // The window has the rejected ones of the last 10,000 messages.
        assert_eq!(letters.sync().unwrap().window.len(), 100);
        let last = &lines(&path)[300];
        assert_eq!((last["text"].as_str().unwrap().len(), &last["is_cut"]), (2000, &false.into()));
    }

    #[test]
    fn another_file_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        for text in ["short", "{\"format\":\"something else entirely\"}\n"] {
            fs::write(&path, text).unwrap();
            let error = open(&path, 1, &DeadLetterPosition::default()).unwrap_err().to_string();
            assert!(error.contains("precious`: the file is not a file of dead letters"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_full_disk_is_an_error_and_no_message_is_lost() {
        for at in 1..40 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("dead.jsonl");
            let failpoint = Arc::new(Failpoint::new(at, Fault::Enospc));
            let files = Files::with_failpoints(failpoint.clone()).scratch();
            let write = |files: &Files, position: &mut DeadLetterPosition| {
                let mut letters = DeadLetters::open(files, &path, 10, position)?;
                for offset in letters.rejected()..4 {
                    let rejected = letters.reject(letter(offset, b"text"));
                    let synced = rejected.and_then(|()| letters.sync());
                    if synced.is_err() {
                        let again = letters.reject(letter(offset, b"text")).unwrap_err();
                        assert!(again.to_string().contains("an earlier write failed"), "{again}");
                    }
                    *position = synced?;
                }
                Ok(())
            };
            let mut position = DeadLetterPosition::default();
            let outcome: Result<()> = write(&files, &mut position);
            if failpoint.operations() < at {
                outcome.unwrap();
                assert!(at > 10);
                return;
            }
            assert!(matches!(outcome, Err(Error::Device(error)) if error.is_disk_full()));
            // The run goes on at its last checkpoint.
            write(&Files::new().scratch(), &mut position).unwrap();
            let offsets = lines(&path).into_iter().skip(1).map(|line| line["offset"].as_u64());
            assert_eq!(offsets.flatten().collect::<Vec<_>>(), [0, 1, 2, 3], "{at}");
        }
        panic!("every number of operations fails");
    }
}
