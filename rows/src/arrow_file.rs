//! An Arrow IPC file with one record batch of plain columns, read in place.
//!
//! Done by hand, over what the flatbuffers verifier has passed: the columns are known to the caller, every
//! number is checked before it is used, and `arrow-ipc`'s own decoder panics on lengths that do not
//! add up. What is returned are views into the bytes; nothing is copied.
//!
//! Reasons are words without a file's name: the caller knows the path and what to do about it.

use std::ops::Range;

use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::read_footer_length;
use arrow_ipc::{Block, RecordBatch, root_as_footer, root_as_message};
use arrow_schema::Schema;

/// More rows than a file of ours can have: row numbers have 32 bits.
pub(crate) const MAX_ROWS: usize = u32::MAX as usize;

/// A file whose one record batch has been found.
pub(crate) struct ArrowFile<'a> {
    /// Names and types of the columns, and what the file says of itself.
    pub(crate) schema: Schema,
    /// Rows of the batch.
    pub(crate) rows: usize,
    bytes: &'a Buffer,
    /// Where the batch's values lie.
    body: Range<usize>,
    batch: RecordBatch<'a>,
}

impl<'a> ArrowFile<'a> {
    /// Finds the schema and the one record batch of a file.
    ///
    /// # Errors
    /// Why this is not such a file.
    pub(crate) fn open(bytes: &'a Buffer) -> Result<Self, String> {
        // The length of the footer, and the magic, are the last ten bytes.
        let end = bytes.len().saturating_sub(10);
        let trailer = <[u8; 10]>::try_from(&bytes[end..]).map_err(|_| "it has no footer")?;
        let length = read_footer_length(trailer).map_err(|e| e.to_string())?;
        let start = end.checked_sub(length).ok_or("its footer is longer than the file")?;
        let footer = root_as_footer(&bytes[start..end]).map_err(|e| e.to_string())?;
        let schema = footer.schema().ok_or("it has no schema")?;
        let schema = try_fb_to_schema(schema).map_err(|e| e.to_string())?;
        let blocks = footer.recordBatches();
        let block = match blocks {
            Some(blocks) if blocks.len() == 1 => blocks.get(0),
            other => {
                let count = other.map_or(0, |b| b.len());
                return Err(format!("it has {count} record batches instead of one"));
            }
        };
        let frame = Frame::of(block, start).ok_or("its record batch lies outside of the file")?;
        // Before the message stand four bytes that mark it and four with its length.
        let message = root_as_message(&bytes[frame.metadata.start + 8..frame.metadata.end])
            .map_err(|e| e.to_string())?;
        let batch =
            message.header_as_record_batch().ok_or("its one message is not a record batch")?;
        if batch.compression().is_some() {
            return Err("it is compressed".to_owned());
        }
        let rows = usize::try_from(batch.length()).ok().filter(|&rows| rows < MAX_ROWS);
        let rows = rows.ok_or("its number of rows cannot be")?;
        Ok(Self { schema, rows, bytes, body: frame.body, batch })
    }

    /// The columns, from the first one on.
    pub(crate) fn columns(&self) -> Columns<'_> {
        Columns { file: self, node: 0, buffer: 0 }
    }

    /// What the schema's metadata say under a key; nothing where it is not there.
    pub(crate) fn said(&self, key: &str) -> &str {
        self.schema.metadata().get(key).map_or("", String::as_str)
    }
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

/// Reads the columns of a batch one after another, in the order of the schema.
pub(crate) struct Columns<'a> {
    file: &'a ArrowFile<'a>,
    /// The next field node and the next buffer.
    node: usize,
    buffer: usize,
}

impl Columns<'_> {
    /// A column with one number a row.
    pub(crate) fn numbers<T: ArrowNativeType>(
        &mut self,
        name: &str,
    ) -> Result<ScalarBuffer<T>, String> {
        self.next(name, self.file.rows)
    }

    /// A column with a list of `width` numbers a row, flat.
    pub(crate) fn lists<T: ArrowNativeType>(
        &mut self,
        name: &str,
        width: usize,
    ) -> Result<ScalarBuffer<T>, String> {
        self.node(name, self.file.rows)?;
        let values = self.file.rows.checked_mul(width);
        self.next(name, values.ok_or_else(|| format!("column `{name}` is too wide"))?)
    }

    fn next<T: ArrowNativeType>(
        &mut self,
        name: &str,
        length: usize,
    ) -> Result<ScalarBuffer<T>, String> {
        self.node(name, length)?;
        self.values(length).ok_or_else(|| {
            format!("column `{name}` does not have {length} values inside of its record batch")
        })
    }

    /// The next field node, and the buffer with its null bits, which nobody needs.
    fn node(&mut self, name: &str, length: usize) -> Result<(), String> {
        let nodes = self.file.batch.nodes();
        let node = nodes.filter(|nodes| self.node < nodes.len()).map(|nodes| nodes.get(self.node));
        self.node += 1;
        self.buffer += 1;
        match node {
            Some(node) if node.null_count() != 0 => Err(format!("column `{name}` has nulls")),
            Some(node) if usize::try_from(node.length()) == Ok(length) => Ok(()),
            Some(node) => {
                let found = node.length();
                Err(format!("column `{name}` has {found} values instead of {length}"))
            }
            None => Err(format!("column `{name}` is not there")),
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
