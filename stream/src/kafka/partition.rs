//! One partition of a topic: its queue of fetched messages, and the place of the reader in it.

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::Offset;

use super::client::{Client, describe};
use super::gather::{Limits, Verdict, offer};
use super::reports::Reports;
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::source::{Block, OffsetUnit, PartitionState};

/// The remedy for messages that do not exist any more.
const KEEP: &str = "begin a new stream, or restore the topic; keep messages until the oldest kept \
                    checkpoint has consumed them (`retention.ms` and `retention.bytes`)";
/// The remedy for a partition that has lost messages.
const RESTORE: &str = "restore the topic, or begin a new stream; a topic that is created again \
                       needs another name";

/// A partition of a topic and the place of the reader in it.
pub(super) struct TopicPartition {
    partition: Partition,
    topic: String,
    /// The number of the partition in its topic.
    number: i32,
    /// The offset of the next message.
    next: u64,
    /// The queue of fetched messages, or `None` before the first fetch.
    queue: Option<PartitionQueue<Reports>>,
    /// A message that was taken from the queue and belongs to the next block.
    held: Option<Held>,
    /// The time since which the queue has reached the end of the partition.
    end_since: Option<Instant>,
    /// The problem after which the partition cannot be read.
    failure: Option<Failure>,
}

/// A problem after which a partition cannot be read.
enum Failure {
    /// The brokers do not have the offset of the next message.
    OutOfRange,
    /// The problem is known as a clause, with its remedy.
    Known(String, &'static str),
}

/// A message outside of the queue.
struct Held {
    offset: u64,
    contents: Option<Vec<u8>>,
}

impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        f.debug_struct("TopicPartition").field("name", &name).field("next", &self.next).finish()
    }
}

impl TopicPartition {
    /// Creates a reader of the partition that is named `topic/number`.
    ///
    /// # Errors
    /// Returns an error if the name has another form.
    pub(super) fn new(partition: Partition, name: &str, next: u64) -> Result<Self> {
        let parts = name.rsplit_once('/').and_then(|(topic, number)| {
            let number = number.parse().ok().filter(|number| *number >= 0)?;
            Some((topic.to_owned(), number))
        });
        let Some((topic, number)) = parts else {
            return Err(Error::Position(format!(
                "{partition}: `{name}` is no partition of a topic; use the kind of source with \
                 which the stream began"
            )));
        };
        let (queue, held, end_since, failure) = (None, None, None, None);
        Ok(Self { partition, topic, number, next, queue, held, end_since, failure })
    }

    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.topic, self.number)
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn is_fetched(&self) -> bool {
        self.queue.is_some()
    }

    /// Returns the partition in the form in which the client begins to fetch it.
    pub(super) fn assignment(&self) -> (&str, i32, Offset) {
        (&self.topic, self.number, Offset::Offset(i64::try_from(self.next).unwrap_or(i64::MAX)))
    }

    /// Gives the partition a queue of its own, before it is fetched. `wake` is called when messages
    /// arrive in the empty queue.
    pub(super) fn split(&mut self, client: &Client, wake: impl Fn() + Send + Sync + 'static) {
        let mut queue = client.reader().split_partition_queue(&self.topic, self.number);
        if let Some(queue) = &mut queue {
            queue.set_nonempty_callback(wake);
        }
        self.queue = queue;
    }

    /// Fills a block with the messages that have arrived. Returns `false` if there are none.
    pub(super) fn fill(
        &mut self,
        client: &Client,
        block: &mut Block,
        limits: Limits,
    ) -> Result<bool> {
        block.restart(self.partition, self.next);
        block.bytes.clear();
        let gathered = self.gather(block, limits);
        self.next = block.end;
        if block.end > block.start {
            // An error behind these messages is found again by the next call.
            return Ok(true);
        }
        gathered?;
        match self.failure.take() {
            Some(failure) => Err(self.report(client, failure)),
            None => Ok(false),
        }
    }

    /// Returns the time since which the end of the partition was reached without a message behind.
    pub(super) fn end_since(&self) -> Option<Instant> {
        self.end_since
    }

    /// Checks that the brokers still have the end of a recorded span. Then its last messages were
    /// removed, and the block ends with the span.
    pub(super) fn end_span(
        &mut self,
        client: &Client,
        block: &mut Block,
        until: u64,
    ) -> Result<()> {
        let (_, high) = client.find_bounds(&self.topic, self.number)?;
        if high < until {
            let problem =
                format!("the partition ends at offset {high}, but {until} was reached before");
            return Err(self.error(problem, RESTORE));
        }
        block.restart(self.partition, self.next);
        block.end = until;
        self.next = until;
        Ok(())
    }

    pub(super) fn state(&self, client: &Client) -> PartitionState {
        let bounds = client.observed().bounds(&self.topic, self.number);
        PartitionState {
            partition: self.partition,
            name: self.name(),
            earliest: bounds.low.unwrap_or(self.next).min(self.next),
            next: self.next,
            end: bounds.high.unwrap_or(self.next).max(self.next),
            unit: OffsetUnit::Messages,
        }
    }

    pub(super) fn error(&self, problem: String, remedy: &'static str) -> Error {
        let (partition, name, offset) = (self.partition, self.name(), self.next);
        Error::TopicPartition { partition, name, offset, problem, remedy }
    }

    /// Moves messages from the queue to the block.
    fn gather(&mut self, block: &mut Block, limits: Limits) -> Result<()> {
        let Some(queue) = &self.queue else { return Ok(()) };
        if let Some(held) = self.held.take() {
            match offer(block, held.offset, held.contents.as_deref(), limits) {
                Ok(Verdict::Goes) => {}
                Ok(Verdict::Full) => return Ok(()),
                Ok(Verdict::Waits) => {
                    self.held = Some(held);
                    return Ok(());
                }
                Err(error) => {
                    self.held = Some(held);
                    return Err(error);
                }
            }
        }
        while self.failure.is_none() && block.end < limits.until {
            match queue.poll(Duration::ZERO) {
                None => break,
                Some(Ok(message)) => {
                    self.end_since = None;
                    let offset = u64::try_from(message.offset()).unwrap_or(0);
                    if offset < block.end {
                        let problem = format!("a message at offset {offset} arrived a second time");
                        let remedy = "report this fault of the client";
                        self.failure = Some(Failure::Known(problem, remedy));
                        break;
                    }
                    let verdict = offer(block, offset, message.payload(), limits);
                    if matches!(verdict, Ok(Verdict::Goes)) {
                        continue;
                    }
                    if !matches!(verdict, Ok(Verdict::Full)) {
                        let contents = message.payload().map(<[u8]>::to_vec);
                        self.held = Some(Held { offset, contents });
                    }
                    return verdict.map(|_| ());
                }
                Some(Err(KafkaError::PartitionEOF(_))) => self.end_since = Some(Instant::now()),
                Some(Err(error)) => self.failure = classify(&error),
            }
        }
        Ok(())
    }

    /// Keeps a failure for later calls, and returns its error.
    fn report(&mut self, client: &Client, failure: Failure) -> Error {
        let (problem, remedy) = match failure {
            Failure::Known(problem, remedy) => (problem, remedy),
            Failure::OutOfRange => match client.find_bounds(&self.topic, self.number) {
                Ok(bounds) => self.explain_bounds(bounds),
                Err(error) => {
                    self.failure = Some(Failure::OutOfRange);
                    return error;
                }
            },
        };
        self.failure = Some(Failure::Known(problem.clone(), remedy));
        self.error(problem, remedy)
    }

    /// Returns the problem and the remedy if the brokers do not have the next message.
    fn explain_bounds(&self, (low, high): (u64, u64)) -> (String, &'static str) {
        if self.next < low {
            let problem = format!(
                "the message does not exist any more; the earliest one has offset {low} and the \
                 partition ends at offset {high}"
            );
            (problem, KEEP)
        } else if self.next > high {
            (format!("the partition ends at offset {high}"), RESTORE)
        } else {
            let problem =
                format!("the brokers refuse the offset, but have those from {low} to {high}");
            (problem, "check the brokers, and start again")
        }
    }
}

/// Returns the failure for an error in the queue of a partition, or `None` if the client repeats
/// the fetch by itself and leaves nothing out.
fn classify(error: &KafkaError) -> Option<Failure> {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(
            Code::NotLeaderForPartition
            | Code::LeaderNotAvailable
            | Code::ReplicaNotAvailable
            | Code::BrokerNotAvailable
            | Code::BrokerTransportFailure
            | Code::RequestTimedOut
            | Code::NetworkException
            | Code::KafkaStorageError
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::OffsetNotAvailable,
        ) => None,
        Some(Code::AutoOffsetReset | Code::OffsetOutOfRange) => Some(Failure::OutOfRange),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
            Some(Failure::Known("the partition does not exist any more".to_owned(), RESTORE))
        }
        Some(Code::TopicAuthorizationFailed) => {
            let remedy = "grant the right to read the topic, and start again";
            Some(Failure::Known(describe(error), remedy))
        }
        _ => {
            let remedy = "solve the problem at the brokers, and start again";
            Some(Failure::Known(describe(error), remedy))
        }
    }
}
