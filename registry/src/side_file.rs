//! The file of a side table in a version. It is an Arrow file with the keys, and with the values
//! that each feature reads.
//!
//! The values are those of [`SideColumn`], before any transform: ids as keys, lists of keys, and
//! numbers (NaN for a missing number). A column has the name of the feature that reads it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, Float64Array, RecordBatch, UInt64Array};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::writer::FileWriter;
use arrow_ipc::{Block, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, DataType, Field, Schema as ArrowSchema};
use bytes::Bytes;
use zillion_feature::{FeatureKey, KeyColumn, Schema, SideColumn, SideIndex, SideTable};

use crate::error::{Error, Result};

/// The number of bytes at the end of a file that hold the length of the footer and the magic.
const TRAILER: usize = 10;
/// The number of bytes before the head of a record batch.
const PREFIX: usize = 8;
/// The bytes with which the head of a record batch begins.
const MARK: [u8; 4] = [0xff; 4];

/// Writes the file of a side table. The same table gives the same bytes.
///
/// # Errors
/// Returns an error if the table is too large for an Arrow file.
pub fn write_side(schema: &Schema, table: &SideTable) -> Result<Vec<u8>> {
    encode(schema, table).map_err(|e| {
        Error::Refused(format!("the file of a side table cannot be made ({e}); report this defect"))
    })
}

/// Reads the side table from bytes that [`write_side`] made.
///
/// # Errors
/// Returns an error if [`write_side`] cannot have made these bytes.
pub fn read_side(schema: &Schema, bytes: Bytes) -> Result<SideTable> {
    // The checks before the decoder leave it no reason to panic. A panic that comes all the same
    // must not end the thread that loads versions.
    let decoded = catch_unwind(AssertUnwindSafe(|| decode(schema, bytes)));
    let decoded = decoded.unwrap_or_else(|_| Err("its lengths do not add up".to_owned()));
    decoded.map_err(|reason| {
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
    let batch = read_batch(&Buffer::from(bytes))?;
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

/// Reads the one batch of a file. The decoder of `arrow-ipc` panics, or reserves memory, on lengths
/// that do not add up, so every length is compared with the file before the decoder runs.
fn read_batch(file: &Buffer) -> Result<RecordBatch, String> {
    let end = file.len().checked_sub(TRAILER).ok_or("the file has no footer")?;
    let trailer = <[u8; TRAILER]>::try_from(&file[end..]).map_err(|_| "the file has no footer")?;
    let length = read_footer_length(trailer).map_err(|e| e.to_string())?;
    let start = end.checked_sub(length).ok_or("the footer is longer than the file")?;
    let footer = root_as_footer(&file[start..end]).map_err(|e| e.to_string())?;
    let schema = footer.schema().ok_or("the file has no schema")?;
    let schema = try_fb_to_schema(schema).map_err(|e| e.to_string())?;
    let supported = |field: &&Arc<Field>| is_supported(field.data_type());
    if let Some(field) = schema.fields().iter().find(|field| !supported(field)) {
        let (name, kind) = (field.name(), field.data_type());
        return Err(format!("the column `{name}` has the unsupported type {kind}"));
    }
    if footer.dictionaries().is_some_and(|dictionaries| !dictionaries.is_empty()) {
        return Err("the file has dictionaries".to_owned());
    }
    let block = match footer.recordBatches() {
        Some(blocks) if blocks.len() == 1 => *blocks.get(0),
        other => {
            let count = other.map_or(0, |blocks| blocks.len());
            return Err(format!("the file has {count} record batches instead of one"));
        }
    };
    let bytes = block_bytes(&block, start).ok_or("the record batch lies outside of the file")?;
    let bytes = file.slice_with_length(bytes.start, bytes.len());
    let head = usize::try_from(block.metaDataLength()).map_err(|e| e.to_string())?;
    check_batch(&bytes[..head], bytes.len() - head)?;
    let decoder = FileDecoder::new(Arc::new(schema), footer.version());
    let batch = decoder.read_record_batch(&block, &bytes).map_err(|e| e.to_string())?;
    batch.ok_or_else(|| "the file has no rows".to_owned())
}

fn is_supported(kind: &DataType) -> bool {
    match kind {
        DataType::UInt64 | DataType::Float64 => true,
        DataType::List(item) => *item.data_type() == DataType::UInt64,
        _ => false,
    }
}

/// Returns the bytes of a block, or `None` if they do not lie in the first `limit` bytes.
fn block_bytes(block: &Block, limit: usize) -> Option<Range<usize>> {
    let start = usize::try_from(block.offset()).ok()?;
    let head = usize::try_from(block.metaDataLength()).ok().filter(|&head| head >= PREFIX)?;
    let body = usize::try_from(block.bodyLength()).ok()?;
    let end = start.checked_add(head)?.checked_add(body)?;
    (end <= limit).then_some(start..end)
}

/// Checks that all lengths in the head of a record batch fit the `body` bytes of its body.
fn check_batch(head: &[u8], body: usize) -> Result<(), String> {
    // Before the message stand four bytes that mark it and four with its length. Without the mark,
    // the decoder would look for the message at another place.
    if head[..MARK.len()] != MARK {
        return Err("the record batch has no mark".to_owned());
    }
    let message = root_as_message(&head[PREFIX..]).map_err(|e| e.to_string())?;
    let batch = message.header_as_record_batch().ok_or("the message is not a record batch")?;
    if batch.compression().is_some() {
        return Err("the record batch is compressed".to_owned());
    }
    let fits = |number: i64| usize::try_from(number).is_ok_and(|number| number <= body);
    let nodes = batch.nodes().into_iter().flat_map(|nodes| nodes.iter());
    let are_nodes_plain = nodes.map(|node| fits(node.length()) && node.null_count() == 0);
    let buffers = batch.buffers().into_iter().flat_map(|buffers| buffers.iter());
    let are_buffers_inside = buffers.map(|buffer| {
        fits(buffer.offset())
            && fits(buffer.length())
            && buffer.offset().checked_add(buffer.length()).is_some_and(fits)
    });
    let all_fit =
        fits(batch.length()) && are_nodes_plain.chain(are_buffers_inside).all(|fits| fits);
    if all_fit { Ok(()) } else { Err("a length in the record batch is out of range".to_owned()) }
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

    #[test]
    fn a_damaged_side_table_is_refused_without_a_panic() {
        let job = "[features.tags]\nkind = 'ids'\nside = 's'\n[labels.y]\n[side.s]\npath = 's.csv'\nkey = 'k'";
        let schema = Schema::from_job(&job.parse::<toml::Table>().unwrap().into()).unwrap();
        let mut index = SideIndex::default();
        index.push(FeatureKey::from_u64(9)).unwrap();
        index.push(FeatureKey::from_u64(3)).unwrap();
        let id = FeatureKey::from_u64;
        let lists = KeyColumn::ragged(vec![0, 2, 3], vec![id(1), id(2), id(3)]);
        let columns = vec![(0, SideColumn::Lists(lists))];
        let table = SideTable { index: Arc::new(index), columns };
        let whole = write_side(&schema, &table).unwrap();
        let mut refused = 0;
        for at in 0..whole.len() {
            for value in [0x00, 0x7f, 0xff, whole[at] ^ 1, whole[at] ^ 0x80] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                refused += usize::from(read_side(&schema, bytes.into()).is_err());
            }
            assert!(read_side(&schema, whole[..at].to_vec().into()).is_err(), "{at} bytes");
        }
        assert!(refused > 50, "{refused} of {}", whole.len() * 5);
    }
}
