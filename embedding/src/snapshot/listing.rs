//! The list of the files that a snapshot will write, and their entries in the manifest.

use std::sync::Arc;

use crate::set::TableSet;
use crate::shape::TableShape;
use crate::snapshot::Snapshot;
use crate::snapshot::files::{Job, Kind, Written};
use zillion_rows::part::{ChangedParts, ListedParts, PartInfo, RowDigest, TableParts, cut};

/// The files that were written for a table.
#[derive(Default)]
struct Listed {
    /// The number of all rows of the table, including the rows that are not in these files.
    rows: u64,
    digest: RowDigest,
    parts: Vec<PartInfo>,
    gone: Vec<PartInfo>,
    narrow: Vec<PartInfo>,
    candidates: Vec<PartInfo>,
    filter: Vec<PartInfo>,
}

impl TableSet {
    /// Returns the jobs that write the files of the owned slots of a table.
    pub(crate) fn jobs_of(&self, table: usize, limit: u64, since: Option<u32>) -> Vec<Job> {
        let shape = &self.shapes[table];
        let mut jobs = Vec::new();
        let owned = &self.owned[table];
        for kind in Kind::ALL {
            let Some(entry_bytes) = kind.entry_bytes(shape) else { continue };
            let since = since.filter(|_| kind == Kind::Rows && shape.has_changes());
            let in_slot = |slot| kind.in_slot(self.owner(table, slot), slot) as u64;
            let by_slot: Vec<u64> = owned.clone().map(in_slot).collect();
            jobs.extend(cut(owned, &by_slot, limit).into_iter().map(|place| {
                let slots = place.slots();
                let is_last = slots.end == owned.end;
                let rows = by_slot[slots.start - owned.start..slots.end - owned.start].iter();
                let rows = rows.sum::<u64>();
                let bytes = rows * entry_bytes as u64;
                Job { table, kind, place, is_last, rows, bytes, since }
            }));
        }
        jobs
    }

    /// Returns the manifest entries of all tables.
    pub(crate) fn listing(&self, snapshot: &mut Snapshot) -> Vec<TableParts> {
        let mut listed: Vec<Listed> = self.shapes.iter().map(|_| Listed::default()).collect();
        for (job, written) in snapshot.jobs.iter().zip(&mut snapshot.written) {
            let table = &mut listed[job.table];
            let Some(Written { part, gone, digest }) = written.take() else { continue };
            table.digest += digest;
            match job.kind {
                Kind::Rows => {
                    table.rows += job.rows;
                    table.parts.push(part);
                    table.gone.extend(gone);
                }
                Kind::Narrow => {
                    table.rows += job.rows;
                    table.narrow.push(part);
                }
                Kind::Candidates => table.candidates.push(part),
                Kind::Filter => table.filter.push(part),
            }
        }
        let entry = |(shape, table): (&Arc<TableShape>, Listed)| {
            let waits = shape.spec.admission.counts_exactly();
            let Listed { rows, digest, parts, gone, narrow, candidates, filter } = table;
            let holds_changes = snapshot.holds_changes && shape.has_changes();
            let changes = holds_changes.then(|| ChangedParts {
                rows: parts.iter().map(|part| part.rows).sum(),
                gone: shape.priority.is_some().then(|| ListedParts::of(gone)),
                below: Vec::new(),
            });
            TableParts {
                table: shape.name().to_owned(),
                rows,
                dirty_epoch: snapshot.epoch,
                parts,
                narrow: shape.narrow.is_some().then(|| ListedParts::of(narrow)),
                candidates: waits.then(|| ListedParts::of(candidates)),
                filter: shape.filter.is_some().then(|| ListedParts::of(filter)),
                changes,
                digest: Some(digest),
            }
        };
        self.shapes.iter().zip(listed).map(entry).collect()
    }
}
