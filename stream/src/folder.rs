//! A followed folder: a stream whose messages arrive as files.
//!
//! Each sub-folder of the root is a partition. The partitions that exist at the first look are
//! numbered in the order of their names. A sub-folder that appears later gets the next number. The
//! files of a sub-folder are read in the order of their names. Each line is a message, or each file
//! ([`Framing`]).
//!
//! The offset of a message is the number of bytes before it in all files of its partition since the
//! first one. So offsets grow for ever, and consumed files may be removed.
//!
//! # Rules for writers
//!
//! A file belongs to the stream when it appears, and is complete then. A writer gives it a name
//! that begins with a dot or ends in `.tmp`, which is ignored, and renames it. Its final name
//! follows the names of all files that were begun before. A file that changes after it has
//! appeared, that is removed before it was consumed, or that appears before a file that was begun
//! is an error. After a start, the last 32 consumed files of a partition are remembered. Whether a
//! file before these has appeared too late is known only while the program runs.
//!
//! # Concurrency
//!
//! The reader starts no thread. [`Source::poll`] waits by looking at the folders again and again.

mod lines;
mod listing;
mod open_file;
mod partition;
#[cfg(test)]
mod tests;
mod whole;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::listing::Stamp;
pub use self::listing::is_ignored_name;
use self::partition::FolderPartition;
use crate::decisions::Decision;
use crate::error::{Error, Result};
use crate::file::FileHistory;
use crate::partition::Partition;
use crate::position::Position;
use crate::source::{Block, PartitionState, Place, Source};

/// The largest limits of blocks and messages. The places in a block are numbers of 32 bits.
pub(crate) const LARGEST: usize = 1 << 30;

/// The settings of a followed folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderSettings {
    /// The folder whose sub-folders are the partitions.
    pub root: PathBuf,
    /// The number of the stream in the job.
    pub stream: u16,
    /// The bounds of messages.
    pub framing: Framing,
    /// The number of bytes that are read at once.
    pub block_bytes: usize,
    /// The largest size of a message in bytes.
    pub max_message_bytes: usize,
    /// The treatment of longer messages.
    pub long_messages: LongMessages,
    /// The time between two looks for new files.
    pub scan_interval: Duration,
}

/// The bounds of messages in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Each line is a message, for JSON lines. Empty lines are none. The last line of a file needs
    /// no end of line.
    Lines,
    /// Each file is a message, for files of Arrow record batches. Empty files are none.
    Files,
}

/// The treatment of messages that are longer than the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LongMessages {
    /// The message is an error, which stops the run.
    #[default]
    Stop,
    /// The message is left out and handed over as [`Block::too_long`].
    Reject,
}

impl FolderSettings {
    /// Creates settings with lines as messages, blocks of 1 MiB, messages of up to 16 MiB, an error
    /// for longer ones, and 50 milliseconds between two looks for files.
    pub fn new(root: impl Into<PathBuf>, stream: u16) -> Self {
        Self {
            root: root.into(),
            stream,
            framing: Framing::Lines,
            block_bytes: 1 << 20,
            max_message_bytes: 16 << 20,
            long_messages: LongMessages::Stop,
            scan_interval: Duration::from_millis(50),
        }
    }

    fn check(&self) -> Result<()> {
        let sizes = [self.block_bytes, self.max_message_bytes];
        if sizes.iter().any(|bytes| !(1..=LARGEST).contains(bytes)) {
            return Err(self.root_error(
                format!(
                    "`block_bytes` is {} and `max_message_bytes` is {}",
                    self.block_bytes, self.max_message_bytes
                ),
                "use sizes from 1 byte to 1 GiB",
            ));
        }
        if !self.root.is_dir() {
            let problem = "the folder does not exist".to_owned();
            return Err(self.root_error(problem, "create the folder, or correct its path"));
        }
        Ok(())
    }

    fn root_error(&self, problem: String, remedy: &'static str) -> Error {
        Error::Root { path: self.root.clone(), problem, remedy }
    }
}

/// A reader of a followed folder.
#[derive(Debug)]
pub struct FollowedFolder {
    settings: FolderSettings,
    stamp: Stamp,
    partitions: Vec<FolderPartition>,
    discoveries: Vec<Decision>,
    /// The number of the partition that is asked first at the next poll.
    turn: usize,
    /// The time of the last look for new files.
    scanned: Option<Instant>,
}

impl FollowedFolder {
    /// Opens a followed folder at a position. Nothing is read before the first poll, so that the
    /// discoveries after the position can be adopted from the log.
    ///
    /// # Errors
    /// Returns an error if a size in the settings is out of bounds, or if the root does not exist.
    pub fn open(settings: FolderSettings, position: &Position) -> Result<Self> {
        settings.check()?;
        let known = position.of_stream(settings.stream);
        let partitions = known.map(|(partition, at)| {
            let history = at.files.clone();
            FolderPartition::new(partition, &at.name, &settings, history, at.next_offset)
        });
        let partitions = partitions.collect();
        let (stamp, discoveries) = (Stamp::default(), Vec::new());
        Ok(Self { settings, stamp, partitions, discoveries, turn: 0, scanned: None })
    }

    /// Looks for new partitions and files if the last look is old enough.
    fn scan(&mut self) -> Result<()> {
        if self.scanned.is_some_and(|at| at.elapsed() < self.settings.scan_interval) {
            return Ok(());
        }
        if !self.settings.root.is_dir() {
            let problem = "the folder does not exist any more".to_owned();
            return Err(self.settings.root_error(problem, "restore the folder"));
        }
        let known: BTreeSet<&str> = self.partitions.iter().map(FolderPartition::name).collect();
        if let Some(entries) = self.stamp.list(&self.settings.root, |name| known.contains(name))? {
            let mut names = Vec::new();
            for entry in entries.into_iter().filter(|entry| !known.contains(entry.name.as_str())) {
                if !entry.is_dir {
                    // The next look must find the error again.
                    self.stamp.forget();
                    return Err(Error::Root {
                        path: self.settings.root.join(entry.name),
                        problem: "the file is in no partition".to_owned(),
                        remedy: "move the file into a sub-folder, which is a partition",
                    });
                }
                names.push(entry.name);
            }
            if !names.is_empty() {
                names.iter().for_each(|name| self.add_partition(name));
                let names = self.partitions.iter().map(|p| p.name().to_owned()).collect();
                let (stream, starts) = (self.settings.stream, Vec::new());
                self.discoveries.push(Decision::Partitions { stream, names, starts });
            }
        }
        for partition in &mut self.partitions {
            partition.scan()?;
        }
        self.scanned = Some(Instant::now());
        Ok(())
    }

    /// Fills a block from the next partition that has messages.
    fn fill(&mut self, block: &mut Block) -> Result<bool> {
        let count = self.partitions.len();
        for step in 0..count {
            let number = (self.turn + step) % count;
            let discoveries = &mut self.discoveries;
            if self.partitions[number].fill(block, &self.settings, discoveries)? {
                self.turn = number + 1;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn add_partition(&mut self, name: &str) {
        // A file system has fewer folders than there are numbers of 32 bits.
        let number = self.partitions.len() as u32;
        let partition = Partition { stream: self.settings.stream, number };
        let history = FileHistory::default();
        let added = FolderPartition::new(partition, name, &self.settings, history, 0);
        self.partitions.push(added);
    }

    fn find_partition(&mut self, partition: Partition) -> Result<&mut FolderPartition> {
        let is_ours = partition.stream == self.settings.stream;
        let known = self.partitions.get_mut(partition.number as usize).filter(|_| is_ours);
        known.ok_or_else(|| {
            Error::Position(format!(
                "{partition} is unknown to the followed folder; adopt the partitions first"
            ))
        })
    }
}

impl Source for FollowedFolder {
    fn poll(&mut self, block: &mut Block, timeout: Duration) -> Result<bool> {
        let start = Instant::now();
        loop {
            self.scan()?;
            if self.fill(block)? {
                return Ok(true);
            }
            let waited = start.elapsed();
            if waited >= timeout {
                block.restart(Partition { stream: self.settings.stream, number: 0 }, 0);
                return Ok(false);
            }
            let pause = self.settings.scan_interval.max(Duration::from_millis(1));
            std::thread::sleep(pause.min(timeout - waited));
        }
    }

    fn read(&mut self, partition: Partition, until: u64, block: &mut Block) -> Result<bool> {
        let settings = self.settings.clone();
        self.find_partition(partition)?.read_until(until, block, &settings)
    }

    fn take_discoveries(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.discoveries)
    }

    fn adopt(&mut self, decision: &Decision) -> Result<()> {
        match decision {
            Decision::Partitions { stream, names, .. } if *stream == self.settings.stream => {
                let known = self.partitions.iter().map(FolderPartition::name);
                if !known.eq(names.iter().take(self.partitions.len())) {
                    return Err(Error::Position(format!(
                        "stream {stream}: the recorded partitions do not begin with the known \
                         ones; replay the log from the position of the checkpoint"
                    )));
                }
                for name in &names[self.partitions.len()..] {
                    self.add_partition(name);
                }
                Ok(())
            }
            Decision::File { partition, file } if partition.stream == self.settings.stream => {
                self.find_partition(*partition)?.adopt(file)
            }
            Decision::Reset { partition, to, files }
                if partition.stream == self.settings.stream =>
            {
                self.find_partition(*partition)?.reset(*to, files);
                // The files of the partition are compared with the folder anew.
                self.scanned = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn set_max_message_bytes(&mut self, bytes: usize) -> Result<()> {
        let settings = FolderSettings { max_message_bytes: bytes, ..self.settings.clone() };
        settings.check()?;
        self.settings = settings;
        Ok(())
    }

    fn find_offset(&mut self, _partition: Partition, _place: Place) -> Result<Option<u64>> {
        Ok(None)
    }

    fn partitions(&self) -> Vec<PartitionState> {
        self.partitions.iter().map(FolderPartition::state).collect()
    }
}
