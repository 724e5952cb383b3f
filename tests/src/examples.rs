//! Tests of the commands in README.md and in the examples. Each command must run and print the
//! lines below it.
//!
//! A `console` block has commands (they begin with `$ `) and the lines that they print. Numbers are
//! not compared, because times and last digits depend on the machine. The line `...` stands for any
//! number of lines. Blocks of other kinds are not run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{binary, root, stderr, stdout};

/// The folders in `examples/`. Each folder has a test in this file, except the notebooks, which
/// the test of the Python package runs.
const FOLDERS: [&str; 9] =
    ["adult", "beauty", "clicks", "criteo", "custom", "eviction", "frappe", "ml1m", "online"];

/// A command of a page and the lines that the command must print.
struct Step {
    command: String,
    printed: Vec<String>,
}

/// Returns the steps of all `console` blocks of a page.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            steps.push(Step { command: command.to_owned(), printed: Vec::new() });
        } else if let Some(step) = steps.last_mut().filter(|_| inside) {
            match step.command.strip_suffix('\\') {
                Some(begin) => step.command = format!("{begin}{}", line.trim()),
                None if line == "..." => {}
                None => step.printed.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Replaces every number of a line by `#`, and removes the spaces at the end of the line.
fn without_numbers(line: &str) -> String {
    let mut plain = String::new();
    for char in line.trim_end().chars() {
        let inside = plain.ends_with('#');
        match char {
            '0'..='9' if inside => {}
            '0'..='9' => plain.push('#'),
            '.' | ',' if inside => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Runs the commands of a page in a new folder that contains only the examples.
fn run(page: &Path) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::os::unix::fs::symlink(root().join("examples"), folder.path().join("examples"))
        .expect("the temporary folder takes a link");
    let own = binary().parent().expect("the binary is in a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([own].into_iter().chain(std::env::split_paths(&path)))
        .expect("folders have plain names");
    let steps = steps(&fs::read_to_string(page).expect("the page is text"));
    assert!(!steps.is_empty(), "{} has no commands", page.display());
    for Step { command, printed } in steps {
        // The binary has already been built, and a tenth of the rows is enough for the test.
        let typed =
            command.replace("cargo run --release -- quickstart", "zillion quickstart --rows 20000");
        let output = Command::new("sh")
            .args(["-c", &typed])
            .current_dir(folder.path())
            .env("PATH", &path)
            .output()
            .expect("sh runs");
        let all = format!("{}{}", stdout(&output), stderr(&output));
        assert!(output.status.success(), "{}: {command}\n{all}", page.display());
        let lines: BTreeSet<String> = all.lines().map(without_numbers).collect();
        for line in printed {
            let found = lines.contains(&without_numbers(&line));
            assert!(found, "{}: {command}\ndoes not print: {line}\n{all}", page.display());
        }
    }
}

fn run_example(name: &str) {
    run(&root().join("examples").join(name).join("README.md"));
}

#[test]
fn readme_runs() {
    run(&root().join("README.md"));
}

#[test]
fn every_folder_has_a_test() {
    let entries = fs::read_dir(root().join("examples")).expect("the examples can be listed");
    let folders: BTreeSet<String> = entries
        .map(|entry| entry.expect("the examples can be listed"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "notebooks")
        .collect();
    assert_eq!(folders, FOLDERS.into_iter().map(str::to_owned).collect());
}

#[test]
fn adult_runs() {
    run_example("adult");
}

#[test]
fn beauty_runs() {
    run_example("beauty");
}

#[test]
fn clicks_runs() {
    run_example("clicks");
}

#[test]
fn criteo_runs() {
    run_example("criteo");
}

#[test]
fn custom_runs() {
    run_example("custom");
}

#[test]
fn eviction_runs() {
    run_example("eviction");
}

#[test]
fn frappe_runs() {
    run_example("frappe");
}

#[test]
fn ml1m_runs() {
    run_example("ml1m");
}

#[test]
fn online_runs() {
    run_example("online");
}
