//! The files of a checkpoint beside training: which there are, and what goes into one.

use std::path::Path;

use zillion_device::Files;
use zillion_feature::FeatureKey;

use crate::candidates::Candidate;
use crate::error::Result;
use crate::part::{PartInfo, PartRows, write_candidates, write_rows};
use crate::shape::TableShape;

/// A file that is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) table: usize,
    pub(super) is_rows: bool,
    /// Of rows: whether they are the narrow ones.
    pub(super) is_narrow: bool,
    pub(super) part: usize,
    pub(super) parts: usize,
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

/// What a file will hold, in key order.
#[derive(Debug)]
pub(super) enum Content {
    Rows(PartRows),
    Candidates(Vec<(FeatureKey, Candidate)>),
}

impl Content {
    /// Room for what a job writes.
    pub(super) fn new(job: &Job, shape: &TableShape) -> Self {
        match job.is_rows {
            true => {
                let shape = shape.of_width(job.is_narrow);
                Self::Rows(PartRows::with_capacity(job.rows as usize, shape))
            }
            false => Self::Candidates(Vec::with_capacity(job.rows as usize)),
        }
    }

    pub(super) fn write(
        self,
        files: &Files,
        folder: &Path,
        shape: &TableShape,
        job: &Job,
    ) -> Result<PartInfo> {
        let place = (job.part, job.parts);
        match self {
            Self::Rows(rows) => write_rows(files, folder, shape, place, (rows, job.is_narrow)),
            Self::Candidates(all) => write_candidates(files, folder, shape, place, all.into_iter()),
        }
    }
}

/// Makes the names of a checkpoint's files durable.
pub(in crate::set) fn sync(files: &Files, folder: &Path, names: Vec<String>) -> Result<()> {
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
