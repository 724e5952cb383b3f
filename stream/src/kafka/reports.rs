//! The reports of librdkafka: problems, the states of the brokers, and the bounds of partitions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use serde::Deserialize;

/// The receiver of the reports of librdkafka.
pub(super) struct Reports {
    pub(super) observed: Arc<Mutex<Observed>>,
}

/// The latest reports of librdkafka.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// The last problem that was reported.
    pub(super) problem: Option<String>,
    /// The problem after which the client cannot go on.
    pub(super) fatal: Option<String>,
    /// The time since which no broker is connected.
    pub(super) unreachable_since: Option<Instant>,
    /// The partitions of each topic, by their numbers.
    pub(super) topics: BTreeMap<String, BTreeMap<i32, Bounds>>,
}

/// The last known bounds of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// The first offset, or `None` if it is unknown.
    pub(super) low: Option<u64>,
    /// The offset behind the last message, or `None` if it is unknown.
    pub(super) high: Option<u64>,
    /// The number of bytes that wait in the queue of the partition.
    pub(super) queued_bytes: u64,
}

/// The figures of a client. Others are left out.
#[derive(Deserialize)]
struct Figures {
    brokers: BTreeMap<String, BrokerFigures>,
    topics: BTreeMap<String, TopicFigures>,
}

#[derive(Deserialize)]
struct BrokerFigures {
    state: String,
}

#[derive(Deserialize)]
struct TopicFigures {
    partitions: BTreeMap<i32, PartitionFigures>,
}

#[derive(Deserialize)]
struct PartitionFigures {
    lo_offset: i64,
    hi_offset: i64,
    fetchq_size: u64,
}

impl Observed {
    /// Takes the figures of librdkafka, which are JSON.
    pub(super) fn take_figures(&mut self, text: &[u8], now: Instant) {
        let figures: Figures = match serde_json::from_slice(text) {
            Ok(figures) => figures,
            Err(e) => {
                self.problem = Some(format!("figures of librdkafka that cannot be read ({e})"));
                return;
            }
        };
        if figures.brokers.values().any(|broker| broker.state == "UP") {
            self.unreachable_since = None;
        } else {
            self.unreachable_since.get_or_insert(now);
        }
        // Offsets below zero are marks of unknown ones.
        let bounds = |figures: &PartitionFigures| Bounds {
            low: u64::try_from(figures.lo_offset).ok(),
            high: u64::try_from(figures.hi_offset).ok(),
            queued_bytes: figures.fetchq_size,
        };
        let topics = figures.topics.into_iter().map(|(topic, figures)| {
            // Partition -1 is a queue of producers.
            let partitions = figures.partitions.iter().filter(|(number, _)| **number >= 0);
            (topic, partitions.map(|(number, figures)| (*number, bounds(figures))).collect())
        });
        self.topics = topics.collect();
    }

    /// Returns the last known bounds of a partition.
    pub(super) fn bounds(&self, topic: &str, number: i32) -> Bounds {
        self.topics.get(topic).and_then(|known| known.get(&number)).copied().unwrap_or_default()
    }

    /// Returns the number of partitions of a topic that were reported.
    pub(super) fn count_partitions(&self, topic: &str) -> usize {
        self.topics.get(topic).map_or(0, BTreeMap::len)
    }
}

impl ClientContext for Reports {
    fn log(&self, _: RDKafkaLogLevel, _: &str, message: &str) {
        self.note(message.to_owned());
    }

    fn stats_raw(&self, statistics: &[u8]) {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        observed.take_figures(statistics, Instant::now());
    }

    fn error(&self, error: KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            // The end of a partition is no problem.
            Some(RDKafkaErrorCode::PartitionEOF) => {}
            // The reports about the single brokers say more.
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
                observed.problem.get_or_insert_with(|| reason.to_owned());
            }
            _ => self.note(reason.to_owned()),
        }
    }
}

impl ConsumerContext for Reports {}

impl Reports {
    fn note(&self, problem: String) {
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        observed.problem = Some(problem);
    }
}
