//! Tests of lines as messages: blocks of every size, and messages that are too long.

use super::*;
use crate::TooLong;

/// The messages that were read, and the bounds of those that are too long.
type Outcome = (Vec<Read>, Vec<(u64, u64)>);

/// Reads a partition with the given block size and limit.
fn read(
    site: &Site,
    block_bytes: usize,
    limit: usize,
    long_messages: LongMessages,
) -> Result<Outcome> {
    let settings =
        FolderSettings { block_bytes, max_message_bytes: limit, long_messages, ..site.settings() };
    let mut source = FollowedFolder::open(settings, &Position::default()).unwrap();
    let (mut block, mut messages, mut too_long) = (Block::new(), Vec::new(), Vec::new());
    let mut end = 0;
    while source.poll(&mut block, Duration::ZERO)? {
        assert_eq!(block.start(), end, "blocks follow one another");
        end = block.end();
        for message in block.iter() {
            assert!(message.next <= end && message.offset < message.next);
            let text = String::from_utf8(message.bytes.to_vec()).unwrap();
            messages.push((message.partition.number, message.offset, text));
        }
        if let Some(long) = block.too_long() {
            assert_eq!((block.len(), block.end()), (0, long.next));
            too_long.push((long.offset, long.next));
        }
    }
    Ok((messages, too_long))
}

#[test]
fn blocks_of_every_size_give_the_same_messages() {
    let site = Site::new(&["a"]);
    site.put("a/1", "\n\none\n\r\nsecond line\r\n\nthe third one is longer");
    site.put("a/2", "");
    site.put("a/3", "\r\n");
    site.put("a/4", "four\n\n");
    let wanted = reads(&[
        (0, 2, "one"),
        (0, 8, "second line"),
        (0, 22, "the third one is longer"),
        (0, 47, "four"),
    ]);
    for block_bytes in 1..60 {
        for limit in [23, 24, 30, 1000] {
            let (messages, too_long) = read(&site, block_bytes, limit, LongMessages::Stop).unwrap();
            assert_eq!((messages, too_long.len()), (wanted.clone(), 0), "{block_bytes} {limit}");
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_an_error_or_left_out() {
    let site = Site::new(&["a"]);
    site.put("a/1", "ab\n12345\r\ncd\n123456\r\n123456789 and much more\n12345\nef\n1234567");
    let wanted =
        reads(&[(0, 0, "ab"), (0, 3, "12345"), (0, 10, "cd"), (0, 45, "12345"), (0, 51, "ef")]);
    for block_bytes in 1..70 {
        let (messages, too_long) = read(&site, block_bytes, 5, LongMessages::Reject).unwrap();
        assert_eq!(messages, wanted, "{block_bytes}");
        assert_eq!(too_long, [(13, 21), (21, 45), (54, 61)], "{block_bytes}");
        let error = read(&site, block_bytes, 5, LongMessages::Stop).unwrap_err().to_string();
        assert!(error.contains("partition 0 of stream 0, offset 13: the message"), "{error}");
        assert!(error.contains("more than 5 bytes (`max_message_bytes`)"), "{error}");
    }
}

#[test]
fn a_message_that_is_left_out_keeps_its_beginning() {
    let site = Site::new(&["a"]);
    let long = "x".repeat(5000);
    site.put("a/1", &format!("1\n{long}\n2\n"));
    let settings = FolderSettings {
        max_message_bytes: 100,
        long_messages: LongMessages::Reject,
        ..site.settings()
    };
    let mut source = FollowedFolder::open(settings, &Position::default()).unwrap();
    let mut block = Block::new();
    source.poll(&mut block, Duration::ZERO).unwrap();
    assert_eq!((block.len(), block.end()), (1, 2));
    source.poll(&mut block, Duration::ZERO).unwrap();
    let wanted = TooLong { offset: 2, next: 5003, head: vec![b'x'; 1024] };
    assert_eq!(block.too_long(), Some(&wanted));
    source.poll(&mut block, Duration::ZERO).unwrap();
    assert_eq!(block.get(0).unwrap().bytes, b"2");
    assert_eq!(block.too_long(), None);
}

#[test]
fn the_largest_size_of_a_message_can_change() {
    let site = Site::new(&["a"]);
    site.put("a/1", "long\nshort\nlonger\nlongest\n");
    let long_messages = LongMessages::Reject;
    let settings = FolderSettings { block_bytes: 5, long_messages, ..site.settings() };
    let mut source = FollowedFolder::open(settings, &Position::default()).unwrap();
    let mut block = Block::new();
    let mut read = |limit: usize| {
        source.set_max_message_bytes(limit).unwrap();
        assert!(source.poll(&mut block, Duration::ZERO).unwrap());
        block.get(0).map(|message| String::from_utf8(message.bytes.to_vec()).unwrap())
    };
    assert_eq!(read(4).as_deref(), Some("long"));
    assert_eq!(read(4), None);
    assert_eq!(read(6).as_deref(), Some("longer"));
    assert_eq!(read(6), None);
    for limit in [0, (1 << 30) + 1] {
        let error = source.set_max_message_bytes(limit).unwrap_err().to_string();
        assert!(error.contains("`max_message_bytes` is"), "{error}");
    }
}

#[test]
fn a_block_that_is_used_again_keeps_its_memory() {
    let site = Site::new(&["a"]);
    site.put("a/1", &"0123456789\n".repeat(100_000));
    let mut source = site.open();
    let mut block = Block::new();
    source.poll(&mut block, Duration::ZERO).unwrap();
    let memory = |block: &Block| (block.bytes.as_ptr(), block.messages.as_ptr());
    let before = memory(&block);
    let mut count = block.len();
    while source.poll(&mut block, Duration::ZERO).unwrap() {
        assert_eq!(memory(&block), before);
        count += block.len();
    }
    assert_eq!(count, 100_000);
}
