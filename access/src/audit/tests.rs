//! Tests of the audit log.

use std::fs;
use std::sync::Arc;

use super::*;

fn event<'a>(action: &'a str, subject: &'a str) -> AuditEvent<'a> {
    AuditEvent { who: "op", from: "10.0.0.1", action, subject, outcome: "done", detail: "" }
}

/// Returns the number of events that a line counts.
fn count_of(line: &str) -> u64 {
    match line.split_once("\"outcome\":\"counted\",\"detail\":\"") {
        Some((_, detail)) => detail.split(' ').next().unwrap().parse().unwrap(),
        None => 0,
    }
}

const NOW: Duration = Duration::from_secs(1_800_000_000);

#[test]
fn a_log_goes_on_after_it_was_closed_and_every_change_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    for round in 0..2 {
        let log = AuditLog::open(&path, NOW).unwrap();
        for at in 0..3 {
            log.write(&event("load", &format!("model \"{round}\" {at} \",\"hash\":\"")), NOW)
                .unwrap();
        }
        assert!(AuditLog::open(&path, NOW).unwrap_err().to_string().contains("another process"));
    }
    let whole = fs::read(&path).unwrap();
    let report = verify_audit_log(&path).unwrap();
    assert_eq!((report.lines, report.problem, report.torn_bytes), (6, None, None));

    let lines: Vec<&[u8]> = whole.split_inclusive(|&byte| byte == b'\n').collect();
    // Every changed byte, removed line and exchange of two neighbouring lines is found. Only the
    // removal of lines at the end is not found.
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(&path, &changed).unwrap();
        let report = verify_audit_log(&path).unwrap();
        assert!(report.problem.is_some() || report.torn_bytes.is_some(), "byte {at}");
    }
    for at in 0..5 {
        let mut removed = lines.clone();
        removed.remove(at);
        fs::write(&path, removed.concat()).unwrap();
        let problem = verify_audit_log(&path).unwrap().problem.unwrap();
        assert!(problem.contains(&format!("line {}", at + 1)), "{problem}");
        assert!(AuditLog::open(&path, NOW).unwrap_err().to_string().contains("evidence"));
        let mut swapped = lines.clone();
        swapped.swap(at, at + 1);
        fs::write(&path, swapped.concat()).unwrap();
        assert!(verify_audit_log(&path).unwrap().problem.is_some());
    }
}

#[test]
fn a_torn_line_is_removed_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    AuditLog::open(&path, NOW).unwrap().write(&event("load", "a"), NOW).unwrap();
    let whole = fs::read(&path).unwrap();
    for cut in 1..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let torn = verify_audit_log(&path).unwrap();
        assert_eq!((torn.lines, torn.problem, torn.torn_bytes), (0, None, Some(cut as u64)));
        drop(AuditLog::open(&path, NOW).unwrap());
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"recover\"") && text.contains(&format!("{cut} bytes")), "{text}");
        assert_eq!(verify_audit_log(&path).unwrap().lines, 1);
    }
}

#[test]
fn a_flood_of_refusals_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path, NOW).unwrap();
    for _ in 0..5000 {
        log.write_refusal(&event("refuse", "/v2"), NOW).unwrap();
    }
    log.write(&event("load", "a"), NOW + Duration::from_secs(1)).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("4750 more refusals"), "{}", text.lines().count());
    let report = verify_audit_log(&path).unwrap();
    assert_eq!((report.lines, report.problem), (252, None));
}

#[test]
fn a_disk_without_space_leaves_a_whole_chain() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path, NOW).unwrap();
    log.write(&event("load", "a"), NOW).unwrap();
    for (bytes, rest) in [(0, "b"), (1, "c"), (100, "d")] {
        let whole = log.lock().put;
        log.lock().put = match bytes {
            0 => |_, _| Err(io::ErrorKind::StorageFull.into()),
            1 => |file, line| {
                file.write_all(&line[..1])?;
                Err(io::ErrorKind::StorageFull.into())
            },
            _ => |file, line| {
                file.write_all(&line[..100])?;
                Err(io::ErrorKind::StorageFull.into())
            },
        };
        assert!(log.write(&event("load", rest), NOW).is_err());
        log.write_refusal(&event("refuse", rest), NOW).unwrap_err();
        log.lock().put = whole;
        log.write(&event("unload", rest), NOW).unwrap();
    }
    let report = verify_audit_log(&path).unwrap();
    assert_eq!((report.lines, report.problem, report.torn_bytes), (4, None, None));
    drop(log);
    AuditLog::open(&path, NOW).unwrap().write(&event("load", "e"), NOW).unwrap();
    assert_eq!(verify_audit_log(&path).unwrap().lines, 5);
}

#[test]
fn an_inserted_line_is_never_taken_for_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path, NOW).unwrap();
    log.write(&event("load", "a"), NOW).unwrap();
    let end = fs::metadata(&path).unwrap().len() as usize;
    log.write(&event("load", "b"), NOW).unwrap();
    drop(log);
    let whole = fs::read(&path).unwrap();
    for length in [65_535, 65_536, 65_537, 200_000] {
        let forged = [&whole[..end], &vec![b'x'; length][..], b"\n", &whole[end..]].concat();
        fs::write(&path, &forged).unwrap();
        let report = verify_audit_log(&path).unwrap();
        assert_eq!((report.lines, report.torn_bytes), (1, None), "{length}");
        assert!(report.problem.unwrap().contains("line 2"), "{length}");
        AuditLog::open(&path, NOW).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), forged, "{length}");
    }
}

#[test]
fn a_full_file_is_continued_by_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    for at in 0..40 {
        // The log goes on after it was closed, in every state of its files.
        let log = AuditLog::open_sized(&path, 1500, NOW).unwrap();
        log.write(&event("load", &at.to_string()), NOW).unwrap();
        log.write(&event("unload", &at.to_string()), NOW).unwrap();
    }
    let full = files::list_full(&path).unwrap();
    assert!(full.len() > 9, "{full:?}");
    assert!(full.iter().all(|(_, path)| fs::metadata(path).unwrap().len() < 2500));
    let whole = verify_audit_log(&path).unwrap();
    let lines = 80 + full.len() as u64;
    assert_eq!((whole.first, whole.lines, &whole.problem), (1, lines, &None));

    // Without its oldest file, the log says where it begins. Without another one it is broken.
    let moved = folder.path().join("moved");
    fs::rename(&full[0].1, &moved).unwrap();
    let mut seen = Vec::new();
    let report = verify_audit_log_with(&path, |line, hash| seen.push((line, hash.to_owned())));
    let report = report.unwrap();
    assert_eq!((report.problem, &report.last_hash), (None, &whole.last_hash));
    assert_eq!(report.first + report.lines, 1 + lines);
    assert_eq!(seen[0], (report.first - 1, files::read_last_hash(&moved).unwrap().unwrap()));
    fs::rename(&moved, &full[0].1).unwrap();
    fs::rename(&full[3].1, &moved).unwrap();
    let problem = verify_audit_log(&path).unwrap().problem.unwrap();
    assert!(problem.contains("line 1 of `audit.jsonl.5`"), "{problem}");
    fs::rename(&moved, &full[3].1).unwrap();

    // A first line that continues nothing was not the first one.
    let last = &full.last().unwrap().1;
    let text = fs::read_to_string(last).unwrap();
    fs::write(last, text.split_inclusive('\n').skip(1).collect::<String>()).unwrap();
    assert!(verify_audit_log(last).unwrap().problem.is_some());
    fs::write(last, text.split_inclusive('\n').take(1).collect::<String>()).unwrap();
    let error = AuditLog::open(&path, NOW).unwrap_err().to_string();
    assert!(error.contains("does not continue"), "{error}");
    fs::write(last, &text).unwrap();

    // A crash between the two steps of a rotation, and in the first line of the new file.
    for rest in ["", "{\"prev\""] {
        fs::rename(&path, files::choose_next_name(&path).unwrap()).unwrap();
        fs::write(&path, rest).unwrap();
        AuditLog::open(&path, NOW).unwrap().write(&event("load", "x"), NOW).unwrap();
        let report = verify_audit_log(&path).unwrap();
        assert_eq!((report.problem, report.torn_bytes), (None, None));
    }
}

#[test]
fn a_day_of_refusals_has_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path, NOW).unwrap();
    log.lock().refusals = Budget::new("refusals", 250, 20_000);
    let of_day = Duration::from_secs(1_800_000_000 / 86_400 * 86_400);
    let second = |at: u64| of_day + Duration::from_secs(at);
    for at in 0..3600 {
        for _ in 0..5 {
            log.write_refusal(&event("refuse", "/v2"), second(at)).unwrap();
        }
    }
    // The lines of the budget, and a count each minute.
    let length = fs::metadata(&path).unwrap().len();
    assert!(length > 20_000 && length < 20_000 + 62 * 400, "{length}");
    // A flood hides no refused version.
    log.write_refused_version(&event("refuse", "version"), second(3600)).unwrap();
    log.write_refusal(&event("refuse", "next day"), second(86_400)).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"version\"") && text.contains("next day"));
    let lines = text.lines().filter(|line| line.contains("/v2")).count() as u64;
    let counts: u64 = text.lines().map(count_of).sum();
    assert_eq!(lines + counts, 5 * 3600);
    assert_eq!(verify_audit_log(&path).unwrap().problem, None);
}

#[test]
fn a_queue_loses_no_count_and_waits_for_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = Arc::new(AuditLog::open(&path, NOW).unwrap());
    let queue = AuditQueue::start(log.clone(), || NOW + Duration::from_secs(9)).unwrap();
    {
        // A control action that is being synchronised holds the log.
        let _held = log.lock();
        (0..3000).for_each(|_| queue.push(&event("refuse", "/v2"), NOW));
    }
    drop(queue);
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains("/v2")).count(), 250);
    assert_eq!(text.lines().map(count_of).sum::<u64>(), 2750);
}

#[test]
fn long_fields_are_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path, NOW).unwrap();
    log.write(&event("load", &"ä".repeat(1 << 20)), NOW).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 1500);
    assert_eq!(verify_audit_log(&path).unwrap().lines, 1);
}

#[test]
fn each_valid_line_is_reported_with_its_hash() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path, NOW).unwrap();
    let empty = verify_audit_log(&path).unwrap().last_hash;
    log.write(&event("load", "a"), NOW).unwrap();
    let first = verify_audit_log(&path).unwrap().last_hash;
    log.write(&event("unload", "a"), NOW).unwrap();
    let mut seen = Vec::new();
    let report =
        verify_audit_log_with(&path, |line, hash| seen.push((line, hash.to_owned()))).unwrap();
    assert_eq!(seen, [(0, empty), (1, first), (2, report.last_hash)]);
}
