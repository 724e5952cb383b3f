//! Tests of topics of Kafka on the brokers that librdkafka imitates for tests.

mod faults;
mod proxy;
mod replay;
mod reset;
mod rules;

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};

use super::*;

/// The longest time for which a test waits for messages.
const PATIENCE: Duration = Duration::from_secs(60);

/// A message that was read: its partition, its offset, and its text.
type Read = (u32, u64, String);

/// Brokers inside of the process of the test.
struct Cluster {
    mock: MockCluster<'static, DefaultProducerContext>,
    producer: BaseProducer,
}

impl Cluster {
    /// Starts brokers with a topic `t`.
    fn new(brokers: i32, partitions: i32) -> Self {
        let mock = MockCluster::new(brokers).unwrap();
        mock.create_topic("t", partitions, 1).unwrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", mock.bootstrap_servers()).set("linger.ms", "0");
        Self { producer: config.create().unwrap(), mock }
    }

    /// Writes messages to a partition. `None` is a message without contents.
    fn put_all(&self, topic: &str, number: i32, messages: &[Option<&str>]) {
        for message in messages {
            let mut record = BaseRecord::<str, str>::to(topic).partition(number);
            record.payload = *message;
            self.producer.send(record.key("k")).unwrap();
        }
        self.producer.flush(PATIENCE).unwrap();
    }

    /// Writes messages to a partition of the topic `t`.
    fn put(&self, number: i32, messages: &[&str]) {
        let messages: Vec<_> = messages.iter().map(|message| Some(*message)).collect();
        self.put_all("t", number, &messages);
    }

    /// Returns settings for the topic `t` with short times.
    fn settings(&self) -> KafkaSettings {
        let brokers = self.mock.bootstrap_servers();
        let brokers: Vec<_> = brokers.split(',').collect();
        KafkaSettings {
            discovery_ms: 100,
            request_ms: 5000,
            ..KafkaSettings::new(&brokers, &["t"], 0)
        }
    }

    /// Opens the topic from its beginning.
    fn open(&self) -> KafkaSource {
        KafkaSource::open(self.settings(), &Position::default()).unwrap()
    }
}

/// Reads until `count` messages have arrived.
fn take(source: &mut KafkaSource, count: usize) -> Result<Vec<Read>> {
    let (mut block, mut read, start) = (Block::new(), Vec::new(), Instant::now());
    while read.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} messages: {read:?}", read.len());
        source.poll(&mut block, Duration::from_millis(100))?;
        read.extend(block.iter().map(|message| {
            let text = String::from_utf8(message.bytes.to_vec()).unwrap();
            (message.partition.number, message.offset, text)
        }));
    }
    Ok(read)
}

/// Reads until the source fails, and returns the error.
fn fail(source: &mut KafkaSource) -> String {
    let (mut block, start) = (Block::new(), Instant::now());
    loop {
        assert!(start.elapsed() < PATIENCE, "no error");
        if let Err(error) = source.poll(&mut block, Duration::from_millis(100)) {
            return error.to_string();
        }
    }
}

/// Returns the messages of one partition.
fn of_partition(read: &[Read], number: u32) -> Vec<(u64, &str)> {
    let own = read.iter().filter(|(partition, ..)| *partition == number);
    own.map(|(_, offset, text)| (*offset, text.as_str())).collect()
}

/// Returns a position that follows from decisions.
fn position_of(decisions: &[Decision]) -> Position {
    let mut position = Position::default();
    for (number, decision) in (0..).zip(decisions) {
        position.apply(number, decision).unwrap();
    }
    position
}

fn partitions(names: &[&str], starts: &[u64]) -> Decision {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Decision::Partitions { stream: 0, names, starts: starts.to_vec() }
}

#[test]
fn messages_of_each_partition_arrive_in_order() {
    let cluster = Cluster::new(1, 3);
    cluster.put(0, &["a", "b"]);
    cluster.put(2, &["x", "", "z"]);
    let mut source = cluster.open();
    let read = take(&mut source, 5).unwrap();
    assert_eq!(of_partition(&read, 0), [(0, "a"), (1, "b")]);
    assert_eq!(of_partition(&read, 2), [(0, "x"), (1, ""), (2, "z")]);
    cluster.put(0, &["c"]);
    assert_eq!(take(&mut source, 1).unwrap(), [(0, 2, "c".to_owned())]);
    let decisions = source.take_discoveries();
    assert_eq!(decisions, [partitions(&["t/0", "t/1", "t/2"], &[0, 0, 0])]);
    assert!(source.take_discoveries().is_empty());
    let mut block = Block::new();
    assert!(!source.poll(&mut block, Duration::ZERO).unwrap());
    assert!(block.is_empty());
}

#[test]
fn all_compressions_are_read() {
    let cluster = Cluster::new(1, 1);
    let text = "0123456789".repeat(300);
    let codecs = ["gzip", "snappy", "lz4", "zstd"];
    for codec in codecs {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.mock.bootstrap_servers());
        let producer: BaseProducer = config.set("compression.codec", codec).create().unwrap();
        let record = BaseRecord::<str, str>::to("t").partition(0).payload(&text);
        producer.send(record).unwrap();
        producer.flush(PATIENCE).unwrap();
    }
    let read = take(&mut cluster.open(), codecs.len()).unwrap();
    assert!(read.iter().all(|(.., found)| *found == text));
}

#[test]
fn messages_without_contents_are_none() {
    let cluster = Cluster::new(1, 1);
    cluster.put_all("t", 0, &[Some("a"), None, Some("b"), None]);
    let mut source = cluster.open();
    let read = take(&mut source, 2).unwrap();
    assert_eq!(of_partition(&read, 0), [(0, "a"), (2, "b")]);
    let start = Instant::now();
    while source.partitions()[0].next < 4 {
        assert!(start.elapsed() < PATIENCE);
        source.poll(&mut Block::new(), Duration::from_millis(100)).unwrap();
    }
}

#[test]
fn partitions_have_a_lag_in_messages() {
    let cluster = Cluster::new(1, 2);
    cluster.put(0, &["a", "b", "c"]);
    let settings = KafkaSettings { block_bytes: 1, ..cluster.settings() };
    let mut source = KafkaSource::open(settings, &Position::default()).unwrap();
    assert_eq!(take(&mut source, 1).unwrap().len(), 1);
    let start = Instant::now();
    loop {
        let state = source.partitions().swap_remove(0);
        assert_eq!((state.name.as_str(), state.next), ("t/0", 1));
        assert_eq!(state.unit, crate::OffsetUnit::Messages);
        if state.lag() == 2 && state.end == 3 && state.earliest == 0 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{state:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(source.partitions()[1].lag(), 0);
}

#[test]
fn a_new_stream_begins_where_the_settings_say() {
    let cluster = Cluster::new(1, 1);
    cluster.put(0, &["a", "b", "c"]);
    let open = |start| {
        let settings = KafkaSettings { start, ..cluster.settings() };
        let mut source = KafkaSource::open(settings, &Position::default()).unwrap();
        source.poll(&mut Block::new(), Duration::ZERO).unwrap();
        source.take_discoveries()
    };
    assert_eq!(open(Start::Earliest), [partitions(&["t/0"], &[0])]);
    assert_eq!(open(Start::Latest), [partitions(&["t/0"], &[3])]);
    // No message is as late as this time.
    assert_eq!(open(Start::Time(i64::MAX / 2)), [partitions(&["t/0"], &[3])]);
    // The position after the decision has the start, so that the next run begins there.
    let settings = KafkaSettings { start: Start::Earliest, ..cluster.settings() };
    let position = position_of(&open(Start::Latest));
    cluster.put(0, &["d"]);
    let mut source = KafkaSource::open(settings, &position).unwrap();
    assert_eq!(take(&mut source, 1).unwrap(), [(0, 3, "d".to_owned())]);
}

#[test]
fn queues_are_bounded_while_nobody_reads() {
    let cluster = Cluster::new(1, 1);
    let text = "x".repeat(10_000);
    let messages = vec![text.as_str(); 400];
    cluster.put(0, &messages);
    let settings = KafkaSettings {
        queue_bytes: 100 << 10,
        fetch_bytes: 50 << 10,
        block_bytes: 1,
        ..cluster.settings()
    };
    let mut source = KafkaSource::open(settings, &Position::default()).unwrap();
    let mut largest = 0;
    for _ in 0..20 {
        take(&mut source, 1).unwrap();
        // Several reports of the queues arrive in this time.
        std::thread::sleep(Duration::from_millis(150));
        largest = largest.max(source.queued_bytes());
    }
    // A fetch begins below the bound, and brings one batch more than it asks for at most.
    assert!(largest > 50 << 10, "{largest}");
    assert!(largest <= (100 + 50 + 1000) << 10, "{largest}");
    assert_eq!(take(&mut source, 380).unwrap().len(), 380);
}
