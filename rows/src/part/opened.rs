//! The opened files of whole tables, for restoring tables from a checkpoint.

use std::ops::Range;
use std::path::Path;

use zillion_device::Workers;

use super::read::{REMEDY, StoredPart};
use super::{
    ALL_SLOTS, Need, RowDigest, RowPart, StoredCandidates, StoredFilter, TableParts,
    open_candidates, open_filters, open_narrow, open_rows,
};
use crate::error::{Error, Result};
use crate::shape::RowShape;

/// The opened and verified files of one table. A file may also have rows of slots that the reader
/// does not own.
#[derive(Debug)]
pub struct OpenedTable {
    /// The parts of full rows in slot order, and then the parts of narrow rows in slot order.
    pub rows: Vec<RowPart>,
    /// The files of the keys that wait for admission.
    pub candidates: Vec<StoredCandidates>,
    /// The files of the filter in which waiting keys are counted.
    pub filter: Vec<StoredFilter>,
}

/// Opens and verifies all files of the tables that have slots of `owned`. `tables[i]` is the entry
/// of the table with the shape `shapes[i]`, and the reader owns its slots `owned[i]`. If the reader
/// owns all slots of a table, the digest of the table is verified too.
///
/// # Errors
/// Returns [`Error::Part`] with the file or the folder of the table and the fault.
pub fn open_tables(
    workers: &Workers,
    folder: &Path,
    shapes: &[&RowShape],
    tables: &[&TableParts],
    owned: &[Range<usize>],
) -> Result<Vec<OpenedTable>> {
    let rows = open_rows(workers, folder, shapes, tables, owned, Need::State)?;
    let narrow = open_narrow(workers, folder, shapes, tables, owned, Need::State)?;
    let candidates = open_candidates(workers, folder, shapes, tables, owned)?;
    let filters = open_filters(workers, folder, shapes, tables, owned)?;
    let opened = rows.into_iter().zip(narrow).zip(candidates).zip(filters);
    let opened: Vec<OpenedTable> = opened
        .map(|(((mut rows, mut narrow), candidates), filter)| {
            rows.append(&mut narrow);
            OpenedTable { rows, candidates, filter }
        })
        .collect();
    check_digests(workers, folder, tables, &opened, owned)?;
    Ok(opened)
}

/// Compares the digest of each table whose slots are all owned with the digest in its entry.
fn check_digests(
    workers: &Workers,
    folder: &Path,
    tables: &[&TableParts],
    opened: &[OpenedTable],
    owned: &[Range<usize>],
) -> Result<()> {
    let mut jobs: Vec<(usize, Stored<'_>)> = Vec::new();
    for (at, (table, opened)) in tables.iter().zip(opened).enumerate() {
        if table.digest.is_some() && owned[at] == ALL_SLOTS {
            jobs.extend(opened.stored().map(|stored| (at, stored)));
        }
    }
    let digests = workers.map(jobs.len(), |job| jobs[job].1.digest());
    let mut found = vec![RowDigest::default(); tables.len()];
    for ((table, _), digest) in jobs.iter().zip(digests) {
        found[*table] += digest;
    }
    for ((table, found), owned) in tables.iter().zip(found).zip(owned) {
        let Some(listed) = table.digest.filter(|_| *owned == ALL_SLOTS) else { continue };
        if found != listed {
            let path = folder.join(format!("tables/{}", table.table));
            let reason = format!(
                "the rows have the digest {found}, but the checkpoint lists {listed}; {REMEDY}"
            );
            return Err(Error::Part { path, reason });
        }
    }
    Ok(())
}

/// The largest number of rows whose digest one thread computes at a time.
const SHARE: usize = 1 << 15;

/// An opened file, or some rows of a file.
enum Stored<'a> {
    Rows(&'a StoredPart, Range<usize>),
    Candidates(&'a StoredCandidates),
    Filter(&'a StoredFilter),
}

impl Stored<'_> {
    fn digest(&self) -> RowDigest {
        match self {
            Self::Rows(file, rows) => file.digest(rows.clone()),
            Self::Candidates(candidates) => candidates.digest(),
            Self::Filter(filter) => filter.digest(),
        }
    }
}

impl OpenedTable {
    /// Yields the contents of the files of this checkpoint, without the checkpoints below it.
    fn stored(&self) -> impl Iterator<Item = Stored<'_>> {
        let rows = self.rows.iter().flat_map(|part| {
            let (file, rows) = part.newest();
            let shares = rows.clone().step_by(SHARE);
            shares.map(move |first| Stored::Rows(file, first..(first + SHARE).min(rows.end)))
        });
        let candidates = self.candidates.iter().map(Stored::Candidates);
        rows.chain(candidates).chain(self.filter.iter().map(Stored::Filter))
    }
}
