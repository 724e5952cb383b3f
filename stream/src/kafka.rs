//! Topics of Kafka: a stream whose messages are on brokers.
//!
//! The partitions of all topics of the stream are its partitions. Their names are `topic/number`.
//! Those that exist at the first look are numbered in the order of the topics in the settings, and
//! of their numbers. A partition that is added later gets the next number, and begins with its
//! first message. The offsets are those of the brokers. They have gaps where messages were removed
//! by compaction, and where transactions end.
//!
//! # Exactness
//!
//! * Partitions are assigned by hand at offsets that are in the checkpoint and in the log. The
//!   stream joins no group. Offsets at the brokers are neither read nor written.
//! * Only messages of committed transactions are read.
//! * An offset that the brokers do not have is an error and never a jump.
//! * A message without contents, with which Kafka marks removed keys, is no message.
//!
//! # Concurrency
//!
//! Each partition has a queue of fetched messages with a bound. A full queue stops the fetches of
//! its partition only. librdkafka fills the queues with threads of its own; the caller empties
//! them.

mod client;
mod gather;
mod options;
mod partition;
mod reports;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use self::client::Client;
use self::gather::Limits;
use self::partition::TopicPartition;
pub use self::settings::{KafkaSettings, Start};
use crate::decisions::Decision;
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::position::{Position, list_starts};
use crate::source::{Block, PartitionState, Place, Source};

/// The longest wait before the state of the client is checked again.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// A reader of topics of Kafka.
pub struct KafkaSource {
    /// The partitions come before the client, so that their queues are dropped first.
    partitions: Vec<TopicPartition>,
    client: Client,
    discoveries: Vec<Decision>,
    /// The number of the partition that is asked first at the next poll.
    turn: usize,
    /// The time of the last look for new partitions.
    looked: Option<Instant>,
    max_message_bytes: usize,
    wake: SyncSender<()>,
    awoken: Receiver<()>,
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}

impl KafkaSource {
    /// Opens the topics at a position. No message is read before the first poll, so that the
    /// discoveries after the position can be adopted from the log.
    ///
    /// # Errors
    /// Returns an error if the settings cannot be used, if no broker answers, if a topic does not
    /// exist, or if the position has a topic that the settings leave out.
    pub fn open(settings: KafkaSettings, position: &Position) -> Result<Self> {
        let client = Client::open(&settings)?;
        let mut partitions = Vec::new();
        for (partition, known) in position.of_stream(settings.stream) {
            partitions.push(TopicPartition::new(partition, &known.name, known.next_offset)?);
        }
        for topic in &settings.topics {
            client.count_partitions(topic)?;
        }
        let (wake, awoken) = sync_channel(1);
        let (discoveries, looked) = (Vec::new(), None);
        let source = Self {
            partitions,
            client,
            discoveries,
            turn: 0,
            looked,
            max_message_bytes: settings.max_message_bytes,
            wake,
            awoken,
        };
        source.check_topics()?;
        Ok(source)
    }

    /// Returns the number of bytes that wait in the queues of all partitions.
    pub fn queued_bytes(&self) -> u64 {
        let observed = self.client.observed();
        observed.topics.values().flat_map(|known| known.values()).map(|b| b.queued_bytes).sum()
    }

    /// Checks that the settings contain the topic of each partition.
    fn check_topics(&self) -> Result<()> {
        let topics = &self.client.settings().topics;
        let missing = |known: &&TopicPartition| !topics.iter().any(|t| t == known.topic());
        match self.partitions.iter().find(missing) {
            Some(known) => Err(Error::Topic {
                topic: known.topic().to_owned(),
                problem: "the stream has consumed the topic, but the settings leave it out".into(),
                remedy: "add the topic to `topics`, or begin a new stream",
            }),
            None => Ok(()),
        }
    }

    /// Looks for new partitions if the last look is old enough. The first look asks the brokers.
    /// Later ones take what librdkafka has found in the meantime.
    fn discover(&mut self) -> Result<()> {
        let interval = Duration::from_millis(u64::from(self.client.settings().discovery_ms));
        if self.looked.is_some_and(|at| at.elapsed() < interval) {
            return Ok(());
        }
        let is_first = self.looked.is_none();
        let is_new = self.partitions.is_empty();
        let settings = self.client.settings().clone();
        let (mut added, mut starts) = (Vec::new(), Vec::new());
        for topic in &settings.topics {
            let known = self.partitions.iter().filter(|known| known.topic() == topic).count();
            let found = if is_first {
                self.client.count_partitions(topic)?
            } else {
                self.client.observed().count_partitions(topic)
            };
            if is_first && found < known {
                return Err(Error::Topic {
                    topic: topic.clone(),
                    problem: format!("the topic has {found} partitions, but had {known} before"),
                    remedy: "restore the topic, or begin a new stream with another topic",
                });
            }
            // Partitions that are added to a known stream are read from their beginning, so that
            // nothing is lost that was written before they were found.
            let start = if is_new { settings.start } else { Start::Earliest };
            for number in known..found {
                let number = number as i32;
                starts.push(self.client.find_start(topic, number, start)?);
                added.push(format!("{topic}/{number}"));
            }
        }
        self.looked = Some(Instant::now());
        if added.is_empty() {
            return Ok(());
        }
        self.add_partitions(&added, &starts)?;
        let names = self.partitions.iter().map(TopicPartition::name).collect();
        self.discoveries.push(Decision::Partitions { stream: settings.stream, names, starts });
        Ok(())
    }

    fn add_partitions(&mut self, names: &[String], starts: &[u64]) -> Result<()> {
        let stream = self.client.settings().stream;
        for (name, start) in names.iter().zip(starts) {
            // Kafka has fewer partitions than there are numbers of 32 bits.
            let number = self.partitions.len() as u32;
            let added = TopicPartition::new(Partition { stream, number }, name, *start)?;
            self.partitions.push(added);
        }
        self.check_topics()
    }

    /// Begins to fetch the partitions that are not fetched yet: all, or the one with a number.
    fn fetch(&mut self, only: Option<usize>) -> Result<()> {
        let is_wanted = |index: usize| only.is_none_or(|only| only == index);
        let mut list = Vec::new();
        for (index, partition) in self.partitions.iter_mut().enumerate() {
            if is_wanted(index) && !partition.is_fetched() {
                let wake = self.wake.clone();
                partition.split(&self.client, move || {
                    // A full channel means that the reader is awoken already.
                    let _ = wake.try_send(());
                });
                list.push(index);
            }
        }
        if list.is_empty() {
            return Ok(());
        }
        let list: Vec<_> = list.iter().map(|index| self.partitions[*index].assignment()).collect();
        self.client.assign(&list)
    }

    fn limits(&self, until: u64) -> Limits {
        let settings = self.client.settings();
        Limits {
            until,
            block_bytes: settings.block_bytes,
            max_message_bytes: self.max_message_bytes,
            long_messages: settings.long_messages,
        }
    }

    /// Waits until messages arrive in an empty queue, or until a time has passed.
    fn wait(&self, time: Duration) {
        // Both outcomes lead to another look.
        let _ = self.awoken.recv_timeout(time.min(LONGEST_WAIT));
    }
}

impl Source for KafkaSource {
    fn poll(&mut self, block: &mut Block, timeout: Duration) -> Result<bool> {
        let start = Instant::now();
        loop {
            self.client.check()?;
            self.discover()?;
            self.fetch(None)?;
            let (count, limits) = (self.partitions.len(), self.limits(u64::MAX));
            for step in 0..count {
                let number = (self.turn + step) % count;
                if self.partitions[number].fill(&self.client, block, limits)? {
                    self.turn = number + 1;
                    return Ok(true);
                }
            }
            let waited = start.elapsed();
            if waited >= timeout {
                let stream = self.client.settings().stream;
                block.restart(Partition { stream, number: 0 }, 0);
                return Ok(false);
            }
            self.wait(timeout - waited);
        }
    }

    fn read(&mut self, partition: Partition, until: u64, block: &mut Block) -> Result<bool> {
        let (index, stream) = (partition.number as usize, self.client.settings().stream);
        if partition.stream != stream || index >= self.partitions.len() {
            return Err(Error::Position(format!(
                "{partition} is unknown to the stream of Kafka; adopt the partitions first"
            )));
        }
        if self.partitions[index].next() >= until {
            block.restart(partition, self.partitions[index].next());
            return Ok(false);
        }
        self.fetch(Some(index))?;
        let limits = self.limits(until);
        let patience = Duration::from_millis(u64::from(self.client.settings().request_ms));
        loop {
            self.client.check()?;
            let known = &mut self.partitions[index];
            if known.fill(&self.client, block, limits)? {
                return Ok(true);
            }
            // After a change of leaders, the end may be behind for a moment.
            if known.end_since().is_some_and(|since| since.elapsed() > patience) {
                known.end_span(&self.client, block, until)?;
                return Ok(true);
            }
            self.wait(LONGEST_WAIT);
        }
    }

    fn take_discoveries(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.discoveries)
    }

    fn adopt(&mut self, decision: &Decision) -> Result<()> {
        match decision {
            Decision::Partitions { stream, names, starts }
                if *stream == self.client.settings().stream =>
            {
                let count = self.partitions.len();
                let known = self.partitions.iter().map(TopicPartition::name);
                if !known.eq(names.iter().take(count).cloned()) {
                    return Err(Error::Position(format!(
                        "stream {stream}: the recorded partitions do not begin with the known \
                         ones; replay the log from the position of the checkpoint"
                    )));
                }
                let starts = list_starts(names.len() - count, starts)?;
                self.add_partitions(&names[count..], &starts)
            }
            Decision::Reset { partition, to, .. }
                if partition.stream == self.client.settings().stream =>
            {
                let index = partition.number as usize;
                let Some(known) = self.partitions.get_mut(index) else {
                    return Err(Error::Position(format!(
                        "{partition} is unknown to the stream of Kafka; adopt the partitions first"
                    )));
                };
                if known.is_fetched() {
                    self.client.unassign(known.assignment())?;
                }
                *known = TopicPartition::new(*partition, &known.name(), *to)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn set_max_message_bytes(&mut self, bytes: usize) -> Result<()> {
        let settings = self.client.settings().clone();
        KafkaSettings { max_message_bytes: bytes, ..settings }.check()?;
        self.max_message_bytes = bytes;
        Ok(())
    }

    fn find_offset(&mut self, partition: Partition, place: Place) -> Result<Option<u64>> {
        let Some(known) = self.partitions.get(partition.number as usize) else { return Ok(None) };
        let start = match place {
            Place::Start => Start::Earliest,
            Place::End => Start::Latest,
            Place::Time(time) => Start::Time(time),
        };
        let (topic, number, _) = known.assignment();
        self.client.find_start(topic, number, start).map(Some)
    }

    fn partitions(&self) -> Vec<PartitionState> {
        self.partitions.iter().map(|known| known.state(&self.client)).collect()
    }
}
