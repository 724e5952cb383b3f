//! The opened files of whole tables, for restoring tables from a checkpoint.

use std::ops::Range;
use std::path::Path;

use zillion_device::Workers;

use super::read::StoredPart;
use super::{
    Need, REMEDY, RowDigest, RowPart, StoredCandidates, StoredFilter, TableParts, open_candidates,
    open_filters, open_narrow, open_rows,
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
/// owns all slots of a table, [`check_digest`] can compare the digest of the table.
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
    Ok(opened)
}

/// Compares the digest of a table with the digest in its entry. Does nothing if the entry has no
/// digest. All files of the table must have been opened.
///
/// The comparison reads every row. It takes about an eighth of the time of restoring the table, so
/// [`open_tables`] does not make it. The BLAKE3 of each file is compared in any case.
///
/// # Errors
/// Returns [`Error::Part`] with the folder of the table if the digests differ.
pub fn check_digest(
    workers: &Workers,
    folder: &Path,
    listed: &TableParts,
    opened: &OpenedTable,
) -> Result<()> {
    let Some(wanted) = listed.digest else { return Ok(()) };
    let stored: Vec<Stored<'_>> = opened.stored().collect();
    let found = workers.map(stored.len(), |at| stored[at].digest());
    let found: RowDigest = found.into_iter().sum();
    if found != wanted {
        let path = folder.join(format!("tables/{}", listed.table));
        let reason = format!(
            "the rows have the digest {found}, but the checkpoint lists {wanted}; {REMEDY}"
        );
        return Err(Error::Part { path, reason });
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
