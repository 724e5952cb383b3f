//! The files of the filters in which keys without a row are counted. A file has only the blocks
//! with a counter above zero.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{FixedSizeListArray, UInt32Array, UInt64Array};
use arrow_buffer::ScalarBuffer;
use arrow_schema::{DataType, Field};
use zillion_device::{Files, Workers};

use super::cut::Place;
use super::digest::{RowDigest, digest_block};
use super::open::Opening;
use super::read::{Need, listed_files, open_files};
use super::write::write_file;
use super::{ALL_SLOTS, FILTER, PartInfo, REMEDY, TableParts};
use crate::error::Result;
use crate::filter::{BLOCK_WORDS, FilterShape};
use crate::shape::RowShape;

/// The metadata key under which a file describes its filter. Readers compare the description with
/// their own filter, so that they never read the counters of a different filter.
const SHAPE: &str = "zillion.filter";

/// A verified and mapped file of blocks, sorted by slot and by the index of the block in its slot.
#[derive(Debug)]
pub struct StoredFilter {
    slots: ScalarBuffer<u32>,
    blocks: ScalarBuffer<u32>,
    counters: ScalarBuffer<u64>,
}

impl StoredFilter {
    /// Yields the blocks whose slots lie in `slots`: the slot, the index of the block in the slot,
    /// and the words of the block.
    pub fn in_slots(&self, slots: &Range<usize>) -> impl Iterator<Item = (usize, usize, &[u64])> {
        let before = |slot: usize| self.slots.partition_point(|&s| (s as usize) < slot);
        (before(slots.start)..before(slots.end)).map(|row| {
            let words = &self.counters[row * BLOCK_WORDS..(row + 1) * BLOCK_WORDS];
            (self.slots[row] as usize, self.blocks[row] as usize, words)
        })
    }

    /// Returns the digest of all blocks of the file.
    pub fn digest(&self) -> RowDigest {
        let blocks = self.in_slots(&ALL_SLOTS);
        blocks.map(|(slot, block, words)| digest_block(slot, block, words)).sum()
    }
}

fn item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::UInt64, false))
}

fn filter_fields() -> Vec<Field> {
    vec![
        Field::new("slot", DataType::UInt32, false),
        Field::new("block", DataType::UInt32, false),
        Field::new("counters", DataType::FixedSizeList(item(), BLOCK_WORDS as i32), false),
    ]
}

/// Writes and syncs one file of blocks. The blocks must be sorted by slot and by their index in the
/// slot. Returns the entry of the file and the digest of the blocks.
pub fn write_filter(
    files: &Files,
    folder: &Path,
    (shape, filter): (&RowShape, &FilterShape),
    place: Place,
    contents: impl Iterator<Item = (usize, usize, [u64; BLOCK_WORDS])>,
) -> Result<(PartInfo, RowDigest)> {
    let mut digest = RowDigest::default();
    let (mut slots, mut blocks, mut counters) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, block, words) in contents {
        digest += digest_block(slot, block, &words);
        slots.push(slot as u32);
        blocks.push(block as u32);
        counters.extend(words);
    }
    let content = (filter_fields(), Some((SHAPE, filter.describe())));
    let info = write_file(files, folder, shape, (place, FILTER), content, || {
        let (rows, width) = (slots.len(), BLOCK_WORDS as i32);
        let counters = Arc::new(UInt64Array::from(counters));
        let counters =
            FixedSizeListArray::try_new_with_length(item(), width, counters, None, rows)?;
        Ok(vec![
            Arc::new(UInt32Array::from(slots)),
            Arc::new(UInt32Array::from(blocks)),
            Arc::new(counters),
        ])
    })?;
    Ok((info, digest))
}

/// Opens and verifies the files of the filters of the tables that have one. Only the files with
/// slots of `owned[i]` are opened for the table with the entry `tables[i]`.
pub fn open_filters(
    workers: &Workers,
    folder: &Path,
    shapes: &[&RowShape],
    tables: &[&TableParts],
    owned: &[Range<usize>],
) -> Result<Vec<Vec<StoredFilter>>> {
    let listed = |table: usize| tables[table].filter.as_ref();
    let files = listed_files(folder, shapes, owned, FILTER, listed)?;
    open_files(workers, files, |table, info, slots| {
        let need = Need::State;
        let opening = Opening { path: folder.join(&info.file), shape: shapes[table], need };
        opening.open_filter(info, &slots)
    })
}

impl Opening<'_> {
    fn open_filter(&self, info: &PartInfo, slots: &Range<usize>) -> Result<StoredFilter> {
        let (stored, found) = self.open_plain(info, slots, &filter_fields(), |file| {
            let mut columns = file.columns();
            let stored = StoredFilter {
                slots: columns.numbers("slot")?,
                blocks: columns.numbers("block")?,
                counters: columns.lists("counters", BLOCK_WORDS)?,
            };
            Ok((stored, file.metadata(SHAPE).to_owned()))
        })?;
        let wanted = self.shape.filter.as_ref();
        let Some(wanted) = wanted.filter(|wanted| wanted.describe() == found) else {
            return self.refuse(format!(
                "the filter of the file is `{found}`, but the filter of the job is `{}`; use the job that wrote the checkpoint",
                wanted.map_or_else(String::new, FilterShape::describe)
            ));
        };
        if stored.slots.len() as u64 != info.rows {
            return self.refuse(format!(
                "the file has {} blocks, but the checkpoint lists {}; {REMEDY}",
                stored.slots.len(),
                info.rows
            ));
        }
        let places: Vec<(u32, u32)> =
            stored.slots.iter().copied().zip(stored.blocks.iter().copied()).collect();
        let is_legal = |&(slot, block): &(u32, u32)| {
            slots.contains(&(slot as usize)) && (block as usize) < wanted.blocks
        };
        if let Some(row) = places.iter().position(|place| !is_legal(place)) {
            let (slot, block) = places[row];
            return self.refuse(format!(
                "row {row}: block {block} of slot {slot} does not belong to this part; {REMEDY}"
            ));
        }
        if let Some(row) = places.windows(2).position(|pair| pair[0] >= pair[1]) {
            return self.refuse(format!(
                "row {}: the block is not greater than the block before it; {REMEDY}",
                row + 1
            ));
        }
        Ok(stored)
    }
}
