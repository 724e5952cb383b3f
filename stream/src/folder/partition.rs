//! One partition of a followed folder: the files of a sub-folder, one after the other.

use std::path::PathBuf;

use super::listing::Listing;
use super::open_file::{OpenFile, check_consumed};
use super::{FolderSettings, Framing, lines, whole};
use crate::decisions::Decision;
use crate::error::{Error, Result};
use crate::file::{FileHistory, FileIdentity};
use crate::partition::Partition;
use crate::source::{Block, OffsetUnit, PartitionState};

/// A partition of a followed folder and the place of the reader in it.
#[derive(Debug)]
pub(super) struct FolderPartition {
    partition: Partition,
    name: String,
    folder: PathBuf,
    /// The files that the log has recorded.
    history: FileHistory,
    /// The offset of the next message.
    next: u64,
    file: Option<OpenFile>,
    listing: Listing,
}

impl FolderPartition {
    pub(super) fn new(
        partition: Partition,
        name: &str,
        settings: &FolderSettings,
        history: FileHistory,
        next: u64,
    ) -> Self {
        let (name, folder) = (name.to_owned(), settings.root.join(name));
        Self { partition, name, folder, history, next, file: None, listing: Listing::default() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Looks for new files, and checks those that are known.
    pub(super) fn scan(&mut self) -> Result<()> {
        self.check_last()?;
        self.listing.refresh(self.partition, &self.folder, &self.history)
    }

    /// Fills a block with the next messages. Returns `false` if there are none. A file that is
    /// begun is added to `discoveries`.
    pub(super) fn fill(
        &mut self,
        block: &mut Block,
        settings: &FolderSettings,
        discoveries: &mut Vec<Decision>,
    ) -> Result<bool> {
        while self.next >= self.history.end() {
            if !self.begin_file(discoveries)? {
                return Ok(false);
            }
        }
        self.read(u64::MAX, block, settings)?;
        Ok(true)
    }

    /// Fills a block with messages before offset `until`, which must lie in the recorded files.
    /// Returns `false` if the reader is there.
    pub(super) fn read_until(
        &mut self,
        until: u64,
        block: &mut Block,
        settings: &FolderSettings,
    ) -> Result<bool> {
        if self.next >= until {
            block.restart(self.partition, self.next);
            return Ok(false);
        }
        if until > self.history.end() {
            return Err(Error::Position(format!(
                "{}: messages up to offset {until} are needed, but the recorded files end at \
                 offset {}; replay the log from the position of the checkpoint",
                self.partition,
                self.history.end()
            )));
        }
        self.read(until, block, settings)?;
        Ok(true)
    }

    /// Adopts a file that the log has recorded.
    pub(super) fn adopt(&mut self, file: &FileIdentity) -> Result<()> {
        self.history.add(self.partition, file.clone())?;
        // Empty files are consumed at once.
        self.history.forget(self.next);
        self.listing.record(&file.name);
        Ok(())
    }

    /// Goes on at another offset, with the files around it.
    pub(super) fn reset(&mut self, to: u64, files: &FileHistory) {
        self.history = files.clone();
        self.next = to;
        self.file = None;
        self.listing = Listing::default();
    }

    pub(super) fn state(&self) -> PartitionState {
        let mut present = self.history.files().iter().filter(|f| self.listing.is_present(&f.name));
        PartitionState {
            partition: self.partition,
            name: self.name.clone(),
            earliest: present.next().map_or(self.next, |file| file.start.min(self.next)),
            next: self.next,
            end: self.history.end() + self.listing.pending_bytes(),
            unit: OffsetUnit::Bytes,
        }
    }

    /// Begins the next file behind the recorded ones. Returns `false` if there is none.
    fn begin_file(&mut self, discoveries: &mut Vec<Decision>) -> Result<bool> {
        let Some((name, size)) = self.listing.first_pending() else { return Ok(false) };
        self.check_last()?;
        let (path, start) = (self.folder.join(name), self.history.end());
        let file = OpenFile::open_next(self.partition, &path, name, start, size)?;
        let identity = file.identity().clone();
        self.adopt(&identity)?;
        discoveries.push(Decision::File { partition: self.partition, file: identity });
        self.file = Some(file);
        Ok(true)
    }

    /// Checks that the last file was not changed after it was consumed. A writer that goes on with
    /// a file under its final name is found here.
    fn check_last(&self) -> Result<()> {
        match self.history.files().last() {
            Some(last) if last.end() <= self.next => {
                check_consumed(self.partition, &self.folder.join(&last.name), last)
            }
            _ => Ok(()),
        }
    }

    /// Reads the next block of the recorded files.
    fn read(&mut self, until: u64, block: &mut Block, settings: &FolderSettings) -> Result<()> {
        let identity = self.history.find(self.next).ok_or_else(|| {
            Error::Position(format!(
                "{}: no recorded file contains offset {}; use an unchanged manifest of a \
                 checkpoint",
                self.partition, self.next
            ))
        })?;
        // A file stays open after an error, so that the next read finds the error again.
        if self.file.as_ref().is_none_or(|file| file.identity() != identity) {
            let path = self.folder.join(&identity.name);
            self.file = Some(OpenFile::open_known(self.partition, &path, identity)?);
        }
        if let Some(file) = &self.file {
            let fill = match settings.framing {
                Framing::Lines => lines::fill,
                Framing::Files => whole::fill,
            };
            fill(block, self.partition, file, (self.next, until), settings)?;
        }
        self.next = block.end;
        self.history.forget(self.next);
        Ok(())
    }
}
