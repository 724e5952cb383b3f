//! Endless data for online training: events that arrive in partitions.
//!
//! A *stream* is a followed folder or a topic. It consists of partitions, and each partition is a
//! sequence of messages at growing offsets. Whatever depends on time or on arrival is a *decision*,
//! which is written to a log before it takes effect. Everything else is a function of this log and
//! of the messages, so that a run can be repeated byte for byte.

mod dead_letters;
mod decisions;
mod error;
mod file;
mod folder;
pub mod gate;
pub mod joiner;
#[cfg(feature = "kafka")]
mod kafka;
mod option_value;
mod partition;
mod position;
mod schema_registry;
mod source;
mod taking;
pub mod validation;
pub mod watermark;

pub use dead_letters::{DeadLetter, DeadLetterPosition, DeadLetters};
pub use decisions::{
    CutReason, Decision, DecisionLog, LogLock, LogOptions, Replay, RowRules, Took, TornTail,
    first_decision, read_decisions,
};
pub use error::{Error, Result};
pub use file::{FileHistory, FileIdentity};
pub use folder::{FolderSettings, FollowedFolder, Framing, LongMessages, is_ignored_name};
pub use joiner::Joiner;
#[cfg(feature = "kafka")]
pub use kafka::{KafkaSettings, KafkaSource, Start};
pub use option_value::{OptionValue, SecretFile, SecretVariable};
pub use partition::{EventTime, Partition};
pub use position::{PartitionPosition, PinnedSchema, Position};
pub use schema_registry::{
    FoundSchema, RegistrySettings, SchemaRegistry, StoredReference, StoredSchema,
};
pub use source::{Block, Message, OffsetUnit, PartitionState, Place, Source, TooLong};
pub use taking::{Taking, check_took};
pub use watermark::Watermarks;
