//! The simplest writer of checkpoints. Tests compare snapshots with it.
//!
//! Production code writes checkpoints with [`TableSet::begin_snapshot`] and
//! [`TableSet::finish_snapshot`], while training goes on. This writer runs while nothing changes.
//! The oracle copies each part and writes it. Both must produce the same bytes for the same rows.

use std::path::Path;

use zillion_device::{Files, Workers};
use zillion_feature::TableId;
use zillion_rows::part::{
    ListedParts, PartInfo, PartRows, Place, RowDigest, TableParts, cut, write_candidates,
    write_filter, write_rows,
};

use crate::error::Result;
use crate::set::TableSet;
use crate::snapshot::sync;

/// Writes the owned slots of every table of `set` below `folder`, in parts of at most `limit` rows,
/// and returns the entries of the manifest. A snapshot of this moment must have the same bytes.
///
/// # Errors
/// Returns an error if a file cannot be written. The files that were written before are not
/// removed.
pub fn checkpoint_oracle(
    set: &TableSet,
    workers: &Workers,
    folder: &Path,
    files: &Files,
    limit: u64,
) -> Result<Vec<TableParts>> {
    Oracle { set }.write(workers, folder, files, limit)
}

/// The writer, which reads the tables of a set.
struct Oracle<'a> {
    set: &'a TableSet,
}

impl Oracle<'_> {
    /// Writes the owned slots of every table below `folder`, which is created if it does not exist,
    /// in parts of at most `limit` rows. Returns the entries of the manifest. The same rows give
    /// the same bytes for every number of shards and threads, and for every order in which the rows
    /// were created.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written. The files that were written before are not
    /// removed.
    fn write(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        limit: u64,
    ) -> Result<Vec<TableParts>> {
        let tables = folder.join("tables");
        for shape in &self.set.shapes {
            files.create_dir(tables.join(shape.name()))?;
        }
        let cuts: Vec<Vec<Place>> = (0..self.set.shapes.len())
            .map(|table| self.cut(table, limit, |slot| self.full_rows(table, slot)))
            .collect();
        let jobs: Vec<(usize, Place)> = cuts
            .iter()
            .enumerate()
            .flat_map(|(table, places)| places.iter().map(move |&place| (table, place)))
            .collect();
        let written = workers.map(jobs.len(), |job| {
            let (table, place) = jobs[job];
            let rows = self.gather(table, place, false)?;
            write_rows(files, folder, &self.set.shapes[table], place, (rows, false))
        });
        let mut written = written.into_iter();
        let mut manifest = Vec::with_capacity(self.set.shapes.len());
        for (shape, places) in self.set.shapes.iter().zip(&cuts) {
            let (parts, mut digest) = listed(written.by_ref().take(places.len()))?;
            let table = manifest.len();
            let mut group = |written: Option<(ListedParts, RowDigest)>| {
                written.map(|(listed, of_group)| {
                    digest += of_group;
                    listed
                })
            };
            let narrow = group(self.write_narrow(workers, folder, files, table, limit)?);
            let candidates = group(self.write_candidates(workers, folder, files, table, limit)?);
            let filter = group(self.write_filter(workers, folder, files, table, limit)?);
            manifest.push(TableParts {
                table: shape.name().to_owned(),
                rows: parts.iter().map(|p| p.rows).sum::<u64>()
                    + narrow.as_ref().map_or(0, |narrow| narrow.rows),
                dirty_epoch: self.set.dirty_epoch(),
                parts,
                narrow,
                candidates,
                filter,
                changes: None,
                digest: Some(digest),
            });
        }
        sync(files, folder, self.set.shapes.iter().map(|shape| shape.name().to_owned()).collect())?;
        Ok(manifest)
    }

    /// Writes the narrow rows of one table, and returns their entry. Returns `None` if the rows of
    /// the table do not grow.
    fn write_narrow(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        table: usize,
        limit: u64,
    ) -> Result<Option<(ListedParts, RowDigest)>> {
        let shape = &self.set.shapes[table];
        if shape.narrow.is_none() {
            return Ok(None);
        }
        let places = self.cut(table, limit, |slot| self.narrow_rows(table, slot));
        let written = workers.map(places.len(), |i| {
            let rows = self.gather(table, places[i], true)?;
            write_rows(files, folder, shape, places[i], (rows, true))
        });
        group(written).map(Some)
    }

    /// Writes the keys of one table that wait for admission, and returns their entry. Returns
    /// `None` if the admission does not count keys exactly.
    fn write_candidates(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        table: usize,
        limit: u64,
    ) -> Result<Option<(ListedParts, RowDigest)>> {
        let shape = &self.set.shapes[table];
        if !shape.spec.admission.counts_exactly() {
            return Ok(None);
        }
        let owner = |slot: usize| self.set.owner(table, slot);
        let places = self.cut(table, limit, |slot| {
            owner(slot).counts().map_or(0, |counts| counts.slot_len(slot))
        });
        let written = workers.map(places.len(), |i| {
            let in_slot = |slot: usize| owner(slot).counts().map(|c| c.in_slot(slot));
            let candidates = places[i].slots().flat_map(in_slot).flatten();
            write_candidates(files, folder, shape, places[i], candidates)
        });
        group(written).map(Some)
    }

    /// Writes the filter in which one table counts keys, and returns its entry. Returns `None` if
    /// the table has no filter.
    fn write_filter(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        table: usize,
        limit: u64,
    ) -> Result<Option<(ListedParts, RowDigest)>> {
        let shape = &self.set.shapes[table];
        let Some(filter) = &shape.filter else { return Ok(None) };
        let own = |slot: usize| self.set.owner(table, slot).filter();
        let blocks = |slot: usize| {
            let filter = own(slot).into_iter();
            filter
                .flat_map(move |f| f.in_slot(slot).map(move |(block, words)| (slot, block, words)))
        };
        let in_slot = |slot: usize| own(slot).map_or(0, |f| f.slot_len(slot));
        let places = self.cut(table, limit, in_slot);
        let written = workers.map(places.len(), |i| {
            let contents = places[i].slots().flat_map(blocks);
            write_filter(files, folder, (shape, filter), places[i], contents)
        });
        group(written).map(Some)
    }

    /// Cuts the owned slots of one table into files with at most `limit` entries. `entries` returns
    /// the number of entries of a slot.
    fn cut(&self, table: usize, limit: u64, entries: impl Fn(usize) -> usize) -> Vec<Place> {
        let owned = self.set.owned(TableId(table as u16));
        let by_slot: Vec<u64> = owned.clone().map(|slot| entries(slot) as u64).collect();
        cut(&owned, &by_slot, limit)
    }

    /// Returns the number of full rows of a slot of one table.
    fn full_rows(&self, table: usize, slot: usize) -> usize {
        self.set.owner(table, slot).index.slot_len(slot) - self.narrow_rows(table, slot)
    }

    /// Returns the number of narrow rows of a slot of one table.
    fn narrow_rows(&self, table: usize, slot: usize) -> usize {
        self.set.owner(table, slot).slot_narrow_rows(slot)
    }

    /// Returns the full or the narrow rows of one part. They are copied from all shards that own
    /// slots of the part.
    fn gather(&self, table: usize, place: Place, is_narrow: bool) -> Result<PartRows> {
        let in_slot = |slot: usize| match is_narrow {
            true => self.narrow_rows(table, slot),
            false => self.full_rows(table, slot),
        };
        let count = place.slots().map(in_slot).sum();
        let mut rows = PartRows::with_capacity(count, self.set.shapes[table].of_width(is_narrow));
        for slot in place.slots() {
            self.set.owner(table, slot).for_each_in_slot(slot, |key, stored| {
                if stored.is_narrow == is_narrow {
                    rows.push(key, self.set.generations.stored(stored));
                }
            })?;
        }
        Ok(rows)
    }
}

/// Returns the entries of written files and the digest of their contents.
fn listed(
    written: impl IntoIterator<Item = Result<(PartInfo, RowDigest)>>,
) -> Result<(Vec<PartInfo>, RowDigest)> {
    let (mut parts, mut digest) = (Vec::new(), RowDigest::default());
    for file in written {
        let (part, of_file) = file?;
        parts.push(part);
        digest += of_file;
    }
    Ok((parts, digest))
}

/// Returns the entry of a group of written files and the digest of their contents.
fn group(written: Vec<Result<(PartInfo, RowDigest)>>) -> Result<(ListedParts, RowDigest)> {
    listed(written).map(|(parts, digest)| (ListedParts::of(parts), digest))
}
