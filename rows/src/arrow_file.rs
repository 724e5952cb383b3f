//! An Arrow IPC file with one record batch of plain columns, read in place.
//!
//! This crate has its own reader on top of the flatbuffers verifier, because the caller knows the
//! columns already, and because the decoder of `arrow-ipc` panics on lengths that do not add up.
//! The reader checks every number before it uses it. The results are views into the bytes; nothing
//! is copied.
//!
//! The error texts do not name the file: the caller adds the path and the remedy.

use std::ops::Range;

use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::read_footer_length;
use arrow_ipc::{Block, RecordBatch, root_as_footer, root_as_message};
use arrow_schema::Schema;

/// The exclusive upper bound of the number of rows of a file, because row numbers have 32 bits.
pub(crate) const MAX_ROWS: usize = u32::MAX as usize;

/// An opened Arrow file with one record batch.
pub(crate) struct ArrowFile<'a> {
    /// The names and types of the columns, and the metadata of the file.
    pub(crate) schema: Schema,
    /// The number of rows of the batch.
    pub(crate) rows: usize,
    bytes: &'a Buffer,
    /// The range of bytes that holds the values of the batch.
    body: Range<usize>,
    batch: RecordBatch<'a>,
}

impl<'a> ArrowFile<'a> {
    /// Finds the schema and the only record batch of a file.
    ///
    /// # Errors
    /// Returns the reason if the bytes are not an Arrow file with exactly one record batch.
    pub(crate) fn open(bytes: &'a Buffer) -> Result<Self, String> {
        // The length of the footer, and the magic, are the last ten bytes.
        let end = bytes.len().saturating_sub(10);
        let trailer = <[u8; 10]>::try_from(&bytes[end..]).map_err(|_| "the file has no footer")?;
        let length = read_footer_length(trailer).map_err(|e| e.to_string())?;
        let start = end.checked_sub(length).ok_or("the footer is longer than the file")?;
        let footer = root_as_footer(&bytes[start..end]).map_err(|e| e.to_string())?;
        let schema = footer.schema().ok_or("the file has no schema")?;
        let schema = try_fb_to_schema(schema).map_err(|e| e.to_string())?;
        let blocks = footer.recordBatches();
        let block = match blocks {
            Some(blocks) if blocks.len() == 1 => blocks.get(0),
            other => {
                let count = other.map_or(0, |b| b.len());
                return Err(format!("the file has {count} record batches instead of one"));
            }
        };
        let frame = Frame::of(block, start).ok_or("the record batch lies outside of the file")?;
        // Four bytes that mark the message and four bytes with its length stand before the message.
        let message = root_as_message(&bytes[frame.metadata.start + 8..frame.metadata.end])
            .map_err(|e| e.to_string())?;
        let batch =
            message.header_as_record_batch().ok_or("the one message is not a record batch")?;
        if batch.compression().is_some() {
            return Err("the record batch is compressed".to_owned());
        }
        let rows = usize::try_from(batch.length()).ok().filter(|&rows| rows < MAX_ROWS);
        let rows = rows.ok_or("the number of rows is out of range")?;
        Ok(Self { schema, rows, bytes, body: frame.body, batch })
    }

    /// Returns a reader that begins at the first column.
    pub(crate) fn columns(&self) -> Columns<'_> {
        Columns { file: self, node: 0, buffer: 0 }
    }

    /// Returns the value of a key in the schema's metadata, or an empty text if the key is missing.
    pub(crate) fn metadata(&self, key: &str) -> &str {
        self.schema.metadata().get(key).map_or("", String::as_str)
    }
}

/// The byte ranges of a record batch in the file.
struct Frame {
    metadata: Range<usize>,
    body: Range<usize>,
}

impl Frame {
    /// Computes the byte ranges of a record batch. Returns `None` if a part of the batch lies
    /// outside the first `limit` bytes.
    fn of(block: &Block, limit: usize) -> Option<Self> {
        let start = usize::try_from(block.offset()).ok()?;
        let middle = start.checked_add(usize::try_from(block.metaDataLength()).ok()?)?;
        let end = middle.checked_add(usize::try_from(block.bodyLength()).ok()?)?;
        (middle - start >= 8 && end <= limit)
            .then_some(Self { metadata: start..middle, body: middle..end })
    }
}

/// A reader of the columns of a batch, which reads them in the order of the schema.
pub(crate) struct Columns<'a> {
    file: &'a ArrowFile<'a>,
    /// The index of the next field node, counted from 0.
    node: usize,
    buffer: usize,
}

impl Columns<'_> {
    /// Reads a column with one number per row.
    pub(crate) fn numbers<T: ArrowNativeType>(
        &mut self,
        name: &str,
    ) -> Result<ScalarBuffer<T>, String> {
        self.next(name, self.file.rows)
    }

    /// Reads a column with a list of `width` numbers per row. The result has the lists one after
    /// another.
    pub(crate) fn lists<T: ArrowNativeType>(
        &mut self,
        name: &str,
        width: usize,
    ) -> Result<ScalarBuffer<T>, String> {
        self.node(name, self.file.rows)?;
        let values = self.file.rows.checked_mul(width);
        self.next(name, values.ok_or_else(|| format!("column `{name}` is too wide"))?)
    }

    /// Reads the offsets of a column with a list of variable length per row: one offset per row,
    /// and one more. The caller must check them before it uses them. The values must be read next
    /// ([`Columns::list_values`]).
    pub(crate) fn list_offsets(&mut self, name: &str) -> Result<ScalarBuffer<u32>, String> {
        self.node(name, self.file.rows)?;
        // Offsets have a sign in Arrow. A negative one becomes a number beyond every list.
        self.values(self.file.rows + 1)
            .ok_or_else(|| format!("column `{name}` has too few offsets in its record batch"))
    }

    /// Reads the `count` values of all lists of the column whose offsets were read last.
    pub(crate) fn list_values<T: ArrowNativeType>(
        &mut self,
        name: &str,
        count: usize,
    ) -> Result<ScalarBuffer<T>, String> {
        self.next(name, count)
    }

    fn next<T: ArrowNativeType>(
        &mut self,
        name: &str,
        length: usize,
    ) -> Result<ScalarBuffer<T>, String> {
        self.node(name, length)?;
        self.values(length).ok_or_else(|| {
            format!("column `{name}` has fewer than {length} values in its record batch")
        })
    }

    /// Reads the next field node and skips its buffer of null bits. The columns of these files have
    /// no nulls, so the buffer is not needed.
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
            None => Err(format!("column `{name}` is missing")),
        }
    }

    /// Reads `count` values from the next buffer. Returns `None` if the buffer is too short or not
    /// aligned for them.
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
