//! Tests of the audit log.

use std::fs;

use super::*;

fn event<'a>(action: &'a str, subject: &'a str) -> AuditEvent<'a> {
    AuditEvent { who: "op", from: "10.0.0.1", action, subject, outcome: "done", detail: "" }
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
