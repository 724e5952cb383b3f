//! Opening parts: everything is checked before a row is looked at, and what is wrong is named.

use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::root_as_footer;
use arrow_schema::Schema;
use zillion_device::{Workers, mmap};
use zillion_feature::{FeatureKey, SLOTS};

use super::write::fields;
use super::{
    FORMAT, PartInfo, TableParts, describe_layout, describe_segments, file_name, part_slots,
};
use crate::error::{Error, Result};
use crate::shape::{Meta, TableShape};
use crate::table::StoredRow;

/// What to do about a file that is not what its checkpoint says.
const REMEDY: &str = "take another checkpoint, or copy this one again";

/// One verified part, mapped.
#[derive(Debug)]
pub(crate) struct StoredPart {
    slots: Range<usize>,
    width: usize,
    state_width: usize,
    keys: ScalarBuffer<u64>,
    weights: ScalarBuffer<f32>,
    state: ScalarBuffer<f32>,
    counts: ScalarBuffer<u32>,
    last_steps: ScalarBuffer<u64>,
    dirty_epochs: ScalarBuffer<u32>,
}

impl StoredPart {
    /// The rows whose keys lie in `slots`.
    pub(crate) fn rows_in(&self, slots: &Range<usize>) -> Range<usize> {
        let before = |slot: usize| self.keys.partition_point(|&key| FeatureKey(key).slot() < slot);
        before(slots.start)..before(slots.end)
    }

    pub(crate) fn key(&self, row: usize) -> FeatureKey {
        FeatureKey(self.keys[row])
    }

    pub(crate) fn weights(&self, row: usize) -> &[f32] {
        &self.weights[row * self.width..(row + 1) * self.width]
    }

    pub(crate) fn stored(&self, row: usize) -> StoredRow<'_> {
        StoredRow {
            weights: self.weights(row),
            state: &self.state[row * self.state_width..(row + 1) * self.state_width],
            meta: Meta {
                count: self.counts[row],
                // Checked when the part was opened.
                last_step: self.last_steps[row] as u32,
                dirty_epoch: self.dirty_epochs[row],
            },
        }
    }

    /// The row of a key, by interpolation: keys are mixed, so the key itself says where it is, give or
    /// take the square root of the part.
    pub(crate) fn find(&self, key: FeatureKey) -> Option<usize> {
        let keys = &self.keys[..];
        let guess = self.position(key).min(keys.len());
        let (mut low, mut high) = (guess, guess);
        // Gallop from the guess to a window that must hold the key.
        let mut step = 8;
        while high < keys.len() && keys[high] <= key.0 {
            low = high;
            high = (high + step).min(keys.len());
            step *= 2;
        }
        while low > 0 && (low == keys.len() || keys[low] > key.0) {
            high = (low + 1).min(keys.len());
            low = low.saturating_sub(step);
            step *= 2;
        }
        keys[low..high].binary_search(&key.0).ok().map(|i| low + i)
    }

    fn position(&self, key: FeatureKey) -> usize {
        let shift = 64 - SLOTS.trailing_zeros();
        let first = (self.slots.start as u64) << shift;
        let span = (self.slots.len() as u128) << shift;
        ((u128::from(key.0.wrapping_sub(first)) * self.keys.len() as u128) / span) as usize
    }
}

/// What a reader needs of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Weights: any optimizer will do.
    Weights,
    /// State too: the optimizers must be the table's.
    State,
}

/// Opens and verifies the parts of each table: `parts[i]` belongs to `shapes[i]`. Hashing is shared out
/// to the workers.
pub(crate) fn open_parts(
    workers: &Workers,
    folder: &Path,
    shapes: &[&TableShape],
    tables: &[&TableParts],
    need: Need,
) -> Result<Vec<Vec<StoredPart>>> {
    for (shape, table) in shapes.iter().zip(tables) {
        check_listing(folder, shape, table)?;
    }
    let jobs: Vec<(usize, usize)> = tables
        .iter()
        .enumerate()
        .flat_map(|(table, parts)| (0..parts.parts.len()).map(move |part| (table, part)))
        .collect();
    let opened = workers.map(jobs.len(), |job| {
        let (table, part) = jobs[job];
        let infos = &tables[table].parts;
        Opening { path: folder.join(&infos[part].file), shape: shapes[table], need }
            .open(&infos[part], part_slots(part, infos.len()))
    });
    let mut by_table: Vec<Vec<StoredPart>> = tables.iter().map(|_| Vec::new()).collect();
    for ((table, _), part) in jobs.into_iter().zip(opened) {
        by_table[table].push(part?);
    }
    Ok(by_table)
}

/// The manifest's list of parts, before any file is opened.
fn check_listing(folder: &Path, shape: &TableShape, table: &TableParts) -> Result<()> {
    let path = folder.join(format!("tables/{}", shape.name()));
    let refuse = |reason: String| Err(Error::Part { path: path.clone(), reason });
    let parts = table.parts.len();
    if !parts.is_power_of_two() || parts > SLOTS {
        return refuse(format!(
            "a table has 1, 2, 4, … 4096 parts and the checkpoint lists {parts}; {REMEDY}"
        ));
    }
    for (i, part) in table.parts.iter().enumerate() {
        let expected = file_name(shape.name(), i);
        if part.file != expected {
            let given = &part.file;
            return refuse(format!(
                "part {i} is `{expected}` and the checkpoint lists `{given}`; {REMEDY}"
            ));
        }
    }
    let rows: u64 = table.parts.iter().map(|p| p.rows).sum();
    if rows != table.rows {
        let whole = table.rows;
        return refuse(format!("the parts have {rows} rows and the table {whole}; {REMEDY}"));
    }
    Ok(())
}

/// One part while it is being opened.
struct Opening<'a> {
    path: PathBuf,
    shape: &'a TableShape,
    need: Need,
}

impl Opening<'_> {
    fn refuse<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(Error::Part { path: self.path.clone(), reason: reason.into() })
    }

    fn open(&self, info: &PartInfo, slots: Range<usize>) -> Result<StoredPart> {
        let bytes = mmap::map(&self.path)?;
        if bytes.len() as u64 != info.bytes {
            return self.refuse(format!(
                "the file has {} bytes and the checkpoint says {}; it was cut or changed, {REMEDY}",
                bytes.len(),
                info.bytes
            ));
        }
        let hash = blake3::hash(&bytes).to_hex().to_string();
        if hash != info.blake3 {
            return self.refuse(format!(
                "the file's BLAKE3 is {hash} and the checkpoint says {}; a bit of it was changed, {REMEDY}",
                info.blake3
            ));
        }
        let batch = self.batch(Buffer::from(bytes))?;
        if batch.num_rows() as u64 != info.rows {
            return self.refuse(format!(
                "the file has {} rows and the checkpoint says {}; {REMEDY}",
                batch.num_rows(),
                info.rows
            ));
        }
        self.check_schema(&batch.schema(), &slots)?;
        self.columns(&batch, slots)
    }

    /// The record batch, without copying.
    fn batch(&self, buffer: Buffer) -> Result<RecordBatch> {
        let malformed =
            |what: &str| format!("not an Arrow file as checkpoints have them: {what}; {REMEDY}");
        // The length of the footer, and the magic, are the last ten bytes.
        let trailer: Option<[u8; 10]> =
            buffer.len().checked_sub(10).and_then(|start| buffer[start..].try_into().ok());
        let Some(trailer) = trailer else { return self.refuse(malformed("it has no footer")) };
        let footer_start = match read_footer_length(trailer) {
            Ok(length) => (buffer.len() - 10).checked_sub(length),
            Err(e) => return self.refuse(malformed(&e.to_string())),
        };
        let Some(start) = footer_start else {
            return self.refuse(malformed("its footer is longer than the file"));
        };
        let footer = match root_as_footer(&buffer[start..buffer.len() - 10]) {
            Ok(footer) => footer,
            Err(e) => return self.refuse(malformed(&e.to_string())),
        };
        let Some(schema) = footer.schema() else {
            return self.refuse(malformed("it has no schema"));
        };
        if footer.dictionaries().is_some_and(|d| !d.is_empty()) {
            return self.refuse(malformed("it has dictionaries"));
        }
        let blocks = footer.recordBatches();
        let block = match blocks {
            Some(blocks) if blocks.len() == 1 => blocks.get(0),
            other => {
                let count = other.map_or(0, |b| b.len());
                return self
                    .refuse(malformed(&format!("it has {count} record batches instead of one")));
            }
        };
        let extent = usize::try_from(block.offset()).ok().zip(
            i64::from(block.metaDataLength())
                .checked_add(block.bodyLength())
                .and_then(|length| usize::try_from(length).ok()),
        );
        let Some((offset, length)) =
            extent.filter(|(o, l)| o.checked_add(*l).is_some_and(|end| end <= start))
        else {
            return self.refuse(malformed("its record batch lies outside of the file"));
        };
        let schema = match try_fb_to_schema(schema) {
            Ok(schema) => std::sync::Arc::new(schema),
            Err(e) => return self.refuse(malformed(&e.to_string())),
        };
        self.check_fields(&schema)?;
        let decoder = FileDecoder::new(schema, footer.version());
        let data = buffer.slice_with_length(offset, length);
        match decoder.read_record_batch(block, &data) {
            Ok(Some(batch)) => Ok(batch),
            Ok(None) => self.refuse(malformed("its record batch is empty")),
            Err(e) => self.refuse(malformed(&e.to_string())),
        }
    }

    /// Names and types of the columns.
    fn check_fields(&self, schema: &Schema) -> Result<()> {
        let expected = fields(self.shape.width, self.shape.state_width);
        for (i, field) in expected.iter().enumerate() {
            let Some(found) = schema.fields().get(i) else {
                return self.refuse(format!("column `{}` is missing; {REMEDY}", field.name()));
            };
            if found.name() != field.name() {
                return self.refuse(format!(
                    "column {i} is `{}` instead of `{}`; {REMEDY}",
                    found.name(),
                    field.name()
                ));
            }
            // The state of other optimizers may have another width.
            let any_width = self.need == Need::Weights && field.name() == "state";
            if !any_width && found.data_type() != field.data_type() {
                return self.refuse(format!(
                    "column `{}` is {} and the job's table needs {}; use the job that the checkpoint was \
                     written by, or start without it",
                    field.name(),
                    found.data_type(),
                    field.data_type()
                ));
            }
        }
        if schema.fields().len() != expected.len() {
            let count = schema.fields().len();
            return self
                .refuse(format!("it has {count} columns instead of {}; {REMEDY}", expected.len()));
        }
        Ok(())
    }

    /// What the metadata say the part is.
    fn check_schema(&self, schema: &Schema, slots: &Range<usize>) -> Result<()> {
        let said = |key: &str| schema.metadata().get(key).map_or("", String::as_str);
        if said("zillion.format") != FORMAT {
            return self.refuse(format!(
                "the part's format is `{}` and this program reads `{FORMAT}`; use the program that wrote it",
                said("zillion.format")
            ));
        }
        if said("zillion.table") != self.shape.name() {
            return self.refuse(format!(
                "the part belongs to table `{}` and not to `{}`; {REMEDY}",
                said("zillion.table"),
                self.shape.name()
            ));
        }
        let expected_slots = format!("{}..{}", slots.start, slots.end);
        if said("zillion.slots") != expected_slots {
            return self.refuse(format!(
                "the part holds slots {} instead of {expected_slots}; {REMEDY}",
                said("zillion.slots")
            ));
        }
        let segments = said("zillion.segments");
        let agrees = match self.need {
            Need::State => segments == describe_segments(self.shape),
            Need::Weights => names_and_dims(segments) == Some(describe_layout(&self.shape.layout)),
        };
        if !agrees {
            return self.refuse(format!(
                "the part's segments are `{segments}` and the job's are `{}`; use the job that the checkpoint \
                 was written by, or start without it",
                describe_segments(self.shape)
            ));
        }
        Ok(())
    }

    fn columns(&self, batch: &RecordBatch, slots: Range<usize>) -> Result<StoredPart> {
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            let inner =
                column.as_fixed_size_list_opt().map_or(0, |list| list.values().null_count());
            if column.null_count() + inner > 0 {
                return self.refuse(format!("column `{}` has nulls; {REMEDY}", field.name()));
            }
        }
        let u64s = |i: usize| batch.column(i).as_primitive::<UInt64Type>().values().clone();
        let u32s = |i: usize| batch.column(i).as_primitive::<UInt32Type>().values().clone();
        let lists = |i: usize| {
            let list = batch.column(i).as_fixed_size_list();
            (
                list.value_length() as usize,
                list.values().as_primitive::<Float32Type>().values().clone(),
            )
        };
        let (width, weights) = lists(1);
        let (state_width, state) = lists(2);
        let part = StoredPart {
            slots,
            width,
            state_width,
            keys: u64s(0),
            weights,
            state,
            counts: u32s(3),
            last_steps: u64s(4),
            dirty_epochs: u32s(5),
        };
        self.check_rows(&part)?;
        Ok(part)
    }

    fn check_rows(&self, part: &StoredPart) -> Result<()> {
        let keys = &part.keys[..];
        if let Some(row) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
            let what = if keys[row] == keys[row + 1] { "the same as" } else { "below" };
            return self.refuse(format!(
                "column `key`, row {}: key {:#018x} is {what} the one before it, and a part is sorted without \
                 duplicates; {REMEDY}",
                row + 1,
                keys[row + 1]
            ));
        }
        let outside = |key: &u64| !part.slots.contains(&FeatureKey(*key).slot());
        if let Some(row) = keys.iter().position(outside) {
            return self.refuse(format!(
                "column `key`, row {row}: key {:#018x} is of slot {} and the part holds {}..{}; {REMEDY}",
                keys[row],
                FeatureKey(keys[row]).slot(),
                part.slots.start,
                part.slots.end
            ));
        }
        if let Some(row) = part.last_steps.iter().position(|&step| step > u64::from(u32::MAX)) {
            return self.refuse(format!(
                "column `last_step`, row {row}: {} is beyond the last step there can be; {REMEDY}",
                part.last_steps[row]
            ));
        }
        Ok(())
    }
}

/// `name:dim:optimizer,…` as names and dims.
fn names_and_dims(segments: &str) -> Option<Vec<(String, usize)>> {
    let segment = |text: &str| {
        let mut fields = text.split(':');
        let (name, dim) = (fields.next()?, fields.next()?);
        Some((name.to_owned(), dim.parse().ok()?))
    };
    segments.split(',').map(segment).collect()
}
