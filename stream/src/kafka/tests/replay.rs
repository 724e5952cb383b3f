//! Tests of restarts: a run that is killed at any moment and opened again at a checkpoint consumes
//! the same messages.

use super::*;
use crate::{Taking, Took, check_took};

/// Consumes `count` messages in spans of at most `span`, and returns the decisions in order.
fn consume(
    source: &mut KafkaSource,
    count: usize,
    span: usize,
    read: &mut Vec<Read>,
) -> Vec<Decision> {
    let (mut block, mut decisions, start) = (Block::new(), Vec::new(), Instant::now());
    let target = read.len() + count;
    while read.len() < target {
        assert!(start.elapsed() < PATIENCE);
        source.poll(&mut block, Duration::from_millis(100)).unwrap();
        decisions.extend(source.take_discoveries());
        let messages: Vec<_> = block.iter().collect();
        let mut from = block.start();
        for part in messages.chunks(span) {
            let mut taking = Taking::new(block.partition(), from);
            for message in part {
                taking.add(message);
                let text = String::from_utf8(message.bytes.to_vec()).unwrap();
                read.push((message.partition.number, message.offset, text));
            }
            let took = taking.finish();
            from = took.to;
            decisions.push(Decision::Took(took));
        }
        if from < block.end() {
            // Messages without contents lie behind the last message.
            let mut taking = Taking::new(block.partition(), from);
            taking.extend_to(block.end());
            decisions.push(Decision::Took(taking.finish()));
        }
    }
    decisions
}

/// Reads a recorded span again.
fn read_span(source: &mut KafkaSource, recorded: &Took, read: &mut Vec<Read>) -> Took {
    let mut block = Block::new();
    let mut taking = Taking::new(recorded.partition, recorded.from);
    while source.read(recorded.partition, recorded.to, &mut block).unwrap() {
        for message in block.iter() {
            taking.add(&message);
            let text = String::from_utf8(message.bytes.to_vec()).unwrap();
            read.push((message.partition.number, message.offset, text));
        }
        taking.extend_to(block.end());
    }
    taking.finish()
}

#[test]
fn a_replay_from_any_checkpoint_reads_the_same_messages() {
    let cluster = Cluster::new(2, 3);
    let texts: Vec<String> = (0..600).map(|number| format!("{{\"n\":{number}}}")).collect();
    for number in 0..3 {
        let own = texts.iter().enumerate().filter(|(index, _)| index % 3 == number);
        let contents = own.map(|(index, text)| (index % 7 != 3).then_some(text.as_str()));
        cluster.put_all("t", number as i32, &contents.collect::<Vec<_>>());
    }
    let wanted = texts.iter().enumerate().filter(|(index, _)| index % 7 != 3).count();
    // Small blocks make many spans.
    let settings = KafkaSettings { block_bytes: 200, ..cluster.settings() };
    let mut source = KafkaSource::open(settings.clone(), &Position::default()).unwrap();
    let mut read = Vec::new();
    let decisions = consume(&mut source, wanted - 50, 3, &mut read);
    drop(source);
    assert!(decisions.len() > 50, "{}", decisions.len());

    for checkpoint in [0, 1, 2, decisions.len() / 3, decisions.len() / 2, decisions.len()] {
        let position = position_of(&decisions[..checkpoint]);
        let mut source = KafkaSource::open(settings.clone(), &position).unwrap();
        let mut again = Vec::new();
        let mut recorded_count = 0;
        for decision in &decisions[checkpoint..] {
            source.adopt(decision).unwrap();
            if let Decision::Took(recorded) = decision {
                let replayed = read_span(&mut source, recorded, &mut again);
                check_took(recorded, &replayed).unwrap();
                recorded_count += recorded.count as usize;
            }
        }
        assert_eq!(again, read[read.len() - recorded_count..]);
        // Live reading goes on behind the log, without a gap and without repetition.
        let rest = wanted - read.len();
        let more = consume(&mut source, rest, 5, &mut again);
        let mut all = decisions.clone();
        all.extend(more.iter().filter(|d| matches!(d, Decision::Took(_))).cloned());
        let ends = position_of(&all).partitions().map(|(_, p)| p.next_offset).collect::<Vec<_>>();
        assert!(ends.iter().all(|end| (199..=200).contains(end)), "{ends:?}");
        for number in 0..3 {
            let known = of_partition(&read[..read.len() - recorded_count], number).len();
            let found = known + of_partition(&again, number).len();
            let wanted = (0..600).filter(|index| index % 3 == number && index % 7 != 3).count();
            assert_eq!(found, wanted, "partition {number}");
        }
        // The partitions were known from the log.
        assert!(more.iter().all(|decision| matches!(decision, Decision::Took(_))));
    }
}

#[test]
fn changed_messages_are_found_by_their_hash() {
    let cluster = Cluster::new(1, 1);
    cluster.put(0, &["a", "b", "c"]);
    let mut read = Vec::new();
    let mut source = cluster.open();
    let decisions = consume(&mut source, 3, 3, &mut read);
    let other = Cluster::new(1, 1);
    other.put(0, &["a", "B", "c"]);
    let mut source = other.open();
    for decision in &decisions {
        source.adopt(decision).unwrap();
        if let Decision::Took(recorded) = decision {
            let replayed = read_span(&mut source, recorded, &mut Vec::new());
            let error = check_took(recorded, &replayed).unwrap_err().to_string();
            assert!(error.contains("restore the original data"), "{error}");
        }
    }
}

#[test]
fn a_span_whose_end_was_removed_ends_without_waiting_for_ever() {
    let cluster = Cluster::new(1, 1);
    // The last message of the recorded span has no contents any more, as after a compaction.
    cluster.put_all("t", 0, &[Some("a"), None, None]);
    let settings = KafkaSettings { request_ms: 300, ..cluster.settings() };
    let mut source = KafkaSource::open(settings, &Position::default()).unwrap();
    source.adopt(&partitions(&["t/0"], &[0])).unwrap();
    let partition = Partition { stream: 0, number: 0 };
    let recorded = Took { partition, from: 0, to: 3, count: 2, hash: 5 };
    let replayed = read_span(&mut source, &recorded, &mut Vec::new());
    assert_eq!((replayed.to, replayed.count), (3, 1));
    let error = check_took(&recorded, &replayed).unwrap_err().to_string();
    assert!(error.contains("the data has 1 messages up to offset 3"), "{error}");
}
