//! The rows of a layer as records in memory, for the fastest lookups.
//!
//! A lookup in mapped files touches about six cache lines on as many small pages: the directory,
//! the keys, the weights and the tombstone. Records need two or three, on huge pages: one line of
//! the index, and the record with the key and the weights. The misses of neighbouring keys overlap
//! (see [`block`](super::block)).
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
use zillion_device::simd::equal_bytes;
use zillion_feature::FeatureKey;

use super::Throttle;
use super::block::{AHEAD, Open};
use super::part::{PartColumns, TableRows, WidthRows};
use super::weights::{PackedWeights, WeightFormat};
use super::write::PIECE_ROWS;
use crate::error::{Error, Result};
use crate::row_type::RowType;

/// The number of rows for which a bucket has room.
const ROOM: usize = 12;
/// The mean number of rows in a bucket.
const MEAN: usize = 8;
/// The number of 32-bit words of a bucket: one cache line.
const BUCKET_WORDS: usize = 16;
/// The words of a bucket: the numbers of its rows, their tags, and [`COUNT`].
type Bucket = [u32; BUCKET_WORDS];
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

    /// Looks up the keys of `open`, as [`TableRows::lookup`] does.
    #[inline(always)]
    pub(super) fn lookup(
        &self,
        keys: &[FeatureKey],
        open: &mut Open,
        mut found: impl FnMut(usize, Option<PackedWeights<'_>>),
    ) {
        self.full.lookup(keys, open, &mut found);
        if let Some(narrow) = &self.narrow {
            narrow.lookup(keys, open, &mut found);
        }
    }
}

/// The rows of a bucket that can have a key.
#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    bucket: usize,
    /// A bit for each row of the bucket that has the tag of the key.
    same: u32,
}

impl WidthRecords {
    fn copy(rows: &WidthRows, throttle: &mut dyn Throttle) -> Result<Self> {
        if u32::try_from(rows.rows()).is_err() {
            return Err(Error::misuse(format!(
                "a table of a layer has {} rows, but records have numbers of 32 bits; look its rows \
                 up in the mapped files (without `row_records`)",
                rows.rows()
            )));
        }
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

    /// Looks up the keys of `open` in three stages: the prefetch of the bucket, the search of the
    /// bucket with the prefetch of the record, and the comparison of the key.
    #[inline(always)]
    fn lookup(
        &self,
        keys: &[FeatureKey],
        open: &mut Open,
        found: &mut impl FnMut(usize, Option<PackedWeights<'_>>),
    ) {
        let (buckets, _) = bytemuck::cast_slice::<u64, u32>(&self.index).as_chunks();
        let records: &[u64] = &self.records;
        let mut probes = [Probe::default(); AHEAD];
        let (count, mut kept) = (open.count(), 0);
        for step in 0..count + 2 * AHEAD {
            // The last stage comes first, because the stage before it writes the same probe.
            if let Some(at) = open.in_stage(2, step) {
                let probe = probes[step % AHEAD];
                match self.row_of(keys[at].0, probe, buckets, records) {
                    Some(Some(record)) => found(at, load(&self.format, record)),
                    Some(None) => found(at, None),
                    None => {
                        open.set(kept, at);
                        kept += 1;
                    }
                }
            }
            if let Some(at) = open.in_stage(1, step) {
                let (bucket, tag) = self.bucket_of(keys[at].0);
                let words = &buckets[bucket];
                let same = rows_with(words, tag);
                if same != 0 {
                    let first = words[same.trailing_zeros() as usize] as usize * self.stride;
                    prefetch_read(records, first);
                    prefetch_read(records, first + self.stride - 1);
                }
                probes[step % AHEAD] = Probe { bucket, same };
            }
            if let Some(at) = open.in_stage(0, step) {
                prefetch_read(buckets, self.bucket_of(keys[at].0).0);
            }
        }
        open.truncate(kept);
    }

    /// Returns the record of a key: `None` if there is none, and `Some(None)` for a tombstone.
    #[inline(always)]
    fn row_of<'a>(
        &self,
        key: u64,
        probe: Probe,
        buckets: &[Bucket],
        records: &'a [u64],
    ) -> Option<Option<&'a [u64]>> {
        let Probe { mut bucket, mut same } = probe;
        loop {
            let words = buckets.get(bucket)?;
            while same != 0 {
                let at = same.trailing_zeros();
                let first = words[at as usize % BUCKET_WORDS] as usize * self.stride;
                let record = records.get(first..first + self.stride)?;
                if record[0] == key {
                    let is_tombstone = words[COUNT] >> (16 + at) & 1 != 0;
                    return Some((!is_tombstone).then_some(record));
                }
                same &= same - 1;
            }
            if (words[COUNT] & 0xff) < ROOM as u32 {
                return None;
            }
            bucket = if bucket + 1 == self.buckets { 0 } else { bucket + 1 };
            same = rows_with(buckets.get(bucket)?, self.bucket_of(key).1);
        }
    }
}

/// Returns a bit for each row of a bucket whose key can be one with this tag.
#[inline(always)]
fn rows_with(words: &Bucket, tag: u8) -> u32 {
    let [tags] = bytemuck::cast_slice::<u32, [u8; 16]>(&words[TAGS..]) else { return 0 };
    // The bits of the count, which follows the tags, are cut off.
    equal_bytes(tags, tag) & ((1 << (words[COUNT] & 0xff)) - 1)
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
    use crate::layer::block::BLOCK;
    use crate::layer::{Found, Layer, LayerWriter, Unthrottled};
    use crate::layout::{SegmentLayout, TableLayout};

    fn layout(dim: usize, published: RowType) -> TableLayout {
        let segment = |name: &str, offset, dim| SegmentLayout { name: name.into(), offset, dim };
        let segments = vec![segment("vector", 0, dim), segment("linear", dim, 1)];
        let stride = (dim + 1).next_multiple_of(4);
        TableLayout { name: "ids".into(), stride, segments, narrow: None, published, hot: None }
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
            let keys: Vec<FeatureKey> = keys.into_iter().map(FeatureKey).collect();
            let absent: Vec<_> = keys.iter().map(|key| FeatureKey(key.0 ^ (1 << 43))).collect();
            for (block, first) in keys.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
                let mut number = first;
                let mut open = Open::all(block.len());
                table.lookup(block, &mut open, |at, found| {
                    assert_eq!(first + at, number);
                    let found = found.map(|weights| weights.to_floats().into_owned());
                    let mapped = table.find(block[at]).map(|place| table.at(place)).unwrap();
                    match mapped {
                        Found::Row(row) => assert_eq!(found, Some(row.weights.to_vec())),
                        Found::Tombstone => assert_eq!((found, number % 7), (None, 6)),
                    }
                    number += 1;
                });
                assert_eq!((open.count(), number), (0, first + block.len()));
            }
            for block in absent.chunks(BLOCK) {
                let mut open = Open::all(block.len());
                table.lookup(block, &mut open, |at, _| {
                    assert!(keys.binary_search(&block[at]).is_ok());
                });
                let left: Vec<usize> = open.iter().collect();
                let is_absent = |&at: &usize| keys.binary_search(&block[at]).is_err();
                assert_eq!(left, (0..block.len()).filter(is_absent).collect::<Vec<_>>());
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
