//! The weights of a part in the number type of the layer: the columns that a writer fills, the
//! mapped columns of a reader, and the widening of a row to f32.
//!
//! | type | column `weights` | column `scale` |
//! |---|---|---|
//! | f32 | a list of f32 | none |
//! | f16 | a list of f16 | none |
//! | bf16 | a list of u16, the upper halves of f32 numbers | none |
//! | int8 | a list of i8, from -127 to 127 | a list of f32, one for each segment of a row |
//!
//! A scale is the one that a writer chooses: the largest weight of a segment is 127 or -127 steps,
//! and only a segment of zeros has the scale 0. Layers with other scales do not verify.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, FixedSizeListArray, Float16Array, Float32Array, Int8Array, UInt16Array,
};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field};
use zillion_device::mmap::overlaps;
use zillion_device::prefetch::prefetch_read;
use zillion_device::simd::vectorised;

use super::sparse::{SparseRow, sparse_fields};
use crate::arrow_file::Columns;
use crate::dtype::{Bf16, F16, Half};
use crate::row::widen_row;
use crate::row_type::{RowType, STEPS, is_scale, quantize, scale_of};

/// The number type of the rows of one width, and the dimensions of their segments.
#[derive(Clone, Debug)]
pub(super) struct WeightFormat {
    pub(super) row_type: RowType,
    /// The number of weights of a row.
    pub(super) width: usize,
    /// The number of weights of each segment.
    pub(super) dims: Arc<[usize]>,
}

impl WeightFormat {
    pub(super) fn new(row_type: RowType, segments: &[(String, usize)]) -> Self {
        let dims: Arc<[usize]> = segments.iter().map(|&(_, dim)| dim).collect();
        Self { row_type, width: dims.iter().sum(), dims }
    }

    /// Returns the number of bytes of the weights of one row.
    pub(super) fn row_bytes(&self) -> usize {
        self.row_type.row_bytes(self.width, self.dims.len())
    }

    /// Returns the columns of a file that hold the weights. `is_sparse` says whether the file
    /// leaves out zeros.
    pub(super) fn fields(&self, is_sparse: bool) -> Vec<Field> {
        let list = |name: &str, item: Arc<Field>, width: usize| {
            Field::new(name, DataType::FixedSizeList(item, width as i32), false)
        };
        let mut fields = match is_sparse {
            true => sparse_fields(self).to_vec(),
            false => vec![list("weights", number_item(self.row_type), self.width)],
        };
        if self.row_type == RowType::Int8 {
            fields.push(list("scale", number_item(RowType::F32), self.dims.len()));
        }
        fields
    }

    /// Reads the columns with the weights.
    pub(super) fn read(&self, columns: &mut Columns<'_>) -> Result<WeightColumn, String> {
        let width = self.width;
        Ok(match self.row_type {
            RowType::F32 => WeightColumn::F32(columns.lists("weights", width)?),
            RowType::F16 => WeightColumn::F16(columns.lists("weights", width)?),
            RowType::Bf16 => WeightColumn::Bf16(columns.lists("weights", width)?),
            RowType::Int8 => WeightColumn::Int8 {
                values: columns.lists("weights", width)?,
                scales: columns.lists("scale", self.dims.len())?,
                dims: self.dims.clone(),
            },
        })
    }
}

/// Returns the field of one number in a list. Arrow has no bf16, so the metadata of the field name
/// the type, as in checkpoints.
pub(super) fn number_item(row_type: RowType) -> Arc<Field> {
    let data_type = match row_type {
        RowType::F32 => DataType::Float32,
        RowType::F16 => DataType::Float16,
        RowType::Bf16 => DataType::UInt16,
        RowType::Int8 => DataType::Int8,
    };
    let field = Field::new("item", data_type, false);
    Arc::new(match row_type {
        RowType::Bf16 => {
            let name = ("zillion.dtype".to_owned(), row_type.name().to_owned());
            field.with_metadata(HashMap::from([name]))
        }
        _ => field,
    })
}

/// The weights of the rows that a writer has added to a part.
#[derive(Debug)]
pub(super) enum WeightRows {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Bf16(Vec<u16>),
    Int8 { values: Vec<i8>, scales: Vec<f32> },
}

impl WeightRows {
    pub(super) fn new(row_type: RowType) -> Self {
        match row_type {
            RowType::F32 => Self::F32(Vec::new()),
            RowType::F16 => Self::F16(Vec::new()),
            RowType::Bf16 => Self::Bf16(Vec::new()),
            RowType::Int8 => Self::Int8 { values: Vec::new(), scales: Vec::new() },
        }
    }

    /// Reserves the memory of this many rows.
    pub(super) fn reserve(&mut self, rows: usize, format: &WeightFormat) {
        let weights = rows.saturating_mul(format.width);
        match self {
            Self::F32(all) => all.reserve_exact(weights),
            Self::F16(all) | Self::Bf16(all) => all.reserve_exact(weights),
            Self::Int8 { values, scales } => {
                values.reserve_exact(weights);
                scales.reserve_exact(rows.saturating_mul(format.dims.len()));
            }
        }
    }

    /// Adds a row, rounded to the type. `None` adds the zeros of a tombstone.
    ///
    /// # Errors
    /// Returns the reason if the type cannot hold the row.
    pub(super) fn push(
        &mut self,
        row: Option<&[f32]>,
        format: &WeightFormat,
    ) -> Result<(), String> {
        let width = format.width;
        let is_f32 = matches!(self, Self::F32(_));
        if row.is_some_and(|row| !is_f32 && !row.iter().all(|w| w.is_finite())) {
            return Err(format!(
                "a weight is infinite or NaN, which {} cannot hold; publish an earlier state of the \
                 training",
                format.row_type.name()
            ));
        }
        match (self, row) {
            (Self::F32(all), Some(row)) => all.extend_from_slice(row),
            (Self::F32(all), None) => all.resize(all.len() + width, 0.0),
            (Self::F16(all), Some(row)) => all.extend(row.iter().map(|&w| F16::nearest(w))),
            (Self::Bf16(all), Some(row)) => all.extend(row.iter().map(|&w| Bf16::nearest(w))),
            (Self::F16(all) | Self::Bf16(all), None) => all.resize(all.len() + width, 0),
            (Self::Int8 { values, scales }, Some(mut row)) => {
                for &dim in &*format.dims {
                    let (segment, rest) = row.split_at(dim.min(row.len()));
                    row = rest;
                    let scale = scale_of(segment);
                    values.extend(segment.iter().map(|&w| quantize(w, scale)));
                    scales.push(scale);
                }
            }
            (Self::Int8 { values, scales }, None) => {
                values.resize(values.len() + width, 0);
                scales.resize(scales.len() + format.dims.len(), 0.0);
            }
        }
        Ok(())
    }

    /// Returns the number of weights of the last row that are not zero.
    pub(super) fn stored_of_last(&self, width: usize) -> usize {
        fn count<T: Copy>(all: &[T], width: usize, is_stored: impl Fn(T) -> bool) -> usize {
            let row = &all[all.len().saturating_sub(width)..];
            row.iter().filter(|&&weight| is_stored(weight)).count()
        }
        match self {
            Self::F32(all) => count(all, width, |weight| weight.to_bits() != 0),
            Self::F16(all) | Self::Bf16(all) => count(all, width, |weight| weight != 0),
            Self::Int8 { values, .. } => count(values, width, |weight| weight != 0),
        }
    }

    /// Returns the columns of a file, in the order of [`WeightFormat::fields`].
    pub(super) fn columns(
        self,
        format: &WeightFormat,
        rows: usize,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let (numbers, scales) = self.into_numbers(format, rows)?;
        let weights = list(format.row_type, numbers, format.width, rows)?;
        Ok([weights].into_iter().chain(scales).collect())
    }

    /// Returns the numbers of all rows, and the column with the scales of rows of int8.
    pub(super) fn into_numbers(
        self,
        format: &WeightFormat,
        rows: usize,
    ) -> Result<(ArrayRef, Option<ArrayRef>), ArrowError> {
        let numbers: ArrayRef = match self {
            Self::F32(all) => Arc::new(Float32Array::from(all)),
            // Arrow has the same bits of a number in memory.
            Self::F16(all) => Arc::new(Float16Array::new(Buffer::from_vec(all).into(), None)),
            Self::Bf16(all) => Arc::new(UInt16Array::from(all)),
            Self::Int8 { values, scales } => {
                let scales = Arc::new(Float32Array::from(scales));
                let scales = list(RowType::F32, scales, format.dims.len(), rows)?;
                return Ok((Arc::new(Int8Array::from(values)), Some(scales)));
            }
        };
        Ok((numbers, None))
    }
}

/// Returns a column with a list of `width` numbers for each row.
fn list(
    row_type: RowType,
    numbers: ArrayRef,
    width: usize,
    rows: usize,
) -> Result<ArrayRef, ArrowError> {
    let (item, width) = (number_item(row_type), width as i32);
    Ok(Arc::new(FixedSizeListArray::try_new_with_length(item, width, numbers, None, rows)?))
}

/// The mapped weights of a part that stores all of them, or the numbers that a sparse part stores.
#[derive(Clone, Debug)]
pub(super) enum WeightColumn {
    F32(ScalarBuffer<f32>),
    F16(ScalarBuffer<u16>),
    Bf16(ScalarBuffer<u16>),
    Int8 {
        values: ScalarBuffer<i8>,
        scales: ScalarBuffer<f32>,
        /// The number of weights of each segment.
        dims: Arc<[usize]>,
    },
}

/// The weights of one row in the number type of its layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum PackedWeights<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    Bf16(&'a [u16]),
    Int8 { values: &'a [i8], scales: &'a [f32], dims: &'a [usize] },
    Sparse(SparseRow<'a>),
}

impl WeightColumn {
    /// Returns the weights of a row, or `None` if the part has no such row.
    #[inline(always)]
    pub(super) fn row(&self, row: usize, width: usize) -> Option<PackedWeights<'_>> {
        let range = row * width..(row + 1) * width;
        Some(match self {
            Self::F32(all) => PackedWeights::F32(all.get(range)?),
            Self::F16(all) => PackedWeights::F16(all.get(range)?),
            Self::Bf16(all) => PackedWeights::Bf16(all.get(range)?),
            Self::Int8 { values, scales, dims } => {
                let scales = scales.get(row * dims.len()..(row + 1) * dims.len())?;
                PackedWeights::Int8 { values: values.get(range)?, scales, dims }
            }
        })
    }

    /// Prefetches the first and the last cache line of a row's weights, and the line of its scales.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: usize, width: usize) {
        let (first, last) = (row * width, (row + 1) * width - 1);
        match self {
            Self::F32(all) => {
                prefetch_read(all, first);
                prefetch_read(all, last);
            }
            Self::F16(all) | Self::Bf16(all) => {
                prefetch_read(all, first);
                prefetch_read(all, last);
            }
            Self::Int8 { values, scales, dims } => {
                prefetch_read(values, first);
                prefetch_read(values, last);
                prefetch_read(scales, row * dims.len());
            }
        }
    }

    /// Returns whether a column lies in one of the address ranges.
    pub(super) fn overlaps(&self, ranges: &[Range<usize>]) -> bool {
        match self {
            Self::F32(all) => overlaps(all.inner(), ranges),
            Self::F16(all) | Self::Bf16(all) => overlaps(all.inner(), ranges),
            Self::Int8 { values, scales, .. } => {
                overlaps(values.inner(), ranges) || overlaps(scales.inner(), ranges)
            }
        }
    }

    /// Checks that every weight is a finite number, and that it is one that a writer can have
    /// written.
    pub(super) fn verify(&self, width: usize) -> Result<(), String> {
        if let Some((row, reason)) = self.find_bad_scale() {
            return Err(format!("row {row}: {reason}"));
        }
        if let Some((at, reason)) = self.find_bad() {
            return Err(format!("row {}: {reason}", at / width.max(1)));
        }
        let Self::Int8 { values, scales, dims } = self else { return Ok(()) };
        let rows = values.chunks_exact(width.max(1)).zip(scales.chunks_exact(dims.len().max(1)));
        for (row, (values, scales)) in rows.enumerate() {
            check_scales(values, scales, dims).map_err(|reason| format!("row {row}: {reason}"))?;
        }
        Ok(())
    }

    /// Returns the number of weights.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(all) => all.len(),
            Self::F16(all) | Self::Bf16(all) => all.len(),
            Self::Int8 { values, .. } => values.len(),
        }
    }

    /// Returns the row of the first scale that a writer cannot have written, and the reason.
    pub(super) fn find_bad_scale(&self) -> Option<(usize, &'static str)> {
        let Self::Int8 { scales, dims, .. } = self else { return None };
        let at = scales.iter().position(|&scale| !is_scale(scale))?;
        let reason = "the scale of a segment is negative, infinite, NaN or too fine";
        Some((at / dims.len().max(1), reason))
    }

    /// Returns the position of the first weight that a writer cannot have written, and the reason.
    pub(super) fn find_bad(&self) -> Option<(usize, &'static str)> {
        let at = match self {
            Self::F32(all) => all.iter().position(|w| !w.is_finite()),
            Self::F16(all) => all.iter().position(|&w| !F16::widen(w).is_finite()),
            Self::Bf16(all) => all.iter().position(|&w| !Bf16::widen(w).is_finite()),
            Self::Int8 { values, .. } => {
                let at = values.iter().position(|&q| q == i8::MIN)?;
                return Some((at, "a weight is -128 instead of at least -127"));
            }
        };
        at.map(|at| (at, "a weight is infinite or NaN"))
    }

    /// Returns the position of the first weight whose bits are all zero.
    pub(super) fn find_zero(&self) -> Option<usize> {
        match self {
            Self::F32(all) => all.iter().position(|w| w.to_bits() == 0),
            Self::F16(all) | Self::Bf16(all) => all.iter().position(|&w| w == 0),
            Self::Int8 { values, .. } => values.iter().position(|&q| q == 0),
        }
    }
}

/// Checks that each segment of a row has the scale that a writer gives it, by which the largest
/// weight is 127 steps, or 0 if all weights are zero. A merge of layers would otherwise round the
/// row again, to other weights.
pub(super) fn check_scales(values: &[i8], scales: &[f32], dims: &[usize]) -> Result<(), String> {
    let mut rest = values;
    for (&dim, &scale) in dims.iter().zip(scales) {
        let (segment, more) = rest.split_at(dim.min(rest.len()));
        rest = more;
        let largest = segment.iter().map(|q| q.unsigned_abs()).max().unwrap_or(0);
        let wanted = if scale == 0.0 { 0 } else { STEPS as u8 };
        if largest != wanted && !segment.is_empty() {
            return Err(format!(
                "the largest weight of a segment with the scale {scale} is {largest} instead of \
                 {wanted}, so that a merge of layers would change the row"
            ));
        }
    }
    Ok(())
}

impl<'a> PackedWeights<'a> {
    /// Returns the number of weights.
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        match self {
            Self::F32(row) => row.len(),
            Self::F16(row) | Self::Bf16(row) => row.len(),
            Self::Int8 { values, .. } => values.len(),
            Self::Sparse(row) => row.len(),
        }
    }

    /// Writes the weights to `out` as f32 numbers.
    #[inline(always)]
    pub(super) fn widen(self, out: &mut [f32]) {
        match self {
            Self::F32(row) => out.copy_from_slice(row),
            Self::F16(row) => widen_row::<F16>(row, out),
            Self::Bf16(row) => widen_row::<Bf16>(row, out),
            Self::Int8 { values, scales, dims } => widen_int8(values, scales, dims, out),
            Self::Sparse(row) => row.widen(out),
        }
    }

    /// Returns the weights as f32 numbers, without a copy if they have this type.
    pub(super) fn to_floats(self) -> Cow<'a, [f32]> {
        if let Self::F32(row) = self {
            return Cow::Borrowed(row);
        }
        let mut floats = vec![0.0; self.len()];
        self.widen(&mut floats);
        Cow::Owned(floats)
    }
}

/// Multiplies the numbers of each segment with the scale of the segment.
fn widen_int8(values: &[i8], scales: &[f32], dims: &[usize], out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            let (mut values, mut out) = (values, out);
            for (&dim, &scale) in dims.iter().zip(scales) {
                let (segment, more) = values.split_at(dim.min(values.len()));
                let (target, rest) = std::mem::take(&mut out).split_at_mut(segment.len());
                for (x, &q) in target.iter_mut().zip(segment) {
                    *x = f32::from(q) * scale;
                }
                (values, out) = (more, rest);
            }
        },
    );
}

#[cfg(test)]
mod tests;
