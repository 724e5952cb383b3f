//! The list of the files that a snapshot will write, and their entries in the manifest.

use std::sync::Arc;

use zillion_feature::SLOTS;

use crate::set::TableSet;
use crate::shape::TableShape;
use crate::snapshot::Snapshot;
use crate::snapshot::files::{Job, Kind, Written};
use zillion_rows::part::{ChangedParts, ListedParts, PartInfo, TableParts, part_count, part_slots};

/// The files that were written for a table.
#[derive(Default)]
struct Listed {
    /// The number of all rows of the table, including the rows that are not in these files.
    rows: u64,
    holds_changes: bool,
    parts: Vec<PartInfo>,
    gone: Vec<PartInfo>,
    narrow: Vec<PartInfo>,
    candidates: Vec<PartInfo>,
    filter: Vec<PartInfo>,
}

impl TableSet {
    /// Returns the jobs that write the files of a table.
    pub(crate) fn jobs_of(&self, table: usize, limit: u64, since: Option<u32>) -> Vec<Job> {
        let shape = &self.shapes[table];
        let mut jobs = Vec::new();
        for kind in [Kind::Rows, Kind::Narrow, Kind::Candidates, Kind::Filter] {
            let Some(entry_bytes) = kind.entry_bytes(shape) else { continue };
            let since = since.filter(|_| kind == Kind::Rows && shape.has_changes());
            let in_slot = |slot| kind.in_slot(self.owner(table, slot), slot) as u64;
            let by_slot: Vec<u64> = (0..SLOTS).map(in_slot).collect();
            let parts = part_count(&by_slot, limit);
            jobs.extend((0..parts).map(|part| {
                let rows = by_slot[part_slots(part, parts)].iter().sum::<u64>();
                Job { table, kind, part, parts, rows, bytes: rows * entry_bytes as u64, since }
            }));
        }
        jobs
    }

    /// Returns the manifest entries of all tables.
    pub(crate) fn listing(&self, snapshot: &mut Snapshot) -> Vec<TableParts> {
        let mut listed: Vec<Listed> = self.shapes.iter().map(|_| Listed::default()).collect();
        for (job, written) in snapshot.jobs.iter().zip(&mut snapshot.written) {
            let table = &mut listed[job.table];
            let Some(Written { part, gone }) = written.take() else { continue };
            match job.kind {
                Kind::Rows => {
                    table.rows += job.rows;
                    table.holds_changes |= job.since.is_some();
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
            let Listed { rows, holds_changes, parts, gone, narrow, candidates, filter } = table;
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
            }
        };
        self.shapes.iter().zip(listed).map(entry).collect()
    }
}
