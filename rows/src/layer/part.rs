//! The mapped rows of a table in a layer, and the search for the row of a key.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use arrow_buffer::ScalarBuffer;
use zillion_device::mmap::overlaps;
use zillion_device::prefetch::prefetch_read;
use zillion_feature::FeatureKey;

use super::block::Open;
use super::records::Records;
use super::sparse::PartWeights;
use super::weights::{PackedWeights, WeightFormat};
use super::{entry_of, part_of};

/// The rows of a table in one layer.
#[derive(Clone, Debug)]
pub(super) struct TableRows {
    pub(super) full: WidthRows,
    /// The narrow rows; empty if no row is narrow.
    pub(super) narrow: WidthRows,
    /// The same rows in memory, which lookups then read; `None` if they read the mapped files.
    pub(super) records: Option<Arc<Records>>,
}

/// The rows of one width.
#[derive(Clone, Debug)]
pub(super) struct WidthRows {
    pub(super) format: WeightFormat,
    /// The parts in key order. Their number is a power of two, or 0.
    pub(super) parts: Vec<PartColumns>,
}

/// The columns of one part, and the part's entries in the directory.
#[derive(Clone, Debug)]
pub(super) struct PartColumns {
    pub(super) bits: u32,
    pub(super) starts: ScalarBuffer<u32>,
    pub(super) keys: ScalarBuffer<u64>,
    pub(super) weights: PartWeights,
    pub(super) counts: ScalarBuffer<u32>,
    pub(super) tombstones: ScalarBuffer<u8>,
}

/// The largest number of keys of a directory entry that are compared one after the other. For a few
/// keys, this is faster than a search by halving. An entry has four keys on average.
const FEW_KEYS: usize = 16;

/// The number of keys of a wave.
const WAVE: usize = 32;

/// The position of a key in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) part: u32,
    pub(super) row: u32,
    /// Whether the part is a part of narrow rows.
    pub(super) is_narrow: bool,
}

/// The entry of a key in a layer: a row or a tombstone.
#[derive(Clone, Debug, PartialEq)]
pub enum Found<'a> {
    /// The key has this row in the layer.
    Row(LayerRow<'a>),
    /// The key was removed from the table.
    Tombstone,
}

/// A row of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerRow<'a> {
    /// The weights of all segments as f32 numbers, which are a copy if the layer has another number
    /// type. A narrow row has only some of the floats (see
    /// [`LayerSource::whole`](super::LayerSource::whole)).
    pub weights: Cow<'a, [f32]>,
    /// The number of pushes of the row in training.
    pub count: u32,
}

/// A row of a layer with all its floats.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeRow<'a> {
    /// The weights of all segments. The missing floats of a narrow row come from the initial row of
    /// its key.
    pub weights: Cow<'a, [f32]>,
    /// The number of pushes of the row in training.
    pub count: u32,
}

impl TableRows {
    pub(super) fn is_empty(&self) -> bool {
        self.full.parts.is_empty() && self.narrow.parts.is_empty()
    }

    /// Looks up the keys at the positions `open` of a block, and removes those that the layer has
    /// from `open`. Calls `found` for each of them with its position and its weights in the number
    /// type of the layer, or `None` for a tombstone.
    #[inline(always)]
    pub(super) fn lookup(
        &self,
        keys: &[FeatureKey],
        open: &mut Open,
        mut found: impl FnMut(usize, Option<PackedWeights<'_>>),
    ) {
        match &self.records {
            Some(records) => records.lookup(keys, open, found),
            None => {
                self.full.lookup(keys, open, &mut found);
                if !self.narrow.parts.is_empty() {
                    self.narrow.lookup(keys, open, &mut found);
                }
            }
        }
    }

    /// Returns the position of `key` in the mapped files, or `None` if the table does not have the
    /// key.
    #[inline(always)]
    pub(super) fn find(&self, key: FeatureKey) -> Option<Place> {
        match self.full.find(key) {
            None if self.narrow.parts.is_empty() => None,
            None => self.narrow.find(key).map(|place| Place { is_narrow: true, ..place }),
            found => found,
        }
    }

    /// Returns the entry at a position in the mapped files. For a position outside of the part,
    /// returns a tombstone; only a damaged file can lead to such a position.
    #[inline(always)]
    pub(super) fn at(&self, place: Place) -> Found<'_> {
        self.of_width(place.is_narrow).at(place)
    }

    #[inline(always)]
    fn of_width(&self, is_narrow: bool) -> &WidthRows {
        if is_narrow { &self.narrow } else { &self.full }
    }

    pub(super) fn rows(&self) -> usize {
        self.full.rows() + self.narrow.rows()
    }

    /// Returns the number of mapped bytes: the bytes of the columns and of the directory entries.
    pub(super) fn bytes(&self) -> usize {
        self.full.bytes() + self.narrow.bytes()
    }

    /// Yields all rows in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (FeatureKey, Found<'_>)> {
        let mut full = self.full.iter().peekable();
        let mut narrow = self.narrow.iter().peekable();
        std::iter::from_fn(move || match (full.peek(), narrow.peek()) {
            (Some((first, _)), Some((other, _))) if other < first => narrow.next(),
            (None, _) => narrow.next(),
            _ => full.next(),
        })
    }
}

impl TableRows {
    /// Returns whether any column lies in one of the address ranges.
    pub(super) fn overlaps(&self, ranges: &[Range<usize>]) -> bool {
        let parts = self.full.parts.iter().chain(&self.narrow.parts);
        parts.into_iter().any(|part| part.overlaps(ranges))
    }
}

impl PartColumns {
    fn overlaps(&self, ranges: &[Range<usize>]) -> bool {
        let Self { bits: _, starts, keys, weights, counts, tombstones } = self;
        let columns = [starts.inner(), keys.inner(), counts.inner(), tombstones.inner()];
        columns.iter().any(|column| overlaps(column, ranges)) || weights.overlaps(ranges)
    }
}

impl WidthRows {
    /// Looks up the keys of `open` in waves over some of them: the prefetch of the entries in the
    /// directory, of the keys and of the weights, and the read of the weights. The pipeline of
    /// records was measured to be an eighth slower here.
    #[inline(always)]
    fn lookup(
        &self,
        keys: &[FeatureKey],
        open: &mut Open,
        found: &mut impl FnMut(usize, Option<PackedWeights<'_>>),
    ) {
        let mut places: [Option<Place>; WAVE] = [None; WAVE];
        let (count, mut kept) = (open.count(), 0);
        for first in (0..count).step_by(WAVE) {
            let wave = first..count.min(first + WAVE);
            wave.clone().for_each(|index| self.prefetch_entry(keys[open.at(index)]));
            wave.clone().for_each(|index| self.prefetch_keys(keys[open.at(index)]));
            for (index, found) in wave.clone().zip(&mut places) {
                *found = self.find(keys[open.at(index)]);
                if let Some(place) = *found {
                    self.prefetch_row(place);
                }
            }
            for (index, &place) in wave.zip(&places) {
                let at = open.at(index);
                match place {
                    Some(place) => found(at, self.weights_at(place)),
                    None => {
                        open.set(kept, at);
                        kept += 1;
                    }
                }
            }
        }
        open.truncate(kept);
    }

    #[inline(always)]
    fn prefetch_entry(&self, key: FeatureKey) {
        if let Some(part) = self.part(key) {
            prefetch_read(&part.starts, self.entry(part, key));
        }
    }

    #[inline(always)]
    fn prefetch_keys(&self, key: FeatureKey) {
        if let Some(part) = self.part(key) {
            let start = part.starts.get(self.entry(part, key)).copied().unwrap_or_default();
            prefetch_read(&part.keys, start as usize);
        }
    }

    #[inline(always)]
    fn prefetch_row(&self, place: Place) {
        if let Some(part) = self.parts.get(place.part as usize) {
            part.weights.prefetch(place.row as usize, self.format.width);
            prefetch_read(&part.tombstones, place.row as usize);
        }
    }

    #[inline(always)]
    pub(super) fn find(&self, key: FeatureKey) -> Option<Place> {
        let part = self.part(key)?;
        let entry = self.entry(part, key);
        let (start, end) =
            (*part.starts.get(entry)? as usize, *part.starts.get(entry + 1)? as usize);
        let among = part.keys.get(start..end)?;
        let row = start + position(among.len(), |at| among[at], key.0)?;
        let part = part_of(key.0, self.parts.len()) as u32;
        Some(Place { part, row: row as u32, is_narrow: false })
    }

    #[inline(always)]
    fn weights_at(&self, place: Place) -> Option<PackedWeights<'_>> {
        let row = place.row as usize;
        let part = self.parts.get(place.part as usize)?;
        if *part.tombstones.get(row)? != 0 {
            return None;
        }
        part.weights.row(row, self.format.width)
    }

    fn at(&self, place: Place) -> Found<'_> {
        let row = self.weights_at(place).and_then(|weights| {
            let part = self.parts.get(place.part as usize)?;
            let count = *part.counts.get(place.row as usize)?;
            Some(LayerRow { weights: weights.to_floats(), count })
        });
        row.map_or(Found::Tombstone, Found::Row)
    }

    pub(super) fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.keys.len()).sum()
    }

    fn bytes(&self) -> usize {
        let row = size_of::<u64>() + size_of::<u32>() + 1;
        let bytes = |part: &PartColumns| {
            let weights = part.weights.bytes(&self.format, part.keys.len());
            part.keys.len() * row + weights + part.starts.len() * size_of::<u32>()
        };
        self.parts.iter().map(bytes).sum()
    }

    fn iter(&self) -> impl Iterator<Item = (FeatureKey, Found<'_>)> {
        (0u32..).zip(&self.parts).flat_map(move |(part, rows)| {
            (0u32..).zip(rows.keys.iter()).map(move |(row, &key)| {
                (FeatureKey(key), self.at(Place { part, row, is_narrow: false }))
            })
        })
    }

    #[inline(always)]
    fn part(&self, key: FeatureKey) -> Option<&PartColumns> {
        self.parts.get(part_of(key.0, self.parts.len()))
    }

    #[inline(always)]
    fn entry(&self, part: &PartColumns, key: FeatureKey) -> usize {
        entry_of(key.0, self.parts.len(), part.bits)
    }
}

/// Returns the position of `key` among `len` ascending keys, which `at` reads, or `None` if the key
/// is missing. Crafted ids can put many keys into one directory entry, so a long list of keys is
/// searched by halving.
#[inline(always)]
fn position(len: usize, at: impl Fn(usize) -> u64, key: u64) -> Option<usize> {
    if len <= FEW_KEYS {
        return (0..len).find(|&position| at(position) == key);
    }
    search(len, at, key)
}

/// Returns the position of a key among many ascending keys by halving, or `None` if the key is
/// missing.
#[cold]
fn search(len: usize, at: impl Fn(usize) -> u64, key: u64) -> Option<usize> {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        match at(middle).cmp(&key) {
            Ordering::Equal => return Some(middle),
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_long_entry_is_searched_in_few_steps() {
        for len in [0, 1, FEW_KEYS, FEW_KEYS + 1, 100, 1 << 20] {
            let keys: Vec<u64> = (0..len as u64).map(|i| (7 << 40) | (2 * i)).collect();
            let reads = Cell::new(0);
            let at = |position: usize| {
                reads.set(reads.get() + 1);
                keys[position]
            };
            for place in (0..len).step_by(len / 50 + 1) {
                for (wanted, key) in [(Some(place), keys[place]), (None, keys[place] + 1)] {
                    reads.set(0);
                    assert_eq!(position(len, at, key), wanted);
                    assert!(reads.get() <= 21, "{} reads of {len} keys", reads.get());
                }
            }
        }
    }
}
