//! Lines as messages: large reads, which are divided at the ends of lines.
//!
//! A block is read at the offset of its first message, straight into its memory. The beginning of a
//! line at the end of the block is read again with the next block. That is cheaper than to keep it:
//! it is half a message for each block.

use memchr::memchr_iter;

use super::open_file::OpenFile;
use super::{FolderSettings, LongMessages};
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::source::{Block, Bounds, KEPT_HEAD, TooLong};

/// Fills a block with the lines of a file from offset `from` on, up to offset `until` of the
/// partition. A line without an end is a message if it ends at `until` or at the end of the file.
pub(super) fn fill(
    block: &mut Block,
    partition: Partition,
    file: &OpenFile,
    (from, until): (u64, u64),
    settings: &FolderSettings,
) -> Result<()> {
    block.restart(partition, from);
    let left = until.min(file.identity().end()).saturating_sub(from);
    let place = from - file.identity().start;
    if left == 0 {
        return Ok(());
    }
    // Two bytes more than the limit show that a line is too long, whatever its end is.
    let longest = settings.max_message_bytes + 2;
    let mut window = settings.block_bytes;
    let mut filled = 0;
    loop {
        let wanted = usize::try_from(left).map_or(window, |left| left.min(window));
        if block.bytes.len() < wanted {
            block.bytes.resize(wanted, 0);
        }
        file.read(place + filled as u64, &mut block.bytes[filled..wanted])?;
        let is_end = wanted as u64 == left;
        let cut = divide(block, (filled, wanted), is_end, settings.max_message_bytes);
        match cut {
            Cut::At(end) => {
                block.end = from + end as u64;
                break;
            }
            Cut::NoEnd if wanted < longest => {
                filled = wanted;
                // Doubling keeps the work linear in the length of the message.
                window = (window * 2).min(longest);
            }
            Cut::NoEnd | Cut::TooLong => {
                skip(block, file, (place, left), settings)?;
                break;
            }
        }
    }
    file.check_unchanged()
}

/// The outcome of a division into lines.
enum Cut {
    /// The block ends behind this number of bytes.
    At(usize),
    /// The bytes contain no end of a line.
    NoEnd,
    /// The first line is longer than the limit.
    TooLong,
}

/// Divides the bytes of a block into lines. The bytes before `searched` contain no end of a line.
fn divide(block: &mut Block, bytes: (usize, usize), is_end: bool, limit: usize) -> Cut {
    let (searched, filled) = bytes;
    let data = &block.bytes[..filled];
    let last = (is_end && data.last() != Some(&b'\n')).then_some(filled);
    let ends = memchr_iter(b'\n', &data[searched..]).map(|at| searched + at);
    let mut start = 0;
    for end in ends.chain(last) {
        let next = (end + 1).min(filled);
        let line = &data[start..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > limit {
            // A line that is too long is a block of its own.
            return if start == 0 { Cut::TooLong } else { Cut::At(start) };
        }
        if !line.is_empty() {
            // A block is smaller than 2 GiB, as the settings are checked.
            let bytes = start as u32..(start + line.len()) as u32;
            let offset = bytes.start;
            block.messages.push(Bounds { bytes, offset, next: next as u32 });
        }
        start = next;
    }
    if start == 0 { Cut::NoEnd } else { Cut::At(start) }
}

/// Makes a block of the message at its start, which is too long.
fn skip(
    block: &mut Block,
    file: &OpenFile,
    (place, left): (u64, u64),
    settings: &FolderSettings,
) -> Result<()> {
    if settings.long_messages == LongMessages::Stop {
        return Err(Error::MessageTooLong {
            partition: block.partition,
            offset: block.start,
            limit: settings.max_message_bytes,
        });
    }
    let mut chunk = vec![0; settings.block_bytes];
    let mut head = Vec::new();
    let mut at = 0;
    let length = loop {
        let wanted = usize::try_from(left - at).map_or(chunk.len(), |rest| rest.min(chunk.len()));
        if wanted == 0 {
            break left;
        }
        file.read(place + at, &mut chunk[..wanted])?;
        if at == 0 {
            head.extend_from_slice(&chunk[..wanted.min(KEPT_HEAD)]);
        }
        if let Some(end) = memchr::memchr(b'\n', &chunk[..wanted]) {
            break at + end as u64 + 1;
        }
        at += wanted as u64;
    };
    head.truncate(length as usize);
    block.end = block.start + length;
    block.too_long = Some(TooLong { offset: block.start, next: block.end, head });
    Ok(())
}
