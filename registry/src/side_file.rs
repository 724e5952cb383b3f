//! The file of a side table in a version. It is an Arrow file with the keys, and with the values
//! that each feature reads.
//!
//! The values are those of [`SideColumn`], before any transform: ids as keys, lists of keys, and
//! numbers (NaN for a missing number). A column has the name of the feature that reads it.

use std::io::Cursor;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, Float64Array, RecordBatch, UInt64Array};
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema as ArrowSchema};
use bytes::Bytes;
use zillion_feature::{FeatureKey, KeyColumn, Schema, SideColumn, SideIndex, SideTable};

use crate::error::{Error, Result};

/// Makes the bytes of a side table's file. The same table always gives the same bytes.
///
/// # Errors
/// Returns an error if the table is too large for an Arrow file.
pub fn write_side(schema: &Schema, table: &SideTable) -> Result<Vec<u8>> {
    encode(schema, table)
        .map_err(|e| Error::Refused(format!("the file of a side table cannot be written: {e}")))
}

/// Reads the side table from bytes that [`write_side`] made.
///
/// # Errors
/// Returns an error if [`write_side`] cannot have made these bytes.
pub fn read_side(schema: &Schema, bytes: Bytes) -> Result<SideTable> {
    decode(schema, bytes).map_err(|reason| {
        Error::Refused(format!(
            "a side table of the version cannot be read: {reason}; publish a new version"
        ))
    })
}

fn encode(schema: &Schema, table: &SideTable) -> Result<Vec<u8>, ArrowError> {
    let keys = table.index.keys();
    let mut fields = vec![Field::new("key", DataType::UInt64, false)];
    let mut columns: Vec<ArrayRef> = vec![Arc::new(UInt64Array::from(to_integers(&keys)))];
    for (position, column) in &table.columns {
        let array: ArrayRef = match column {
            SideColumn::Keys(keys) => Arc::new(UInt64Array::from(to_integers(keys))),
            SideColumn::Numbers(numbers) => Arc::new(Float64Array::from(numbers.clone())),
            SideColumn::Lists(lists) => {
                let item = Field::new("item", DataType::UInt64, false);
                let mut builder = ListBuilder::new(UInt64Builder::new()).with_field(item);
                for row in 0..lists.rows() {
                    builder.values().append_slice(&to_integers(list_row(lists, row)));
                    builder.append(true);
                }
                Arc::new(builder.finish())
            }
        };
        let name = &schema.features[*position].name;
        fields.push(Field::new(name, array.data_type().clone(), false));
        columns.push(array);
    }
    let schema = Arc::new(ArrowSchema::new(fields));
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new(&mut bytes, &schema)?;
    writer.write(&RecordBatch::try_new(schema, columns)?)?;
    writer.finish()?;
    drop(writer);
    Ok(bytes)
}

fn decode(schema: &Schema, bytes: Bytes) -> Result<SideTable, String> {
    let mut reader = FileReader::try_new(Cursor::new(bytes), None).map_err(|e| e.to_string())?;
    let batch = reader.next().ok_or("the file has no rows")?.map_err(|e| e.to_string())?;
    let keys = batch.column_by_name("key").and_then(|c| c.as_primitive_opt::<UInt64Type>());
    let mut index = SideIndex::default();
    for &key in keys.ok_or("the file has no column `key`")?.values() {
        index
            .push(FeatureKey(key))
            .map_err(|row| format!("row {row} repeats the key of an earlier row"))?;
    }
    let mut columns = Vec::new();
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()).skip(1) {
        let feature = schema.features.iter().position(|f| f.name == *field.name());
        let feature =
            feature.ok_or_else(|| format!("no feature reads the column `{}`", field.name()))?;
        columns.push((feature, side_column(column, field.name())?));
    }
    Ok(SideTable { index: Arc::new(index), columns })
}

fn side_column(column: &ArrayRef, name: &str) -> Result<SideColumn, String> {
    let keys = |array: &UInt64Array| array.values().iter().copied().map(FeatureKey).collect();
    if let Some(array) = column.as_primitive_opt::<UInt64Type>() {
        return Ok(SideColumn::Keys(keys(array)));
    }
    if let Some(array) = column.as_primitive_opt::<Float64Type>() {
        return Ok(SideColumn::Numbers(array.values().to_vec()));
    }
    let lists = column.as_list_opt::<i32>();
    let values = lists.and_then(|lists| lists.values().as_primitive_opt::<UInt64Type>());
    match (lists, values) {
        (Some(lists), Some(values)) => {
            Ok(SideColumn::Lists(KeyColumn::ragged(lists.offsets().to_vec(), keys(values))))
        }
        _ => Err(format!("the column `{name}` has the unsupported type {}", column.data_type())),
    }
}

fn list_row(lists: &KeyColumn, row: usize) -> &[FeatureKey] {
    match &lists.offsets {
        None => &lists.keys[row..row + 1],
        Some(offsets) => &lists.keys[offsets[row] as usize..offsets[row + 1] as usize],
    }
}

fn to_integers(keys: &[FeatureKey]) -> Vec<u64> {
    keys.iter().map(|key| key.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_table_reads_as_it_was_written() {
        let job = "
            [features.zip]
            kind = 'id'
            side = 's'
            [features.tags]
            kind = 'ids'
            side = 's'
            [features.age]
            kind = 'numeric'
            side = 's'
            missing = 0
            [labels.y]
            [side.s]
            path = 's.csv'
            key = 'k'
        ";
        let schema = Schema::from_job(&job.parse::<toml::Table>().unwrap().into()).unwrap();
        let id = FeatureKey::from_u64;
        let mut index = SideIndex::default();
        for key in [9, 3, 7] {
            index.push(id(key)).unwrap();
        }
        let lists = KeyColumn::ragged(vec![0, 2, 2, 3], vec![id(1), id(2), id(3)]);
        let columns = vec![
            (0, SideColumn::Keys(vec![id(4), id(5), id(6)])),
            (1, SideColumn::Lists(lists)),
            (2, SideColumn::Numbers(vec![0.5, f64::NAN, -3.0])),
        ];
        let table = SideTable { index: Arc::new(index), columns };
        let bytes = write_side(&schema, &table).unwrap();
        assert_eq!(bytes, write_side(&schema, &table).unwrap());
        let read = read_side(&schema, bytes.into()).unwrap();
        assert_eq!(read.index.keys(), table.index.keys());
        assert_eq!(read.columns[..2], table.columns[..2]);
        let (_, SideColumn::Numbers(numbers)) = &read.columns[2] else { panic!("numbers") };
        assert!(numbers[0] == 0.5 && numbers[1].is_nan() && numbers[2] == -3.0);
        assert!(read_side(&schema, Bytes::from_static(b"no arrow")).is_err());
    }
}
