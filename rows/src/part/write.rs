//! The writing of the parts of a checkpoint.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, FixedSizeListArray, Float16Array, Float32Array, RecordBatch, UInt16Array,
    UInt32Array, UInt64Array,
};
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use zillion_device::Files;
use zillion_feature::{FeatureKey, Use};

use super::cut::Place;
use super::digest::{RowDigest, RowHasher};
use super::{FORMAT, NARROW, PartInfo, ROWS, describe_segments};
use crate::arrow_writer::{Hashed, write_batch};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::row::{Meta, RowWeights, StoredRow};
use crate::shape::RowShape;

/// The metadata key under which a field names a number type that Arrow does not have.
const DTYPE: &str = "zillion.dtype";

/// The columns of the rows of a part, which are in key order.
#[derive(Debug)]
pub struct PartRows {
    keys: Vec<u64>,
    weights: WeightColumn,
    state: Vec<f32>,
    counts: Vec<u32>,
    last_steps: Vec<u64>,
    dirty_epochs: Vec<u32>,
    /// The shows and clicks of the rows; absent if the table does not keep them.
    uses: Option<Vec<Use>>,
}

impl PartRows {
    /// Creates columns without rows, with memory for `rows` rows.
    pub fn with_capacity(rows: usize, shape: &RowShape) -> Self {
        Self {
            keys: Vec::with_capacity(rows),
            weights: WeightColumn::with_capacity(rows * shape.width, shape.spec.dtype),
            state: Vec::with_capacity(rows * shape.state_width),
            counts: Vec::with_capacity(rows),
            last_steps: Vec::with_capacity(rows),
            dirty_epochs: Vec::with_capacity(rows),
            uses: shape.spec.statistics.map(|_| Vec::with_capacity(rows)),
        }
    }

    /// Returns the number of bytes that one row takes in these columns.
    pub fn row_bytes(shape: &RowShape) -> usize {
        let floats = (shape.width + shape.state_width) * size_of::<f32>();
        floats + 2 * size_of::<u64>() + 2 * size_of::<u32>()
    }

    /// Returns the keys of all rows that have been added.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Adds a row. Its key must be greater than the key of the previous row.
    pub fn push(&mut self, key: FeatureKey, row: StoredRow<'_>) {
        self.keys.push(key.0);
        self.weights.append(row.weights);
        self.state.extend_from_slice(row.state);
        self.counts.push(row.meta.count);
        self.last_steps.push(u64::from(row.meta.last_step));
        self.dirty_epochs.push(row.meta.dirty_epoch);
        if let Some(uses) = &mut self.uses {
            uses.push(row.used);
        }
    }

    /// Returns the digest of the rows, which have the shape `shape`.
    fn digest(&self, shape: &RowShape) -> RowDigest {
        let mut hasher = RowHasher::default();
        for (at, &key) in self.keys.iter().enumerate() {
            let row = StoredRow {
                weights: self.weights.row(at, shape.width),
                state: &self.state[at * shape.state_width..(at + 1) * shape.state_width],
                meta: Meta {
                    count: self.counts[at],
                    // `push` added a step of this size.
                    last_step: self.last_steps[at] as u32,
                    dirty_epoch: self.dirty_epochs[at],
                },
                used: self.uses.as_ref().map_or_else(Use::default, |uses| uses[at]),
                is_narrow: false,
            };
            hasher.add(FeatureKey(key), &row, self.uses.is_some());
        }
        hasher.sum()
    }
}

/// The weights of all rows, one row after another, in the number type of the table.
#[derive(Debug)]
enum WeightColumn {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Bf16(Vec<u16>),
}

impl WeightColumn {
    fn with_capacity(weights: usize, dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(Vec::with_capacity(weights)),
            Dtype::F16 => Self::F16(Vec::with_capacity(weights)),
            Dtype::Bf16 => Self::Bf16(Vec::with_capacity(weights)),
        }
    }

    /// Adds the weights of a row, which must have the type of the column.
    fn append(&mut self, row: RowWeights<'_>) {
        match (self, row) {
            (Self::F32(all), RowWeights::F32(row)) => all.extend_from_slice(row),
            (Self::F16(all), RowWeights::F16(row)) | (Self::Bf16(all), RowWeights::Bf16(row)) => {
                all.extend_from_slice(row);
            }
            _ => unreachable!("a table has one type of weights"),
        }
    }

    fn row(&self, row: usize, width: usize) -> RowWeights<'_> {
        let row = row * width..(row + 1) * width;
        match self {
            Self::F32(all) => RowWeights::F32(&all[row]),
            Self::F16(all) => RowWeights::F16(&all[row]),
            Self::Bf16(all) => RowWeights::Bf16(&all[row]),
        }
    }

    fn list(self, width: usize, rows: usize) -> Result<ArrayRef, ArrowError> {
        match self {
            Self::F32(weights) => list(weights, width, rows),
            // Arrow has the same bits of a number in memory.
            Self::F16(bits) => {
                let values = Float16Array::new(Buffer::from_vec(bits).into(), None);
                list_of(item(Dtype::F16), Arc::new(values), width, rows)
            }
            Self::Bf16(bits) => {
                list_of(item(Dtype::Bf16), Arc::new(UInt16Array::from(bits)), width, rows)
            }
        }
    }
}

/// Returns the columns of a part of this table.
pub(super) fn fields(shape: &RowShape) -> Vec<Field> {
    let mut fields = vec![
        Field::new("key", DataType::UInt64, false),
        Field::new("weights", list_type(shape.spec.dtype, shape.width), false),
        Field::new("state", list_type(Dtype::F32, shape.state_width), false),
        Field::new("count", DataType::UInt32, false),
        Field::new("last_step", DataType::UInt64, false),
        Field::new("dirty_epoch", DataType::UInt32, false),
    ];
    if shape.spec.statistics.is_some() {
        fields.push(Field::new("show", DataType::Float32, false));
        fields.push(Field::new("click", DataType::Float32, false));
    }
    fields
}

fn list_type(dtype: Dtype, width: usize) -> DataType {
    DataType::FixedSizeList(item(dtype), width as i32)
}

/// Returns the Arrow field of one number in a list of weights. Arrow has no bf16, so bf16 weights
/// are stored as u16, and the metadata of the field name the type.
fn item(dtype: Dtype) -> Arc<Field> {
    let (data_type, metadata) = match dtype {
        Dtype::F32 => (DataType::Float32, None),
        Dtype::F16 => (DataType::Float16, None),
        Dtype::Bf16 => (DataType::UInt16, Some((DTYPE.to_owned(), dtype.name().to_owned()))),
    };
    let field = Field::new("item", data_type, false);
    Arc::new(field.with_metadata(metadata.into_iter().collect::<BTreeMap<_, _>>()))
}

/// Returns the number type of the weights that a column of the type `weights` holds, or `None` if
/// the column has another type.
pub(super) fn dtype_of(weights: &DataType) -> Option<Dtype> {
    let DataType::FixedSizeList(found, _) = weights else { return None };
    Dtype::ALL.into_iter().find(|&dtype| *found == item(dtype))
}

fn list(values: Vec<f32>, width: usize, rows: usize) -> Result<ArrayRef, ArrowError> {
    list_of(item(Dtype::F32), Arc::new(Float32Array::from(values)), width, rows)
}

fn list_of(
    item: Arc<Field>,
    values: ArrayRef,
    width: usize,
    rows: usize,
) -> Result<ArrayRef, ArrowError> {
    let list = FixedSizeListArray::try_new_with_length(item, width as i32, values, None, rows)?;
    Ok(Arc::new(list))
}

fn columns(rows: PartRows, shape: &RowShape) -> Result<Vec<ArrayRef>, ArrowError> {
    let count = rows.keys.len();
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from(rows.keys)),
        rows.weights.list(shape.width, count)?,
        list(rows.state, shape.state_width, count)?,
        Arc::new(UInt32Array::from(rows.counts)),
        Arc::new(UInt64Array::from(rows.last_steps)),
        Arc::new(UInt32Array::from(rows.dirty_epochs)),
    ];
    if let Some(uses) = rows.uses {
        let column = |of: fn(&Use) -> f32| Float32Array::from_iter_values(uses.iter().map(of));
        columns.push(Arc::new(column(|used| used.shows)));
        columns.push(Arc::new(column(|used| used.clicks)));
    }
    Ok(columns)
}

/// Writes and syncs one part of full rows or of narrow rows below `folder`. `shape` is the shape of
/// the table. The sub-folders of `folder` must exist. The function does not sync the folders.
/// Returns the entry of the file and the digest of its rows.
pub fn write_rows(
    files: &Files,
    folder: &Path,
    shape: &RowShape,
    place: Place,
    (rows, is_narrow): (PartRows, bool),
) -> Result<(PartInfo, RowDigest)> {
    let (shape, kind) = match shape.narrow_row.as_deref().filter(|_| is_narrow) {
        Some(narrow) => (narrow, NARROW),
        None => (shape, ROWS),
    };
    let content = (fields(shape), Some(("zillion.segments", describe_segments(shape))));
    let digest = rows.digest(shape);
    let info = write_file(files, folder, shape, (place, kind), content, || columns(rows, shape))?;
    Ok((info, digest))
}

/// Writes and syncs a file of a table below `folder`, with these columns. The metadata of every
/// file name its format, its table and its slots; `more` is one further entry.
pub(super) fn write_file(
    files: &Files,
    folder: &Path,
    shape: &RowShape,
    (place, kind): (Place, &str),
    (fields, more): (Vec<Field>, Option<(&str, String)>),
    columns: impl FnOnce() -> Result<Vec<ArrayRef>, ArrowError>,
) -> Result<PartInfo> {
    let slots = place.slots();
    let metadata = [
        ("zillion.format", FORMAT.to_owned()),
        ("zillion.slots", format!("{}..{}", slots.start, slots.end)),
        ("zillion.table", shape.name().to_owned()),
    ];
    let metadata = metadata.into_iter().chain(more).map(|(key, value)| (key.to_owned(), value));
    let metadata: BTreeMap<_, _> = metadata.collect();
    let schema = Arc::new(Schema::new(fields).with_metadata(metadata));
    let file = place.file(shape.name(), kind);
    let (mut hasher, mut rows) = (blake3::Hasher::new(), 0);
    let bytes = files.create_file(folder.join(&file), |out| {
        let hashed = Hashed { out, hasher: &mut hasher };
        write_batch(hashed, &schema, || {
            let batch = RecordBatch::try_new(schema.clone(), columns()?)?;
            rows = batch.num_rows() as u64;
            Ok(batch)
        })
    })?;
    let blake3 = hasher.finalize().to_hex().to_string();
    Ok(PartInfo { file, rows, bytes, blake3, slots: Some((slots.start, slots.end)) })
}
