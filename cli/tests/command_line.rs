//! The command line itself: help, usage, exit codes. (That this file exists is also what makes
//! `cargo test` build the binary that the end-to-end tests run.)

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
    for command in
        [&["train"][..], &["eval"], &["predict"], &["bench", "train"], &["bench", "frappe"]]
    {
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
