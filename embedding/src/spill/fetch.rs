//! The fetches of records from the file, for the plan that is looked up now and for announced
//! plans.

use zillion_device::direct_io::{Pieces, Readers, Reading};
use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::spill::Log;

/// A group of records that are read from the file together.
#[derive(Debug)]
pub(crate) struct Fetch {
    /// The numbers of the records in ascending order. Each record has the generation that its
    /// segment had when the read began.
    wants: Vec<(u32, u64)>,
    /// The numbers of the records that several plans need, in ascending order.
    again: Vec<u32>,
    state: State,
    /// The number of the last pull that needs the records.
    pub(crate) until: u32,
}

#[derive(Debug)]
enum State {
    Reading(Reading),
    Read(Pieces),
    /// The read has failed, and its error has been returned to the waiting caller.
    Failed,
}

/// The rows that a plan needs and that are not in memory, ordered by the numbers of their records.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) rows: Vec<(u32, FeatureKey)>,
    /// The read of the records that no earlier fetch reads; `None` if earlier fetches read all
    /// records.
    pub(crate) fetch: Option<Fetch>,
}

impl Fetch {
    /// Begins to read `records`. Their numbers must be in ascending order, and none of them may be
    /// in memory.
    pub(crate) fn start(
        readers: &Readers,
        log: &Log,
        records: &[u32],
        again: Vec<u32>,
        until: u32,
    ) -> Self {
        Self {
            wants: records.iter().map(|&r| (r, log.generation(r))).collect(),
            again,
            state: State::Reading(log.read(readers, records)),
            until,
        }
    }

    /// Returns the position of a record in this fetch. Returns `None` if the fetch does not have
    /// the record, if its read has failed, or if the log has reused the number of the record since
    /// the read began.
    pub(crate) fn position(&self, log: &Log, record: u32) -> Option<usize> {
        if matches!(self.state, State::Failed) {
            return None;
        }
        let position = self.wants.binary_search_by_key(&record, |&(r, _)| r).ok()?;
        (self.wants[position].1 == log.generation(record)).then_some(position)
    }

    /// Waits until all records have been read.
    ///
    /// # Errors
    /// Returns an error if a read fails. After an error, the fetch has no records.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.state = match std::mem::replace(&mut self.state, State::Failed) {
            State::Reading(reading) => State::Read(reading.wait()?),
            state => state,
        };
        Ok(())
    }

    /// Returns the bytes of the record at a position of the fetch, or `None` if [`Fetch::wait`] has
    /// not read the record.
    pub(crate) fn get(&self, position: usize) -> Option<&[u8]> {
        match &self.state {
            State::Read(pieces) => pieces.get(position),
            _ => None,
        }
    }

    /// Returns the number of the last pull that needs a record, or `None` if only one plan needs
    /// the record.
    pub(crate) fn wanted_until(&self, record: u32) -> Option<u32> {
        self.again.binary_search(&record).ok().map(|_| self.until)
    }

    /// Returns the bytes of memory that the fetch takes after its read.
    pub(crate) fn bytes(&self) -> usize {
        let read = match &self.state {
            State::Read(pieces) => pieces.bytes(),
            _ => 0,
        };
        self.wants.capacity() * size_of::<(u32, u64)>() + read
    }
}
