//! Tests of brokers that fail, move and forget.

use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::*;

/// Writes numbered messages to partition 0 while a source reads, with a disturbance between the
/// first and the second half.
fn disturb(cluster: &Cluster, disturbance: impl FnOnce()) {
    let texts: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    cluster.put(0, &texts[..1000]);
    let mut source = cluster.open();
    let mut read = take(&mut source, 1000).unwrap();
    disturbance();
    cluster.put(0, &texts[1000..]);
    read.extend(take(&mut source, 1000).unwrap());
    let wanted: Vec<(u64, &str)> = (0..).zip(texts).collect();
    assert_eq!(of_partition(&read, 0), wanted);
}

#[test]
fn errors_of_the_protocol_lose_and_double_nothing() {
    use RDKafkaRespErr::*;
    let cluster = Cluster::new(1, 1);
    disturb(&cluster, || {
        let errors = [
            RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            RD_KAFKA_RESP_ERR__TRANSPORT,
            RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
            RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
            RD_KAFKA_RESP_ERR__TRANSPORT,
            RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
        ];
        cluster.mock.request_errors(RDKafkaApiKey::Fetch, &errors);
        cluster.mock.request_errors(RDKafkaApiKey::Metadata, &errors[..2]);
    });
}

#[test]
fn a_change_of_the_leader_loses_and_doubles_nothing() {
    let cluster = Cluster::new(3, 1);
    cluster.mock.partition_leader("t", 0, Some(1)).unwrap();
    disturb(&cluster, || cluster.mock.partition_leader("t", 0, Some(3)).unwrap());
}

#[test]
fn a_broker_that_comes_back_is_read_again() {
    let cluster = Cluster::new(1, 1);
    disturb(&cluster, || {
        cluster.mock.broker_down(1).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        cluster.mock.broker_up(1).unwrap();
    });
}

#[test]
fn a_long_outage_is_an_error() {
    let cluster = Cluster::new(1, 1);
    cluster.put(0, &["a"]);
    let settings = KafkaSettings { outage_ms: 1000, ..cluster.settings() };
    let mut source = KafkaSource::open(settings, &Position::default()).unwrap();
    take(&mut source, 1).unwrap();
    cluster.mock.broker_down(1).unwrap();
    let error = fail(&mut source);
    assert!(error.contains("no broker was reached for 1 s"), "{error}");
    assert!(error.contains("check the addresses in `brokers`"), "{error}");
}

#[test]
fn a_group_that_is_refused_does_not_matter() {
    let cluster = Cluster::new(1, 1);
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    cluster.mock.request_errors(RDKafkaApiKey::FindCoordinator, &[refusal; 100]);
    cluster.put(0, &["a"]);
    assert_eq!(take(&mut cluster.open(), 1).unwrap().len(), 1);
}

#[test]
fn messages_that_retention_has_removed_are_an_error() {
    let cluster = Cluster::new(1, 1);
    // These brokers keep 5 MiB of a partition.
    let text = "x".repeat(100_000);
    let messages = vec![text.as_str(); 10];
    cluster.put(0, &messages[..3]);
    let mut source = cluster.open();
    take(&mut source, 3).unwrap();
    let mut decisions = source.take_discoveries();
    drop(source);
    for _ in 0..10 {
        cluster.put(0, &messages);
    }
    let partition = Partition { stream: 0, number: 0 };
    let took = crate::Took { partition, from: 0, to: 3, count: 3, hash: 1 };
    decisions.push(Decision::Took(took));
    let position = position_of(&decisions);
    let mut source = KafkaSource::open(cluster.settings(), &position).unwrap();
    let error = fail(&mut source);
    let parts = ["partition 0 of stream 0 (`t/0`), offset 3: the message does not exist any more"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    let earliest = error.split_once("earliest one has offset ").unwrap().1;
    let earliest: u64 = earliest.split_once(' ').unwrap().0.parse().unwrap();
    assert!((4..103).contains(&earliest), "{error}");
    assert!(error.contains("ends at offset 103; begin a new stream"), "{error}");
    // The error stays.
    assert_eq!(fail(&mut source), error);
}

#[test]
fn a_partition_that_has_become_shorter_is_an_error() {
    let cluster = Cluster::new(1, 1);
    cluster.put(0, &["a", "b"]);
    let position = position_of(&[partitions(&["t/0"], &[5])]);
    let mut source = KafkaSource::open(cluster.settings(), &position).unwrap();
    let error = fail(&mut source);
    assert!(error.contains("offset 5: the partition ends at offset 2; restore"), "{error}");

    // A recorded span that lies behind the end is found too.
    let settings = KafkaSettings { request_ms: 300, ..cluster.settings() };
    let position = position_of(&[partitions(&["t/0"], &[1])]);
    let mut source = KafkaSource::open(settings, &position).unwrap();
    let (mut block, partition) = (Block::new(), Partition { stream: 0, number: 0 });
    assert!(source.read(partition, 4, &mut block).unwrap());
    assert_eq!((block.len(), block.end()), (1, 2));
    let error = source.read(partition, 4, &mut block).unwrap_err().to_string();
    assert!(error.contains("ends at offset 2, but 4 was reached before"), "{error}");
}

#[test]
fn what_does_not_exist_is_an_error_at_the_opening() {
    let cluster = Cluster::new(1, 1);
    let settings = KafkaSettings { topics: vec!["other".to_owned()], ..cluster.settings() };
    let error = KafkaSource::open(settings, &Position::default()).unwrap_err().to_string();
    assert!(error.starts_with("topic `other`: "), "{error}");
    assert!(error.contains("create the topic, correct its name"), "{error}");
    let brokers = vec!["127.0.0.1:1".to_owned()];
    let settings = KafkaSettings { brokers, request_ms: 500, ..cluster.settings() };
    let error = KafkaSource::open(settings, &Position::default()).unwrap_err().to_string();
    assert!(error.starts_with("brokers `127.0.0.1:1`: no answer"), "{error}");
    assert!(error.contains("Connection refused"), "{error}");
}
