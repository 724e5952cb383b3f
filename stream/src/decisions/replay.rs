//! The decisions of a log in order, read from the disk one after the other.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use super::Decision;
use super::segment::{Segment, SegmentReader, Step, list};
use crate::error::{Error, Result};

/// An iterator over the decisions of a log with their numbers. It keeps one decision in memory, and
/// ends after its first error.
#[derive(Debug)]
pub struct Replay {
    folder: PathBuf,
    /// The number of the first decision that is returned.
    from: u64,
    /// The number of the first decision of the log.
    first: u64,
    /// The segments that are not opened yet.
    segments: VecDeque<Segment>,
    reader: Option<SegmentReader>,
    /// The number of the decision that must come next.
    next: u64,
    is_done: bool,
}

/// Returns the decisions of a log from number `from` on, without locking the log. A record at the
/// end that is not whole is left out, because a writer may be writing it.
///
/// # Errors
/// Returns an error if the folder cannot be read, or if the log begins after `from`. The iterator
/// returns an error where the log is damaged or ends before `from`.
pub fn read_decisions(folder: impl AsRef<Path>, from: u64) -> Result<Replay> {
    let folder = folder.as_ref();
    let mut segments: VecDeque<Segment> = list(folder)?.into();
    let first = segments.front().map_or(0, |segment| segment.first);
    if first > from {
        let next = segments.back().map_or(0, |segment| segment.first);
        return Err(Error::Missing { folder: folder.to_owned(), needed: from, first, next });
    }
    while segments.get(1).is_some_and(|segment| segment.first <= from) {
        segments.pop_front();
    }
    let next = segments.front().map_or(0, |segment| segment.first);
    let folder = folder.to_owned();
    Ok(Replay { folder, from, first, segments, reader: None, next, is_done: false })
}

/// Returns the number of the first decision that a log still has, or 0 if the log is empty.
///
/// # Errors
/// Returns an error if the folder cannot be read.
pub fn first_decision(folder: impl AsRef<Path>) -> Result<u64> {
    Ok(list(folder.as_ref())?.first().map_or(0, |segment| segment.first))
}

impl Replay {
    fn advance(&mut self) -> Result<Option<(u64, Decision)>> {
        loop {
            let Some(reader) = &mut self.reader else {
                let Some(segment) = self.segments.pop_front() else { return self.end() };
                let reader = SegmentReader::open(&segment)?;
                if segment.first != self.next {
                    let problem = format!("decision {} must come before this file", self.next);
                    let remedy = "restore the missing file, or begin at a later checkpoint";
                    return Err(reader.damage(problem, remedy));
                }
                self.reader = Some(reader);
                continue;
            };
            match reader.step()? {
                Step::Record(number, decision) => {
                    self.next = number + 1;
                    if number >= self.from {
                        return Ok(Some((number, decision)));
                    }
                }
                Step::Torn { bytes, .. } if !self.segments.is_empty() => {
                    return Err(reader.torn_inside(bytes));
                }
                Step::End | Step::Torn { .. } => self.reader = None,
            }
        }
    }

    /// Checks the end of the log.
    fn end(&self) -> Result<Option<(u64, Decision)>> {
        if self.next < self.from {
            let (folder, first, next) = (self.folder.clone(), self.first, self.next);
            return Err(Error::Missing { folder, needed: self.from, first, next });
        }
        Ok(None)
    }
}

impl Iterator for Replay {
    type Item = Result<(u64, Decision)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let item = self.advance().transpose();
        self.is_done = !matches!(item, Some(Ok(_)));
        item
    }
}
