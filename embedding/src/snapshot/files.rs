//! The kinds and the contents of the files of a checkpoint that is written beside training.

use std::path::Path;

use zillion_device::Files;
use zillion_feature::FeatureKey;

use crate::error::{Error, Result};
use crate::shape::TableShape;
use crate::table::Table;
use zillion_rows::Candidate;
use zillion_rows::filter::BLOCK_WORDS;
use zillion_rows::part::{
    PartInfo, PartRows, Place, RowDigest, write_candidates, write_filter, write_gone, write_rows,
};

/// The kind of the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rows,
    /// The narrow rows of a table.
    Narrow,
    Candidates,
    Filter,
}

impl Kind {
    /// All kinds, in the order in which a table's files are written.
    pub(crate) const ALL: [Self; 4] = [Self::Rows, Self::Narrow, Self::Candidates, Self::Filter];

    /// Returns whether the file holds narrow rows.
    pub(crate) fn is_narrow(self) -> bool {
        self == Self::Narrow
    }

    /// Returns the number of bytes of memory that an entry takes before it is written, or `None` if
    /// a table of this shape never has entries of this kind.
    pub(crate) fn entry_bytes(self, shape: &TableShape) -> Option<usize> {
        match self {
            Self::Rows => Some(PartRows::row_bytes(shape)),
            Self::Narrow => shape.narrow.as_ref().map(|narrow| PartRows::row_bytes(&narrow.shape)),
            Self::Candidates => {
                let is_exact = shape.spec.admission.counts_exactly();
                is_exact.then_some(size_of::<(FeatureKey, Candidate)>())
            }
            Self::Filter => shape.filter.is_some().then_some(size_of::<FilterBlock>()),
        }
    }

    /// Returns the number of entries of this kind that a slot of a table has.
    pub(crate) fn in_slot(self, table: &Table, slot: usize) -> usize {
        match self {
            Self::Rows => table.index.slot_len(slot) - table.slot_narrow_rows(slot),
            Self::Narrow => table.slot_narrow_rows(slot),
            Self::Candidates => table.counts().map_or(0, |counts| counts.slot_len(slot)),
            Self::Filter => table.filter().map_or(0, |filter| filter.slot_len(slot)),
        }
    }
}

/// A block of a filter: its slot, its index in the slot, and its words.
pub(crate) type FilterBlock = (usize, usize, [u64; BLOCK_WORDS]);

/// A job that writes one file of the checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) table: usize,
    pub(crate) kind: Kind,
    pub(crate) place: Place,
    /// Whether this is the last file of its kind and table.
    pub(crate) is_last: bool,
    /// The number of entries in the slots of the part. For a checkpoint of changes, this number
    /// includes entries that are not written.
    pub(crate) rows: u64,
    /// The largest number of bytes that the content takes in memory.
    pub(crate) bytes: u64,
    /// The generation after whose end a row must have changed to be written; `None` if all rows are
    /// written.
    pub(crate) since: Option<u32>,
}

/// The files that were written for a job.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) part: PartInfo,
    pub(crate) gone: Option<PartInfo>,
    /// The digest of the entries of `part`.
    pub(crate) digest: RowDigest,
}

/// The content of a file, in key order.
#[derive(Debug)]
pub(crate) enum Content {
    Rows {
        rows: PartRows,
        /// The keys whose rows were removed; `None` if the checkpoint is whole or the table does
        /// not evict.
        gone: Option<Vec<u64>>,
    },
    Candidates(Vec<(FeatureKey, Candidate)>),
    Filter(Vec<FilterBlock>),
}

impl Content {
    /// Creates content without entries, with memory for the entries that a job writes.
    pub(crate) fn new(job: &Job, shape: &TableShape) -> Self {
        match job.kind {
            Kind::Rows | Kind::Narrow => {
                let is_whole = job.since.is_none();
                let expected = if is_whole { job.rows as usize } else { 0 };
                Self::Rows {
                    rows: PartRows::with_capacity(expected, shape.of_width(job.kind.is_narrow())),
                    gone: (!is_whole && shape.priority.is_some()).then(Vec::new),
                }
            }
            Kind::Candidates => Self::Candidates(Vec::with_capacity(job.rows as usize)),
            Kind::Filter => Self::Filter(Vec::with_capacity(job.rows as usize)),
        }
    }

    /// Returns the number of bytes that the content takes in memory.
    pub(crate) fn bytes(&self, job: &Job, shape: &TableShape) -> u64 {
        let (entries, gone) = match self {
            Self::Rows { rows, gone } => (rows.keys().len(), gone.as_ref().map_or(0, Vec::len)),
            Self::Candidates(all) => (all.len(), 0),
            Self::Filter(all) => (all.len(), 0),
        };
        (entries * job.kind.entry_bytes(shape).unwrap_or(0) + gone * size_of::<u64>()) as u64
    }

    pub(crate) fn write(
        self,
        files: &Files,
        folder: &Path,
        shape: &TableShape,
        job: &Job,
    ) -> Result<Written> {
        let place = job.place;
        match self {
            Self::Rows { rows, gone } => {
                let rows = (rows, job.kind.is_narrow());
                let (part, digest) = write_rows(files, folder, shape, place, rows)?;
                let gone = gone.map(|keys| write_gone(files, folder, shape, place, keys));
                Ok(Written { part, gone: gone.transpose()?, digest })
            }
            Self::Candidates(all) => {
                let all = all.into_iter();
                let (part, digest) = write_candidates(files, folder, shape, place, all)?;
                Ok(Written { part, gone: None, digest })
            }
            Self::Filter(blocks) => {
                // Only tables with a filter have such files.
                let Some(filter) = &shape.filter else {
                    let reason = "the snapshot has a filter of keys, but the table has none; \
                                  begin the snapshot again";
                    return Err(Error::mismatch(shape.name(), reason));
                };
                let (shape, blocks) = ((&**shape, filter), blocks.into_iter());
                let (part, digest) = write_filter(files, folder, shape, place, blocks)?;
                Ok(Written { part, gone: None, digest })
            }
        }
    }
}

/// Syncs the folders of a checkpoint, so that the names of its files also survive a crash.
pub(crate) fn sync(files: &Files, folder: &Path, names: Vec<String>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let tables = folder.join("tables");
    for name in names {
        files.sync_dir(tables.join(name))?;
    }
    files.sync_dir(&tables)?;
    files.sync_dir(folder)?;
    Ok(())
}
