//! The rows of a layer as records in memory, for the fastest lookups.
//!
//! A lookup in mapped files touches about six cache lines on as many small pages: the directory,
//! the keys, the weights and the tombstone. Records need two or three, on huge pages: one line of
//! the index, and the record with the key and the weights. The lines of a block of keys are
//! prefetched, so their misses overlap.
//!
//! A record has the key (8 bytes), the scales of int8 weights, and the weights. Records of up to 64
//! bytes do not cross a cache line; larger ones begin at multiples of 16 bytes. They are in the
//! order of the keys.
//!
//! The index consists of buckets of one cache line. A bucket has room for 12 rows, each with 8 bits
//! of the hash of its key, and holds 8 on average. A row whose bucket is full is in one of the next
//! buckets. The hash has a random factor, so that no ids can be chosen that share one bucket.
//!
//! # Invariants
//! * A record has the very bits of the row in the mapped file. So lookups of both give the same
//!   bits.
//! * The records are not read from the files again. A file that is truncated or cannot be read
//!   later does not change them.

use std::hash::{BuildHasher as _, RandomState};

use zillion_device::mmap::HugeWords;
use zillion_device::prefetch::prefetch_read;
use zillion_feature::FeatureKey;

use super::Throttle;
use super::part::{PartColumns, Place, TableRows, WidthRows};
use super::weights::{PackedWeights, WeightFormat};
use super::write::PIECE_ROWS;
use crate::error::Result;
use crate::row_type::RowType;

/// The number of rows for which a bucket has room.
const ROOM: usize = 12;
/// The mean number of rows in a bucket.
const MEAN: usize = 8;
/// The number of 32-bit words of a bucket: one cache line.
const BUCKET_WORDS: usize = 16;
/// The index of the first word with the tags of the rows.
const TAGS: usize = ROOM;
/// The index of the word with the number of rows, and above it a bit for each tombstone.
const COUNT: usize = 15;
/// The number of bytes of a cache line.
const LINE_BYTES: usize = 64;

/// The rows of a table in one layer as records.
#[derive(Debug)]
pub(super) struct Records {
    full: WidthRecords,
    /// The narrow rows; `None` if the layer has none.
    narrow: Option<WidthRecords>,
}

/// The records of one width.
#[derive(Debug)]
struct WidthRecords {
    format: WeightFormat,
    records: HugeWords,
    /// The number of 64-bit words from one record to the next.
    stride: usize,
    index: HugeWords,
    buckets: usize,
    /// The random odd factor of the hash.
    factor: u64,
}

impl Records {
    /// Returns the number of bytes that the records of a table take.
    pub(super) fn bytes_of(rows: &TableRows) -> u64 {
        let bytes = |rows: &WidthRows| {
            let stride = record_words(&rows.format) * size_of::<u64>();
            (rows.rows() * stride + bucket_count(rows.rows()) * LINE_BYTES) as u64
        };
        bytes(&rows.full) + bytes(&rows.narrow)
    }

    /// Copies the rows of a table.
    ///
    /// # Errors
    /// Returns an error if the system has no memory for the records.
    pub(super) fn copy(rows: &TableRows, throttle: &mut dyn Throttle) -> Result<Self> {
        let has_narrow = !rows.narrow.parts.is_empty();
        Ok(Self {
            full: WidthRecords::copy(&rows.full, throttle)?,
            narrow: match has_narrow {
                true => Some(WidthRecords::copy(&rows.narrow, throttle)?),
                false => None,
            },
        })
    }

    /// Prefetches the cache line of the index that a lookup of `key` will read.
    #[inline(always)]
    pub(super) fn prefetch_bucket(&self, key: FeatureKey) {
        self.full.prefetch_bucket(key);
        if let Some(narrow) = &self.narrow {
            narrow.prefetch_bucket(key);
        }
    }

    /// Prefetches the record that probably has `key`.
    #[inline(always)]
    pub(super) fn prefetch_record(&self, key: FeatureKey) {
        self.full.prefetch_record(key);
        if let Some(narrow) = &self.narrow {
            narrow.prefetch_record(key);
        }
    }

    /// Returns the position of `key`, or `None` if the layer does not have the key.
    #[inline(always)]
    pub(super) fn find(&self, key: FeatureKey) -> Option<Place> {
        match (self.full.find(key), &self.narrow) {
            (None, Some(narrow)) => narrow.find(key).map(|p| Place { is_narrow: true, ..p }),
            (found, _) => found,
        }
    }

    /// Returns the weights at a position, or `None` for a tombstone.
    #[inline(always)]
    pub(super) fn weights_at(&self, place: Place) -> Option<PackedWeights<'_>> {
        let records = match &self.narrow {
            Some(narrow) if place.is_narrow => narrow,
            _ => &self.full,
        };
        records.weights_at(place)
    }
}

impl WidthRecords {
    fn copy(rows: &WidthRows, throttle: &mut dyn Throttle) -> Result<Self> {
        let stride = record_words(&rows.format);
        let buckets = bucket_count(rows.rows());
        let words = buckets * (LINE_BYTES / size_of::<u64>());
        let mut records = Self {
            format: rows.format.clone(),
            records: HugeWords::zeroed(rows.rows() * stride)?,
            stride,
            index: HugeWords::zeroed(words)?,
            buckets,
            factor: RandomState::new().hash_one(0u8) | 1,
        };
        let mut next = 0;
        for part in &rows.parts {
            for row in 0..part.keys.len() {
                records.add(next, part, row);
                next += 1;
                if next.is_multiple_of(PIECE_ROWS) {
                    throttle.piece();
                }
            }
        }
        Ok(records)
    }

    /// Adds a row of a part as the record with this number.
    fn add(&mut self, number: usize, part: &PartColumns, row: usize) {
        let key = part.keys[row];
        let words = &mut self.records[number * self.stride..(number + 1) * self.stride];
        words[0] = key;
        if let Some(weights) = part.weights.row(row, self.format.width) {
            store(weights, words);
        }
        let is_tombstone = part.tombstones[row] != 0;
        let (mut bucket, tag) = self.bucket_of(key);
        loop {
            let words: &mut [u32] = bytemuck::cast_slice_mut(&mut self.index);
            let words = &mut words[bucket * BUCKET_WORDS..(bucket + 1) * BUCKET_WORDS];
            let at = (words[COUNT] & 0xff) as usize;
            if at < ROOM {
                words[at] = number as u32;
                let tags: &mut [u8] = bytemuck::cast_slice_mut(&mut words[TAGS..COUNT]);
                tags[at] = tag;
                words[COUNT] += 1 | u32::from(is_tombstone) << (16 + at);
                return;
            }
            bucket = if bucket + 1 == self.buckets { 0 } else { bucket + 1 };
        }
    }

    /// Returns the first bucket of a key, and the bits that its row has in the bucket.
    #[inline(always)]
    fn bucket_of(&self, key: u64) -> (usize, u8) {
        let hash = key.wrapping_mul(self.factor);
        // The first 32 bits of a product depend on all bits of the key.
        let bucket = ((hash >> 32) * self.buckets as u64) >> 32;
        (bucket as usize, (hash >> 24) as u8)
    }

    #[inline(always)]
    fn bucket(&self, bucket: usize) -> Option<&[u32]> {
        let words: &[u32] = bytemuck::cast_slice(&self.index);
        words.get(bucket * BUCKET_WORDS..(bucket + 1) * BUCKET_WORDS)
    }

    #[inline(always)]
    fn prefetch_bucket(&self, key: FeatureKey) {
        let (bucket, _) = self.bucket_of(key.0);
        prefetch_read(&self.index, bucket * (LINE_BYTES / size_of::<u64>()));
    }

    #[inline(always)]
    fn prefetch_record(&self, key: FeatureKey) {
        let (bucket, tag) = self.bucket_of(key.0);
        let Some(words) = self.bucket(bucket) else { return };
        let same = rows_with(words, tag);
        if same != 0 {
            let first = words[same.trailing_zeros() as usize] as usize * self.stride;
            prefetch_read(&self.records, first);
            prefetch_read(&self.records, first + self.stride - 1);
        }
    }

    #[inline(always)]
    fn find(&self, key: FeatureKey) -> Option<Place> {
        let (mut bucket, tag) = self.bucket_of(key.0);
        loop {
            let words = self.bucket(bucket)?;
            let mut same = rows_with(words, tag);
            while same != 0 {
                let at = same.trailing_zeros();
                let row = words[at as usize];
                if self.records.get(row as usize * self.stride) == Some(&key.0) {
                    let is_tombstone = words[COUNT] >> (16 + at) & 1 != 0;
                    return Some(Place { part: 0, row, is_narrow: false, is_tombstone });
                }
                same &= same - 1;
            }
            if (words[COUNT] & 0xff) < ROOM as u32 {
                return None;
            }
            bucket = if bucket + 1 == self.buckets { 0 } else { bucket + 1 };
        }
    }

    #[inline(always)]
    fn weights_at(&self, place: Place) -> Option<PackedWeights<'_>> {
        if place.is_tombstone {
            return None;
        }
        let first = place.row as usize * self.stride;
        let words = self.records.get(first..first + self.stride)?;
        load(&self.format, words)
    }
}

/// Returns a bit for each row of a bucket whose key can be one with this tag.
#[inline(always)]
fn rows_with(words: &[u32], tag: u8) -> u32 {
    let tags: &[u8] = bytemuck::cast_slice(&words[TAGS..COUNT]);
    let same = tags.iter().enumerate().fold(0, |same, (at, &t)| same | u32::from(t == tag) << at);
    same & ((1 << (words[COUNT] & 0xff)) - 1)
}

/// Returns the number of buckets for this many rows. At least one of them has room left.
fn bucket_count(rows: usize) -> usize {
    rows.div_ceil(MEAN).max(1)
}

/// Returns the number of 64-bit words of a record.
fn record_words(format: &WeightFormat) -> usize {
    let bytes = size_of::<u64>() + format.row_bytes();
    let bytes =
        if bytes <= LINE_BYTES { bytes.next_power_of_two() } else { bytes.next_multiple_of(16) };
    bytes / size_of::<u64>()
}

/// Writes the weights of a row behind the key of its record.
fn store(weights: PackedWeights<'_>, record: &mut [u64]) {
    match weights {
        PackedWeights::F32(row) => {
            let floats: &mut [f32] = bytemuck::cast_slice_mut(record);
            floats[2..2 + row.len()].copy_from_slice(row);
        }
        PackedWeights::F16(row) | PackedWeights::Bf16(row) => {
            let halves: &mut [u16] = bytemuck::cast_slice_mut(record);
            halves[4..4 + row.len()].copy_from_slice(row);
        }
        PackedWeights::Int8 { values, scales, .. } => {
            let floats: &mut [f32] = bytemuck::cast_slice_mut(record);
            floats[2..2 + scales.len()].copy_from_slice(scales);
            let bytes: &mut [i8] = bytemuck::cast_slice_mut(record);
            let first = size_of::<u64>() + size_of_val(scales);
            bytes[first..first + values.len()].copy_from_slice(values);
        }
        PackedWeights::Sparse(row) => row.with_whole(|whole| store(whole, record)),
    }
}

/// Returns the weights behind the key of a record.
#[inline(always)]
fn load<'a>(format: &'a WeightFormat, record: &'a [u64]) -> Option<PackedWeights<'a>> {
    let width = format.width;
    let halves = || bytemuck::cast_slice::<u64, u16>(record).get(4..4 + width);
    Some(match format.row_type {
        RowType::F32 => {
            PackedWeights::F32(bytemuck::cast_slice::<u64, f32>(record).get(2..2 + width)?)
        }
        RowType::F16 => PackedWeights::F16(halves()?),
        RowType::Bf16 => PackedWeights::Bf16(halves()?),
        RowType::Int8 => {
            let dims = &*format.dims;
            let scales = bytemuck::cast_slice::<u64, f32>(record).get(2..2 + dims.len())?;
            let first = size_of::<u64>() + size_of_val(scales);
            let values = bytemuck::cast_slice::<u64, i8>(record).get(first..first + width)?;
            PackedWeights::Int8 { values, scales, dims }
        }
    })
}

#[cfg(test)]
mod tests {
    use zillion_device::Files;
    use zillion_feature::random::mix64;

    use super::*;
    use crate::layer::{Layer, LayerWriter, Unthrottled};
    use crate::layout::{SegmentLayout, TableLayout};

    fn layout(dim: usize, published: RowType) -> TableLayout {
        let segment = |name: &str, offset, dim| SegmentLayout { name: name.into(), offset, dim };
        let segments = vec![segment("vector", 0, dim), segment("linear", dim, 1)];
        let stride = (dim + 1).next_multiple_of(4);
        TableLayout { name: "ids".into(), stride, segments, narrow: None, published }
    }

    #[test]
    fn keys_are_found_in_any_place_and_absent_ones_are_not() {
        let (folder, files) = (tempfile::tempdir().unwrap(), Files::new());
        let sets: [Vec<u64>; 3] = [
            (0..20_000).map(mix64).collect(),
            // Keys that share their first bits, and keys that share their last bits.
            (0..20_000).map(|i| (7 << 56) | i).collect(),
            (0..20_000).map(|i| i << 44).collect(),
        ];
        for (mut keys, row_type) in
            sets.into_iter().zip([RowType::F32, RowType::F16, RowType::Int8])
        {
            keys.sort_unstable();
            let layout = layout(16, row_type);
            let mut pace = Unthrottled;
            let mut writer = LayerWriter::new(&files, folder.path(), &mut pace);
            writer.table(&layout, 1).unwrap();
            for (number, &key) in keys.iter().enumerate() {
                let row = [(number % 100) as f32; 17];
                let row = Some(&row[..]).filter(|_| number % 7 != 6);
                writer.push(FeatureKey(key), row, 1).unwrap();
            }
            let manifest = writer.finish().unwrap();
            let layer = Layer::open(folder.path(), &manifest, &[layout]).unwrap();
            let layer = layer.with_records(&mut Unthrottled).unwrap();
            let table = &layer.tables[0];
            for (number, &key) in keys.iter().enumerate() {
                let place = table.locate(FeatureKey(key)).unwrap();
                let found = table.weights_at(place).map(|weights| weights.to_floats().into_owned());
                let mapped = table.find(FeatureKey(key)).map(|place| table.at(place)).unwrap();
                match mapped {
                    crate::layer::Found::Row(row) => assert_eq!(found, Some(row.weights.to_vec())),
                    crate::layer::Found::Tombstone => assert_eq!((found, number % 7), (None, 6)),
                }
                let other = FeatureKey(key ^ (1 << 43));
                assert!(table.locate(other).is_none() || keys.binary_search(&other.0).is_ok());
            }
        }
    }

    #[test]
    fn a_record_begins_and_ends_in_as_few_lines_as_possible() {
        let words = |dim: usize, row_type: RowType| {
            let segments = [("vector".to_owned(), dim), ("linear".to_owned(), 1)];
            record_words(&WeightFormat::new(row_type, &segments))
        };
        assert_eq!([RowType::F32, RowType::F16, RowType::Int8].map(|t| words(16, t)), [10, 8, 8]);
        assert_eq!((words(4, RowType::F32), words(4, RowType::Int8)), (4, 4));
        assert_eq!((words(13, RowType::F32), words(14, RowType::F32)), (8, 10));
    }
}
