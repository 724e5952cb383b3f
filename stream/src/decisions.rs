//! The log of decisions: everything about a stream that depends on time or on arrival.
//!
//! A decision is appended to the log and synced before it takes effect. Everything else is a
//! function of the log and of the messages. After a crash, a run begins at its newest checkpoint,
//! reads the decisions after it and makes the same batches and versions again.
//!
//! # Format
//!
//! A log is a folder. Its decisions are numbered from 0 without gaps and lie in segments. The file
//! `decisions-N.log` begins with decision N, which has 20 digits. All integers are little-endian. A
//! segment begins with a header of 32 bytes:
//!
//! | bytes | contents |
//! |---|---|
//! | 0 to 7 | the magic `zillionD` |
//! | 8 to 11 | the version of the format, 1 |
//! | 12 to 15 | zeros |
//! | 16 to 23 | the number of the first decision |
//! | 24 to 31 | xxh3-64 of the bytes 0 to 23 |
//!
//! Records follow without gaps, one for each decision:
//!
//! | size | contents |
//! |---|---|
//! | 4 | the number of bytes of the decision, at most 16 MiB |
//! | 8 | the number of the decision |
//! | 4 | the low half of xxh3-64 of the 12 bytes before |
//! | length | the decision as JSON |
//! | 8 | xxh3-64 of the JSON, with the number of the decision as the seed |
//!
//! A length has a checksum of its own, so that a damaged length is never taken for the end of the
//! file, and no memory is reserved for it.
//!
//! # Invariants
//!
//! A segment is complete and synced before the next one is created. Only one process writes to a
//! log: it has the lock of the file `LOCK` in the folder ([`LogLock`]).
//!
//! # Crash consistency
//!
//! Records that were not synced may be lost or torn, but only at the end of the last segment.
//! [`DecisionLog::open`] cuts off a torn record and reports it: the file ends inside the record, or
//! contains only zeros from a place in the record to its end, which is what a file system leaves
//! after a loss of power. Every other deviation is an error, because a decision that was synced may
//! already have had its effect. Records that were written but not synced before a crash are synced
//! at the opening, before they can be replayed.

mod lock;
mod log;
mod record;
mod replay;
mod segment;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::lock::LogLock;
pub use self::log::{DecisionLog, LogOptions, TornTail};
pub use self::replay::{Replay, first_decision, read_decisions};
use crate::file::{FileHistory, FileIdentity};
use crate::partition::Partition;

/// A decision about a stream, in the form in which the log records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Decision {
    /// Messages of a partition were consumed.
    Took(Took),
    /// A partition has had no messages for so long that the watermark no longer waits for it.
    Idle {
        /// The partition without messages.
        partition: Partition,
    },
    /// An idle partition has messages again.
    Back {
        /// The partition that is no longer idle.
        partition: Partition,
    },
    /// A batch ends here.
    Cut {
        /// The number of the batch.
        batch: u64,
        /// The number of rows of the batch.
        rows: u64,
        /// The reason for the end of the batch.
        reason: CutReason,
    },
    /// A version is published here.
    Publish {
        /// The number of batches that the version contains.
        batch: u64,
    },
    /// A checkpoint is written here.
    Checkpoint {
        /// The number of batches that the checkpoint contains.
        batch: u64,
    },
    /// A rewind leaves batches out.
    Skip {
        /// The number of the first batch that is left out.
        from: u64,
        /// The number of the first batch after the gap.
        to: u64,
        /// The reason for the rewind, for people.
        reason: String,
        /// The number of the first decision behind which no messages are read again, because they
        /// do not exist any more. The decisions up to this one only move the position. Each
        /// partition of which they consumed messages is reset behind them. Absent if the messages
        /// of the batches are read again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unread: Option<u64>,
    },
    /// A rewind should have left batches out, but the way back was lost. The batches stay in the
    /// model, and no verdict about them asks for a rewind again.
    Keep {
        /// The number of the first batch that the rewind should have left out.
        from: u64,
        /// The number of the first batch after them.
        to: u64,
        /// The reason for the rewind, and the problem of the way back, for people.
        reason: String,
    },
    /// A schema of messages was seen for the first time.
    Schema {
        /// The number of the stream in the job.
        stream: u16,
        /// The id of the schema in its registry.
        id: u32,
        /// The hash of the schema with everything to which it refers
        /// ([`crate::StoredSchema::fingerprint`]).
        fingerprint: u64,
    },
    /// The stream has these partitions from now on.
    Partitions {
        /// The number of the stream in the job.
        stream: u16,
        /// The names of all partitions. The place in the list is the number of the partition.
        names: Vec<String>,
        /// The offsets at which the partitions begin that are new in this list, in the order of
        /// their numbers. An empty list means that all of them begin at offset 0.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        starts: Vec<u64>,
    },
    /// The next file of a partition of a followed folder is this file.
    File {
        /// The partition of the file.
        partition: Partition,
        /// The identity of the file and its place in the partition.
        file: FileIdentity,
    },
    /// The settings by which messages become rows, from here on.
    Rules(RowRules),
    /// An operator has set a partition to another offset. Messages before it are left out, or
    /// messages after it are read again.
    Reset {
        /// The partition that goes on elsewhere.
        partition: Partition,
        /// The offset of the next message.
        to: u64,
        /// The files of the partition from this offset on, and the last ones before it, if the
        /// stream is a followed folder.
        #[serde(default)]
        files: FileHistory,
    },
}

/// The settings that decide which messages become rows. The decisions of a log are repeated with
/// the settings with which they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowRules {
    /// The number of milliseconds by which events of a partition may be out of order.
    pub disorder_ms: u64,
    /// The number of milliseconds by which an event may be ahead of the latest accepted event.
    pub max_ahead_ms: u64,
    /// The number of refused events in a row after which a jump ahead is accepted.
    pub accept_jump_after: u32,
    /// The largest size of a message in bytes.
    pub max_message_bytes: u64,
    /// The time from which `max_ahead_ms` is reckoned before the first event, in milliseconds since
    /// 1970: the clock of the machine when the run began. It is absent in logs of earlier versions,
    /// where the first event is accepted whatever its time is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<i64>,
}

/// A span of consecutive messages of a partition that was consumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Took {
    /// The partition of the messages.
    pub partition: Partition,
    /// The offset at which the span begins.
    pub from: u64,
    /// The offset behind the span.
    pub to: u64,
    /// The number of messages. A span may be longer than its messages, because offsets have gaps.
    pub count: u64,
    /// The hash of the bytes of the messages (see [`crate::Taking`]).
    pub hash: u64,
}

/// The reason for the end of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutReason {
    /// The batch has the largest number of rows.
    Full,
    /// The first row of the batch has waited for the longest allowed time.
    Linger,
    /// The run stops after the batch.
    Stop,
}
