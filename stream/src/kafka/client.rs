//! The client of librdkafka: its settings, its questions to the brokers, and what it reports.
//!
//! # Concurrency
//!
//! librdkafka has threads of its own, which fetch messages. One thread of this file takes the
//! reports of librdkafka (errors, figures), so that they cannot pile up while the caller is busy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::reports::{Observed, Reports};
use super::settings::{ANSWER_BYTES, KafkaSettings, Start, refuse};
use crate::error::{Error, Result};
use crate::option_value::OptionValue;

/// The name of the group that librdkafka demands for reading partitions by hand. It is never
/// joined, and its offsets are neither read nor written.
const GROUP: &str = "zillion";
/// The longest wait for a report.
const REPORT_WAIT: Duration = Duration::from_millis(50);
/// The remedy for brokers that do not answer.
const REACH: &str = "check the addresses in `brokers`, the network and the options of security";

/// The consumer of librdkafka with its reports.
pub(super) type Reader = BaseConsumer<Reports>;

/// A client of the brokers of a stream.
pub(super) struct Client {
    reader: Arc<Reader>,
    observed: Arc<Mutex<Observed>>,
    settings: KafkaSettings,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Creates a client. It connects in the background.
    pub(super) fn open(settings: &KafkaSettings) -> Result<Self> {
        settings.check()?;
        let mut hidden = Vec::new();
        let config = configure(settings, &mut hidden)?;
        let observed = Arc::new(Mutex::new(Observed::default()));
        let reports = Reports { observed: observed.clone() };
        let reader: Reader = config.create_with_context(reports).map_err(|e| {
            let reason = hidden
                .iter()
                .filter(|value| !value.is_empty())
                .fold(describe(&e), |reason, value| reason.replace(value.as_str(), "..."));
            let problem = format!("librdkafka refuses the options ({reason})");
            refuse(problem, "correct the option")
        })?;
        let reader = Arc::new(reader);
        let is_stopped = Arc::new(AtomicBool::new(false));
        let thread = {
            let (reader, observed) = (reader.clone(), observed.clone());
            let is_stopped = is_stopped.clone();
            let serve = move || {
                while !is_stopped.load(Ordering::Relaxed) {
                    serve_reports(&reader, &observed);
                }
            };
            let builder = std::thread::Builder::new().name("kafka-reports".to_owned());
            builder.spawn(serve).map_err(|e| {
                let problem = format!("the thread `kafka-reports` cannot be started ({e})");
                refuse(problem, "raise the limit of threads")
            })?
        };
        let settings = settings.clone();
        Ok(Self { reader, observed, settings, is_stopped, thread: Some(thread) })
    }

    pub(super) fn reader(&self) -> &Arc<Reader> {
        &self.reader
    }

    pub(super) fn settings(&self) -> &KafkaSettings {
        &self.settings
    }

    pub(super) fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the client can still work.
    ///
    /// # Errors
    /// Returns an error after a fatal report, or if no broker was reached for too long.
    pub(super) fn check(&self) -> Result<()> {
        let observed = self.observed();
        if let Some(problem) = &observed.fatal {
            return Err(self.brokers_error(problem.clone(), "start again"));
        }
        let limit = Duration::from_millis(u64::from(self.settings.outage_ms));
        match observed.unreachable_since {
            Some(since) if since.elapsed() > limit => {
                let last = observed.problem.as_deref().unwrap_or("no report");
                let problem =
                    format!("no broker was reached for {} s ({last})", since.elapsed().as_secs());
                Err(self.brokers_error(problem, REACH))
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of partitions of a topic.
    pub(super) fn count_partitions(&self, topic: &str) -> Result<usize> {
        let metadata = self.reader.fetch_metadata(Some(topic), self.timeout());
        let metadata = metadata.map_err(|e| self.request_error("no answer", &e))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let error = found.and_then(|found| found.error()).map(RDKafkaErrorCode::from);
        if let Some(code) = error.filter(|code| *code != RDKafkaErrorCode::LeaderNotAvailable) {
            let remedy = "create the topic, correct its name, or grant the right to read it";
            return Err(Error::Topic {
                topic: topic.to_owned(),
                problem: code.to_string(),
                remedy,
            });
        }
        Ok(found.map_or(0, |found| found.partitions().len()))
    }

    /// Returns the first offset of a partition, and the offset behind its last message.
    pub(super) fn find_bounds(&self, topic: &str, number: i32) -> Result<(u64, u64)> {
        let bounds = self.reader.fetch_watermarks(topic, number, self.timeout());
        let (low, high) = bounds.map_err(|e| {
            self.request_error(&format!("no answer about the bounds of `{topic}/{number}`"), &e)
        })?;
        let plain = |offset: i64| u64::try_from(offset).unwrap_or(0);
        Ok((plain(low), plain(high)))
    }

    /// Returns the offset at which a partition begins in a new stream.
    pub(super) fn find_start(&self, topic: &str, number: i32, start: Start) -> Result<u64> {
        let (low, high) = self.find_bounds(topic, number)?;
        let time = match start {
            Start::Earliest => return Ok(low),
            Start::Latest => return Ok(high),
            Start::Time(time) => time,
        };
        let question = self.list(&[(topic, number, Offset::Offset(time))])?;
        let answer = self.reader.offsets_for_times(question, self.timeout());
        let answer = answer
            .map_err(|e| self.request_error(&format!("no answer about the time {time}"), &e))?;
        let found = answer.find_partition(topic, number).map(|found| found.offset());
        Ok(match found {
            Some(Offset::Offset(offset)) => u64::try_from(offset).unwrap_or(0).max(low),
            // No message is as late as this.
            _ => high,
        })
    }

    /// Begins to fetch partitions at their offsets.
    pub(super) fn assign(&self, partitions: &[(&str, i32, Offset)]) -> Result<()> {
        let list = self.list(partitions)?;
        let assigned = self.reader.incremental_assign(&list);
        assigned.map_err(|e| self.request_error("partitions cannot be assigned", &e))
    }

    /// Ends the fetches of a partition.
    pub(super) fn unassign(&self, partition: (&str, i32, Offset)) -> Result<()> {
        let list = self.list(&[partition])?;
        let removed = self.reader.incremental_unassign(&list);
        removed.map_err(|e| self.request_error("a partition cannot be given up", &e))
    }

    fn list(&self, partitions: &[(&str, i32, Offset)]) -> Result<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        for (topic, number, offset) in partitions {
            let added = list.add_partition_offset(topic, *number, *offset);
            added.map_err(|e| self.request_error("an offset cannot be used", &e))?;
        }
        Ok(list)
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(u64::from(self.settings.request_ms))
    }

    fn request_error(&self, problem: &str, error: &KafkaError) -> Error {
        let last = self.observed().problem.clone();
        let last = last.map(|last| format!(", {last}")).unwrap_or_default();
        self.brokers_error(format!("{problem} ({}{last})", describe(error)), REACH)
    }

    fn brokers_error(&self, problem: String, remedy: &'static str) -> Error {
        Error::Brokers { brokers: self.settings.brokers.join(","), problem, remedy }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Takes the reports that are there, or waits for one.
fn serve_reports(reader: &Reader, observed: &Mutex<Observed>) {
    let report = match reader.poll(REPORT_WAIT) {
        None => return,
        // Each partition has a queue of its own before it is fetched.
        Some(Ok(_)) => "a message came outside of the queue of its partition".to_owned(),
        Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => describe(&error),
        // The context has noted the reason. librdkafka goes on by itself.
        Some(Err(_)) => return,
    };
    observed.lock().unwrap_or_else(PoisonError::into_inner).fatal.get_or_insert(report);
}

/// Returns the settings of librdkafka, and adds the values that must not be printed to `hidden`.
fn configure(settings: &KafkaSettings, hidden: &mut Vec<String>) -> Result<ClientConfig> {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Error);
    config.set("client.id", "zillion");
    for (name, value) in &settings.options {
        let text = value.read(name)?;
        config.set(name, &text);
        if !matches!(value, OptionValue::Text(_)) {
            hidden.push(text);
        }
    }
    let largest = settings.max_message_bytes as u64 + ANSWER_BYTES + 512;
    let numbers = [
        ("queued.max.messages.kbytes", u64::from(settings.queue_bytes / 1024)),
        ("queued.min.messages", u64::from(settings.queue_messages)),
        ("fetch.message.max.bytes", u64::from(settings.fetch_bytes)),
        ("fetch.max.bytes", ANSWER_BYTES),
        ("receive.message.max.bytes", largest.max(100_000_000)),
        ("fetch.wait.max.ms", u64::from(settings.fetch_wait_ms)),
        ("fetch.queue.backoff.ms", 10),
        ("fetch.error.backoff.ms", 100),
        ("topic.metadata.refresh.interval.ms", u64::from(settings.discovery_ms)),
        ("statistics.interval.ms", u64::from(settings.discovery_ms.min(1000))),
        // A caller that is busy for long leaves no group, because it is in none.
        ("max.poll.interval.ms", 86_400_000),
    ];
    for (name, number) in numbers {
        config.set(name, number.to_string());
    }
    for (name, value) in [
        ("group.id", GROUP),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("auto.offset.reset", "error"),
        ("isolation.level", "read_committed"),
        ("enable.partition.eof", "true"),
        ("check.crcs", "true"),
        ("allow.auto.create.topics", "false"),
    ] {
        config.set(name, value);
    }
    config.set("bootstrap.servers", settings.brokers.join(","));
    Ok(config)
}

/// Returns the text of an error of librdkafka.
pub(super) fn describe(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, reason, name, _) => format!("{name}: {reason}"),
        KafkaError::ClientCreation(reason) => reason.clone(),
        other => other.rdkafka_error_code().map_or_else(|| other.to_string(), |c| c.to_string()),
    }
}
