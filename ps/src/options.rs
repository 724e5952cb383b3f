//! The settings that tables are opened with, wherever they are.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use zillion_device::Files;
use zillion_feature::TableId;
use zillion_rows::{ByteSize, TableSpec};

/// The tables of a training run and the settings that hold for all its steps.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// The specs of the tables, in the order of their ids.
    pub tables: Vec<TableSpec>,
    /// The number of shards of each table. It does not change any result.
    pub shards: NonZeroUsize,
    /// The memory that all tables may take together; `None` sets no limit.
    pub max_bytes: Option<ByteSize>,
    /// The tables whose rows stay as they are.
    pub frozen: Vec<TableId>,
    /// Whether checkpoints may hold only what changed since an earlier one
    /// ([`Checkpointing::follow_checkpoints`](crate::Checkpointing::follow_checkpoints)).
    pub follows_checkpoints: bool,
    /// The tables whose rows may leave memory; `None` keeps all rows in memory.
    pub spill: Option<SpillOptions>,
}

impl TableOptions {
    /// Returns the options of these tables without limits, frozen tables or spilling.
    pub fn new(tables: Vec<TableSpec>, shards: NonZeroUsize) -> Self {
        Self {
            tables,
            shards,
            max_bytes: None,
            frozen: Vec::new(),
            follows_checkpoints: false,
            spill: None,
        }
    }
}

/// The place of rows that leave memory, and the memory that their tables keep.
#[derive(Clone, Debug)]
pub struct SpillOptions {
    /// The folder of the files that hold the rows.
    pub folder: PathBuf,
    /// The way in which files are written.
    pub files: Files,
    /// The bytes of memory of each table that spills.
    pub memory: Vec<(TableId, u64)>,
}
