//! Tests of settings, of partitions that are added, and of limits.

use super::*;
use crate::{LongMessages, OptionValue, SecretFile, SecretVariable};

#[test]
fn a_message_too_long_is_an_error_or_left_out() {
    let cluster = Cluster::new(1, 1);
    cluster.put(0, &["short", "much too long", "next"]);
    let settings = KafkaSettings { max_message_bytes: 10, ..cluster.settings() };
    let mut source = KafkaSource::open(settings.clone(), &Position::default()).unwrap();
    assert_eq!(of_partition(&take(&mut source, 1).unwrap(), 0), [(0, "short")]);
    for _ in 0..2 {
        let error = fail(&mut source);
        assert!(error.contains("offset 1: the message has more than 10 bytes"), "{error}");
    }
    let settings = KafkaSettings { long_messages: LongMessages::Reject, ..settings };
    let mut source = KafkaSource::open(settings, &Position::default()).unwrap();
    assert_eq!(of_partition(&take(&mut source, 1).unwrap(), 0), [(0, "short")]);
    let mut block = Block::new();
    assert!(source.poll(&mut block, PATIENCE).unwrap());
    let head = b"much too long".to_vec();
    let wanted = crate::TooLong { offset: 1, next: 2, head };
    assert_eq!((block.too_long(), block.len()), (Some(&wanted), 0));
    assert_eq!(of_partition(&take(&mut source, 1).unwrap(), 0), [(2, "next")]);
    // Another size holds for the messages behind.
    source.set_max_message_bytes(13).unwrap();
    cluster.put(0, &["much too long", "is longer still"]);
    assert_eq!(of_partition(&take(&mut source, 1).unwrap(), 0), [(3, "much too long")]);
    assert!(source.poll(&mut block, PATIENCE).unwrap());
    assert_eq!(block.too_long().map(|long| long.offset), Some(4));
    assert!(source.set_max_message_bytes(0).is_err());
}

#[test]
fn added_partitions_and_topics_are_read_from_their_beginning() {
    let cluster = Cluster::new(1, 2);
    cluster.mock.create_topic("u", 1, 1).unwrap();
    cluster.put(0, &["a"]);
    cluster.put(1, &["b"]);
    cluster.put_all("u", 0, &[Some("c")]);
    // The earlier run knew one partition, and began at the newest messages.
    let position = position_of(&[partitions(&["t/0"], &[1])]);
    let topics = vec!["t".to_owned(), "u".to_owned()];
    let settings = KafkaSettings { start: Start::Latest, topics, ..cluster.settings() };
    let mut source = KafkaSource::open(settings, &position).unwrap();
    let read = take(&mut source, 2).unwrap();
    assert_eq!(of_partition(&read, 1), [(0, "b")]);
    assert_eq!(of_partition(&read, 2), [(0, "c")]);
    assert_eq!(source.take_discoveries(), [partitions(&["t/0", "t/1", "u/0"], &[0, 0])]);
}

#[test]
fn a_position_that_does_not_fit_is_refused() {
    let cluster = Cluster::new(1, 1);
    let open = |names: &[&str]| {
        let position = position_of(&[partitions(names, &[])]);
        let opened = KafkaSource::open(cluster.settings(), &position);
        let polled = opened.and_then(|mut s| s.poll(&mut Block::new(), Duration::ZERO));
        polled.unwrap_err().to_string()
    };
    let error = open(&["gone/0"]);
    assert!(error.contains("topic `gone`: the stream has consumed the topic"), "{error}");
    let error = open(&["t/0", "t/1"]);
    assert!(error.contains("has 1 partitions, but had 2 before"), "{error}");
    for name in ["folder", "t/x", "t/-1"] {
        let error = open(&[name]);
        assert!(error.contains("is no partition of a topic"), "{error}");
    }
    let mut source = cluster.open();
    let other = Partition { stream: 0, number: 9 };
    let error = source.read(other, 1, &mut Block::new()).unwrap_err().to_string();
    assert!(error.contains("is unknown to the stream of Kafka"), "{error}");
    source.adopt(&partitions(&["t/0"], &[])).unwrap();
    let error = source.adopt(&partitions(&["u/0"], &[])).unwrap_err().to_string();
    assert!(error.contains("do not begin with the known ones"), "{error}");
    let error = source.adopt(&partitions(&["t/0", "t/1"], &[1, 2])).unwrap_err().to_string();
    assert!(error.contains("2 offsets at which partitions begin"), "{error}");
}

#[test]
fn settings_are_checked() {
    let good = KafkaSettings::new(&["a:1"], &["t"], 0);
    good.check().unwrap();
    let bad = |change: fn(&mut KafkaSettings), words: &str| {
        let mut settings = good.clone();
        change(&mut settings);
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with("stream of Kafka: "), "{error}");
        assert!(error.contains(words), "{error}");
    };
    bad(|s| s.brokers.clear(), "`brokers` and `topics` are needed");
    bad(|s| s.brokers.push("a:1,b:2".into()), "`a:1,b:2` is no broker");
    bad(|s| s.topics.push("a/b".into()), "`a/b` is no name of a topic");
    bad(|s| s.topics.push("t".into()), "`t` is there twice");
    bad(|s| s.block_bytes = 0, "use sizes from 1 byte to 1 GiB");
    bad(|s| s.queue_bytes = 5, "`queue_bytes` is 5, outside of 1024 to");
    bad(|s| s.fetch_bytes = u32::MAX, "`fetch_bytes` is 4294967295");
    bad(|s| s.outage_ms = 0, "`outage_ms` is 0");
    assert_eq!(good.memory_bytes(2, 3), 2 * (5 << 20) + 2 * 5_120_000 + (48 << 20) + (34 << 20));
}

#[test]
fn options_that_would_break_exactness_are_refused() {
    let refuse = |name: &str, value: OptionValue| {
        let mut settings = KafkaSettings::new(&["a:1"], &["t"], 0);
        settings.options.insert(name.to_owned(), value);
        settings.check().unwrap_err().to_string()
    };
    let text = |value: &str| OptionValue::Text(value.to_owned());
    for (name, words) in [
        ("enable.auto.commit", "offsets are in the checkpoint"),
        ("group.id", "the stream joins no group"),
        ("auto.offset.reset", "an error and never a jump"),
        ("isolation.level", "open or aborted transactions"),
        ("queued.max.messages.kbytes", "`queue_bytes`, `queue_messages`"),
        ("bootstrap.servers", "`brokers`"),
        ("plugin.library.paths", "is not allowed (broker.address.family, "),
    ] {
        let error = refuse(name, text("true"));
        assert!(error.contains(&format!("option `{name}`")), "{error}");
        assert!(error.contains(words) && error.contains("remove the option"), "{error}");
    }
    let error = refuse("sasl.password", text("hidden"));
    assert!(error.contains("is a secret and must not be in the job"), "{error}");
    assert!(!error.contains("hidden"), "{error}");
}

#[test]
fn secrets_come_from_files_and_variables_and_are_not_printed() {
    let text = r#"{"brokers": ["a:1"], "topics": ["t"], "start": {"time": 5}, "options":
        {"sasl.password": {"file": "/secret"}, "sasl.username": {"env": "USER_OF_KAFKA"},
         "client.id": "me"}, "fetch_wait_ms": 7}"#;
    let settings: KafkaSettings = serde_json::from_str(text).unwrap();
    settings.check().unwrap();
    assert_eq!((settings.start, settings.fetch_wait_ms), (Start::Time(5), 7));
    let written = serde_json::to_string(&settings).unwrap();
    assert_eq!(serde_json::from_str::<KafkaSettings>(&written).unwrap(), settings);
    assert!(serde_json::from_str::<KafkaSettings>(r#"{"broker": ["a:1"]}"#).is_err());

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "hidden\n").unwrap();
    let value = OptionValue::File(SecretFile { file });
    assert_eq!(value.read("sasl.password").unwrap(), "hidden");
    let missing = OptionValue::Variable(SecretVariable { env: "NO_SUCH_VARIABLE".to_owned() });
    let error = missing.read("sasl.password").unwrap_err().to_string();
    assert!(error.contains("the variable `NO_SUCH_VARIABLE` is not set"), "{error}");

    // A refused value is not part of the error.
    let mut settings = KafkaSettings { options: Default::default(), ..settings };
    settings.options.insert("security.protocol".to_owned(), value);
    let error = KafkaSource::open(settings.clone(), &Position::default()).unwrap_err().to_string();
    assert!(error.contains("security.protocol") && !error.contains("hidden"), "{error}");
    assert!(!format!("{settings:?}").contains("hidden"));
}
