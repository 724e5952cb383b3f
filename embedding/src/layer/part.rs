//! One part, mapped: where a key is, and its row.

use arrow_buffer::ScalarBuffer;
use zillion_device::prefetch::prefetch_read;
use zillion_feature::FeatureKey;

use super::{entry_of, part_of};

/// Rows of a table in one layer.
#[derive(Clone, Debug)]
pub(super) struct TableRows {
    pub(super) width: usize,
    /// In key order; a power of two, or none.
    pub(super) parts: Vec<PartRows>,
}

/// One part's columns and its entries of the directory.
#[derive(Clone, Debug)]
pub(super) struct PartRows {
    pub(super) bits: u32,
    pub(super) starts: ScalarBuffer<u32>,
    pub(super) keys: ScalarBuffer<u64>,
    pub(super) weights: ScalarBuffer<f32>,
    pub(super) counts: ScalarBuffer<u32>,
    pub(super) tombstones: ScalarBuffer<u8>,
}

/// Where a layer has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) part: u32,
    pub(super) row: u32,
}

/// What a layer says of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found<'a> {
    /// Its row.
    Row(LayerRow<'a>),
    /// It left.
    Tombstone,
}

/// A row of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerRow<'a> {
    /// All segments.
    pub weights: &'a [f32],
    /// How often training had pushed it.
    pub count: u32,
}

impl TableRows {
    /// Asks for the line of the directory that a lookup of `key` will read.
    #[inline(always)]
    pub(super) fn prefetch_entry(&self, key: FeatureKey) {
        if let Some(part) = self.part(key) {
            prefetch_read(&part.starts, self.entry(part, key));
        }
    }

    /// Asks for the line of the keys; the directory's should have arrived.
    #[inline(always)]
    pub(super) fn prefetch_keys(&self, key: FeatureKey) {
        if let Some(part) = self.part(key) {
            let start = part.starts.get(self.entry(part, key)).copied().unwrap_or_default();
            prefetch_read(&part.keys, start as usize);
        }
    }

    /// Asks for the lines of a row.
    #[inline(always)]
    pub(super) fn prefetch_row(&self, place: Place) {
        if let Some(part) = self.parts.get(place.part as usize) {
            let first = place.row as usize * self.width;
            prefetch_read(&part.weights, first);
            prefetch_read(&part.weights, first + self.width - 1);
            prefetch_read(&part.tombstones, place.row as usize);
        }
    }

    /// Where `key` is.
    #[inline(always)]
    pub(super) fn find(&self, key: FeatureKey) -> Option<Place> {
        let part = self.part(key)?;
        let entry = self.entry(part, key);
        let (start, end) =
            (*part.starts.get(entry)? as usize, *part.starts.get(entry + 1)? as usize);
        let among = part.keys.get(start..end)?;
        let row = start + among.iter().position(|&k| k == key.0)?;
        Some(Place { part: part_of(key.0, self.parts.len()) as u32, row: row as u32 })
    }

    /// What stands at a place. A place that is not there reads as a tombstone, which no writer makes.
    #[inline(always)]
    pub(super) fn at(&self, place: Place) -> Found<'_> {
        let row = place.row as usize;
        let found = self.parts.get(place.part as usize).and_then(|part| {
            if *part.tombstones.get(row)? != 0 {
                return None;
            }
            let weights = part.weights.get(row * self.width..(row + 1) * self.width)?;
            Some(LayerRow { weights, count: *part.counts.get(row)? })
        });
        found.map_or(Found::Tombstone, Found::Row)
    }

    pub(super) fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.keys.len()).sum()
    }

    /// Bytes of the columns and of the entries of the directory.
    pub(super) fn bytes(&self) -> usize {
        let row = size_of::<u64>() + size_of::<u32>() + 1 + self.width * size_of::<f32>();
        self.parts.iter().map(|p| p.keys.len() * row + p.starts.len() * size_of::<u32>()).sum()
    }

    /// All rows in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (FeatureKey, Found<'_>)> {
        (0u32..).zip(&self.parts).flat_map(move |(part, rows)| {
            (0u32..)
                .zip(rows.keys.iter())
                .map(move |(row, &key)| (FeatureKey(key), self.at(Place { part, row })))
        })
    }

    #[inline(always)]
    fn part(&self, key: FeatureKey) -> Option<&PartRows> {
        self.parts.get(part_of(key.0, self.parts.len()))
    }

    #[inline(always)]
    fn entry(&self, part: &PartRows, key: FeatureKey) -> usize {
        entry_of(key.0, self.parts.len(), part.bits)
    }
}
