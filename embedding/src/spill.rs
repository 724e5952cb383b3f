//! The spilling of tables that are larger than their memory. Rows that are seldom needed are moved
//! to a file.
//!
//! The whole index stays in memory. For a row in the file, the index entry has the number of a
//! record in the shard's log instead of a row number. Before any other code reads the rows of a
//! plan, the rows that are in the file are brought into memory. So pulls and pushes find every row
//! in memory. At the end of a step, rows beyond the memory budget are spilled, slot by slot. The
//! rows that are least likely to be needed are spilled first.
//!
//! # Invariants
//! * A row is either in memory or in the file, never in both, and its index entry says where.
//! * The choice of the rows in memory changes no result. Weights, counts, checkpoints and deltas
//!   are the same as in a table that has all its rows in memory.
//! * A row that cannot be written stays in memory, and the error ends the step.
//!
//! # Crash consistency
//! The file is a scratch file. It is never synced, and it is removed when the process ends. A run
//! restarts from its checkpoint, which holds the rows of memory and of the file.

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
use zillion_rows::memory::rows_within;

/// The largest number of reads at the same time. A larger number gave no more throughput on the
/// disks that were measured.
pub(crate) const READERS: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");
/// The number of bytes for each row in memory that store the number of the last pull that needs the
/// row.
pub(crate) const STAMP_BYTES: u64 = 4;
/// The largest number of bytes that a shard's file takes for each byte of its rows. The segment
/// that is being filled and the segment that is being emptied are not counted. The test
/// `the_file_stays_bounded_while_rows_come_and_go` checks this bound.
pub(crate) const FILE_PER_ROWS: f64 = 2.5;

/// A folder for the files of tables that spill, and the threads that read the files. The tables of
/// a process share it. Each value creates a new subfolder of the given folder, and removes this
/// subfolder when it is dropped.
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
    /// Creates a subfolder of `folder`, and `folder` itself if it does not exist. Removes the files
    /// that ended processes have left in `folder`, and does not touch the files of running
    /// processes.
    ///
    /// # Errors
    /// Returns an error if an operation on the disk fails.
    pub fn open(files: &Files, folder: &Path) -> Result<Self> {
        let folder = Folder::open(files, folder)?;
        let readers = Readers::new(READERS)?;
        Ok(Self { inner: Arc::new(Home { readers, folder, files: files.scratch() }) })
    }

    /// Returns the path of the subfolder that this value has created.
    pub fn path(&self) -> &Path {
        self.inner.folder.path()
    }
}

/// The state of spilling in one shard's part of a table.
#[derive(Debug)]
pub(crate) struct Spill {
    pub(crate) home: SpillHome,
    pub(crate) log: Log,
    pub(crate) record: RecordShape,
    pub(crate) policy: Policy,
    /// The bytes that rows may take in memory.
    pub(crate) budget_bytes: u64,
    /// The number of rows that fit into `budget_bytes`.
    pub(crate) budget_rows: u64,
    /// The number of rows that the next step is expected to bring into memory. At the end of a
    /// step, the budget keeps room for this number of rows.
    pub(crate) allowance: u64,
    /// The number of rows in memory at the end of the last step.
    pub(crate) settled: u64,
    /// The reads that have begun for announced plans.
    pub(crate) ahead: Vec<Fetch>,
    /// The rows that the current plan needs and that are not in memory. The first half of bringing
    /// rows into memory sets this field if there are such rows, and the second half clears it.
    pub(crate) missing: Option<Missing>,
    /// For each row in memory, the number of the last pull that needs the row. Only announced plans
    /// are considered.
    pub(crate) wanted: Vec<u32>,
    pub(crate) compaction: Option<Compaction>,
    /// The number of records that compaction may still check.
    pub(crate) credit: usize,
    pub(crate) counters: SpillStatistics,
}

/// The state of the segment that is being emptied.
#[derive(Debug)]
pub(crate) struct Compaction {
    pub(crate) segment: u32,
    pub(crate) generation: u64,
    /// The number of units of the segment that have been read or are being read.
    pub(crate) next: usize,
    /// The index of the first unit that is being read, and the read; `None` if no unit is being
    /// read.
    pub(crate) reading: Option<(usize, zillion_device::direct_io::Reading)>,
    /// The position in the file of a damaged record that belongs to no key; `None` if no such
    /// record was found.
    pub(crate) damaged: Option<u64>,
}

impl Spill {
    /// Creates the state for one shard's part of a table. The rows of this part may take `memory`
    /// bytes.
    pub(crate) fn new(home: &SpillHome, shape: &TableShape, memory: u64) -> Result<Self> {
        let record = RecordShape::new(shape);
        let budget_rows = budget_rows(memory, shape)?;
        // Small tables get small chunks, because data on its way to the file takes memory too.
        let geometry = Geometry::new(record.bytes(), memory);
        let file = DirectFile::create(&home.inner.files, &home.inner.folder.next(shape.name()))?;
        Ok(Self {
            log: Log::new(file, geometry),
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

    /// Returns the number of rows that may stay in memory at the end of a step.
    pub(crate) fn target(&self) -> u64 {
        self.budget_rows - self.allowance.min(self.budget_rows / 2)
    }

    pub(crate) fn statistics(&self, hot: u64, rows: u64) -> SpillStatistics {
        let transfers = self.log.file.transfers();
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
            cached_files: u64::from(!self.log.file.is_direct()),
            ..self.counters
        }
    }
}

/// Returns the number of rows that fit into `memory` bytes of a shard, or an error if no row fits.
pub(crate) fn budget_rows(memory: u64, shape: &TableShape) -> Result<u64> {
    match rows_in(memory, shape) {
        0 => {
            let key = format!("run.spill.{}", shape.name());
            let reason = format!(
                "{memory} bytes of memory for each shard are too few for a row (at least {} bytes \
                 are needed); raise the memory, or use fewer shards",
                Slab::<f32>::mapped_bytes(1, shape.spec.weight_bytes())
            );
            Err(Error::Spec { key, reason })
        }
        rows => Ok(rows),
    }
}

/// Returns the largest number of rows whose slabs take no more than `memory` bytes.
pub(crate) fn rows_in(memory: u64, shape: &TableShape) -> u64 {
    let slab =
        |rows: u64, row_bytes: usize| Slab::<f32>::mapped_bytes(rows as usize, row_bytes) as u64;
    let needed = |rows: u64| {
        slab(rows, shape.spec.weight_bytes())
            + slab(rows, size_of::<u32>() * shape.companion_stride)
            + STAMP_BYTES * rows
    };
    rows_within(memory, needed)
}
