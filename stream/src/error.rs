//! The errors of this crate, about the log of decisions, positions and sources.

use std::path::PathBuf;

use zillion_device::DeviceError;

use crate::partition::Partition;

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate, with the remedy for the operator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on a file failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A file of the log of decisions is damaged.
    #[error("log of decisions, `{}`, byte {offset}: {problem}; {remedy}", path.display())]
    Damaged {
        /// The file of the log.
        path: PathBuf,
        /// The place in the file, in bytes.
        offset: u64,
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// Another process has the log open.
    #[error(
        "log of decisions, `{}`: another process writes to the log; stop that process, or give \
         this run another folder", .0.display()
    )]
    InUse(PathBuf),
    /// An earlier write to the log failed, so that the end of its file is unknown.
    #[error(
        "log of decisions, `{}`: an earlier write failed; solve its problem and open the log again",
        .0.display()
    )]
    Failed(PathBuf),
    /// The log does not contain the decisions that a replay needs.
    #[error(
        "log of decisions, `{}`: decision {needed} is needed, but the log has the decisions from \
         {first} up to, not including, {next}; restore the missing files, or begin at another \
         checkpoint", folder.display()
    )]
    Missing {
        /// The folder of the log.
        folder: PathBuf,
        /// The number of the decision that the replay begins with.
        needed: u64,
        /// The number of the first decision in the log.
        first: u64,
        /// The number of the next decision of the log.
        next: u64,
    },
    /// A decision is too long for a record of the log.
    #[error(
        "decision {number} has {bytes} bytes, but at most {limit} are allowed; use fewer or \
         shorter names"
    )]
    DecisionTooLong {
        /// The number that the decision would have had.
        number: u64,
        /// The size of the decision in bytes.
        bytes: usize,
        /// The largest size in bytes.
        limit: usize,
    },
    /// A decision or a message does not fit the position.
    #[error("position of the stream: {0}")]
    Position(String),
    /// The messages of a span are not those that were consumed before.
    #[error(
        "{partition}, offsets {from} to {to}: {problem}; restore the original data, or begin at a \
         later checkpoint"
    )]
    Differs {
        /// The partition of the messages.
        partition: Partition,
        /// The offset at which the span begins in the log.
        from: u64,
        /// The offset behind the span in the log.
        to: u64,
        /// The problem, as a clause.
        problem: String,
    },
    /// The files of a followed folder break a rule of followed folders.
    #[error("{partition}, `{}`: {problem}; {remedy}", path.display())]
    Folder {
        /// The partition of the file.
        partition: Partition,
        /// The path of the file or folder.
        path: PathBuf,
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// The root of a followed folder cannot be used.
    #[error("followed folder `{}`: {problem}; {remedy}", path.display())]
    Root {
        /// The path of the root, or of an entry of it.
        path: PathBuf,
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// The settings of a stream of Kafka cannot be used.
    #[cfg(feature = "kafka")]
    #[error("stream of Kafka: {problem}; {remedy}")]
    KafkaSettings {
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// The brokers of a stream of Kafka cannot be used.
    #[cfg(feature = "kafka")]
    #[error("brokers `{brokers}`: {problem}; {remedy}")]
    Brokers {
        /// The addresses of the brokers in the settings.
        brokers: String,
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// A topic of Kafka cannot be used.
    #[cfg(feature = "kafka")]
    #[error("topic `{topic}`: {problem}; {remedy}")]
    Topic {
        /// The name of the topic.
        topic: String,
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// A partition of a topic cannot be read.
    #[cfg(feature = "kafka")]
    #[error("{partition} (`{name}`), offset {offset}: {problem}; {remedy}")]
    TopicPartition {
        /// The partition of the stream.
        partition: Partition,
        /// The topic and the number of the partition in it.
        name: String,
        /// The offset of the message that is needed.
        offset: u64,
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// A variable of the environment that a setting names is not set.
    #[error("`{setting}`: the variable `{variable}` is not set; set it, or correct its name")]
    Variable {
        /// The name of the setting.
        setting: String,
        /// The name of the variable.
        variable: String,
    },
    /// A registry of schemas cannot be used.
    #[error("registry of schemas `{url}`: {problem}; {remedy}")]
    Registry {
        /// The address of the registry in the settings.
        url: String,
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// The file of a schema that the log of decisions names cannot be used.
    #[error("schema of messages, `{}`: {problem}; {remedy}", path.display())]
    StoredSchema {
        /// The path of the file.
        path: PathBuf,
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// A message is longer than the limit.
    #[error(
        "{partition}, offset {offset}: the message has more than {limit} bytes \
         (`max_message_bytes`); correct the data, raise the limit, or reject long messages"
    )]
    MessageTooLong {
        /// The partition of the message.
        partition: Partition,
        /// The offset of the message.
        offset: u64,
        /// The largest size of a message in bytes.
        limit: usize,
    },
    /// The file of dead letters cannot be used.
    #[error("dead letters, `{}`: {problem}; {remedy}", path.display())]
    DeadLetters {
        /// The path of the file.
        path: PathBuf,
        /// The problem, as a clause.
        problem: String,
        /// The action that solves the problem.
        remedy: &'static str,
    },
    /// Too many messages were rejected.
    #[error(
        "dead letters, `{}`: more than {limit} of {window} messages were rejected, the last one at \
         {partition}, offset {offset} ({reason}); correct the data, or raise `max_rejected`",
        path.display()
    )]
    TooManyRejected {
        /// The file with the rejected messages.
        path: PathBuf,
        /// The largest number of rejected messages.
        limit: u64,
        /// The number of consecutive messages in which this number is allowed.
        window: u64,
        /// The partition of the last rejected message.
        partition: Partition,
        /// The offset of the last rejected message.
        offset: u64,
        /// The reason for the last rejection.
        reason: String,
    },
}
