//! The rows of a table, read from a chain of checkpoints: a whole checkpoint, and later checkpoints
//! that hold only changes.
//!
//! A [`RowPart`] behaves as one whole part. Without a chain, it has one file. With a chain, opening
//! the part merges the files in key order: the newest row of a key is taken, and evicted keys are
//! left out. The merge stores the position of each row in 8 bytes. The rows themselves stay in the
//! mapped files.
//!
//! # Invariants
//! * The checkpoints of a chain may divide a table differently. A part of the chain lies in exactly
//!   one file of each checkpoint: the slots are cut at the bounds of all files.
//! * The parts are in slot order, and no two parts have a slot in common.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::FeatureKey;

use super::cut::{Cut, listed_cut, needed};
use super::gone::StoredGone;
use super::open::Opening;
use super::read::{Need, StoredPart, open_files};
use super::search::search;
use super::{ALL_SLOTS, GONE, PartInfo, REMEDY, ROWS, TableParts, find_slot};
use crate::error::{Error, Result};
use crate::row::{RowWeights, StoredRow};
use crate::shape::RowShape;

/// The rows of a range of slots, read from one file or from several files.
#[derive(Debug)]
pub struct RowPart {
    slots: Range<usize>,
    /// The files, oldest first; at least one.
    files: Vec<Arc<StoredPart>>,
    /// The position of each row, in key order; absent if there is only one file.
    picks: Option<Vec<Pick>>,
}

/// The position of a row: the index of its file, and the index of the row in the file.
#[derive(Clone, Copy, Debug)]
struct Pick {
    file: u32,
    row: u32,
}

impl RowPart {
    /// Creates a part that has the rows of one file.
    pub(super) fn of_file(file: Arc<StoredPart>) -> Self {
        Self { slots: file.slots.clone(), files: vec![file], picks: None }
    }

    /// Returns the part that has the row of a key and the index of the row in this part, or `None`
    /// if the key has no row. The parts must be in slot order.
    pub fn find_among(parts: &[Self], key: FeatureKey) -> Option<(&Self, usize)> {
        let part = find_slot(parts, Self::slots, key.slot())?;
        part.find(key).map(|row| (part, row))
    }

    /// Returns the newest file, and the range of its rows in the slots of this part.
    pub(super) fn newest(&self) -> (&StoredPart, Range<usize>) {
        let newest = &self.files[self.files.len() - 1];
        (newest, newest.rows_in(&self.slots))
    }

    /// Returns whether the rows are narrow.
    pub fn is_narrow(&self) -> bool {
        self.files[0].is_narrow
    }

    fn place(&self, row: usize) -> (&StoredPart, usize) {
        match &self.picks {
            None => (&self.files[0], row),
            Some(picks) => (&self.files[picks[row].file as usize], picks[row].row as usize),
        }
    }

    /// Returns the range of rows whose keys lie in `slots`.
    pub fn rows_in(&self, slots: &Range<usize>) -> Range<usize> {
        let Some(picks) = &self.picks else { return self.files[0].rows_in(slots) };
        let slot = |pick: &Pick| self.files[pick.file as usize].key(pick.row as usize).slot();
        let before = |limit: usize| picks.partition_point(|pick| slot(pick) < limit);
        before(slots.start)..before(slots.end)
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.picks.as_ref().map_or_else(|| self.files[0].len(), Vec::len)
    }

    /// Returns whether the part has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the range of slots of the part.
    pub fn slots(&self) -> Range<usize> {
        self.slots.clone()
    }

    /// Returns the key of a row.
    pub fn key(&self, row: usize) -> FeatureKey {
        let (file, row) = self.place(row);
        file.key(row)
    }

    /// Returns the weights of a row.
    pub fn weights(&self, row: usize) -> RowWeights<'_> {
        let (file, row) = self.place(row);
        file.weights(row)
    }

    /// Returns a row with its weights, optimizer state and metadata.
    pub fn stored(&self, row: usize) -> StoredRow<'_> {
        let (file, row) = self.place(row);
        file.stored(row)
    }

    /// Returns whether the rows have shows and clicks.
    pub fn keeps_uses(&self) -> bool {
        self.files[0].uses.is_some()
    }

    /// Returns the index of a key's row, or `None` if the part does not have the key.
    pub fn find(&self, key: FeatureKey) -> Option<usize> {
        match &self.picks {
            None => self.files[0].find(key),
            Some(picks) => search(key, &self.slots, picks.len(), |row| self.key(row).0),
        }
    }
}

/// The files of one table in one checkpoint of a chain.
struct Link<'a> {
    folder: PathBuf,
    parts: Cut<'a>,
    gone: Cut<'a>,
}

/// Opens and verifies the rows of each table. `tables[i]` is the entry of the table with the shape
/// `shapes[i]`. Only the files with slots of `owned[i]` are opened. A part that has only one file
/// may have rows of other slots too. The workers share the work of hashing and merging.
pub fn open_rows(
    workers: &Workers,
    folder: &Path,
    shapes: &[&RowShape],
    tables: &[&TableParts],
    owned: &[Range<usize>],
    need: Need,
) -> Result<Vec<Vec<RowPart>>> {
    let mut links = Vec::new();
    for (table, (shape, listed)) in shapes.iter().zip(tables).enumerate() {
        let chain = links_of(folder, shape, listed)?;
        links.extend(chain.into_iter().map(|link| (table, link)));
    }
    let opening = |at: usize, info: &PartInfo| {
        let (table, link) = &links[at];
        Opening { path: link.folder.join(&info.file), shape: shapes[*table], need }
    };
    let parts = links.iter().map(|(table, link)| needed(&link.parts, &owned[*table])).collect();
    let parts = open_files(workers, parts, |at, info, slots| opening(at, info).open(info, slots))?;
    let gone = links.iter().map(|(table, link)| needed(&link.gone, &owned[*table])).collect();
    let gone =
        open_files(workers, gone, |at, info, slots| opening(at, info).open_gone(info, &slots))?;
    let mut opened: Vec<Vec<OpenedLink>> = shapes.iter().map(|_| Vec::new()).collect();
    for (((table, _), parts), gone) in links.iter().zip(parts).zip(gone) {
        let parts = parts.into_iter().map(Arc::new).collect();
        opened[*table].push(OpenedLink { parts, gone });
    }
    let merged = opened.into_iter().zip(owned).map(|(chain, owned)| merge(workers, chain, owned));
    let merged: Vec<Vec<RowPart>> = merged.collect();
    for (((shape, listed), owned), parts) in shapes.iter().zip(tables).zip(owned).zip(&merged) {
        let rows: usize = parts.iter().map(RowPart::len).sum();
        let listed = full_rows(listed);
        if *owned == ALL_SLOTS && rows as u64 != listed {
            let path = folder.join(format!("tables/{}", shape.name()));
            let reason = format!(
                "the chain of checkpoints has {rows} rows, but this checkpoint lists {listed}; {REMEDY}",
            );
            return Err(Error::Part { path, reason });
        }
    }
    Ok(merged)
}

/// The opened files of one table in one checkpoint of a chain, in slot order.
struct OpenedLink {
    parts: Vec<Arc<StoredPart>>,
    gone: Vec<StoredGone>,
}

/// Returns the number of full rows that an entry lists. If the entry lists more narrow rows than
/// rows, returns a number that no file can have.
fn full_rows(listed: &TableParts) -> u64 {
    listed.full_rows().unwrap_or(u64::MAX)
}

/// Returns the chain of one table, beginning with the whole checkpoint. The function opens no file.
fn links_of<'a>(folder: &Path, shape: &RowShape, listed: &'a TableParts) -> Result<Vec<Link<'a>>> {
    let Some(changes) = &listed.changes else {
        let parts = listed_cut(folder, shape.name(), ROWS, &listed.parts, full_rows(listed))?;
        return Ok(vec![Link { folder: folder.to_owned(), parts, gone: Vec::new() }]);
    };
    let refuse = |reason: &str| {
        let path = folder.join(format!("tables/{}", shape.name()));
        Err(Error::Part { path, reason: format!("{reason}; {REMEDY}") })
    };
    if listed.narrow.is_some() {
        return refuse(
            "the parts hold changes only, but a table whose rows grow is always written whole",
        );
    }
    let whole = changes.below.first();
    if whole.is_none_or(|whole| whole.gone.is_some()) {
        return refuse("the parts hold changes only, but there is no whole checkpoint below them");
    }
    let below = changes.below.iter();
    let below = below.map(|b| (b.folder.as_path(), &b.parts, b.rows, b.gone.as_ref()));
    let own = (folder, &listed.parts, changes.rows, changes.gone.as_ref());
    let mut links = Vec::new();
    for (folder, parts, rows, gone) in below.chain([own]) {
        let parts = listed_cut(folder, shape.name(), ROWS, parts, rows)?;
        let gone = match gone {
            Some(gone) => listed_cut(folder, shape.name(), GONE, &gone.parts, gone.rows)?,
            None => Vec::new(),
        };
        links.push(Link { folder: folder.to_owned(), parts, gone });
    }
    Ok(links)
}

/// Merges the files of one table into parts with slots of `owned`.
fn merge(workers: &Workers, chain: Vec<OpenedLink>, owned: &Range<usize>) -> Vec<RowPart> {
    if let [link] = chain.as_slice() {
        return link.parts.iter().map(|file| RowPart::of_file(file.clone())).collect();
    }
    let pieces = common_cut(&chain, owned);
    workers.map(pieces.len(), |piece| {
        let slots = pieces[piece].clone();
        let file = |link: &OpenedLink| {
            find_slot(&link.parts, |file| file.slots.clone(), slots.start).cloned()
        };
        let files: Vec<Arc<StoredPart>> = chain.iter().filter_map(file).collect();
        // The changes of keys since the whole checkpoint. For each key, the newest change comes
        // first.
        let mut changed: Vec<(u64, Option<Pick>)> = Vec::new();
        for (at, (link, file)) in chain.iter().zip(&files).enumerate().skip(1).rev() {
            let pick = |row: usize| Pick { file: at as u32, row: row as u32 };
            changed.extend(file.rows_in(&slots).map(|row| (file.key(row).0, Some(pick(row)))));
            let gone = find_slot(&link.gone, |gone| gone.slots.clone(), slots.start);
            if let Some(gone) = gone {
                changed.extend(gone.in_slots(&slots).iter().map(|&key| (key, None)));
            }
        }
        changed.sort_by_key(|&(key, _)| key);
        changed.dedup_by_key(|(key, _)| *key);
        RowPart { picks: Some(overlaid(&files[0], &slots, &changed)), slots, files }
    })
}

/// Cuts the slots `owned` at the bounds of all files of a chain. So each piece lies in exactly one
/// file of each list.
fn common_cut(chain: &[OpenedLink], owned: &Range<usize>) -> Vec<Range<usize>> {
    let parts = chain.iter().flat_map(|link| link.parts.iter().map(|file| &file.slots));
    let gone = chain.iter().flat_map(|link| link.gone.iter().map(|gone| &gone.slots));
    let bounds = parts.chain(gone).flat_map(|slots| [slots.start, slots.end]);
    let mut bounds: Vec<usize> = bounds.map(|at| at.clamp(owned.start, owned.end)).collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Merges the rows of a file of the whole checkpoint with the later changes. Returns the position
/// of each row of the result.
fn overlaid(
    whole: &StoredPart,
    slots: &Range<usize>,
    changed: &[(u64, Option<Pick>)],
) -> Vec<Pick> {
    let rows = whole.rows_in(slots);
    let mut picks = Vec::with_capacity(rows.len() + changed.len());
    let mut changed = changed.iter().peekable();
    for row in rows {
        let key = whole.key(row).0;
        while let Some((_, pick)) = changed.next_if(|(other, _)| *other < key) {
            picks.extend(*pick);
        }
        match changed.next_if(|(other, _)| *other == key) {
            Some((_, pick)) => picks.extend(*pick),
            None => picks.push(Pick { file: 0, row: row as u32 }),
        }
    }
    picks.extend(changed.filter_map(|(_, pick)| *pick));
    picks
}
