//! Tables that are larger than their memory: rows that are seldom asked for lie in a file.
//!
//! The index stays in memory, all of it: where a row is in the file, its entry holds the number of
//! a record of the shard's log instead of a row number. Rows that a plan needs are brought in
//! before anything else looks at them, so that pulls and pushes find every row where they always
//! do. What has gone beyond the budget leaves at the end of a step, slot by slot, the least likely
//! to be asked for first.
//!
//! # Invariants
//! * A row is in memory or in the file, never in both, and its index entry says where.
//! * Which rows are in memory shows in no result: weights, counts, checkpoints and deltas are those
//!   of a table that has all its rows in memory.
//! * A row that cannot be written stays in memory, and the error ends the step.
//!
//! # Crash consistency
//! The file is scratch: it is never synced, and removed with the process. What a run goes on from
//! is its checkpoint, which has the rows of both places.

mod fetch;
mod folder;
mod log;
mod policy;
mod record;
mod set;
pub(crate) mod spilling;
mod table;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use zillion_device::direct_io::{DirectFile, Readers};
use zillion_device::{Files, Slab};

use crate::error::{Error, Result};
use crate::shape::TableShape;
pub(crate) use crate::spill::fetch::{Fetch, Missing};
use crate::spill::folder::Folder;
pub(crate) use crate::spill::log::{Geometry, Log};
pub(crate) use crate::spill::policy::{COMPARED, LEAVING, Policy, least};
pub(crate) use crate::spill::record::{RecordShape, Thawed};
use crate::statistics::SpillStatistics;

/// Reads in flight. More than this gives no more on the disks that were measured.
pub(crate) const READERS: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");
/// Bytes beside a row in memory: until when it is wanted.
pub(crate) const STAMP_BYTES: u64 = 4;
/// A shard's file takes at most so much for each byte of its rows, beside the segment that is
/// filled and the one that is emptied: `the_file_stays_bounded_while_rows_come_and_go` holds it to
/// that.
pub(crate) const FILE_PER_ROWS: f64 = 2.5;

/// A folder for the files of tables that spill, and the threads that read them. Shared by the
/// tables of a process; the folder of its own that it makes below the one it is given goes with it.
#[derive(Clone, Debug)]
pub struct SpillHome {
    pub(crate) inner: Arc<Home>,
}

#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) readers: Readers,
    pub(crate) folder: Folder,
    pub(crate) files: Files,
}

impl SpillHome {
    /// Takes a folder of its own below `folder` (made if absent). What processes have left there
    /// that are no more is removed; what belongs to a living one is left alone.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub fn open(files: &Files, folder: &Path) -> Result<Self> {
        let folder = Folder::open(files, folder)?;
        let readers = Readers::new(READERS)?;
        Ok(Self { inner: Arc::new(Home { readers, folder, files: files.scratch() }) })
    }

    /// The folder of its own.
    pub fn path(&self) -> &Path {
        self.inner.folder.path()
    }

    pub(crate) fn readers(&self) -> &Readers {
        &self.inner.readers
    }

    pub(crate) fn create(&self, table: &str) -> Result<DirectFile> {
        let path = self.inner.folder.next(table);
        Ok(DirectFile::create(&self.inner.files, &path)?)
    }
}

/// The state that a shard's part of a table has beside its slabs where it spills.
#[derive(Debug)]
pub(crate) struct Spill {
    pub(crate) home: SpillHome,
    pub(crate) log: Log,
    pub(crate) record: RecordShape,
    pub(crate) policy: Policy,
    /// Bytes that rows may take in memory.
    pub(crate) budget_bytes: u64,
    /// The rows that fit into them.
    pub(crate) budget_rows: u64,
    /// Rows that a step adds before it takes any out: room is left for them.
    pub(crate) allowance: u64,
    /// Rows in memory at the end of the last step.
    pub(crate) settled: u64,
    /// Reads that were begun for plans to come.
    pub(crate) ahead: Vec<Fetch>,
    /// The rows that the current plan misses, between the two halves of reading them.
    pub(crate) missing: Option<Missing>,
    /// By row in memory, the last pull that it is known to be needed by.
    pub(crate) wanted: Vec<u32>,
    pub(crate) compaction: Option<Compaction>,
    /// Records that compaction may look at.
    pub(crate) credit: usize,
    pub(crate) counters: SpillStatistics,
}

/// A segment that is being emptied.
#[derive(Debug)]
pub(crate) struct Compaction {
    pub(crate) segment: u32,
    pub(crate) generation: u64,
    /// Units of the segment that have been looked at or asked for.
    pub(crate) next: usize,
    /// The first of the units that are on their way, and these.
    pub(crate) reading: Option<(usize, zillion_device::direct_io::Reading)>,
    /// The position of a damaged record that belongs to no key.
    pub(crate) damaged: Option<u64>,
}

impl Spill {
    /// For a shard's part of a table that may take `memory` bytes for its rows.
    pub(crate) fn new(home: &SpillHome, shape: &TableShape, memory: u64) -> Result<Self> {
        let record = RecordShape::new(shape);
        let budget_rows = budget_rows(memory, shape)?;
        // Small tables get small chunks: what is on its way to the file is memory too.
        let geometry = Geometry::new(record.bytes(), memory);
        Ok(Self {
            log: Log::new(home.create(shape.name())?, geometry),
            home: home.clone(),
            record,
            policy: Policy::default(),
            budget_bytes: memory,
            budget_rows,
            allowance: 0,
            settled: 0,
            ahead: Vec::new(),
            missing: None,
            wanted: Vec::new(),
            compaction: None,
            credit: 0,
            counters: SpillStatistics::default(),
        })
    }

    /// Goes on counting where what this one replaces has stopped.
    pub(crate) fn keep_counters(&mut self, replaced: &Self) {
        let SpillStatistics {
            brought_in,
            ahead,
            spilled,
            compacted,
            reads,
            read_bytes,
            writes,
            written_bytes,
            ..
        } = replaced.statistics(0, 0);
        self.counters.add(&SpillStatistics {
            brought_in,
            ahead,
            spilled,
            compacted,
            reads,
            read_bytes,
            writes,
            written_bytes,
            ..SpillStatistics::default()
        });
    }

    /// Rows that may stay at the end of a step.
    pub(crate) fn target(&self) -> u64 {
        self.budget_rows - self.allowance.min(self.budget_rows / 2)
    }

    pub(crate) fn statistics(&self, hot: u64, rows: u64) -> SpillStatistics {
        let transfers = self.log.file().transfers();
        let fetched = self.ahead.iter().map(Fetch::bytes).sum::<usize>();
        let stamps = self.wanted.capacity() * size_of::<u32>();
        SpillStatistics {
            hot_rows: hot,
            cold_rows: rows - hot,
            budget_rows: self.budget_rows,
            budget_bytes: self.budget_bytes,
            disk_bytes: self.log.disk_bytes(),
            live_bytes: (rows - hot) * self.record.bytes() as u64,
            buffer_bytes: (self.log.buffer_bytes() + fetched + stamps) as u64,
            reads: self.counters.reads + transfers.reads,
            read_bytes: self.counters.read_bytes + transfers.read_bytes,
            writes: self.counters.writes + transfers.writes,
            written_bytes: self.counters.written_bytes + transfers.written_bytes,
            cached_files: u64::from(!self.log.file().is_direct()),
            ..self.counters
        }
    }
}

/// Rows that may stay in the memory of a shard.
pub(crate) fn budget_rows(memory: u64, shape: &TableShape) -> Result<u64> {
    match rows_in(memory, shape) {
        0 => {
            let key = format!("run.spill.{}", shape.name());
            let reason = format!(
                "{memory} bytes a shard hold no row: raise it, or use fewer shards (a slab begins at {} bytes)",
                Slab::<f32>::mapped_bytes(1, shape.spec.weight_bytes())
            );
            Err(Error::Spec { key, reason })
        }
        rows => Ok(rows),
    }
}

/// The largest number of rows whose slabs take no more than `memory` bytes.
pub(crate) fn rows_in(memory: u64, shape: &TableShape) -> u64 {
    let slab =
        |rows: u64, row_bytes: usize| Slab::<f32>::mapped_bytes(rows as usize, row_bytes) as u64;
    let needed = |rows: u64| {
        slab(rows, shape.spec.weight_bytes())
            + slab(rows, size_of::<u32>() * shape.companion_stride)
            + STAMP_BYTES * rows
    };
    let (mut fits, mut fails) = (0, 1 << 31);
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        match needed(middle) <= memory {
            true => fits = middle,
            false => fails = middle,
        }
    }
    fits
}
