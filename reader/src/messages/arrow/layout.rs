//! The parts of a message in Arrow IPC: the schema, and the blocks of dictionaries and record
//! batches.
//!
//! The parts are found by their lengths, one after another. A file has a directory of its blocks at
//! its end, which is not used: the blocks of a directory may overlap, so that a small message could
//! contain a block a million times.

use std::ops::Range;
use std::sync::Arc;

use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::read_footer_length;
use arrow_ipc::{Message, MessageHeader, MetadataVersion, root_as_message_with_opts};
use arrow_schema::{Schema, SchemaRef};

use super::budget::Budget;
use crate::ipc::check_sizes;

/// The bytes at the beginning and at the end of a file.
const MAGIC: &[u8] = b"ARROW1";
/// The bytes before the length of each part. Old programs write the length without them.
const CONTINUATION: &[u8] = &[0xff; 4];
/// The largest number of zeros between the magic of a file and its first part.
const PADDING: usize = 64;
/// The largest size of metadata in which each reference is counted as a copy, as a multiple of the
/// size of the metadata. Written metadata has few shared parts, and none that are large.
const SHARING: usize = 16;
/// The number of bytes of a schema that are searched at the cost of one byte.
const FIELD: u64 = 8;

/// The parts of a message.
pub(super) struct Layout<'a> {
    /// The metadata of the schema.
    pub(super) schema: &'a [u8],
    /// The dictionaries and record batches, in the order in which they are decoded.
    pub(super) blocks: Vec<Block>,
}

/// A dictionary or a record batch.
pub(super) struct Block {
    pub(super) is_dictionary: bool,
    pub(super) block: arrow_ipc::Block,
    /// The bytes of the block in the message.
    pub(super) range: Range<usize>,
}

/// A part of a message: the metadata, and the size of the body behind it.
struct Part<'a> {
    metadata: &'a [u8],
    message: Message<'a>,
    range: Range<usize>,
    head: usize,
    body: usize,
}

impl<'a> Layout<'a> {
    /// Finds the parts of a message. Checks their sizes, and spends what their decoding costs.
    ///
    /// # Errors
    /// Returns the problem if the message is not a whole stream or file, or if the budget is too
    /// small.
    pub(super) fn of(message: &'a [u8], budget: &mut Budget) -> Result<Self, String> {
        let range = stream_range(message)?;
        let bytes = &message[..range.end];
        let first = next_part(bytes, range.start)?.ok_or("it has no schema")?;
        if first.message.header_type() != MessageHeader::Schema {
            return Err("it does not begin with a schema".to_owned());
        }
        let mut layout = Self { schema: first.metadata, blocks: Vec::new() };
        let mut at = first.range.end;
        while let Some(part) = next_part(bytes, at)? {
            at = part.range.end;
            layout.push(bytes, &part, budget)?;
        }
        if message.starts_with(MAGIC) {
            // The dictionaries of a file may come after the record batches that need them.
            layout.blocks.sort_by_key(|block| !block.is_dictionary);
        }
        Ok(layout)
    }

    fn push(&mut self, bytes: &[u8], part: &Part<'_>, budget: &mut Budget) -> Result<(), String> {
        let Part { message, range, head, body, .. } = part;
        let is_dictionary = message.header_type() == MessageHeader::DictionaryBatch;
        let head = i32::try_from(*head).map_err(|_| "a part is too large")?;
        let block = arrow_ipc::Block::new(range.start as i64, head, *body as i64);
        check_sizes(&bytes[range.clone()], &block)?;
        let contents = &bytes[range.end - body..range.end];
        match (message.header_as_dictionary_batch(), message.header_as_record_batch()) {
            (Some(dictionary), _) => {
                let batch = dictionary.data().ok_or("a dictionary has no data")?;
                // Arrow searches the field of each dictionary among all fields.
                budget.spend(self.schema.len() as u64 / FIELD)?;
                budget.spend_dictionary(batch, contents, dictionary.isDelta())?;
            }
            (None, Some(batch)) => budget.spend_batch(batch, contents)?,
            (None, None) => return Err("a part is not a record batch".to_owned()),
        }
        self.blocks.push(Block { is_dictionary, block, range: range.clone() });
        Ok(())
    }

    /// Returns the schema, and the version of the format.
    ///
    /// # Errors
    /// Returns the problem if the schema has something that cannot be read.
    pub(super) fn read_schema(&self) -> Result<(SchemaRef, MetadataVersion), String> {
        let message = parse(self.schema)?;
        let schema = message.header_as_schema().ok_or("it has no schema")?;
        let schema = try_fb_to_schema(schema).map_err(|e| e.to_string())?;
        // Arrow copies the metadata of the schema for each record batch, and nothing reads it.
        Ok((Arc::new(Schema::new(schema.fields)), message.version()))
    }
}

/// Returns the place of the stream in a message. A file contains a stream between its magic and its
/// directory.
fn stream_range(message: &[u8]) -> Result<Range<usize>, String> {
    if !message.starts_with(MAGIC) {
        return match message {
            [] => Err("it is empty".to_owned()),
            [b'F', b'E', b'A', b'1', ..] => Err("it is Feather version 1".to_owned()),
            _ => Ok(0..message.len()),
        };
    }
    let cut_off = "it begins as a file, but is cut off";
    let (rest, trailer) = message.split_last_chunk::<10>().ok_or(cut_off)?;
    let directory = read_footer_length(*trailer).map_err(|_| cut_off)?;
    let end = rest.len().checked_sub(directory).ok_or(cut_off)?;
    let mut start = 8;
    while start < PADDING && message.get(start..start + 8) == Some(&[0; 8]) {
        start += 8;
    }
    if start <= end { Ok(start..end) } else { Err(cut_off.to_owned()) }
}

/// Returns the part that starts at `start`, or `None` at the end of the stream.
fn next_part(bytes: &[u8], start: usize) -> Result<Option<Part<'_>>, String> {
    let cut_off = || "it is cut off".to_owned();
    let rest = &bytes[start..];
    if rest.is_empty() {
        return Ok(None);
    }
    let prefix = if rest.starts_with(CONTINUATION) { 4 } else { 0 };
    let length = rest.get(prefix..).and_then(<[u8]>::first_chunk::<4>).ok_or_else(cut_off)?;
    let length = usize::try_from(i32::from_le_bytes(*length)).map_err(|_| cut_off())?;
    if length == 0 {
        return match rest.iter().skip(prefix).all(|&byte| byte == 0) {
            true => Ok(None),
            false => Err("bytes follow its end".to_owned()),
        };
    }
    let head = prefix + 4 + length;
    let metadata = rest.get(prefix + 4..head).ok_or_else(cut_off)?;
    let message = parse(metadata)?;
    let body = usize::try_from(message.bodyLength()).map_err(|_| cut_off())?;
    let size = head.checked_add(body).filter(|&size| size <= rest.len()).ok_or_else(cut_off)?;
    Ok(Some(Part { metadata, message, range: start..start + size, head, body }))
}

/// Verifies and returns metadata. Metadata that refers to the same bytes again and again is
/// refused, because it would become much larger when it is read.
fn parse(metadata: &[u8]) -> Result<Message<'_>, String> {
    let mut options = options_of(root_as_message_with_opts);
    options.max_apparent_size = SHARING.saturating_mul(metadata.len());
    root_as_message_with_opts(&options, metadata).map_err(|e| e.to_string())
}

/// Returns the default options of a verifier. Their type belongs to a crate that only Arrow uses.
fn options_of<O: Default, M>(_verifier: fn(&O, &'static [u8]) -> M) -> O {
    O::default()
}
