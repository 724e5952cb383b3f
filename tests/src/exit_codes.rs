//! Tests of the exit codes of the commands. The usual codes are 0 for success, 1 for failure, 2 for
//! a usage error, and 3 for a refusal by a guard. The command `check` returns 0 if the job can run,
//! 1 if it cannot run, and 3 if it can run but should not.

use crate::harness::{Workplace, csv, stdout, zillion};

/// Runs a command, and asserts that it ends with the exit code `code`.
fn exits(code: i32, arguments: &[&str]) {
    let output = zillion(arguments).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn exit_codes_are_documented() {
    let help = stdout(&zillion(&["--help"]).output().expect("the binary runs"));
    assert!(help.contains("0 done, 1 failed, 2 usage") && help.contains("3 refused"), "{help}");
    assert!(help.contains("For check: 0 the job can run, 1 it cannot"), "{help}");
    let readme = include_str!("../../README.md");
    assert!(readme.contains("0 done, 1 failed, 2 usage"));
}

#[test]
fn exit_codes_of_every_command() {
    let place = Workplace::new();
    let (job, run, root) = (place.text("job.toml"), place.text("run"), place.text(""));
    let (root, output) = (format!("data.root={root}"), format!("run.output={run}"));
    let train = |code: i32, more: &[&str]| {
        let arguments = ["train", &job, "--set", &root, "--set", &output];
        exits(code, &[&arguments[..], more].concat());
    };
    let check = |code: i32, more: &[&str]| {
        exits(code, &[&["check", &job, "--set", &root, "--set", &output], more].concat());
    };
    // There is no checkpoint yet.
    exits(1, &["eval", &run]);
    exits(1, &["predict", &run, &place.text("test.csv")]);
    check(0, &[]);

    train(1, &["--set", "data.train=\"gone.csv\""]);
    train(2, &["--set", "train.epoch=3"]);
    train(2, &["--set", "data.sample=2.0"]);
    train(2, &["--set", "data.negatives={keep=0.5,label=\"other\"}"]);
    train(2, &["--no-such-flag"]);
    exits(2, &["train", "/nonexistent/job.toml"]);
    train(0, &["--set", "train.epochs=1"]);
    train(3, &["--set", "train.epochs=1"]);
    train(3, &["--resume", "--set", "train.batch_size=32"]);

    // For `check`, a wrong job file is a finding like any other problem.
    check(1, &["--set", "train.epoch=3"]);
    check(1, &["--set", "data.train=\"gone.csv\""]);
    exits(1, &["check", "/nonexistent/job.toml"]);
    exits(2, &["check"]);
    let ones: Vec<String> = csv(0, 300)
        .lines()
        .map(|line| line.strip_suffix(",0").map_or(line.to_owned(), |l| format!("{l},1")))
        .collect();
    place.write("ones.csv", &ones.join("\n"));
    check(3, &["--set", "data.train=\"ones.csv\""]);

    let test = place.text("test.csv");
    exits(0, &["eval", &run]);
    exits(0, &["eval", &run, "--data", &test]);
    exits(1, &["eval", &run, "--data", &place.text("gone.csv")]);
    exits(2, &["eval", &run, "--set", "data.delimitr=';'"]);
    exits(2, &["eval", &run, "--set", "train.epochs=3"]);
    exits(2, &["eval", &run, "--set", "data.test=[]"]);
    exits(2, &["eval"]);
    let other = std::fs::read_to_string(&job).expect("the job").replace("dim = 4", "dim = 8");
    place.write("other.toml", &other);
    exits(3, &["eval", &run, "--job", &place.text("other.toml")]);

    exits(0, &["predict", &run, &test]);
    place.write("bad.csv", "user,item,tags,price,age\nu1,x,,1.0,3\n");
    exits(1, &["predict", &run, &place.text("bad.csv")]);
    exits(2, &["predict", &run, &test, "--set", "data.delimitr=';'"]);
    exits(2, &["predict", &run, &test, "--set", "model.kind=\"lr\""]);
    exits(2, &["predict", &run]);
}
