//! The way from single messages with offsets to a block.

use crate::error::{Error, Result};
use crate::folder::LongMessages;
use crate::source::{Block, Bounds, KEPT_HEAD, TooLong};

/// The limits of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The offset before which messages belong to the block.
    pub(super) until: u64,
    /// The number of bytes at which the block is full.
    pub(super) block_bytes: usize,
    /// The largest size of a message.
    pub(super) max_message_bytes: usize,
    /// The treatment of longer messages.
    pub(super) long_messages: LongMessages,
}

/// The outcome of offering a message to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The message is in the block, and more may follow.
    Goes,
    /// The message is in the block, and no more may follow.
    Full,
    /// The message is not in the block, and belongs to a later one.
    Waits,
}

/// Adds a message to a block, or tells that the message belongs to a later one. The offset must not
/// lie before the end of the block. A message without contents (`None`), with which Kafka marks
/// removed keys, is none: the block ends behind it.
///
/// # Errors
/// Returns an error if the message is too long and this must stop the run.
pub(super) fn offer(
    block: &mut Block,
    offset: u64,
    contents: Option<&[u8]>,
    limits: Limits,
) -> Result<Verdict> {
    if offset >= limits.until {
        block.end = limits.until;
        return Ok(Verdict::Waits);
    }
    // The places of messages in a block are numbers of 32 bits.
    let (Ok(place), Ok(next)) =
        (u32::try_from(offset - block.start), u32::try_from(offset + 1 - block.start))
    else {
        block.end = offset;
        return Ok(Verdict::Waits);
    };
    let Some(bytes) = contents else {
        block.end = offset + 1;
        return Ok(Verdict::Goes);
    };
    if bytes.len() > limits.max_message_bytes {
        if limits.long_messages == LongMessages::Stop {
            if block.end > block.start {
                // The messages before it are handed over first.
                return Ok(Verdict::Waits);
            }
            let (partition, limit) = (block.partition, limits.max_message_bytes);
            return Err(Error::MessageTooLong { partition, offset, limit });
        }
        if !block.messages.is_empty() {
            return Ok(Verdict::Waits);
        }
        let head = bytes[..bytes.len().min(KEPT_HEAD)].to_vec();
        block.end = offset + 1;
        block.too_long = Some(TooLong { offset, next: offset + 1, head });
        return Ok(Verdict::Full);
    }
    // A block is smaller than 2 GiB, as the settings are checked.
    let start = block.bytes.len() as u32;
    block.bytes.extend_from_slice(bytes);
    let bytes = start..block.bytes.len() as u32;
    block.messages.push(Bounds { bytes, offset: place, next });
    block.end = offset + 1;
    let is_full = block.bytes.len() >= limits.block_bytes;
    Ok(if is_full { Verdict::Full } else { Verdict::Goes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::Partition;

    const LIMITS: Limits = Limits {
        until: u64::MAX,
        block_bytes: 20,
        max_message_bytes: 9,
        long_messages: LongMessages::Stop,
    };

    fn begin(start: u64) -> Block {
        let mut block = Block::new();
        block.restart(Partition { stream: 0, number: 0 }, start);
        block
    }

    fn list(block: &Block) -> Vec<(u64, u64, &[u8])> {
        block.iter().map(|message| (message.offset, message.next, message.bytes)).collect()
    }

    #[test]
    fn gaps_and_messages_without_contents_move_the_end_only() {
        let mut block = begin(10);
        assert_eq!(offer(&mut block, 12, Some(b"ab"), LIMITS).unwrap(), Verdict::Goes);
        assert_eq!(offer(&mut block, 17, Some(b""), LIMITS).unwrap(), Verdict::Goes);
        assert_eq!(offer(&mut block, 30, None, LIMITS).unwrap(), Verdict::Goes);
        assert_eq!(list(&block), [(12, 13, &b"ab"[..]), (17, 18, b"")]);
        assert_eq!((block.start(), block.end()), (10, 31));
    }

    #[test]
    fn a_span_ends_where_the_log_says() {
        let mut block = begin(10);
        let limits = Limits { until: 20, ..LIMITS };
        assert_eq!(offer(&mut block, 12, Some(b"ab"), limits).unwrap(), Verdict::Goes);
        // The messages from 13 to 19 were removed. The first one behind them ends the span.
        assert_eq!(offer(&mut block, 23, Some(b"cd"), limits).unwrap(), Verdict::Waits);
        assert_eq!((block.len(), block.end()), (1, 20));
    }

    #[test]
    fn a_block_is_full_by_its_bytes() {
        let mut block = begin(0);
        for (offset, verdict) in [Verdict::Goes, Verdict::Goes, Verdict::Full].iter().enumerate() {
            let offered = offer(&mut block, offset as u64, Some(b"1234567"), LIMITS).unwrap();
            assert_eq!(offered, *verdict);
        }
    }

    #[test]
    fn offsets_too_far_apart_are_in_several_blocks() {
        let far = 1 << 33;
        let mut block = begin(5);
        offer(&mut block, 5, Some(b"a"), LIMITS).unwrap();
        assert_eq!(offer(&mut block, far, Some(b"b"), LIMITS).unwrap(), Verdict::Waits);
        assert_eq!((block.len(), block.end()), (1, far));
        let mut block = begin(far);
        offer(&mut block, far, Some(b"b"), LIMITS).unwrap();
        assert_eq!(list(&block), [(far, far + 1, &b"b"[..])]);
    }

    #[test]
    fn a_message_too_long_is_alone() {
        let mut block = begin(0);
        offer(&mut block, 0, Some(b"first"), LIMITS).unwrap();
        let long = Some(&b"1234567890"[..]);
        assert_eq!(offer(&mut block, 1, long, LIMITS).unwrap(), Verdict::Waits);
        let error = offer(&mut begin(1), 1, long, LIMITS).unwrap_err().to_string();
        assert!(error.contains("offset 1: the message has more than 9 bytes"), "{error}");
        let limits = Limits { long_messages: LongMessages::Reject, ..LIMITS };
        assert_eq!(offer(&mut block, 1, long, limits).unwrap(), Verdict::Waits);
        let mut block = begin(1);
        assert_eq!(offer(&mut block, 1, long, limits).unwrap(), Verdict::Full);
        let head = b"1234567890".to_vec();
        assert_eq!(block.too_long(), Some(&TooLong { offset: 1, next: 2, head }));
        assert_eq!((block.len(), block.end()), (0, 2));
    }
}
