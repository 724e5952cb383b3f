//! Tests of the command line: help, usage and exit codes. `cargo test` builds the program for this
//! file, and the end-to-end tests run the same program.

use std::process::{Command, Output};

fn zillion(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zillion"));
    command.args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_gives_an_example_of_each_command_and_the_exit_codes() {
    let help = zillion(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("Exit codes"));
    for command in [
        &["quickstart"][..],
        &["init"],
        &["check"],
        &["train"],
        &["eval"],
        &["predict"],
        &["data", "inspect"],
        &["data", "synth"],
        &["predict"],
        &["table", "histogram"],
        &["table", "explain"],
        &["table", "shrink"],
        &["table", "plan"],
        &["loadgen"],
        &["bench", "train"],
        &["bench", "serve"],
        &["bench", "frappe"],
        &["completions"],
        &["man"],
    ] {
        let help = zillion(&[command, &["--help"]].concat());
        assert!(text(&help.stdout).contains("Example: zillion"), "{command:?}");
    }
}

#[test]
fn usage_is_exit_code_two_and_failure_one() {
    assert_eq!(zillion(&["train"]).status.code(), Some(2));
    assert_eq!(zillion(&["trian"]).status.code(), Some(2));
    let absent = zillion(&["eval", "/nonexistent"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent.stderr).contains("/nonexistent"), "{}", text(&absent.stderr));
}

#[test]
fn the_manual_and_completions_come_from_the_arguments() {
    for shell in ["bash", "zsh", "fish"] {
        let script = zillion(&["completions", shell]);
        assert_eq!(script.status.code(), Some(0));
        let script = text(&script.stdout);
        assert!(script.contains("quickstart") && script.contains("sample"), "{shell}");
    }
    let page = text(&zillion(&["man"]).stdout);
    assert!(page.contains(".TH zillion 1") && page.contains("quickstart"), "{page}");
    let folder = std::env::temp_dir().join(format!("zillion-man-{}", std::process::id()));
    let pages = zillion(&["man", "--out", &folder.to_string_lossy()]);
    assert_eq!(pages.status.code(), Some(0), "{}", text(&pages.stderr));
    let check = std::fs::read_to_string(folder.join("zillion-check.1"));
    std::fs::remove_dir_all(&folder).expect("it was made");
    assert!(check.expect("a page a command").contains("\\-\\-sample"));
}
