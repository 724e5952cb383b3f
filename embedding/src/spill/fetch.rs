//! Records on their way from the file: of the plan that is looked up now, and of those to come.

use std::sync::Arc;

use zillion_device::direct_io::{DirectFile, Pieces, Readers, Reading};
use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::spill::Log;

/// Records that are read together.
#[derive(Debug)]
pub(crate) struct Fetch {
    /// Their numbers, ascending, and the generations of their segments when reading began.
    wants: Vec<(u32, u64)>,
    /// Those of them that more than one of its plans needs, ascending.
    again: Vec<u32>,
    state: State,
    /// The last pull that it is for.
    pub(crate) until: u32,
}

#[derive(Debug)]
enum State {
    Reading(Reading),
    Read(Pieces),
    /// The read failed, and its waiter has the error.
    Failed,
}

/// The rows that a plan needs and that are not in memory, by ascending record.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) rows: Vec<(u32, FeatureKey)>,
    /// Those that no fetch has begun to read before.
    pub(crate) fetch: Option<Fetch>,
}

impl Fetch {
    /// Begins to read records (ascending, none of them in memory).
    pub(crate) fn start(
        readers: &Readers,
        log: &Log,
        records: &[u32],
        again: Vec<u32>,
        until: u32,
    ) -> Self {
        let geometry = log.geometry();
        let offsets: Vec<u64> = records.iter().map(|&r| geometry.offset(r)).collect();
        let file: &Arc<DirectFile> = log.file();
        Self {
            wants: records.iter().map(|&r| (r, log.generation(r))).collect(),
            again,
            state: State::Reading(readers.start(file, &offsets, geometry.record_bytes())),
            until,
        }
    }

    /// Returns the position of a record among those that are being read, if the log still has the
    /// same record there.
    pub(crate) fn position(&self, log: &Log, record: u32) -> Option<usize> {
        if matches!(self.state, State::Failed) {
            return None;
        }
        let position = self.wants.binary_search_by_key(&record, |&(r, _)| r).ok()?;
        (self.wants[position].1 == log.generation(record)).then_some(position)
    }

    /// Waits for all that is read.
    ///
    /// # Errors
    /// Where the disk fails; nothing is then in it any more.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.state = match std::mem::replace(&mut self.state, State::Failed) {
            State::Reading(reading) => State::Read(reading.wait()?),
            state => state,
        };
        Ok(())
    }

    /// The bytes of a record at a position, once it has been waited for.
    pub(crate) fn get(&self, position: usize) -> Option<&[u8]> {
        match &self.state {
            State::Read(pieces) => pieces.get(position),
            _ => None,
        }
    }

    /// The last pull that needs a record, where more than one does.
    pub(crate) fn wanted_until(&self, record: u32) -> Option<u32> {
        self.again.binary_search(&record).ok().map(|_| self.until)
    }

    /// Bytes of memory, at the end.
    pub(crate) fn bytes(&self) -> usize {
        let read = match &self.state {
            State::Read(pieces) => pieces.bytes(),
            _ => 0,
        };
        self.wants.capacity() * size_of::<(u32, u64)>() + read
    }
}
