//! Tests that this build can read the files of an earlier release (`tests/fixtures`).

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::harness::{root, stderr, stdout, zillion};

/// The folder with files in the first version of the formats.
const FIRST: &str = "tests/fixtures/formats-1";

/// The folder with versions in the second format of manifests.
const SECOND: &str = "tests/fixtures/formats-2";

/// The largest allowed difference between two scores. It is not zero, because another processor may
/// round differently.
const TOLERANCE: f64 = 1e-6;

#[test]
fn a_checkpoint_of_the_first_format_is_read() {
    let place = copy_of_fixture();
    let scores = predict(&place, &["run/checkpoints/step-000000000016"]);
    assert_scores(&place, &scores, "scores-checkpoint.csv");
}

#[test]
fn a_checkpoint_of_changes_of_the_first_format_is_read() {
    let place = copy_of_fixture();
    let scores = predict(&place, &["chain/checkpoints/step-000000000015"]);
    assert_scores(&place, &scores, "scores-chain.csv");
}

#[test]
fn versions_of_the_first_format_are_read_and_verified() {
    let place = copy_of_fixture();
    for version in ["1", "2"] {
        let version_of = ["--registry", "registry", "--model", "fixture", "--version", version];
        let scores = predict(&place, &version_of);
        assert_scores(&place, &scores, &format!("scores-version-{version}.csv"));
    }
    run(&place, &["model", "verify", "--registry", "registry", "--model", "fixture"]);
}

/// The deltas are packed, and one of them has the dense parameters of its parent.
#[test]
fn versions_of_the_second_format_are_read_and_verified() {
    let place = copy_of(SECOND);
    for version in ["1", "2", "3"] {
        let version_of = ["--registry", "registry", "--model", "fixture", "--version", version];
        let scores = predict(&place, &version_of);
        assert_scores(&place, &scores, &format!("scores-version-{version}.csv"));
    }
    run(&place, &["model", "verify", "--registry", "registry", "--model", "fixture"]);
    let shown = ["--registry", "registry", "--model", "fixture", "--version", "2", "--json"];
    let shown: serde_json::Value =
        serde_json::from_str(&run(&place, &[&["model", "show"][..], &shown[..]].concat()))
            .expect("a manifest is JSON");
    assert!(shown["pack"].is_object() && shown["origin"]["later_dense"].is_string(), "{shown}");
    assert_eq!(shown["layer"]["tables"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_run_of_the_first_format_is_resumed() {
    let place = copy_of_fixture();
    run(
        &place,
        &["train", "job.toml", "--resume", "--set", "train.epochs=3", "--set", "run.output=run"],
    );
    let newest = place.path().join("run/checkpoints/step-000000000024");
    let resumed = predict(&place, &[newest.to_str().expect("a name in UTF-8")]);
    assert_scores(&place, &resumed, "scores-resumed.csv");
}

/// Copies the fixture to a temporary folder, because a command that reads a registry writes a cache
/// into it.
fn copy_of_fixture() -> TempDir {
    copy_of(FIRST)
}

fn copy_of(fixture: &str) -> TempDir {
    let place = tempfile::tempdir().expect("a temporary folder");
    copy(&root().join(fixture), place.path());
    place
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder can be made");
    for entry in std::fs::read_dir(from).expect("the folder can be listed") {
        let path: PathBuf = entry.expect("the folder can be listed").path();
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("a file can be copied");
        }
    }
}

fn run(place: &TempDir, arguments: &[&str]) -> String {
    let result = zillion(arguments).current_dir(place).output().expect("the binary runs");
    assert!(result.status.success(), "{arguments:?}: {}", stderr(&result));
    stdout(&result)
}

fn predict(place: &TempDir, source: &[&str]) -> String {
    run(place, &[&["predict"], source, &["rows.csv"]].concat())
}

fn assert_scores(place: &TempDir, scores: &str, expected: &str) {
    let text = std::fs::read_to_string(place.path().join(expected)).expect("scores were kept");
    assert_close(scores, &text, expected);
}

fn assert_close(scores: &str, expected: &str, of: &str) {
    assert_eq!(scores.lines().count(), expected.lines().count(), "{of}");
    assert!(expected.lines().count() > 30, "{of} has too few scores to compare");
    assert_eq!(scores.lines().next(), expected.lines().next(), "{of}");
    for (row, (score, expected)) in scores.lines().zip(expected.lines()).enumerate().skip(1) {
        let [score, expected] = [score, expected].map(|s| s.parse::<f64>().expect("a score"));
        assert!((score - expected).abs() <= TOLERANCE, "{of}, row {row}: {score}, not {expected}");
    }
}
