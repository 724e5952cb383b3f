//! The writing of the rows of a table to a Parquet file. The columns are the key, the id of the
//! key, the vectors and a count.
//!
//! Rows are written while they arrive, so memory contains only the current row group. The rows must
//! arrive sorted by key. The metadata of the file records this order, so a reader that looks for a
//! key can skip row groups.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::WriterPropertiesBuilder;
use parquet::schema::types::ColumnPath;
use zillion_device::Files;
use zillion_feature::FeatureKey;
use zillion_reader::Result;

use crate::parquet_files::{properties, setting, write_parquet};

/// The number of rows in a batch that is given to the encoder.
const BATCH_ROWS: usize = 8192;
/// The target size of a row group before encoding, in bytes.
const GROUP_BYTES: usize = 64 << 20;
/// The minimum and the maximum number of rows in a row group.
const GROUP_ROWS: (usize, usize) = (BATCH_ROWS, 1 << 20);

/// The name of the column of keys.
pub const KEY: &str = "key";
/// The name of the column of ids. The column exists if the ids can be computed from the keys.
pub const ID: &str = "id";
/// The name of the column that marks the keys of missing values. It contains the name of the
/// feature whose missing value the key stands for.
pub const IS_MISSING_OF: &str = "is_missing_of";
/// The name of the column of counts.
pub const COUNT: &str = "count";

/// The type of the ids of a table. Only tables whose ids can be computed from their keys have such
/// a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedIds {
    /// The ids are signed integers.
    Signed,
    /// The ids are unsigned integers.
    Unsigned,
}

/// The description of a file of rows: the columns and the metadata.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyedRows {
    /// The name and the number of floats of each segment, in the order of the floats of a row. The
    /// names must differ from the names of the other columns.
    pub segments: Vec<(String, usize)>,
    /// The type of the ids, or `None` if the file has no column of ids.
    pub ids: Option<KeyedIds>,
    /// The keys that stand for a missing value, each with the name of its feature.
    pub missing: Vec<(FeatureKey, String)>,
    /// The metadata of the file.
    pub metadata: BTreeMap<String, String>,
}

/// A row: its key, the floats of all segments, and its count.
pub type KeyedRow<'a> = (FeatureKey, Cow<'a, [f32]>, u32);

impl KeyedRows {
    /// Writes the rows in the given order and returns their number. The file appears only when it
    /// is complete. `seen` is called after each batch with the number of rows that have been
    /// written so far.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, if the number of floats of a row is wrong,
    /// or if a segment has the name of another column.
    pub fn write<'a>(
        &self,
        path: &Path,
        files: &Files,
        rows: impl Iterator<Item = KeyedRow<'a>>,
        mut seen: impl FnMut(u64),
    ) -> Result<u64> {
        let taken = |name: &&String| [KEY, ID, IS_MISSING_OF, COUNT].contains(&name.as_str());
        if let Some(name) = self.segments.iter().map(|(name, _)| name).find(taken) {
            let problem = "the segment has the name of another column of the file; rename it";
            return Err(setting(problem, name));
        }
        let schema = self.schema();
        let mut written = 0;
        let mut rows = rows.peekable();
        write_parquet(path, schema.clone(), self.properties(), files, || {
            if rows.peek().is_none() {
                return Ok(Vec::new());
            }
            let batch = self.batch(&schema, rows.by_ref().take(BATCH_ROWS))?;
            written += batch.num_rows() as u64;
            seen(written);
            Ok(vec![batch])
        })?;
        Ok(written)
    }

    fn width(&self) -> usize {
        self.segments.iter().map(|(_, dim)| dim).sum()
    }

    fn schema(&self) -> SchemaRef {
        let mut fields = vec![Field::new(KEY, DataType::UInt64, false)];
        fields.extend(self.ids.map(|ids| {
            let of = match ids {
                KeyedIds::Signed => DataType::Int64,
                KeyedIds::Unsigned => DataType::UInt64,
            };
            Field::new(ID, of, true)
        }));
        fields.push(Field::new(IS_MISSING_OF, DataType::Utf8, true));
        for (name, dim) in &self.segments {
            let list = DataType::FixedSizeList(element(), *dim as i32);
            fields.push(Field::new(name, list, false));
        }
        fields.push(Field::new(COUNT, DataType::UInt32, false));
        let metadata: HashMap<String, String> = self.metadata.clone().into_iter().collect();
        Arc::new(Schema::new_with_metadata(fields, metadata))
    }

    fn properties(&self) -> WriterPropertiesBuilder {
        let row_bytes = 24 + size_of::<f32>() * self.width();
        let rows = (GROUP_BYTES / row_bytes).clamp(GROUP_ROWS.0, GROUP_ROWS.1);
        let sorted = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
        // Keys and floats rarely occur twice, so a dictionary of them would cost time and save
        // nothing.
        properties()
            .set_dictionary_enabled(false)
            .set_column_dictionary_enabled(ColumnPath::from(IS_MISSING_OF), true)
            .set_sorting_columns(Some(vec![sorted]))
            .set_max_row_group_row_count(Some(rows))
    }

    fn batch<'a>(
        &self,
        schema: &SchemaRef,
        rows: impl Iterator<Item = KeyedRow<'a>>,
    ) -> io::Result<RecordBatch> {
        let width = self.width();
        let (mut keys, mut ids, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        let mut missing = StringBuilder::new();
        let mut floats: Vec<Vec<f32>> = vec![Vec::new(); self.segments.len()];
        for (key, weights, count) in rows {
            if weights.len() != width {
                let found = weights.len();
                let reason = format!(
                    "the row of key {:#018x} has {found} floats instead of {width}; write \
                         rows of {width} floats",
                    key.0
                );
                return Err(io::Error::other(reason));
            }
            keys.push(key.0);
            counts.push(count);
            let of = self.missing.iter().find(|(stands, _)| *stands == key);
            missing.append_option(of.map(|(_, feature)| feature));
            // The key of a missing value has no id.
            ids.push(of.is_none().then(|| key.unmix()));
            let mut rest: &[f32] = &weights;
            for ((_, dim), floats) in self.segments.iter().zip(&mut floats) {
                let (own, behind) = rest.split_at(*dim);
                floats.extend_from_slice(own);
                rest = behind;
            }
        }
        let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(keys))];
        match self.ids {
            Some(KeyedIds::Signed) => {
                let signed = ids.into_iter().map(|id| id.map(|id| id as i64));
                columns.push(Arc::new(signed.collect::<Int64Array>()));
            }
            Some(KeyedIds::Unsigned) => columns.push(Arc::new(UInt64Array::from(ids))),
            None => {}
        }
        columns.push(Arc::new(missing.finish()));
        for ((_, dim), floats) in self.segments.iter().zip(floats) {
            let values = Arc::new(Float32Array::from(floats));
            let list = FixedSizeListArray::try_new(element(), *dim as i32, values, None);
            columns.push(Arc::new(list.map_err(io::Error::other)?));
        }
        columns.push(Arc::new(UInt32Array::from(counts)));
        RecordBatch::try_new(schema.clone(), columns).map_err(io::Error::other)
    }
}

fn element() -> Arc<Field> {
    Arc::new(Field::new_list_field(DataType::Float32, false))
}

#[cfg(test)]
mod tests {
    use arrow_array::Array as _;
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::{Float32Type, Int64Type, UInt32Type, UInt64Type};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use proptest::prelude::*;

    use super::*;

    fn rows_of(ids: &[i64]) -> Vec<(FeatureKey, [f32; 3], u32)> {
        let of = |&id: &i64| (FeatureKey::from_i64(id), [id as f32, 0.5, -1.0], id as u32);
        let mut rows: Vec<_> = ids.iter().map(of).collect();
        rows.push((FeatureKey::missing("user"), [9.0, 9.0, 9.0], 1));
        rows.sort_by_key(|row| row.0);
        rows
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn ids_and_rows_read_back(ids in proptest::collection::btree_set(any::<i64>(), 0..50)) {
            let ids: Vec<i64> = ids.into_iter().collect();
            let rows = rows_of(&ids);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("rows.parquet");
            let spec = KeyedRows {
                segments: vec![("vector".into(), 2), ("linear".into(), 1)],
                ids: Some(KeyedIds::Signed),
                missing: vec![(FeatureKey::missing("user"), "user".into())],
                metadata: BTreeMap::from([("table".into(), "user".into())]),
            };
            let given = rows.iter().map(|(key, w, count)| (*key, w.as_slice().into(), *count));
            let written = spec.write(&path, &Files::new(), given, |_| {}).unwrap();
            prop_assert_eq!(written, rows.len() as u64);

            let file = std::fs::File::open(&path).unwrap();
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            prop_assert_eq!(reader.schema().metadata().get("table").unwrap(), "user");
            let mut at = 0;
            let mut found = Vec::new();
            for batch in reader.build().unwrap() {
                let batch = batch.unwrap();
                let keys = batch["key"].as_primitive::<UInt64Type>();
                let own = batch["id"].as_primitive::<Int64Type>();
                let of = batch["is_missing_of"].as_string::<i32>();
                let vectors = batch["vector"].as_fixed_size_list();
                let linear = batch["linear"].as_fixed_size_list().values().as_primitive::<Float32Type>();
                let counts = batch["count"].as_primitive::<UInt32Type>();
                for i in 0..batch.num_rows() {
                    let (key, weights, count) = rows[at];
                    at += 1;
                    prop_assert_eq!(keys.value(i), key.0);
                    prop_assert_eq!(counts.value(i), count);
                    let vector = vectors.value(i);
                    let vector = vector.as_primitive::<Float32Type>().values();
                    prop_assert_eq!(&vector[..], &weights[..2]);
                    prop_assert_eq!(linear.value(i), weights[2]);
                    let is_missing = key == FeatureKey::missing("user");
                    prop_assert_eq!(own.is_null(i), is_missing);
                    prop_assert_eq!(of.is_valid(i), is_missing);
                    if is_missing {
                        prop_assert_eq!(of.value(i), "user");
                    } else {
                        prop_assert_eq!(FeatureKey::from_i64(own.value(i)), key);
                        found.push(own.value(i));
                    }
                }
            }
            found.sort_unstable();
            prop_assert_eq!(found, ids);
        }
    }

    #[test]
    fn refused_rows_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        let mut spec = KeyedRows { segments: vec![("vector".into(), 2)], ..KeyedRows::default() };
        let row = [(FeatureKey(1), vec![1.0f32; 3].into(), 1)];
        let error = spec.write(&path, &Files::new(), row.into_iter(), |_| {}).unwrap_err();
        assert!(format!("{error:?}").contains("3 floats instead of 2"), "{error:?}");
        spec.segments[0].0 = "count".into();
        assert!(spec.write(&path, &Files::new(), std::iter::empty(), |_| {}).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
