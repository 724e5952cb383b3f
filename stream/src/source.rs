//! Sources of messages, and the blocks in which they are handed over.
//!
//! A source never decides anything that a replay could not repeat. What it finds (a partition, a
//! file) is handed over as a decision, which must be in the log before messages are consumed that
//! depend on it.

use std::ops::Range;
use std::time::Duration;

use crate::decisions::Decision;
use crate::error::Result;
use crate::partition::Partition;

/// The number of bytes of a message that is too long which are kept for the dead letter.
pub(crate) const KEPT_HEAD: usize = 1024;

/// A source of the messages of one stream.
///
/// # Live reading
///
/// The caller repeats [`Source::poll`]. After each poll, the decisions of
/// [`Source::take_discoveries`] are appended to the log, before the span of any message of the
/// block. A span ends at [`Message::next`] of its last message, or at [`Block::end`] if all
/// messages of the block are consumed.
///
/// # Replay
///
/// The source is opened at the position of a checkpoint. Then, for each decision of the log in
/// order, the caller passes discoveries to [`Source::adopt`], and reads each recorded span with
/// [`Source::read`]. When the log ends, `poll` goes on behind the last span.
pub trait Source: Send {
    /// Fills `block` with the next messages of a partition that has some. Partitions take turns.
    /// Returns `false` if no partition has a message within `timeout`. Then `block` is empty.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read or its data breaks a rule of the source.
    fn poll(&mut self, block: &mut Block, timeout: Duration) -> Result<bool>;

    /// Fills `block` with messages of one partition that begin before offset `until`. Returns
    /// `false` if the source has reached this offset. Then `block` is empty.
    ///
    /// # Errors
    /// Returns an error if the messages do not exist any more, or if `until` lies behind the data
    /// that the log has recorded.
    fn read(&mut self, partition: Partition, until: u64, block: &mut Block) -> Result<bool>;

    /// Returns the decisions about discoveries since the last call, in the order in which the log
    /// must record them.
    fn take_discoveries(&mut self) -> Vec<Decision>;

    /// Adopts a discovery of an earlier run from the log. Decisions about other things or other
    /// streams change nothing.
    ///
    /// # Errors
    /// Returns an error if the decision contradicts what the source knows.
    fn adopt(&mut self, decision: &Decision) -> Result<()>;

    /// Sets the largest size of a message that is read from now on, in bytes.
    ///
    /// # Errors
    /// Returns an error if the size is out of bounds.
    fn set_max_message_bytes(&mut self, bytes: usize) -> Result<()>;

    /// Returns the offset of a place in a partition, or `None` if it is found only by reading.
    ///
    /// # Errors
    /// Returns an error if the brokers of the partition do not answer.
    fn find_offset(&mut self, partition: Partition, place: Place) -> Result<Option<u64>>;

    /// Returns the known partitions in the order of their numbers.
    fn partitions(&self) -> Vec<PartitionState>;
}

/// A place in the partitions of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first message that still exists.
    Start,
    /// The end, behind the last message.
    End,
    /// The first message of this time or a later one, in milliseconds since 1970: the time of its
    /// event in a followed folder, and the time of the message in a topic of Kafka.
    Time(i64),
}

/// The bounds of a partition and the place of a source in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// The partition of the stream.
    pub partition: Partition,
    /// The name of the partition in its stream.
    pub name: String,
    /// The offset of the first message that still exists, or `next` if no message exists.
    pub earliest: u64,
    /// The offset of the next message.
    pub next: u64,
    /// The offset behind the last message that the source has seen.
    pub end: u64,
    /// The unit of the offsets.
    pub unit: OffsetUnit,
}

/// The unit in which the offsets of a partition are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetUnit {
    /// An offset is a number of bytes, as in a followed folder.
    Bytes,
    /// An offset is a number of messages, as in a topic of Kafka. Some offsets have no message.
    Messages,
}

impl PartitionState {
    /// Returns the distance to the end of the partition, in the unit of its offsets.
    pub fn lag(&self) -> u64 {
        self.end.saturating_sub(self.next)
    }
}

/// One message of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The partition of the message.
    pub partition: Partition,
    /// The offset of the message.
    pub offset: u64,
    /// The offset behind the message, from which a reader goes on.
    pub next: u64,
    /// The bytes of the message, without the end of its line.
    pub bytes: &'a [u8],
}

/// A message that was left out because it is longer than the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The offset of the message.
    pub offset: u64,
    /// The offset behind the message.
    pub next: u64,
    /// The first 1,024 bytes of the message.
    pub head: Vec<u8>,
}

/// Consecutive messages of one partition in one piece of memory. A block is used again and again:
/// filling it allocates nothing once it has grown. A block may have no message, if the source has
/// only bytes there that are none, such as empty lines.
#[derive(Debug)]
pub struct Block {
    pub(crate) partition: Partition,
    /// The offset at which the block begins.
    pub(crate) start: u64,
    /// The offset behind the block.
    pub(crate) end: u64,
    /// The memory for the bytes. It may be larger than the data in it.
    pub(crate) bytes: Vec<u8>,
    pub(crate) messages: Vec<Bounds>,
    /// The message that was left out, if the block consists of one.
    pub(crate) too_long: Option<TooLong>,
}

/// The place of a message in the memory of its block.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// The bytes of the message.
    pub(crate) bytes: Range<u32>,
    /// The offset of the message, counted from the start of the block.
    pub(crate) offset: u32,
    /// The offset behind the message, counted from the start of the block.
    pub(crate) next: u32,
}

impl Block {
    /// Creates an empty block.
    pub fn new() -> Self {
        Self {
            partition: Partition { stream: 0, number: 0 },
            start: 0,
            end: 0,
            bytes: Vec::new(),
            messages: Vec::new(),
            too_long: None,
        }
    }

    /// Returns the partition of the messages.
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// Returns the offset at which the block begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the offset behind the block. It may lie behind the last message.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns whether the block has no message. Its end may still lie behind its start.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns a message by its place in the block.
    pub fn get(&self, index: usize) -> Option<Message<'_>> {
        self.messages.get(index).map(|bounds| self.message(bounds))
    }

    /// Returns the messages in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Message<'_>> {
        self.messages.iter().map(|bounds| self.message(bounds))
    }

    /// Returns the message that was left out because it is longer than the limit. A block with such
    /// a message has no other one.
    pub fn too_long(&self) -> Option<&TooLong> {
        self.too_long.as_ref()
    }

    fn message(&self, bounds: &Bounds) -> Message<'_> {
        Message {
            partition: self.partition,
            offset: self.start + u64::from(bounds.offset),
            next: self.start + u64::from(bounds.next),
            bytes: &self.bytes[bounds.bytes.start as usize..bounds.bytes.end as usize],
        }
    }

    /// Empties the block and gives it a new start.
    pub(crate) fn restart(&mut self, partition: Partition, start: u64) {
        self.partition = partition;
        self.start = start;
        self.end = start;
        self.messages.clear();
        self.too_long = None;
    }
}

impl Default for Block {
    fn default() -> Self {
        Self::new()
    }
}
