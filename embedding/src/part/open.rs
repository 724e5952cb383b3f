//! One part, from bytes to columns: every number is checked before it is used.

use std::ops::Range;
use std::path::PathBuf;

use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::read_footer_length;
use arrow_ipc::{Block, RecordBatch, root_as_footer, root_as_message};
use arrow_schema::{DataType, Field, Schema};
use zillion_device::mmap;
use zillion_feature::FeatureKey;

use super::candidates::{StoredCandidates, candidate_fields};
use super::read::{Need, REMEDY, StoredPart};
use super::write::fields;
use super::{FORMAT, PartInfo, describe_layout, describe_segments};
use crate::candidates::LARGEST_THRESHOLD;
use crate::error::{Error, Result};
use crate::shape::TableShape;

/// More rows than a part can have: the row numbers of a shard end before.
const MAX_ROWS: usize = u32::MAX as usize;

/// One part while it is being opened.
pub(super) struct Opening<'a> {
    pub(super) path: PathBuf,
    pub(super) shape: &'a TableShape,
    pub(super) need: Need,
}

impl Opening<'_> {
    fn refuse<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(Error::Part { path: self.path.clone(), reason: reason.into() })
    }

    /// Maps a file of rows, compares it with what the checkpoint says, and finds its columns.
    pub(super) fn open(&self, info: &PartInfo, slots: Range<usize>) -> Result<StoredPart> {
        let buffer = self.verified(info)?;
        let part = self.row_columns(&buffer, slots)?;
        self.check_keys(&part.keys, &part.slots, info)?;
        self.check_last_steps(&part.last_steps)?;
        Ok(part)
    }

    /// The same for a file of candidates.
    pub(super) fn open_candidates(
        &self,
        info: &PartInfo,
        slots: Range<usize>,
    ) -> Result<StoredCandidates> {
        let buffer = self.verified(info)?;
        let part = self.candidate_columns(&buffer, &slots)?;
        self.check_keys(&part.keys, &slots, info)?;
        self.check_last_steps(&part.last_steps)?;
        let is_legal = |&count: &u32| (1..LARGEST_THRESHOLD).contains(&count);
        match part.counts.iter().position(|count| !is_legal(count)) {
            Some(row) => self.refuse(format!(
                "column `count`, row {row}: {} is no count of a key that waits, which is 1 to {}; {REMEDY}",
                part.counts[row],
                LARGEST_THRESHOLD - 1
            )),
            None => Ok(part),
        }
    }

    /// The mapped bytes of a file, which are those that were written.
    fn verified(&self, info: &PartInfo) -> Result<Buffer> {
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
        Ok(Buffer::from(bytes))
    }

    /// Finds the one record batch of a file. Done by hand, over what the flatbuffers verifier has passed: the
    /// columns are known, every number is checked before it is used, and `arrow-ipc`'s own decoder panics
    /// on lengths that do not add up.
    fn batch<'b>(&self, buffer: &'b Buffer) -> Result<File<'b>> {
        let malformed =
            |what: &str| format!("not an Arrow file as checkpoints have them: {what}; {REMEDY}");
        // The length of the footer, and the magic, are the last ten bytes.
        let end = buffer.len().saturating_sub(10);
        let Ok(trailer) = <[u8; 10]>::try_from(&buffer[end..]) else {
            return self.refuse(malformed("it has no footer"));
        };
        let start = match read_footer_length(trailer) {
            Ok(length) => end.checked_sub(length),
            Err(e) => return self.refuse(malformed(&e.to_string())),
        };
        let Some(start) = start else {
            return self.refuse(malformed("its footer is longer than the file"));
        };
        let footer = match root_as_footer(&buffer[start..end]) {
            Ok(footer) => footer,
            Err(e) => return self.refuse(malformed(&e.to_string())),
        };
        let schema = match footer.schema().map(try_fb_to_schema) {
            Some(Ok(schema)) => schema,
            Some(Err(e)) => return self.refuse(malformed(&e.to_string())),
            None => return self.refuse(malformed("it has no schema")),
        };
        let blocks = footer.recordBatches();
        let block = match blocks {
            Some(blocks) if blocks.len() == 1 => blocks.get(0),
            other => {
                let count = other.map_or(0, |b| b.len());
                return self
                    .refuse(malformed(&format!("it has {count} record batches instead of one")));
            }
        };
        let Some(frame) = Frame::of(block, start) else {
            return self.refuse(malformed("its record batch lies outside of the file"));
        };
        // Before the message stand four bytes that mark it and four with its length.
        let message = match root_as_message(&buffer[frame.metadata.start + 8..frame.metadata.end]) {
            Ok(message) => message,
            Err(e) => return self.refuse(malformed(&e.to_string())),
        };
        let Some(batch) = message.header_as_record_batch() else {
            return self.refuse(malformed("its one message is not a record batch"));
        };
        if batch.compression().is_some() {
            return self.refuse(malformed("it is compressed"));
        }
        let Some(rows) = usize::try_from(batch.length()).ok().filter(|&rows| rows < MAX_ROWS)
        else {
            return self.refuse(malformed("its number of rows cannot be"));
        };
        Ok(File { schema, rows, bytes: buffer, body: frame.body, batch })
    }

    fn row_columns(&self, buffer: &Buffer, slots: Range<usize>) -> Result<StoredPart> {
        let file = self.batch(buffer)?;
        let state_width = self.check_fields(&file.schema)?;
        self.check_metadata(&file.schema, &slots)?;
        self.check_segments(&file.schema)?;
        let (rows, width) = (file.rows, self.shape.width);
        let mut columns = Columns { opening: self, file: &file, node: 0, buffer: 0 };
        Ok(StoredPart {
            keys: columns.next("key", rows)?,
            weights: columns.next_list("weights", rows, width)?,
            state: columns.next_list("state", rows, state_width)?,
            counts: columns.next("count", rows)?,
            last_steps: columns.next("last_step", rows)?,
            dirty_epochs: columns.next("dirty_epoch", rows)?,
            slots,
            width,
            state_width,
        })
    }

    fn candidate_columns(&self, buffer: &Buffer, slots: &Range<usize>) -> Result<StoredCandidates> {
        let file = self.batch(buffer)?;
        let expected = candidate_fields();
        let found = file.schema.fields();
        if found.len() != expected.len() || found.iter().zip(&expected).any(|(a, b)| **a != *b) {
            return self.refuse(format!("it does not have the columns of candidates; {REMEDY}"));
        }
        self.check_metadata(&file.schema, slots)?;
        let mut columns = Columns { opening: self, file: &file, node: 0, buffer: 0 };
        Ok(StoredCandidates {
            keys: columns.next("key", file.rows)?,
            counts: columns.next("count", file.rows)?,
            last_steps: columns.next("last_step", file.rows)?,
        })
    }

    /// Names and types of the columns. Returns the width of the state.
    fn check_fields(&self, schema: &Schema) -> Result<usize> {
        let mut state_width = self.shape.state_width;
        let expected = fields(self.shape.width, state_width);
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
            let agrees = match (found.data_type(), field.data_type()) {
                // The state of other optimizers may have another width.
                (DataType::FixedSizeList(item, width), DataType::FixedSizeList(expected, _))
                    if self.need == Need::Weights && field.name() == "state" =>
                {
                    state_width = usize::try_from(*width).unwrap_or(MAX_ROWS);
                    item == expected && state_width < MAX_ROWS
                }
                (found, expected) => found == expected,
            };
            if !agrees || found.is_nullable() {
                return self.refuse(format!(
                    "column `{}` is {} and the job's table needs {}; use the job that the checkpoint was \
                     written by, or start without it",
                    field.name(),
                    describe_type(found),
                    describe_type(field)
                ));
            }
        }
        if schema.fields().len() != expected.len() {
            let count = schema.fields().len();
            return self
                .refuse(format!("it has {count} columns instead of {}; {REMEDY}", expected.len()));
        }
        Ok(state_width)
    }

    /// What the metadata say the part is.
    fn check_metadata(&self, schema: &Schema, slots: &Range<usize>) -> Result<()> {
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
        Ok(())
    }

    /// What the metadata say of the rows.
    fn check_segments(&self, schema: &Schema) -> Result<()> {
        let segments = schema.metadata().get("zillion.segments").map_or("", String::as_str);
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

    fn check_keys(&self, keys: &[u64], slots: &Range<usize>, info: &PartInfo) -> Result<()> {
        if keys.len() as u64 != info.rows {
            return self.refuse(format!(
                "the file has {} rows and the checkpoint says {}; {REMEDY}",
                keys.len(),
                info.rows
            ));
        }
        if let Some(row) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
            let what = if keys[row] == keys[row + 1] { "the same as" } else { "below" };
            return self.refuse(format!(
                "column `key`, row {}: key {:#018x} is {what} the one before it, and a part is sorted without \
                 duplicates; {REMEDY}",
                row + 1,
                keys[row + 1]
            ));
        }
        let outside = |key: &u64| !slots.contains(&FeatureKey(*key).slot());
        if let Some(row) = keys.iter().position(outside) {
            return self.refuse(format!(
                "column `key`, row {row}: key {:#018x} is of slot {} and the part holds {}..{}; {REMEDY}",
                keys[row],
                FeatureKey(keys[row]).slot(),
                slots.start,
                slots.end
            ));
        }
        Ok(())
    }

    fn check_last_steps(&self, steps: &[u64]) -> Result<()> {
        if let Some(row) = steps.iter().position(|&step| step > u64::from(u32::MAX)) {
            return self.refuse(format!(
                "column `last_step`, row {row}: {} is beyond the last step there can be; {REMEDY}",
                steps[row]
            ));
        }
        Ok(())
    }
}

/// A file with one record batch.
struct File<'a> {
    schema: Schema,
    rows: usize,
    bytes: &'a Buffer,
    /// Where the batch's values lie.
    body: Range<usize>,
    batch: RecordBatch<'a>,
}

/// Where a record batch lies in the file.
struct Frame {
    metadata: Range<usize>,
    body: Range<usize>,
}

impl Frame {
    /// `None` where it is not inside of the first `limit` bytes.
    fn of(block: &Block, limit: usize) -> Option<Self> {
        let start = usize::try_from(block.offset()).ok()?;
        let middle = start.checked_add(usize::try_from(block.metaDataLength()).ok()?)?;
        let end = middle.checked_add(usize::try_from(block.bodyLength()).ok()?)?;
        (middle - start >= 8 && end <= limit)
            .then_some(Self { metadata: start..middle, body: middle..end })
    }
}

/// Reads the columns of a batch one after another.
struct Columns<'a> {
    opening: &'a Opening<'a>,
    file: &'a File<'a>,
    /// The next field node and the next buffer.
    node: usize,
    buffer: usize,
}

impl Columns<'_> {
    /// A column of `rows` numbers.
    fn next<T: ArrowNativeType>(&mut self, name: &str, rows: usize) -> Result<ScalarBuffer<T>> {
        self.node(name, rows)?;
        let Some(values) = self.values(rows) else {
            return self.opening.refuse(format!(
                "column `{name}` does not have {rows} values inside of its record batch; {REMEDY}"
            ));
        };
        Ok(values)
    }

    /// A column of `rows` lists of `width` numbers.
    fn next_list(&mut self, name: &str, rows: usize, width: usize) -> Result<ScalarBuffer<f32>> {
        self.node(name, rows)?;
        let Some(values) = rows.checked_mul(width) else {
            return self.opening.refuse(format!("column `{name}` is too wide; {REMEDY}"));
        };
        self.next(name, values)
    }

    /// The next field node, and the buffer with its null bits, which nobody needs.
    fn node(&mut self, name: &str, length: usize) -> Result<()> {
        let nodes = self.file.batch.nodes();
        let node = nodes.filter(|nodes| self.node < nodes.len()).map(|nodes| nodes.get(self.node));
        self.node += 1;
        self.buffer += 1;
        match node {
            Some(node) if node.null_count() != 0 => {
                self.opening.refuse(format!("column `{name}` has nulls; {REMEDY}"))
            }
            Some(node) if usize::try_from(node.length()) == Ok(length) => Ok(()),
            Some(node) => self.opening.refuse(format!(
                "column `{name}` has {} values instead of {length}; {REMEDY}",
                node.length()
            )),
            None => self.opening.refuse(format!("column `{name}` is not there; {REMEDY}")),
        }
    }

    /// The next buffer with values; `None` where it does not hold them, or not where they can be used.
    fn values<T: ArrowNativeType>(&mut self, count: usize) -> Option<ScalarBuffer<T>> {
        let buffers = self.file.batch.buffers().filter(|buffers| self.buffer < buffers.len())?;
        let place = buffers.get(self.buffer);
        self.buffer += 1;
        let bytes = count.checked_mul(size_of::<T>())?;
        let start = self.file.body.start.checked_add(usize::try_from(place.offset()).ok()?)?;
        let fits = usize::try_from(place.length()).is_ok_and(|length| bytes <= length);
        if !fits || start.checked_add(bytes)? > self.file.body.end {
            return None;
        }
        let slice = self.file.bytes.slice_with_length(start, bytes);
        let aligned = slice.as_ptr().align_offset(align_of::<T>()) == 0;
        aligned.then(|| ScalarBuffer::new(slice, 0, count))
    }
}

fn describe_type(field: &Field) -> String {
    let nulls = if field.is_nullable() { " with nulls" } else { "" };
    format!("{}{nulls}", field.data_type())
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
