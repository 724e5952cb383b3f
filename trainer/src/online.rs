//! Endless data becomes batches: messages are consumed, decoded, joined with their feedback and cut
//! into batches.
//!
//! The feed runs on a thread of its own, and at most two of its items wait for training. It makes
//! every decision that depends on time: where a batch ends, when a version is published, when a
//! checkpoint is written. Each decision is in the log before it takes effect. So the feed hands
//! over a sequence of items that is a function of the log and of the messages, and a replay hands
//! over the same sequence.
//!
//! # Invariants
//! * A checkpoint item comes after its batch and before the next one. The state of the feed in it
//!   is that after the batch, whatever the feed has read ahead.
//! * An item is handed over only after its decision was synced.

mod assembler;
mod cadence;
mod columns;
mod consume;
mod events;
mod feed;
mod item;
mod judging;
mod leftovers;
mod needs;
mod newest;
mod renewal;
mod reset;
mod row_codec;
mod rules;
mod setup;
mod snapshot;
mod status;
mod thread;

pub use consume::consume_streams;
pub use feed::PAUSED;
pub(crate) use item::{FedBatch, FedVersion, Item, Repetition};
pub(crate) use judging::{BatchScores, Judging, Trip};
pub use needs::{NeededMessages, list_needed};
pub(crate) use needs::{Needs, find_missing, position_of};
pub(crate) use newest::NewestRows;
pub(crate) use renewal::{newest_link, pinned_steps, renew, retain_renewals};
pub use reset::{Forgotten, PartitionReset, ResetPlan, plan_reset, reset_streams};
pub(crate) use row_codec::{WrongRow, copy_rows};
pub(crate) use setup::{FeedSetup, lock_run};
pub use setup::{schema_folder, stream_folder};
pub use snapshot::SnapshotLink;
pub(crate) use snapshot::{read_judging, read_published, retain, write_judging};
pub use status::{FeedStatus, JoinStatus, PartitionStatus};
pub(crate) use thread::FeedThread;
