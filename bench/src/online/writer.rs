//! The files of one partition of a followed folder.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::events::Event;

/// The place and the time of an event that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// The offset of the event in its partition.
    pub(super) offset: u64,
    /// The time of the event in milliseconds since 1970.
    pub(super) time_ms: i64,
}

/// A writer of the files of a partition. Each file appears under its name when it is complete.
#[derive(Debug)]
pub(super) struct PartitionWriter {
    folder: PathBuf,
    files: u64,
    /// The number of bytes of all files.
    pub(super) bytes: u64,
    /// The number of events that were written.
    pub(super) events: u64,
    /// The places and times of all events, if they are recorded.
    pub(super) sent: Option<Vec<Sent>>,
    /// The files that exist, with the times of their appearance.
    present: VecDeque<(Instant, PathBuf)>,
    lines: Vec<u8>,
}

impl PartitionWriter {
    /// Creates the folder of a partition.
    pub(super) fn create(root: &Path, number: usize, is_recorded: bool) -> Result<Self> {
        let folder = root.join(Self::name(number));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self {
            folder,
            files: 0,
            bytes: 0,
            events: 0,
            sent: is_recorded.then(Vec::new),
            present: VecDeque::new(),
            lines: Vec::new(),
        })
    }

    /// Returns the name of a partition.
    pub(super) fn name(number: usize) -> String {
        format!("p{number:02}")
    }

    /// Writes events as a file of JSON lines.
    pub(super) fn write_lines(&mut self, events: impl Iterator<Item = Event>) -> Result<()> {
        let mut lines = std::mem::take(&mut self.lines);
        lines.clear();
        for event in events {
            if let Some(sent) = &mut self.sent {
                let offset = self.bytes + lines.len() as u64;
                sent.push(Sent { offset, time_ms: event.time_ms });
            }
            event.append_line(&mut lines);
            self.events += 1;
        }
        self.write_file(&lines, "jsonl")?;
        self.lines = lines;
        Ok(())
    }

    /// Writes a file with these bytes, if there are any.
    pub(super) fn write_file(&mut self, bytes: &[u8], ending: &str) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let name = format!("{:010}.{ending}", self.files);
        let (draft, path) = (self.folder.join(format!(".{name}.tmp")), self.folder.join(name));
        fs::write(&draft, bytes).with_context(|| format!("cannot write {}", draft.display()))?;
        fs::rename(&draft, &path).with_context(|| format!("cannot rename {}", draft.display()))?;
        self.files += 1;
        self.bytes += bytes.len() as u64;
        self.present.push_back((Instant::now(), path));
        Ok(())
    }

    /// Removes the files that are older than `age`.
    pub(super) fn remove_older(&mut self, age: Duration) -> Result<()> {
        while self.present.front().is_some_and(|(at, _)| at.elapsed() > age) {
            if let Some((_, path)) = self.present.pop_front() {
                fs::remove_file(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }
}
