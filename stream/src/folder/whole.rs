//! Whole files as messages, for formats such as Arrow IPC that have bounds of their own.

use super::open_file::OpenFile;
use super::{FolderSettings, LongMessages};
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::source::{Block, Bounds, KEPT_HEAD, TooLong};

/// Fills a block with the file that begins at offset `from` of the partition.
pub(super) fn fill(
    block: &mut Block,
    partition: Partition,
    file: &OpenFile,
    (from, until): (u64, u64),
    settings: &FolderSettings,
) -> Result<()> {
    block.restart(partition, from);
    let (start, end) = (file.identity().start, file.identity().end());
    if from != start || until < end {
        return Err(Error::Position(format!(
            "{partition}: offset {} is inside the file `{}`, which is one message from offset \
             {start} to {end}; use the `framing` with which the stream began",
            if from == start { until } else { from },
            file.identity().name
        )));
    }
    block.end = end;
    let size = usize::try_from(end - start).unwrap_or(usize::MAX);
    if size <= settings.max_message_bytes {
        if block.bytes.len() < size {
            block.bytes.resize(size, 0);
        }
        file.read(0, &mut block.bytes[..size])?;
        // A message is at most 1 GiB, as the settings are checked.
        block.messages.push(Bounds { bytes: 0..size as u32, offset: 0, next: size as u32 });
    } else if settings.long_messages == LongMessages::Stop {
        let limit = settings.max_message_bytes;
        return Err(Error::MessageTooLong { partition, offset: from, limit });
    } else {
        let mut head = vec![0; size.min(KEPT_HEAD)];
        file.read(0, &mut head)?;
        block.too_long = Some(TooLong { offset: from, next: end, head });
    }
    file.check_unchanged()
}
