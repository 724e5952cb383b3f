//! The log of a shard's cold rows. It has records of one size in segments of one file. Records are
//! written in large pieces and never changed in place.
//!
//! Records are numbered consecutively. A unit is a run of pages that holds whole records. A chunk
//! is a run of units that are written at once. A segment is a run of chunks that is reused as a
//! whole. The chunk that is being filled is in memory, and its records are read from there.
//!
//! # Invariants
//! * A closed segment is full of records. A record is live if an index entry points to it. Each
//!   segment counts its live records.
//! * A segment is reused only after all its records have been released. It then gets a new
//!   generation. So data from an earlier read are never mistaken for the present data of the
//!   segment.

use std::collections::BTreeSet;
use std::sync::Arc;

use zillion_device::direct_io::{
    DirectFile, PAGE, Page, Readers, Reading, bytes, bytes_mut, pages,
};

use crate::error::{Error, Result};
use crate::index::Entry;

/// The number of bytes of a chunk if there is enough memory.
const CHUNK_BYTES: usize = 256 << 10;
/// The number of chunks of a segment.
const SEGMENT_CHUNKS: usize = 16;
/// The divisor of the memory for rows that gives the largest size of a chunk.
const CHUNK_PART: u64 = 64;

/// The layout of records in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) record: usize,
    /// The number of pages of a unit: one page, or the number that a large record needs.
    unit_pages: usize,
    /// The number of records of a unit.
    pub(crate) per_unit: usize,
    chunk_units: usize,
    segment_chunks: usize,
}

/// A log of records of one size, in the segments of one file.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) file: Arc<DirectFile>,
    pub(crate) geometry: Geometry,
    segments: Vec<Segment>,
    free: BTreeSet<u32>,
    open: Option<Open>,
    /// The memory of the chunk that is being filled.
    chunk: Vec<Page>,
    /// The number of times that a segment was opened. The next generation is computed from it.
    openings: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    live: usize,
    generation: u64,
    is_closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    segment: u32,
    /// The index in the segment of the chunk that is being filled.
    chunk: usize,
    /// The number of records in the chunk that is being filled.
    filled: usize,
}

impl Geometry {
    /// Returns the layout for records of `record` bytes in a table whose rows may take `memory`
    /// bytes.
    pub(crate) fn new(record: usize, memory: u64) -> Self {
        let unit_pages = record.div_ceil(PAGE);
        let per_unit = unit_pages * PAGE / record;
        let chunk = (memory / CHUNK_PART).min(CHUNK_BYTES as u64) as usize;
        let chunk_units = (chunk / (unit_pages * PAGE)).max(1);
        Self { record, unit_pages, per_unit, chunk_units, segment_chunks: SEGMENT_CHUNKS }
    }

    pub(crate) fn unit_bytes(&self) -> usize {
        self.unit_pages * PAGE
    }

    /// Returns the number of units of a segment.
    pub(crate) fn units(&self) -> usize {
        self.chunk_units * self.segment_chunks
    }

    fn chunk_records(&self) -> usize {
        self.chunk_units * self.per_unit
    }

    fn segment_records(&self) -> usize {
        self.units() * self.per_unit
    }

    fn segment_bytes(&self) -> u64 {
        (self.units() * self.unit_bytes()) as u64
    }

    /// Returns the position of a record's first byte. The position is in the file, or in a chunk if
    /// the first record of this chunk has the number 0.
    pub(crate) fn offset(&self, record: u32) -> u64 {
        let (unit, place) = (record as usize / self.per_unit, record as usize % self.per_unit);
        unit as u64 * self.unit_bytes() as u64 + (place * self.record) as u64
    }

    /// Returns the position in the file of the first byte of a unit of a segment.
    pub(crate) fn unit_offset(&self, segment: u32, unit: usize) -> u64 {
        u64::from(segment) * self.segment_bytes() + (unit * self.unit_bytes()) as u64
    }

    /// Returns the number of the record that is `place` records after the beginning of a unit of a
    /// segment.
    pub(crate) fn number(&self, segment: u32, unit: usize, place: usize) -> u32 {
        (segment as usize * self.segment_records() + unit * self.per_unit + place) as u32
    }

    /// Returns the bytes of the record with the index `place` in a unit.
    pub(crate) fn in_unit<'a>(&self, unit: &'a [u8], place: usize) -> &'a [u8] {
        &unit[place * self.record..(place + 1) * self.record]
    }
}

impl Log {
    pub(crate) fn new(file: DirectFile, geometry: Geometry) -> Self {
        Self {
            file: Arc::new(file),
            geometry,
            segments: Vec::new(),
            free: BTreeSet::new(),
            open: None,
            chunk: Vec::new(),
            openings: 0,
        }
    }

    /// Begins to read some records that are not in memory.
    pub(crate) fn read(&self, readers: &Readers, records: &[u32]) -> Reading {
        let offsets: Vec<u64> = records.iter().map(|&r| self.geometry.offset(r)).collect();
        readers.start(&self.file, &offsets, self.geometry.record)
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.segments.len() as u64 * self.geometry.segment_bytes()
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.chunk.capacity() * PAGE + self.segments.capacity() * size_of::<Segment>()
    }

    /// Adds a record, whose bytes `fill` writes, and returns its number. After an error, no record
    /// has been added.
    ///
    /// # Errors
    /// Returns an error if the previous records cannot be written to the disk. These records stay
    /// in memory, and the next call tries to write them again.
    pub(crate) fn append(&mut self, fill: impl FnOnce(&mut [u8])) -> Result<u32> {
        let geometry = self.geometry;
        if self.open.is_some_and(|open| open.filled == geometry.chunk_records()) {
            self.write_chunk()?;
        }
        let open = match self.open {
            Some(open) => open,
            None => self.open_segment()?,
        };
        let start = geometry.offset(open.filled as u32) as usize;
        fill(&mut bytes_mut(&mut self.chunk)[start..start + geometry.record]);
        self.open = Some(Open { filled: open.filled + 1, ..open });
        self.segments[open.segment as usize].live += 1;
        Ok(geometry.number(open.segment, open.chunk * geometry.chunk_units, open.filled))
    }

    /// Returns the bytes of a record that is still in memory, or `None` if the record has been
    /// written to the file.
    pub(crate) fn in_memory(&self, record: u32) -> Option<&[u8]> {
        let (open, geometry) = (self.open?, &self.geometry);
        let first = geometry.number(open.segment, open.chunk * geometry.chunk_units, 0);
        let index = record.checked_sub(first)? as usize;
        if index >= open.filled {
            return None;
        }
        let start = geometry.offset(index as u32) as usize;
        Some(&bytes(&self.chunk)[start..start + geometry.record])
    }

    /// Records that no index entry points to a record any more.
    pub(crate) fn release(&mut self, record: u32) {
        let segment = record / self.geometry.segment_records() as u32;
        let state = &mut self.segments[segment as usize];
        state.live -= 1;
        if state.live == 0 && state.is_closed {
            self.free.insert(segment);
        }
    }

    /// Returns the generation of a record's segment. While the generation does not change, the
    /// number refers to the same record.
    pub(crate) fn generation(&self, record: u32) -> u64 {
        self.segment_generation(record / self.geometry.segment_records() as u32)
    }

    pub(crate) fn segment_generation(&self, segment: u32) -> u64 {
        self.segments[segment as usize].generation
    }

    /// Returns the number of live records of a segment. It is 0 if the segment is free for reuse.
    pub(crate) fn live(&self, segment: u32) -> usize {
        self.segments[segment as usize].live
    }

    /// Returns the closed segment with the fewest live records, or `None` if in every closed
    /// segment at least half of the records are live.
    pub(crate) fn sparsest(&self) -> Option<u32> {
        let half = self.geometry.segment_records() / 2;
        let closed = self.segments.iter().enumerate();
        let sparse = closed.filter(|(_, s)| s.is_closed && s.live > 0 && s.live < half);
        sparse.min_by_key(|(_, s)| s.live).map(|(segment, _)| segment as u32)
    }

    fn write_chunk(&mut self) -> Result<()> {
        let Some(open) = self.open else { return Ok(()) };
        let geometry = self.geometry;
        let at = geometry.unit_offset(open.segment, open.chunk * geometry.chunk_units);
        self.file.write(at, &self.chunk)?;
        let chunk = open.chunk + 1;
        self.open = (chunk < geometry.segment_chunks).then_some(Open { chunk, filled: 0, ..open });
        if self.open.is_none() {
            let state = &mut self.segments[open.segment as usize];
            state.is_closed = true;
            if state.live == 0 {
                self.free.insert(open.segment);
            }
        }
        Ok(())
    }

    fn open_segment(&mut self) -> Result<Open> {
        let segment = match self.free.pop_first() {
            Some(segment) => segment,
            None => {
                let records = (self.segments.len() + 1) * self.geometry.segment_records();
                if records > Entry::MOST_RECORDS as usize {
                    let reason = format!(
                        "a shard has more than {} rows of a table on disk; use more shards",
                        Entry::MOST_RECORDS
                    );
                    let path = self.file.path().to_owned();
                    return Err(Error::Spill { path, reason });
                }
                self.segments.push(Segment { live: 0, generation: 0, is_closed: false });
                self.segments.len() as u32 - 1
            }
        };
        if self.chunk.is_empty() {
            self.chunk = pages(self.geometry.chunk_units * self.geometry.unit_pages);
        }
        self.openings += 1;
        let state = Segment { live: 0, generation: self.openings, is_closed: false };
        self.segments[segment as usize] = state;
        let open = Open { segment, chunk: 0, filled: 0 };
        self.open = Some(open);
        Ok(open)
    }
}
