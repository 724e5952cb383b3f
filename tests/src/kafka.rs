//! Streams of Kafka from a broker in another process, with another client as the witness.

mod peers;
#[cfg(feature = "kafka-tls")]
mod sasl;
#[cfg(feature = "kafka-tls")]
mod tls;

use std::path::Path;
use std::time::{Duration, Instant};

use zillion_device::Files;
use zillion_stream::{
    Block, Decision, DecisionLog, KafkaSettings, KafkaSource, LogOptions, Position, Source as _,
    Taking, check_took,
};

use crate::online::place::Place;
use crate::server::PATIENCE;
use peers::Broker;

const TOPIC: &str = "clicks";
const PARTITIONS: usize = 4;
/// The number of messages that are written before the first reader.
const FIRST: usize = 12_000;
/// The number of all messages.
const ALL: usize = 20_000;

/// A message: its partition, its offset, and its text.
type Read = (u32, u64, String);

/// A consumer with its log and its position.
struct Consumer {
    source: KafkaSource,
    log: DecisionLog,
    position: Position,
    read: Vec<Read>,
}

impl Consumer {
    /// Opens a consumer at a checkpoint, and repeats what the log has behind it.
    fn open(broker: &Broker, log: &Path, checkpoint: &(String, Vec<Read>)) -> Self {
        // Small blocks make many spans.
        let settings = KafkaSettings {
            block_bytes: 20_000,
            ..KafkaSettings::new(&[&broker.address], &[TOPIC], 0)
        };
        let options = LogOptions::default();
        let log = DecisionLog::open(&Files::new().scratch(), log, options).expect("a log");
        let position: Position = serde_json::from_str(&checkpoint.0).expect("a position");
        let source = KafkaSource::open(settings, &position).expect("the broker answers");
        let read = checkpoint.1.clone();
        let mut consumer = Self { source, log, position, read };
        let decisions: Vec<_> = consumer
            .log
            .replay(consumer.position.next_decision())
            .expect("the log can be read")
            .collect();
        for item in decisions {
            let (number, decision) = item.expect("the log is whole");
            consumer.source.adopt(&decision).expect("the decision fits");
            if let Decision::Took(recorded) = &decision {
                let (mut block, from) = (Block::new(), recorded.from);
                let mut taking = Taking::new(recorded.partition, from);
                let (partition, to) = (recorded.partition, recorded.to);
                while consumer.source.read(partition, to, &mut block).expect("it is still there") {
                    consumer.take(&block, &mut taking);
                }
                check_took(recorded, &taking.finish()).expect("the same messages");
            }
            consumer.position.apply(number, &decision).expect("the decision fits");
        }
        consumer
    }

    fn take(&mut self, block: &Block, taking: &mut Taking) {
        for message in block.iter() {
            taking.add(&message);
            let text = String::from_utf8(message.bytes.to_vec()).expect("the text of the client");
            self.read.push((message.partition.number, message.offset, text));
        }
        taking.extend_to(block.end());
    }

    fn decide(&mut self, decision: &Decision) {
        let number = self.log.append(decision).expect("the log can be written");
        self.position.apply(number, decision).expect("the decision fits");
    }

    /// Consumes until there are `count` messages.
    fn consume(&mut self, count: usize) {
        let (mut block, start) = (Block::new(), Instant::now());
        while self.read.len() < count {
            assert!(start.elapsed() < PATIENCE, "{} of {count} messages", self.read.len());
            self.source.poll(&mut block, Duration::from_millis(100)).expect("the broker answers");
            for discovery in self.source.take_discoveries() {
                self.decide(&discovery);
            }
            if block.start() < block.end() {
                let mut taking = Taking::new(block.partition(), block.start());
                self.take(&block, &mut taking);
                self.decide(&Decision::Took(taking.finish()));
                self.log.sync().expect("the log can be written");
            }
        }
    }

    fn checkpoint(&self) -> (String, Vec<Read>) {
        (serde_json::to_string(&self.position).expect("JSON"), self.read.clone())
    }
}

/// Returns the messages of a partition in the order in which they were read.
fn of_partition(read: &[Read], number: usize) -> Vec<(u64, &str)> {
    let own = read.iter().filter(|(partition, ..)| *partition as usize == number);
    own.map(|(_, offset, text)| (*offset, text.as_str())).collect()
}

#[test]
fn kafka_source_and_another_client_read_the_same() {
    let Some(broker) = Broker::start() else { return };
    broker.create(TOPIC, PARTITIONS);
    broker.write(TOPIC, PARTITIONS, 0..FIRST);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    let empty = serde_json::to_string(&Position::default()).expect("JSON");

    let mut first = Consumer::open(&broker, &log, &(empty, Vec::new()));
    first.consume(FIRST / 3);
    let checkpoint = first.checkpoint();
    first.consume(FIRST * 2 / 3);
    let before = first.read.clone();
    drop(first);

    // The second consumer begins at the checkpoint, repeats the log, and goes on.
    let mut second = Consumer::open(&broker, &log, &checkpoint);
    assert!(before.len() > checkpoint.1.len());
    assert_eq!(second.read, before, "everything that was synced is consumed again");
    broker.write(TOPIC, PARTITIONS, FIRST..ALL);
    second.consume(ALL);
    assert_eq!(second.read.len(), ALL);

    let witness = broker.read(TOPIC, PARTITIONS, ALL);
    assert_eq!(witness.len(), ALL);
    for number in 0..PARTITIONS {
        let read = of_partition(&second.read, number);
        assert_eq!(read, of_partition(&witness, number), "partition {number}");
        assert_eq!(read.len(), ALL / PARTITIONS);
        // The offsets are contiguous, and the messages have the order in which they were written.
        for (index, (offset, text)) in read.iter().enumerate() {
            let wanted = format!("{{\"number\": {}, ", index * PARTITIONS + number);
            assert!(*offset == index as u64 && text.starts_with(&wanted), "{offset}: {text}");
        }
    }
}

#[test]
fn online_training_follows_topics_and_goes_on_after_a_kill() {
    let Some(broker) = Broker::start() else { return };
    broker.create(TOPIC, PARTITIONS);
    broker.write(TOPIC, PARTITIONS, 0..4_000);
    let place = Place::new("");
    let job = format!(
        r#"name = "live"
        [features.pad]
        kind = "id"
        type = "string"
        [features.moment]
        kind = "id"
        column = "time"
        [labels.late]
        column = "number"
        at_least = 3000
        [columns]
        event_time = "time"
        event_time_unit = "ms"
        [model]
        kind = "deepfm"
        hidden = [4]
        [train]
        batch_size = 256
        [publish]
        registry = "registry"
        [online]
        publish_seconds = 0.2
        checkpoint_seconds = 0.5
        [[stream]]
        name = "clicks"
        kind = "kafka"
        kafka = {{ brokers = ["{}"], topics = ["{TOPIC}"] }}
        "#,
        broker.address
    );
    std::fs::write(place.path("job.toml"), job).expect("a job");
    let mut run = place.start(&[]);
    run.wait_for_messages(4_000);
    run.kill();
    broker.write(TOPIC, PARTITIONS, 4_000..6_000);
    let mut run = place.start(&[]);
    run.wait_for_messages(6_000);
    run.wait_until("all rows are in batches", |status| status["feed"]["rows"] == 6_000);
    let report = run.stop();
    assert_eq!((&report["rows"], &report["rejected"]), (&6_000.into(), &0.into()), "{report}");
    assert!(report["published"].is_u64(), "{report}");
}
