//! The reader of Arrow IPC files (Feather V2). The reader maps a file into memory and decodes one
//! record batch at a time. Buffers that are not compressed are not copied. From a bucket it reads
//! the footer, the heads of the record batches, and one record batch at a time.
//!
//! The mapping of a batch is dropped together with the batch, so memory does not grow with the
//! file. The reader checks every size and position in the file before it uses them.

mod contents;
mod forms;
mod from_stream;
mod plain;

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, MetadataVersion, root_as_footer, root_as_message};
use arrow_schema::{DataType, Field as ArrowField, Schema as ArrowSchema, SchemaRef};

use crate::arrays::{GroupBatches, GroupPlan, GroupSource, Start, plain_type, without_panic};
use crate::error::{Near, ReaderError, Result};
use crate::field::Field;
use crate::input::Input;
use contents::{Contents, head_of, range_of};
pub(crate) use forms::Forms;
pub use from_stream::make_arrow_file;

const MAGIC: &[u8] = b"ARROW1";
/// The maximum number of bytes that a compressed buffer may declare for its decompressed contents.
const LARGEST_BUFFER: i64 = 1 << 32;
/// The number of rows that the reader returns at a time. With this number, a column fits into the
/// first-level cache.
pub(crate) const ROWS: usize = 8192;

/// An Arrow file whose footer has been read.
#[derive(Clone, Debug)]
pub(crate) struct IpcFile {
    pub(crate) input: Input,
    schema: SchemaRef,
    version: MetadataVersion,
    /// The dictionaries of all columns. If one of the columns to read has a dictionary, all of them
    /// are decoded.
    dictionaries: Vec<Block>,
    batches: Vec<Block>,
    /// The number of rows of each record batch.
    pub(crate) groups: Vec<u64>,
}

/// The source of the record batches of a file, with the form in which each column is decoded.
#[derive(Clone, Debug)]
struct IpcGroups {
    file: Arc<IpcFile>,
    forms: Forms,
}

impl GroupSource for IpcGroups {
    fn bytes(&self, group: usize, _columns: &[usize]) -> u64 {
        u64::try_from(self.file.batches[group].bodyLength()).unwrap_or_default()
    }

    fn open(&self, roots: Vec<usize>, start: Start) -> Result<GroupBatches> {
        Ok(Box::new(IpcBatches::open(self, roots, start.group, start.row)?))
    }

    fn read_ahead(&self, group: usize, _columns: &[usize]) {
        let range = range_of(&self.file.batches[group]);
        if let (Input::Object(object), Some(range)) = (&self.file.input, range) {
            object.read_ahead(range);
        }
    }

    fn near(&self, group: usize) -> Near {
        Near::RecordBatch(group)
    }

    fn damaged(&self, group: usize, reason: String) -> ReaderError {
        let what = format!("record batch {group} cannot be decoded");
        let path = self.file.input.path().to_owned();
        self.file.input.failure_or(ReaderError::Damaged { what, reason, path })
    }
}

impl IpcFile {
    pub(crate) fn open(input: Input) -> Result<Self> {
        let path = input.path();
        if input.is_empty()? {
            return Err(ReaderError::EmptyFile { path: path.to_owned() });
        }
        let bytes = Contents::open(&input)?;
        let failed = |reason: String| {
            input.failure_or(ReaderError::damaged("not a readable Arrow IPC file", path)(reason))
        };
        let start = bytes.read(0..bytes.len().min(MAGIC.len())).map_err(failed)?;
        if start.starts_with(b"FEA1") || start.starts_with(&[0xff; 4]) {
            let what = if start[0] == 0xff { "an Arrow stream" } else { "Feather version 1" };
            let problem = format!(
                "the file is {what}, which has no list of its batches; write it as an Arrow IPC file (`pyarrow.feather.write_feather`, `pyarrow.ipc.new_file`)"
            );
            return Err(ReaderError::setting(path.display(), problem));
        }
        if start.as_ref() != MAGIC {
            return Err(failed("it does not begin with ARROW1".to_owned()));
        }
        without_panic(|| Self::read(&input, &bytes)).map_err(failed)
    }

    fn read(input: &Input, bytes: &Contents) -> std::result::Result<Self, String> {
        let trailer = bytes.len().saturating_sub(10)..bytes.len();
        let trailer = bytes.read(trailer)?;
        let trailer: [u8; 10] = trailer.as_ref().try_into().map_err(|_| "it is too short")?;
        let end = bytes.len() - 10;
        let length = read_footer_length(trailer).map_err(|e| e.to_string())?;
        let start = end.checked_sub(length).ok_or("its footer is longer than the file")?;
        let footer = bytes.read(start..end)?;
        let footer = root_as_footer(&footer).map_err(|e| e.to_string())?;
        let schema = footer.schema().ok_or("its footer has no schema")?;
        let schema = Arc::new(try_fb_to_schema(schema).map_err(|e| e.to_string())?);
        let dictionaries: Vec<Block> = footer.dictionaries().iter().flatten().copied().collect();
        let batches: Vec<Block> = footer.recordBatches().iter().flatten().copied().collect();
        bytes.read_ahead(batches.iter().filter_map(head_of));
        let groups = batches.iter().map(|block| rows_of(bytes, block));
        let groups = groups.collect::<std::result::Result<_, String>>()?;
        let (input, version) = (input.clone(), footer.version());
        Ok(Self { input, schema, version, dictionaries, batches, groups })
    }

    /// Finds the columns of the fields, checks their types, and returns the plan that decodes them.
    /// `first` is the first file of the list if this file is a later one.
    pub(crate) fn group_plan(&self, fields: &[Field], first: Option<&Path>) -> Result<GroupPlan> {
        let (columns, forms) = Forms::of_fields(&self.schema, fields, self.input.path(), first)?;
        let source = IpcGroups { file: Arc::new(self.clone()), forms };
        Ok(GroupPlan { source: Arc::new(source), columns })
    }

    /// Returns the names of the columns.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.schema.fields().iter().map(|field| field.name().as_str()).collect()
    }

    /// Returns the names of the columns and the types of their values. The types ignore the
    /// encoding.
    pub(crate) fn plain_schema(&self) -> SchemaRef {
        let plain = |field: &Arc<ArrowField>| {
            field.as_ref().clone().with_data_type(plain_type(field.data_type()))
        };
        Arc::new(ArrowSchema::new(self.schema.fields().iter().map(plain).collect::<Vec<_>>()))
    }

    /// Returns an iterator over the record batches of the file with all columns. The iterator
    /// returns an error if a batch cannot be decoded.
    pub(crate) fn all_batches(&self) -> impl Iterator<Item = Result<RecordBatch>> + use<> {
        let width = self.schema.fields().len();
        let source = IpcGroups { file: Arc::new(self.clone()), forms: Forms::of_all(width) };
        (0..self.groups.len()).flat_map(move |group| {
            let (batches, error) = match IpcBatches::open(&source, (0..width).collect(), group, 0) {
                Ok(batches) => (Some(batches), None),
                Err(error) => (None, Some(Err(error))),
            };
            let source = source.clone();
            let damaged = move |reason| source.damaged(group, reason);
            batches.into_iter().flatten().map(move |batch| batch.map_err(&damaged)).chain(error)
        })
    }
}

/// A reader of one record batch, which returns a few rows at a time.
struct IpcBatches {
    source: IpcGroups,
    roots: Vec<usize>,
    group: usize,
    /// The contents of the file. They are needed until the record batch has been decoded.
    bytes: Option<Contents>,
    batch: Option<RecordBatch>,
    row: usize,
}

impl Iterator for IpcBatches {
    type Item = std::result::Result<RecordBatch, String>;

    fn next(&mut self) -> Option<Self::Item> {
        without_panic(|| self.next_rows()).transpose()
    }
}

impl IpcBatches {
    /// Opens record batch `group` at row `row`. `roots` holds the positions of the columns to read,
    /// ascending. This function decodes nothing.
    fn open(source: &IpcGroups, roots: Vec<usize>, group: usize, row: u64) -> Result<Self> {
        let bytes = Some(Contents::open(&source.file.input)?);
        let row = usize::try_from(row).unwrap_or(usize::MAX);
        Ok(Self { source: source.clone(), roots, group, bytes, batch: None, row })
    }

    /// Decodes the next rows, or returns `None` at the end of the record batch. Damaged bytes may
    /// cause a panic in this function.
    fn next_rows(&mut self) -> std::result::Result<Option<RecordBatch>, String> {
        let batch = match self.batch.take() {
            Some(batch) => batch,
            None => self.decode()?,
        };
        let rows = batch.num_rows().saturating_sub(self.row).min(ROWS);
        let slice = (rows > 0).then(|| batch.slice(self.row, rows));
        self.row += rows;
        self.batch = Some(batch);
        slice.map(|slice| self.plain(&slice)).transpose()
    }

    fn decode(&mut self) -> std::result::Result<RecordBatch, String> {
        let IpcFile { schema, version, dictionaries, batches, .. } = self.source.file.as_ref();
        let bytes = self.bytes.take().ok_or("the record batch has been decoded before")?;
        let read = |block: &Block| -> std::result::Result<Buffer, String> {
            let bytes = bytes.read_block(block)?;
            check_sizes(&bytes, block)?;
            Ok(Buffer::from(bytes))
        };
        let mut decoder = FileDecoder::new(schema.clone(), *version);
        if self.roots.iter().any(|&root| has_dictionary(schema.field(root).data_type())) {
            for block in dictionaries {
                decoder.read_dictionary(block, &read(block)?).map_err(|e| e.to_string())?;
            }
        }
        let decoder = decoder.with_projection(self.roots.clone());
        let block = &batches[self.group];
        let batch = decoder.read_record_batch(block, &read(block)?);
        batch.map_err(|e| e.to_string())?.ok_or_else(|| "it holds no record batch".to_owned())
    }

    /// Returns the same values with the types that the decoders accept.
    fn plain(&self, batch: &RecordBatch) -> std::result::Result<RecordBatch, String> {
        let columns = batch
            .columns()
            .iter()
            .zip(&self.roots)
            .map(|(array, &root)| self.source.forms.plain(array, root));
        let columns: Vec<ArrayRef> = columns.collect::<std::result::Result<_, String>>()?;
        let field = |(field, array): (&Arc<ArrowField>, &ArrayRef)| {
            field.as_ref().clone().with_data_type(array.data_type().clone()).with_nullable(true)
        };
        let fields: Vec<_> = batch.schema_ref().fields().iter().zip(&columns).map(field).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let schema = Arc::new(ArrowSchema::new(fields));
        RecordBatch::try_new_with_options(schema, columns, &options).map_err(|e| e.to_string())
    }
}

/// Returns whether a type is a dictionary, or a list with a dictionary in it.
pub(crate) fn has_dictionary(found: &DataType) -> bool {
    match found {
        DataType::Dictionary(..) => true,
        DataType::List(element)
        | DataType::LargeList(element)
        | DataType::FixedSizeList(element, _) => has_dictionary(element.data_type()),
        _ => false,
    }
}

/// Splits the bytes of a block into its message and its body.
fn message<'a>(
    bytes: &'a [u8],
    block: &Block,
) -> std::result::Result<(arrow_ipc::Message<'a>, &'a [u8]), String> {
    let metadata = usize::try_from(block.metaDataLength()).unwrap_or(usize::MAX);
    let (head, body) = bytes.split_at_checked(metadata).ok_or("a message is cut off")?;
    let head = head.strip_prefix(&[0xff; 4]).unwrap_or(head);
    let message = root_as_message(head.get(4..).ok_or("a message is cut off")?);
    Ok((message.map_err(|e| e.to_string())?, body))
}

fn rows_of(bytes: &Contents, block: &Block) -> std::result::Result<u64, String> {
    let bytes = bytes.read_head(block)?;
    let (message, _) = message(&bytes, block)?;
    let batch = message.header_as_record_batch().ok_or("a block is not a record batch")?;
    u64::try_from(batch.length()).map_err(|_| "a record batch has a negative length".to_owned())
}

/// Returns an error if a buffer of the block lies outside the body or declares an impossible size.
pub(crate) fn check_sizes(bytes: &[u8], block: &Block) -> std::result::Result<(), String> {
    let (message, body) = message(bytes, block)?;
    let dictionary = message.header_as_dictionary_batch().and_then(|batch| batch.data());
    let Some(batch) = message.header_as_record_batch().or(dictionary) else {
        return Err("a block is not a record batch".to_owned());
    };
    for buffer in batch.buffers().iter().flatten() {
        let range =
            usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let range = range.and_then(|(start, length)| Some(start..start.checked_add(length)?));
        let Some(buffer) = range.and_then(|range| body.get(range)) else {
            return Err("a buffer lies outside of its block".to_owned());
        };
        if let (true, Some(size)) = (batch.compression().is_some(), buffer.first_chunk::<8>())
            && i64::from_le_bytes(*size) > LARGEST_BUFFER
        {
            return Err(format!("a buffer claims {} bytes", i64::from_le_bytes(*size)));
        }
    }
    Ok(())
}
