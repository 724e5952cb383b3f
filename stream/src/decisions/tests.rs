//! Tests of the log: what is read is what was written, and damage is found.

mod faults;

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use zillion_device::Files;

use super::*;
use crate::error::{Error, Result};

fn options(segment_bytes: u64) -> LogOptions {
    LogOptions { segment_bytes }
}

/// Opens a log without waiting for the disk, which a test of the bytes does not need.
fn open(folder: &Path, segment_bytes: u64) -> Result<DecisionLog> {
    DecisionLog::open(&Files::new().scratch(), folder, options(segment_bytes))
}

/// Returns all decisions of a log, which is opened for this.
fn read_all(folder: &Path) -> Result<Vec<Decision>> {
    let log = open(folder, 1)?;
    let decisions: Result<Vec<_>> = log.replay(log.first())?.collect();
    Ok(decisions?.into_iter().map(|(_, decision)| decision).collect())
}

/// Returns a decision whose fields depend on a number.
fn decision(number: u64) -> Decision {
    let partition = Partition { stream: 1, number: number as u32 };
    match number % 13 {
        0 => Decision::Idle { partition },
        1 => Decision::Back { partition },
        2 => Decision::Cut { batch: number, rows: 4096, reason: CutReason::Linger },
        3 => Decision::Publish { batch: number },
        4 => Decision::Checkpoint { batch: number },
        5 => {
            let reason = "poison".to_owned();
            Decision::Skip { from: number, to: number + 3, reason, unread: None }
        }
        6 => Decision::Schema { stream: 1, id: 7, fingerprint: u64::MAX },
        7 => Decision::Partitions {
            stream: 2,
            names: vec![number.to_string(), "ß\n".to_owned()],
            starts: Vec::new(),
        },
        8 => {
            let name = "part-0.jsonl".to_owned();
            let file = FileIdentity { name, start: number, size: 1, head: u64::MAX - 1 };
            Decision::File { partition, file }
        }
        9 => Decision::Rules(RowRules {
            disorder_ms: number,
            max_ahead_ms: 3_600_000,
            accept_jump_after: 9,
            max_message_bytes: u64::MAX,
            start_ms: (number % 24 == 9).then_some(i64::MAX),
        }),
        10 => Decision::Reset { partition, to: number, files: FileHistory::default() },
        12 => Decision::Keep { from: number, to: number + 2, reason: "lost".to_owned() },
        _ => {
            let (from, hash) = (number << 40, u64::MAX / 3);
            Decision::Took(Took { partition, from, to: from + 9, count: 3, hash })
        }
    }
}

/// Writes a log with the decisions 0 to `count` and a sync after each of `sync_every` of them.
fn write_log(folder: &Path, count: u64, sync_every: u64, segment_bytes: u64) {
    let mut log = open(folder, segment_bytes).unwrap();
    for number in 0..count {
        assert_eq!(log.append(&decision(number)).unwrap(), number);
        if number % sync_every == sync_every - 1 {
            log.sync().unwrap();
        }
    }
    log.sync().unwrap();
}

fn expected(count: u64) -> Vec<Decision> {
    (0..count).map(decision).collect()
}

/// Returns the paths of the segments in order.
fn segments(folder: &Path) -> Vec<std::path::PathBuf> {
    segment::list(folder).unwrap().into_iter().map(|segment| segment.path).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_log_returns_what_was_appended(
        count in 0u64..60,
        sync_every in 1u64..8,
        segment_bytes in 1u64..4000,
        from in 0u64..60,
    ) {
        let folder = tempfile::tempdir().unwrap();
        write_log(folder.path(), count, sync_every, segment_bytes);
        let log = open(folder.path(), segment_bytes).unwrap();
        prop_assert_eq!((log.first(), log.next(), log.synced()), (0, count, count));
        prop_assert_eq!(log.torn_tail(), None);
        match log.replay(from) {
            Ok(replay) => {
                let replayed: Vec<_> = replay.map(|item| item.unwrap()).collect();
                let wanted: Vec<_> = (from..count).map(|n| (n, decision(n))).collect();
                prop_assert_eq!(replayed, wanted);
                prop_assert!(from <= count);
            }
            Err(error) => {
                prop_assert!(from > count);
                let missing = matches!(error, Error::Missing { .. });
                prop_assert!(missing, "{}", error);
            }
        }
    }

    #[test]
    fn old_segments_are_removed_without_gaps(
        count in 1u64..60,
        segment_bytes in 1u64..1500,
        before in 0u64..70,
    ) {
        let folder = tempfile::tempdir().unwrap();
        write_log(folder.path(), count, 3, segment_bytes);
        let mut log = open(folder.path(), segment_bytes).unwrap();
        let total = segments(folder.path()).len();
        let removed = log.remove_before(before).unwrap();
        prop_assert_eq!(segments(folder.path()).len(), total - removed);
        prop_assert!(log.first() <= before);
        // The second segment is still needed.
        let next = segment::list(folder.path()).unwrap().get(1).map(|s| s.first);
        prop_assert!(next.is_none_or(|next| next > before));
        let first = log.first();
        drop(log);
        prop_assert_eq!(read_all(folder.path()).unwrap(), &expected(count)[first as usize..]);
        if first > 0 {
            let error = read_decisions(folder.path(), first - 1).unwrap_err().to_string();
            prop_assert!(error.contains("restore the missing files"), "{}", error);
        }
    }
}

#[test]
fn every_cut_of_the_tail_leaves_the_decisions_before_it() {
    let source = tempfile::tempdir().unwrap();
    write_log(source.path(), 12, 1, 1 << 20);
    let path = segments(source.path()).remove(0);
    let bytes = fs::read(&path).unwrap();
    let mut ends = vec![32];
    while let Some(length) = bytes.get(ends[ends.len() - 1]..).filter(|rest| !rest.is_empty()) {
        let length = u32::from_le_bytes(length[..4].try_into().unwrap()) as usize;
        ends.push(ends[ends.len() - 1] + 16 + length + 8);
    }
    assert_eq!((ends.len(), ends.last()), (13, Some(&bytes.len())));
    for cut in 0..bytes.len() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join(path.file_name().unwrap());
        fs::write(&copy, &bytes[..cut]).unwrap();
        let Some(whole) = ends.iter().rposition(|end| *end <= cut) else {
            let error = open(folder.path(), 1).unwrap_err().to_string();
            assert!(error.contains("no whole header"), "{cut}: {error}");
            continue;
        };
        // A reader without the lock leaves the torn record out and the file as it is.
        let seen: Result<Vec<_>> = read_decisions(folder.path(), 0).unwrap().collect();
        assert_eq!(seen.unwrap().len(), whole);
        let mut log = open(folder.path(), 1 << 20).unwrap();
        let torn = (cut - ends[whole]) as u64;
        let tail = TornTail { path: copy, offset: ends[whole] as u64, bytes: torn };
        assert_eq!(log.torn_tail(), (torn > 0).then_some(&tail));
        // The log goes on behind the last whole decision.
        assert_eq!(log.append(&decision(whole as u64)).unwrap(), whole as u64);
        log.sync().unwrap();
        drop(log);
        assert_eq!(read_all(folder.path()).unwrap(), expected(whole as u64 + 1), "{cut}");
    }
}

#[test]
fn zeros_that_a_loss_of_power_leaves_are_a_torn_tail() {
    let source = tempfile::tempdir().unwrap();
    write_log(source.path(), 3, 1, 1 << 20);
    let path = segments(source.path()).remove(0);
    let bytes = fs::read(&path).unwrap();
    let length = u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
    let first = 32 + 16 + length + 8;
    for written in 32..bytes.len() {
        // The file has its size, but the bytes from `written` on were not stored. Another record
        // with zeros may follow.
        let mut lost = bytes[..written].to_vec();
        lost.resize(bytes.len() + 40, 0);
        fs::write(&path, &lost).unwrap();
        let log = open(source.path(), 1).unwrap();
        let tail = log.torn_tail().unwrap();
        assert!(tail.offset <= written as u64 && tail.offset >= 32, "{written}");
        assert_eq!(log.next() > 0, written >= first, "{written}");
    }
    // Zeros in front of other bytes are damage.
    let mut hole = bytes.clone();
    hole[40..80].fill(0);
    fs::write(&path, &hole).unwrap();
    assert!(matches!(open(source.path(), 1), Err(Error::Damaged { offset: 32, .. })));
}

#[test]
fn few_zeros_are_a_torn_tail_if_they_are_the_whole_last_sector() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = [false; 33];
    for bytes in 400..512 {
        let mut log = open(folder.path(), 1 << 20).unwrap();
        log.append(&Decision::Partitions {
            stream: 0,
            names: vec!["n".repeat(bytes)],
            starts: Vec::new(),
        })
        .unwrap();
        log.sync().unwrap();
        drop(log);
        let path = segments(folder.path()).remove(0);
        let whole = fs::read(&path).unwrap();
        let last_sector = whole.len() % 512;
        if (1..=32).contains(&last_sector) {
            seen[last_sector] = true;
            let mut lost = whole.clone();
            lost[whole.len() - last_sector..].fill(0);
            fs::write(&path, &lost).unwrap();
            let log = open(folder.path(), 1).unwrap();
            assert_eq!((log.next(), log.torn_tail().unwrap().offset), (0, 32), "{last_sector}");
            drop(log);
            // A part of a sector is never lost alone: this is damage.
            let kept = (1..last_sector.min(16)).rev();
            for zeros in kept {
                let mut damaged = whole.clone();
                damaged[whole.len() - zeros - 1] |= 1;
                damaged[whole.len() - zeros..].fill(0);
                fs::write(&path, &damaged).unwrap();
                let error = open(folder.path(), 1).unwrap_err();
                assert!(matches!(error, Error::Damaged { offset: 32, .. }), "{zeros}: {error}");
            }
        }
        fs::remove_file(&path).unwrap();
    }
    assert!(seen[1..].iter().all(|seen| *seen), "{seen:?}");
}

#[test]
fn a_flipped_byte_anywhere_is_found() {
    let folder = tempfile::tempdir().unwrap();
    write_log(folder.path(), 10, 1, 500);
    let paths = segments(folder.path());
    assert_eq!(paths.len(), 2);
    for path in &paths {
        let bytes = fs::read(path).unwrap();
        for at in 0..bytes.len() {
            // One bit is flipped, or the byte becomes zero.
            for flip in [1 << (at % 8), bytes[at]] {
                if flip == 0 {
                    continue;
                }
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                fs::write(path, &damaged).unwrap();
                let error = read_all(folder.path()).unwrap_err();
                let is_there = matches!(
                    &error,
                    Error::Damaged { path: p, offset, .. } if p == path && *offset <= at as u64
                );
                assert!(is_there, "{at}: {error}");
                assert_eq!(fs::read(path).unwrap(), damaged, "damage is left as it is");
            }
        }
        fs::write(path, &bytes).unwrap();
    }
    assert_eq!(read_all(folder.path()).unwrap(), expected(10));
}

#[test]
fn a_hostile_length_is_an_error_and_costs_nothing() {
    for length in [u32::MAX, 1 << 24 | 1, 1 << 24, 1000] {
        let folder = tempfile::tempdir().unwrap();
        write_log(folder.path(), 1, 1, 1 << 20);
        let path = segments(folder.path()).remove(0);
        let mut bytes = fs::read(&path).unwrap();
        // A record with a right checksum of a wrong length.
        let mut header = length.to_le_bytes().to_vec();
        header.extend(1u64.to_le_bytes());
        header.extend((xxhash_rust::xxh3::xxh3_64(&header) as u32).to_le_bytes());
        bytes.extend(header);
        bytes.extend([b'x'; 40]);
        fs::write(&path, &bytes).unwrap();
        match open(folder.path(), 1) {
            // A possible length that reaches beyond the file is a torn record.
            Ok(log) => {
                assert!(length <= 1 << 24);
                assert_eq!((log.next(), log.torn_tail().unwrap().bytes), (1, 56));
            }
            Err(error) => {
                assert!(length > 1 << 24);
                assert!(error.to_string().contains(&format!("has {length} bytes")), "{error}");
            }
        }
    }
}

#[test]
fn a_missing_or_misplaced_segment_is_found() {
    let folder = tempfile::tempdir().unwrap();
    write_log(folder.path(), 30, 1, 500);
    let paths = segments(folder.path());
    assert!(paths.len() >= 4);
    let second = fs::read(&paths[1]).unwrap();
    fs::remove_file(&paths[1]).unwrap();
    let error = read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("must come before this file"), "{error}");
    fs::write(&paths[1], fs::read(&paths[2]).unwrap()).unwrap();
    let error = read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("the header is not that of a log from decision"), "{error}");
    // A torn record is accepted only at the end of the log.
    fs::write(&paths[1], &second[..second.len() - 3]).unwrap();
    let error = read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("but later files exist"), "{error}");
}

#[test]
fn records_out_of_place_and_newer_formats_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_log(folder.path(), 2, 1, 1 << 20);
    let path = segments(folder.path()).remove(0);
    let bytes = fs::read(&path).unwrap();
    let mut twice = bytes.clone();
    twice.extend_from_slice(&bytes[32..]);
    fs::write(&path, &twice).unwrap();
    let error = open(folder.path(), 1).unwrap_err().to_string();
    assert!(error.contains("decision 0 is at the place of 2"), "{error}");

    let mut newer = bytes.clone();
    newer[8] = 2;
    let check = xxhash_rust::xxh3::xxh3_64(&newer[..24]).to_le_bytes();
    newer[24..32].copy_from_slice(&check);
    fs::write(&path, &newer).unwrap();
    let error = open(folder.path(), 1).unwrap_err().to_string();
    assert!(error.contains("version of the program that wrote it"), "{error}");

    // A decision with a field that this program does not know may have another meaning.
    let text = br#"{"idle":{"partition":{"stream":0,"number":1},"since":7}}"#;
    let mut unknown = bytes[..32].to_vec();
    let mut header = (text.len() as u32).to_le_bytes().to_vec();
    header.extend(0u64.to_le_bytes());
    header.extend((xxhash_rust::xxh3::xxh3_64(&header) as u32).to_le_bytes());
    unknown.extend(header);
    unknown.extend(text);
    unknown.extend(xxhash_rust::xxh3::xxh3_64_with_seed(text, 0).to_le_bytes());
    fs::write(&path, &unknown).unwrap();
    let error = open(folder.path(), 1).unwrap_err().to_string();
    assert!(error.contains("unknown field `since`"), "{error}");
}

#[test]
fn the_text_of_decisions_is_fixed() {
    let text = |number| serde_json::to_string(&decision(number)).unwrap();
    assert_eq!(
        text(11),
        r#"{"took":{"partition":{"stream":1,"number":11},"from":12094627905536,"to":12094627905545,"count":3,"hash":6148914691236517205}}"#
    );
    assert_eq!(
        text(9),
        r#"{"rules":{"disorder_ms":9,"max_ahead_ms":3600000,"accept_jump_after":9,"max_message_bytes":18446744073709551615,"start_ms":9223372036854775807}}"#
    );
    assert_eq!(text(2), r#"{"cut":{"batch":2,"rows":4096,"reason":"linger"}}"#);
    assert_eq!(text(3), r#"{"publish":{"batch":3}}"#);
    assert_eq!(text(0), r#"{"idle":{"partition":{"stream":1,"number":0}}}"#);
}

#[test]
fn only_one_writer_has_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path(), 1).unwrap();
    let error = open(folder.path(), 1).unwrap_err();
    assert!(matches!(error, Error::InUse(_)), "{error}");
    assert!(error.to_string().contains("another process writes to the log"), "{error}");
    drop(log);
    open(folder.path(), 1).unwrap();
}

#[test]
fn a_lock_stays_while_its_log_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/log");
    let (files, options) = (Files::new().scratch(), LogOptions::default());
    let lock = LogLock::take(&files, &path).unwrap();
    assert!(matches!(open(&path, 1).unwrap_err(), Error::InUse(_)));
    let log = DecisionLog::open_locked(&files, &lock, options).unwrap();
    // One part of the process writes at a time.
    let again = DecisionLog::open_locked(&files, &lock.clone(), options);
    assert!(matches!(again.unwrap_err(), Error::InUse(_)));
    drop(log);
    assert!(DecisionLog::is_in_use(&path).unwrap());
    assert!(matches!(open(&path, 1).unwrap_err(), Error::InUse(_)));
    drop(DecisionLog::open_locked(&files, &lock, options).unwrap());
    drop(lock);
    open(&path, 1).unwrap();
}

#[test]
fn only_synced_decisions_are_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path(), 1 << 20).unwrap();
    log.append(&decision(0)).unwrap();
    log.sync().unwrap();
    // This is more than the log keeps in memory, so that a part is in the file.
    let names = vec!["n".repeat(1 << 20)];
    log.append(&Decision::Partitions { stream: 0, names, starts: Vec::new() }).unwrap();
    assert_eq!((log.next(), log.synced()), (2, 1));
    assert_eq!(log.replay(0).unwrap().count(), 1);
    assert!(log.replay(2).is_err());
    log.sync().unwrap();
    assert_eq!(log.replay(0).unwrap().count(), 2);
    assert_eq!(log.replay(2).unwrap().count(), 0);
}

#[test]
fn a_decision_that_is_too_long_is_refused_and_takes_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path(), 1 << 20).unwrap();
    let long =
        Decision::Partitions { stream: 0, names: vec!["n".repeat(16 << 20)], starts: Vec::new() };
    let error = log.append(&long).unwrap_err().to_string();
    assert!(error.contains("at most 16777216 are allowed"), "{error}");
    assert_eq!(log.append(&decision(0)).unwrap(), 0);
    log.sync().unwrap();
    drop(log);
    assert_eq!(read_all(folder.path()).unwrap(), expected(1));
}

#[test]
fn a_look_at_the_lock_disturbs_no_writer() {
    let folder = tempfile::tempdir().unwrap();
    // A look creates nothing.
    assert!(!DecisionLog::is_in_use(folder.path()).unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    drop(open(folder.path(), 1 << 20).unwrap());
    assert!(!DecisionLog::is_in_use(folder.path()).unwrap());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    DecisionLog::is_in_use(folder.path()).unwrap();
                }
            });
        }
        let opened: Vec<_> = (0..200).map(|_| open(folder.path(), 1 << 20).map(drop)).collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(opened.iter().all(Result::is_ok), "{:?}", opened.iter().find(|o| o.is_err()));
    });
    let log = open(folder.path(), 1 << 20).unwrap();
    assert!(DecisionLog::is_in_use(folder.path()).unwrap());
    drop(log);
    assert!(!DecisionLog::is_in_use(folder.path()).unwrap());
}
