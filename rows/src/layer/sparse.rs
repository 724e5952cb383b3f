//! The weights of a part that stores only the numbers that are not zero.
//!
//! Training that prunes, and optimizers with L1 terms, leave many weights at zero. The rows of such
//! a part have a *mask* instead: bit `i` of a row's mask says whether weight `i` is stored. The
//! stored numbers of all rows follow each other in the column `weights`, which is a list of
//! variable length. Reading a row takes the same bits as from a part with all numbers: a weight is
//! left out only if all its bits are zero, so the sign of `-0.0` stays.
//!
//! | column | content |
//! |---|---|
//! | `mask` | a list of `ceil(width / 8)` bytes, the lowest bit of the first byte first |
//! | `weights` | the numbers that are not zero, in the number type of the layer |
//! | `scale` | as in other parts of int8; absent in other types |
//!
//! A writer stores a part in this form only if that saves at least an eighth of the bytes of its
//! weights, because a lookup of a sparse row costs more. Weights of tombstones count as no saving:
//! a delta with many removals keeps the form that earlier programs read.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, ListArray, UInt8Array};
use arrow_buffer::{ArrowNativeType, Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field};
use zillion_device::mmap::overlaps;
use zillion_device::prefetch::prefetch_read;

use super::Throttle;
use super::weights::{
    PackedWeights, WeightColumn, WeightFormat, WeightRows, check_scales, number_item,
};
use crate::arrow_file::Columns;
use crate::dtype::{Bf16, F16, Half};
use crate::row_type::RowType;

/// The part of the bytes of all weights that the sparse form must save, as a divisor.
const LEAST_SAVING: u64 = 8;

/// The number of rows between two calls of [`Throttle::piece`].
const PIECE_ROWS: usize = 512;

/// The numbers of rows and weights by which a writer chooses the form of a part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Zeros {
    /// The number of rows that are no tombstones.
    pub(super) living: u64,
    /// The number of weights that are not zero.
    pub(super) stored: u64,
}

impl Zeros {
    /// Returns whether a part of `rows` rows is stored without its zeros.
    pub(super) fn is_sparse(self, rows: usize, format: &WeightFormat) -> bool {
        let rows = rows as u64;
        let weights = self.living * format.width as u64;
        let saved = weights.saturating_sub(self.stored) * number_bytes(format.row_type);
        let added = rows * (mask_bytes(format.width) + size_of::<u32>()) as u64;
        let whole = rows * format.row_bytes() as u64;
        i32::try_from(self.stored).is_ok() && saved > 0 && saved >= added + whole / LEAST_SAVING
    }
}

/// Returns the number of bytes that a part of `rows` rows needs for its weights, if it stores only
/// `stored` of them.
pub(super) fn sparse_bytes(format: &WeightFormat, rows: u64, stored: u64) -> u64 {
    let scales = match format.row_type {
        RowType::Int8 => format.dims.len() * size_of::<f32>(),
        _ => 0,
    };
    let each = mask_bytes(format.width) + size_of::<u32>() + scales;
    rows.saturating_mul(each as u64)
        .saturating_add(stored.saturating_mul(number_bytes(format.row_type)))
}

/// Returns the number of bytes of a row's mask.
fn mask_bytes(width: usize) -> usize {
    width.div_ceil(8)
}

/// Returns the number of bytes of one stored number.
fn number_bytes(row_type: RowType) -> u64 {
    match row_type {
        RowType::F32 => 4,
        RowType::F16 | RowType::Bf16 => 2,
        RowType::Int8 => 1,
    }
}

/// Returns the fields of the columns `mask` and `weights`.
pub(super) fn sparse_fields(format: &WeightFormat) -> [Field; 2] {
    let mask = DataType::FixedSizeList(mask_item(), mask_bytes(format.width) as i32);
    let weights = DataType::List(number_item(format.row_type));
    [Field::new("mask", mask, false), Field::new("weights", weights, false)]
}

fn mask_item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::UInt8, false))
}

/// The columns `mask` and `weights` of a part while they are written.
pub(super) struct SparseRows {
    places: Places,
    values: WeightRows,
}

/// The masks of rows, and the positions of their first numbers.
struct Places {
    masks: Vec<u8>,
    offsets: Vec<i32>,
}

impl SparseRows {
    /// Removes the zeros from the weights of `rows` rows, and calls the throttle between pieces.
    pub(super) fn compress(
        whole: &WeightRows,
        format: &WeightFormat,
        rows: usize,
        throttle: &mut dyn Throttle,
    ) -> Self {
        let mut places = Places { masks: Vec::new(), offsets: vec![0] };
        let size = (rows, format.width);
        let values = match whole {
            WeightRows::F32(all) => {
                WeightRows::F32(places.keep(all, size, |w| w.to_bits() != 0, throttle))
            }
            WeightRows::F16(all) => WeightRows::F16(places.keep(all, size, |w| w != 0, throttle)),
            WeightRows::Bf16(all) => WeightRows::Bf16(places.keep(all, size, |w| w != 0, throttle)),
            WeightRows::Int8 { values, scales } => WeightRows::Int8 {
                values: places.keep(values, size, |q| q != 0, throttle),
                scales: scales.clone(),
            },
        };
        Self { places, values }
    }
}

impl Places {
    /// Returns the numbers of rows that are stored, and records their places.
    fn keep<T: Copy>(
        &mut self,
        all: &[T],
        (rows, width): (usize, usize),
        is_stored: impl Fn(T) -> bool,
        throttle: &mut dyn Throttle,
    ) -> Vec<T> {
        let mut kept = Vec::new();
        self.masks.reserve_exact(rows * mask_bytes(width));
        self.offsets.reserve_exact(rows);
        for (number, row) in all.chunks_exact(width.max(1)).enumerate() {
            for eight in row.chunks(8) {
                let bits = eight.iter().enumerate();
                let bit = |(at, &w): (usize, &T)| u8::from(is_stored(w)) << at;
                self.masks.push(bits.map(bit).fold(0, |mask, bit| mask | bit));
            }
            kept.extend(row.iter().copied().filter(|&w| is_stored(w)));
            // `Zeros::is_sparse` has refused parts with more numbers than an offset can name.
            self.offsets.push(kept.len() as i32);
            if number.is_multiple_of(PIECE_ROWS) {
                throttle.piece();
            }
        }
        kept
    }
}

impl SparseRows {
    /// Returns the columns of the file, in the order of [`WeightFormat::fields`].
    pub(super) fn columns(
        self,
        format: &WeightFormat,
        rows: usize,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let (numbers, scales) = self.values.into_numbers(format, rows)?;
        let masks = Arc::new(UInt8Array::from(self.places.masks));
        let bytes = mask_bytes(format.width) as i32;
        let mask = FixedSizeListArray::try_new_with_length(mask_item(), bytes, masks, None, rows)?;
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.places.offsets));
        let weights = ListArray::try_new(number_item(format.row_type), offsets, numbers, None)?;
        let columns: [ArrayRef; 2] = [Arc::new(mask), Arc::new(weights)];
        Ok(columns.into_iter().chain(scales).collect())
    }
}

/// The mapped weights of a part that stores no zeros.
#[derive(Clone, Debug)]
pub(super) struct SparseColumn {
    masks: ScalarBuffer<u8>,
    /// The position of the first number of each row, and one more for the end.
    offsets: ScalarBuffer<u32>,
    /// The numbers of all rows, and the scales of rows of int8.
    values: WeightColumn,
}

/// A row of a part that stores no zeros.
#[derive(Clone, Copy, Debug)]
pub(super) struct SparseRow<'a> {
    column: &'a SparseColumn,
    mask: &'a [u8],
    /// The position of the row's first number.
    first: usize,
    /// The number of the row in its part.
    row: usize,
    width: usize,
}

impl SparseColumn {
    /// Reads the columns of a part that stores `stored` numbers.
    fn read(columns: &mut Columns<'_>, format: &WeightFormat, stored: u64) -> Result<Self, String> {
        let stored = usize::try_from(stored).map_err(|_| "the part stores too many weights")?;
        let masks = columns.lists("mask", mask_bytes(format.width))?;
        let offsets = columns.list_offsets("weights")?;
        let values = match format.row_type {
            RowType::F32 => WeightColumn::F32(columns.list_values("weights", stored)?),
            RowType::F16 => WeightColumn::F16(columns.list_values("weights", stored)?),
            RowType::Bf16 => WeightColumn::Bf16(columns.list_values("weights", stored)?),
            RowType::Int8 => WeightColumn::Int8 {
                values: columns.list_values("weights", stored)?,
                scales: columns.lists("scale", format.dims.len())?,
                dims: format.dims.clone(),
            },
        };
        Ok(Self { masks, offsets, values })
    }

    /// Returns the weights of a row, or `None` if the part has no such row.
    #[inline(always)]
    fn row(&self, row: usize, width: usize) -> Option<SparseRow<'_>> {
        let bytes = mask_bytes(width);
        let mask = self.masks.get(row * bytes..(row + 1) * bytes)?;
        let first = *self.offsets.get(row)? as usize;
        Some(SparseRow { column: self, mask, first, row, width })
    }

    /// Prefetches the mask and the position of a row. Its numbers can only be prefetched when the
    /// position is known.
    #[inline(always)]
    fn prefetch(&self, row: usize, width: usize) {
        prefetch_read(&self.masks, row * mask_bytes(width));
        prefetch_read(&self.offsets, row);
    }

    /// Checks that masks, positions and numbers fit each other, and that every number is one that a
    /// writer can have written.
    fn verify(&self, width: usize) -> Result<(), String> {
        let beyond = width % 8;
        let mut end = 0;
        for (row, mask) in self.masks.chunks_exact(mask_bytes(width).max(1)).enumerate() {
            if beyond != 0 && mask.last().is_some_and(|&last| last >> beyond != 0) {
                return Err(format!("row {row}: the mask names a weight beyond the row's {width}"));
            }
            let first = self.offsets.get(row).map_or(usize::MAX, |&first| first as usize);
            if first != end {
                return Err(format!(
                    "row {row}: the numbers begin at {first} instead of {end}, where those of the \
                     row before end"
                ));
            }
            end += count_bits(mask);
        }
        let stored = self.values.len();
        if self.offsets.last().is_none_or(|&last| last as usize != end) || stored != end {
            return Err(format!("the masks name {end} weights, but the part stores {stored}"));
        }
        if let Some((row, reason)) = self.values.find_bad_scale() {
            return Err(format!("row {row}: {reason}"));
        }
        let zero = self.values.find_zero().map(|at| (at, "a stored weight is zero"));
        if let Some((at, reason)) = zero.or_else(|| self.values.find_bad()) {
            let row = self.offsets.partition_point(|&first| first as usize <= at) - 1;
            return Err(format!("row {row}: {reason}"));
        }
        let WeightColumn::Int8 { dims, .. } = &self.values else { return Ok(()) };
        let rows = self.masks.len() / mask_bytes(width).max(1);
        for (row, sparse) in (0..rows).filter_map(|row| Some((row, self.row(row, width)?))) {
            sparse.with_whole(|whole| match whole {
                PackedWeights::Int8 { values, scales, .. } => check_scales(values, scales, dims)
                    .map_err(|reason| format!("row {row}: {reason}")),
                _ => Ok(()),
            })?;
        }
        Ok(())
    }
}

impl SparseRow<'_> {
    /// Returns the number of weights, including zeros.
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        self.width
    }

    /// Writes the weights to `out` as f32 numbers.
    #[inline(always)]
    pub(super) fn widen(self, out: &mut [f32]) {
        match &self.column.values {
            WeightColumn::F32(all) => self.scatter(all, |w| w, out),
            WeightColumn::F16(all) => self.scatter(all, F16::widen, out),
            WeightColumn::Bf16(all) => self.scatter(all, Bf16::widen, out),
            WeightColumn::Int8 { values, dims, .. } => {
                self.scatter(values, f32::from, out);
                let mut rest = out;
                for (&dim, &scale) in dims.iter().zip(self.scales()) {
                    let (segment, more) = rest.split_at_mut(dim.min(rest.len()));
                    segment.iter_mut().for_each(|weight| *weight *= scale);
                    rest = more;
                }
            }
        }
    }

    /// Calls `f` with the row as a part without masks has it.
    pub(super) fn with_whole<R>(self, f: impl FnOnce(PackedWeights<'_>) -> R) -> R {
        match &self.column.values {
            WeightColumn::F32(all) => f(PackedWeights::F32(&self.filled(all))),
            WeightColumn::F16(all) => f(PackedWeights::F16(&self.filled(all))),
            WeightColumn::Bf16(all) => f(PackedWeights::Bf16(&self.filled(all))),
            WeightColumn::Int8 { values, dims, .. } => {
                let (values, scales) = (&self.filled(values), self.scales());
                f(PackedWeights::Int8 { values, scales, dims })
            }
        }
    }

    fn filled<T: ArrowNativeType>(self, all: &[T]) -> Vec<T> {
        let mut row = vec![T::default(); self.width];
        self.scatter(all, |number| number, &mut row);
        row
    }

    /// Returns the scales of a row of int8; empty in other types.
    #[inline(always)]
    fn scales(&self) -> &[f32] {
        match &self.column.values {
            WeightColumn::Int8 { scales, dims, .. } => {
                let range = self.row * dims.len()..(self.row + 1) * dims.len();
                scales.get(range).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// Writes the numbers of the row to their places in `out`, and zeros to the other places.
    #[inline(always)]
    fn scatter<T: Copy, U: Copy + Default>(
        self,
        all: &[T],
        convert: impl Fn(T) -> U,
        out: &mut [U],
    ) {
        out.fill(U::default());
        let mut numbers = all.get(self.first..).unwrap_or_default().iter();
        for (&byte, eight) in self.mask.iter().zip(out.chunks_mut(8)) {
            let mut bits = byte;
            while bits != 0 {
                let at = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                // A damaged file can name weights that do not exist.
                if let (Some(place), Some(&number)) = (eight.get_mut(at), numbers.next()) {
                    *place = convert(number);
                }
            }
        }
    }
}

/// The mapped weights of a part in either form.
#[derive(Clone, Debug)]
pub(super) enum PartWeights {
    Whole(WeightColumn),
    Sparse(SparseColumn),
}

impl PartWeights {
    /// Reads the columns with the weights. `stored` is the number of weights that a sparse part
    /// stores; `None` if the part stores all weights.
    pub(super) fn read(
        columns: &mut Columns<'_>,
        format: &WeightFormat,
        stored: Option<u64>,
    ) -> Result<Self, String> {
        Ok(match stored {
            None => Self::Whole(format.read(columns)?),
            Some(stored) => Self::Sparse(SparseColumn::read(columns, format, stored)?),
        })
    }

    /// Returns the weights of a row, or `None` if the part has no such row.
    #[inline(always)]
    pub(super) fn row(&self, row: usize, width: usize) -> Option<PackedWeights<'_>> {
        match self {
            Self::Whole(column) => column.row(row, width),
            Self::Sparse(column) => column.row(row, width).map(PackedWeights::Sparse),
        }
    }

    /// Prefetches the cache lines that a read of a row begins with.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: usize, width: usize) {
        match self {
            Self::Whole(column) => column.prefetch(row, width),
            Self::Sparse(column) => column.prefetch(row, width),
        }
    }

    /// Returns whether a column lies in one of the address ranges.
    pub(super) fn overlaps(&self, ranges: &[Range<usize>]) -> bool {
        match self {
            Self::Whole(column) => column.overlaps(ranges),
            Self::Sparse(SparseColumn { masks, offsets, values }) => {
                let is_index = |buffer: &Buffer| overlaps(buffer, ranges);
                is_index(masks.inner()) || is_index(offsets.inner()) || values.overlaps(ranges)
            }
        }
    }

    /// Returns the number of mapped bytes of the weights of a part with `rows` rows.
    pub(super) fn bytes(&self, format: &WeightFormat, rows: usize) -> usize {
        match self {
            Self::Whole(_) => rows * format.row_bytes(),
            Self::Sparse(SparseColumn { values, .. }) => {
                sparse_bytes(format, rows as u64, values.len() as u64) as usize
            }
        }
    }

    /// Checks that the weights are such as a writer can have written.
    pub(super) fn verify(&self, width: usize) -> Result<(), String> {
        match self {
            Self::Whole(column) => column.verify(width),
            Self::Sparse(column) => column.verify(width),
        }
    }
}

fn count_bits(mask: &[u8]) -> usize {
    mask.iter().map(|byte| byte.count_ones() as usize).sum()
}

#[cfg(test)]
mod tests;
