//! Tests of the command `zillion doctor`. Every finding must have a grade, and each finding that
//! can be improved must have a remedy.

use serde_json::Value;

use crate::harness::{Workplace, stderr, stdout, zillion};

#[test]
fn findings_are_graded_and_bad_ones_have_a_remedy() {
    let place = Workplace::new();
    let folder = place.text("");
    let output = zillion(&["doctor", "--dir", &folder, "--disk-mib", "4", "--json"]).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    let whats: Vec<&str> = findings.iter().filter_map(|f| f["what"].as_str()).collect();
    for what in ["processors", "instructions", "huge pages", "open files", "memory nodes", "gpu"] {
        assert!(whats.contains(&what), "{what}: {whats:?}");
    }
    for finding in findings {
        let grade = finding["grade"].as_str().expect("a grade");
        assert!(["good", "improve", "note"].contains(&grade), "{finding}");
        assert_eq!(finding["advice"].is_string(), grade == "improve", "{finding}");
    }
    let rate = findings.iter().find(|f| f["what"] == "disk rate").expect("the disk is measured");
    assert!(rate["found"].as_str().is_some_and(|found| found.contains("MB/s")), "{rate}");
    // The file of the measurement is removed.
    let left = std::fs::read_dir(&folder).expect("our own folder");
    let left = left.filter_map(Result::ok).map(|e| e.file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().contains("probe")));
}

#[test]
fn a_low_limit_is_reported() {
    // The shell lowers the limit, and then runs the command in its place.
    let script =
        format!("ulimit -S -n 64; exec {} doctor --disk-mib 1", crate::harness::binary().display());
    let place = Workplace::new();
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(place.path(""))
        .output()
        .expect("a shell");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("!!  open files") && text.contains("`ulimit -n "), "{text}");
}

#[test]
fn a_missing_folder_is_named() {
    let output =
        zillion(&["doctor", "--dir", "/nowhere/at/all"]).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nowhere/at/all"), "{}", stderr(&output));
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    let place = Workplace::new();
    let folder = place.text("");
    let mut child = zillion(&["doctor", "--dir", &folder, "--disk-mib", "1", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("our own child");
    assert!(!output.status.success());
    assert_eq!(stderr(&output), "");
}
