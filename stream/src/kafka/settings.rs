//! The settings of a stream of Kafka, in the form in which a job contains them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::options;
use crate::error::{Error, Result};
use crate::folder::{LARGEST, LongMessages};
use crate::option_value::OptionValue;

/// The largest number of bytes of an answer with messages, if no single batch is larger.
pub(super) const ANSWER_BYTES: u64 = 16 << 20;
/// The number of bytes that the client needs for a queued message beside its contents.
const MESSAGE_OVERHEAD: u64 = 512;
/// The largest number of characters of the name of a topic.
const TOPIC_NAME: usize = 249;

/// The settings of a stream of Kafka.
///
/// As TOML:
///
/// ```toml
/// brokers = ["kafka-1:9092", "kafka-2:9092"]
/// topics = ["clicks"]
/// start = "latest"
/// options = { "security.protocol" = "sasl_ssl", "sasl.password" = { file = "/run/secret" } }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaSettings {
    /// The number of the stream in the job. It follows from the place of the stream in the job.
    #[serde(skip)]
    pub stream: u16,
    /// The addresses of some brokers, `host:port`. They name all others.
    pub brokers: Vec<String>,
    /// The names of the topics. A topic may be added later, and none may be left out.
    pub topics: Vec<String>,
    /// The place at which a new stream begins. It has no effect later.
    pub start: Start,
    /// Settings of librdkafka, for example those of TLS.
    pub options: BTreeMap<String, OptionValue>,
    /// The number of bytes at which a block of messages is full.
    pub block_bytes: usize,
    /// The largest size of a message in bytes.
    pub max_message_bytes: usize,
    /// The treatment of longer messages.
    pub long_messages: LongMessages,
    /// The number of bytes in the queue of a partition at which no more are fetched for it.
    pub queue_bytes: u32,
    /// The number of messages in the queue of a partition at which no more are fetched for it.
    pub queue_messages: u32,
    /// The number of bytes that are fetched at once for each partition.
    pub fetch_bytes: u32,
    /// The longest time in milliseconds for which a broker delays an answer without messages.
    pub fetch_wait_ms: u32,
    /// The time in milliseconds between two looks for new partitions.
    pub discovery_ms: u32,
    /// The time in milliseconds after which a question to the brokers has failed.
    pub request_ms: u32,
    /// The time in milliseconds without any broker after which the stream fails.
    pub outage_ms: u32,
}

/// The place at which a new stream begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// The stream begins with the first message that the brokers have.
    #[default]
    Earliest,
    /// The stream begins with the first message that is written after the stream was opened.
    Latest,
    /// The stream begins with the first message of this time or a later one, by the time that the
    /// brokers have for a message. The time is a number of milliseconds since 1970-01-01 UTC.
    Time(i64),
}

impl Default for KafkaSettings {
    fn default() -> Self {
        Self {
            stream: 0,
            brokers: Vec::new(),
            topics: Vec::new(),
            start: Start::default(),
            options: BTreeMap::new(),
            block_bytes: 1 << 20,
            max_message_bytes: 16 << 20,
            long_messages: LongMessages::default(),
            queue_bytes: 4 << 20,
            queue_messages: 10_000,
            fetch_bytes: 1 << 20,
            fetch_wait_ms: 20,
            discovery_ms: 30_000,
            request_ms: 10_000,
            outage_ms: 300_000,
        }
    }
}

impl KafkaSettings {
    /// Creates settings with the defaults for some brokers and topics.
    pub fn new(brokers: &[&str], topics: &[&str], stream: u16) -> Self {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self { stream, brokers: list(brokers), topics: list(topics), ..Self::default() }
    }

    /// Checks everything that can be checked without a broker and without secrets.
    ///
    /// # Errors
    /// Returns an error if a value is out of bounds, or if an option is not allowed.
    pub fn check(&self) -> Result<()> {
        if self.brokers.is_empty() || self.topics.is_empty() {
            let problem = "`brokers` and `topics` are needed".to_owned();
            return Err(refuse(problem, "name a broker as `host:port`, and a topic"));
        }
        let is_bad = |broker: &&String| broker.is_empty() || broker.contains([',', ' ']);
        if let Some(broker) = self.brokers.iter().find(is_bad) {
            return Err(refuse(format!("`{broker}` is no broker"), "write `host:port`"));
        }
        let mut known = BTreeSet::new();
        for topic in &self.topics {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if !(1..=TOPIC_NAME).contains(&topic.len()) || !topic.chars().all(is_plain) {
                let problem = format!("`{topic}` is no name of a topic");
                let remedy = "use letters, digits, `.`, `_` and `-`, at most 249 of them";
                return Err(refuse(problem, remedy));
            }
            if !known.insert(topic) {
                let problem = format!("the topic `{topic}` is there twice");
                return Err(refuse(problem, "name each topic once"));
            }
        }
        let sizes = [self.block_bytes, self.max_message_bytes];
        if sizes.iter().any(|bytes| !(1..=LARGEST).contains(bytes)) {
            let problem = format!(
                "`block_bytes` is {} and `max_message_bytes` is {}",
                self.block_bytes, self.max_message_bytes
            );
            return Err(refuse(problem, "use sizes from 1 byte to 1 GiB"));
        }
        for (name, value, least, most) in [
            ("queue_bytes", self.queue_bytes, 1024, 2 << 30),
            ("queue_messages", self.queue_messages, 1, 10_000_000),
            ("fetch_bytes", self.fetch_bytes, 1024, ANSWER_BYTES as u32),
            ("fetch_wait_ms", self.fetch_wait_ms, 1, 10_000),
            ("discovery_ms", self.discovery_ms, 10, 3_600_000),
            ("request_ms", self.request_ms, 100, 300_000),
            ("outage_ms", self.outage_ms, 1000, 86_400_000),
        ] {
            if !(least..=most).contains(&value) {
                let problem = format!("`{name}` is {value}, outside of {least} to {most}");
                return Err(refuse(problem, "use a value in these bounds"));
            }
        }
        options::check(&self.options)
    }

    /// Returns a bound of the memory for messages that wait, in bytes: `partitions × (queue_bytes +
    /// fetch_bytes + 512 × queue_messages) + brokers × 16 MiB + 2 × (block_bytes +
    /// max_message_bytes)`. Messages that are compressed count with the size that they have in the
    /// queue, so that `fetch_bytes` grows by their rate of compression.
    pub fn memory_bytes(&self, partitions: u64, brokers: u64) -> u64 {
        let queue = u64::from(self.queue_bytes) + u64::from(self.fetch_bytes);
        let overhead = MESSAGE_OVERHEAD * u64::from(self.queue_messages);
        let blocks = 2 * (self.block_bytes as u64 + self.max_message_bytes as u64);
        partitions * (queue + overhead) + brokers * ANSWER_BYTES + blocks
    }
}

/// Returns the error for settings that cannot be used.
pub(super) fn refuse(problem: String, remedy: &'static str) -> Error {
    Error::KafkaSettings { problem, remedy }
}
