//! Tests of whole files as messages.

use super::*;
use crate::{Taking, TooLong, check_took};

/// Opens a folder whose files are messages of at most 20 bytes.
fn open(site: &Site, long_messages: LongMessages, position: &Position) -> FollowedFolder {
    let settings = FolderSettings {
        framing: Framing::Files,
        max_message_bytes: 20,
        long_messages,
        ..site.settings()
    };
    FollowedFolder::open(settings, position).unwrap()
}

#[test]
fn each_file_is_a_message() {
    let site = Site::new(&["a", "b"]);
    site.put("a/1", "one\ntwo\n\n");
    site.put("a/2", "");
    site.put("a/3", "12345678901234567890");
    site.put("b/1", "x");
    let mut source = open(&site, LongMessages::Stop, &Position::default());
    let wanted = reads(&[(0, 0, "one\ntwo\n\n"), (1, 0, "x"), (0, 9, "12345678901234567890")]);
    assert_eq!(drain(&mut source).unwrap(), wanted);
    site.put("a/4", "y");
    assert_eq!(drain(&mut source).unwrap(), reads(&[(0, 29, "y")]));
}

#[test]
fn a_file_that_is_too_long_is_an_error_or_left_out() {
    let site = Site::new(&["a"]);
    site.put("a/1", "123456789012345678901");
    site.put("a/2", "next");
    let mut source = open(&site, LongMessages::Stop, &Position::default());
    let error = drain(&mut source).unwrap_err().to_string();
    assert!(error.contains("offset 0: the message has more than 20 bytes"), "{error}");
    let mut source = open(&site, LongMessages::Reject, &Position::default());
    let mut block = Block::new();
    assert!(source.poll(&mut block, Duration::ZERO).unwrap());
    let head = b"123456789012345678901".to_vec();
    assert_eq!(block.too_long(), Some(&TooLong { offset: 0, next: 21, head }));
    assert!(block.is_empty());
    assert_eq!(drain(&mut source).unwrap(), reads(&[(0, 21, "next")]));
}

#[test]
fn a_replay_reads_the_same_files() {
    let site = Site::new(&["a"]);
    site.put("a/1", "one\n");
    site.put("a/2", "two\n");
    let (mut block, mut position, mut spans) = (Block::new(), Position::default(), Vec::new());
    let mut source = open(&site, LongMessages::Stop, &position);
    while source.poll(&mut block, Duration::ZERO).unwrap() {
        let mut taking = Taking::new(block.partition(), block.start());
        block.iter().for_each(|message| taking.add(&message));
        spans.push(taking.finish());
    }
    for (number, decision) in (0..).zip(source.take_discoveries()) {
        position.apply(number, &decision).unwrap();
    }
    let mut source = open(&site, LongMessages::Stop, &position);
    for recorded in &spans {
        assert!(source.read(recorded.partition, recorded.to, &mut block).unwrap());
        let mut taking = Taking::new(block.partition(), block.start());
        block.iter().for_each(|message| taking.add(&message));
        check_took(recorded, &taking.finish()).unwrap();
    }
    assert_eq!(spans.iter().map(|span| span.to).collect::<Vec<_>>(), [4, 8]);

    // A span that ends inside a file was recorded with lines as messages.
    let mut source = open(&site, LongMessages::Stop, &position);
    let error = source.read(spans[0].partition, 3, &mut block).unwrap_err().to_string();
    assert!(error.contains("offset 3 is inside the file `1`"), "{error}");
    assert!(error.contains("use the `framing` with which the stream began"), "{error}");
}
