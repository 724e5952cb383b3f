//! The settings with which a training run opens its tables.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;

use zillion_device::Files;
use zillion_feature::TableId;
use zillion_rows::{ByteSize, TableSpec};

/// The specs of the tables of a training run, and settings that apply to the whole run.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// The specs of the tables, in the order of their ids.
    pub tables: Vec<TableSpec>,
    /// The number of shards of each table. The number does not change any result.
    pub shards: NonZeroUsize,
    /// The slots whose keys these tables hold; `None` for all slots. A server holds a part of the
    /// slots. The bounds are multiples of 64.
    pub slots: Option<Range<usize>>,
    /// The largest amount of memory that all tables may take together; `None` sets no limit.
    pub max_bytes: Option<ByteSize>,
    /// The tables whose rows training must not change.
    pub frozen: Vec<TableId>,
    /// Whether checkpoints can hold only the changes since an earlier checkpoint
    /// ([`Checkpointing::follow_checkpoints`](crate::Checkpointing::follow_checkpoints)).
    pub follows_checkpoints: bool,
    /// The settings of tables that spill; `None` keeps all rows in memory.
    pub spill: Option<SpillOptions>,
}

impl TableOptions {
    /// Returns the options of these tables, without a limit, without frozen tables and without
    /// spilling.
    pub fn new(tables: Vec<TableSpec>, shards: NonZeroUsize) -> Self {
        Self {
            tables,
            shards,
            slots: None,
            max_bytes: None,
            frozen: Vec::new(),
            follows_checkpoints: false,
            spill: None,
        }
    }
}

/// The folder of spilled rows, and the memory of the tables that spill.
#[derive(Clone, Debug)]
pub struct SpillOptions {
    /// The folder of the files with spilled rows.
    pub folder: PathBuf,
    /// The writer of durable files.
    pub files: Files,
    /// The tables that spill, each with the memory in bytes that its rows may take.
    pub memory: Vec<(TableId, u64)>,
}
