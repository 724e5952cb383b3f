//! Tests of the record of a run and of what shows it: curves, `compare` and `board`, which is
//! opened in a browser if there is one. Also of the messages about misplaced files and arguments.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn zillion(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zillion"));
    command.current_dir(folder).args(arguments).output().expect("the binary runs")
}

fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let output = zillion(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn fail(folder: &Path, arguments: &[&str]) -> String {
    let output = zillion(folder, arguments);
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).expect("UTF-8")
}

const JOB: &str = r#"
name = "clicks"
[data]
train = "train.csv"
valid = "valid.csv"
test = "valid.csv"
[features.user]
kind = "id"
[features.item]
kind = "id"
[labels.label]
[tables."*"]
dim = 4
[model]
kind = "fm"
[train]
batch_size = 50
"#;

/// Returns a folder with a job and its data.
fn workplace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = |from: u64, to: u64| {
        let row = |n: u64| {
            let (user, item) = (n * 7 % 23, n * 13 % 31);
            format!("{user},{item},{}\n", u8::from((user * 5 + item * 3 + n % 4) % 7 < 3))
        };
        let rows: String = (from..to).map(row).collect();
        format!("user,item,label\n{rows}")
    };
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file");
    };
    write("train.csv", &rows(0, 800));
    write("valid.csv", &rows(800, 1100));
    write("job.toml", JOB);
    folder
}

fn train(folder: &Path, run: &str, more: &[&str]) -> Value {
    let output = format!("run.output=runs/{run}");
    let mut arguments = vec!["train", "job.toml", "--json", "--set", &output];
    arguments.extend(more);
    serde_json::from_str(&succeed(folder, &arguments)).expect("a line of JSON")
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(path).expect("the file is there")
}

#[test]
fn the_record_holds_all_epochs_of_a_resumed_run() {
    let place = workplace();
    let folder = place.path();
    train(folder, "a", &["--set", "train.epochs=1"]);
    let outcome = train(folder, "a", &["--set", "train.epochs=3", "--resume"]);
    let history = outcome["history"].as_array().expect("epochs");
    let epochs: Vec<u64> = history.iter().filter_map(|epoch| epoch["epoch"].as_u64()).collect();
    assert_eq!(epochs, [1, 2, 3]);
    assert!(history.iter().all(|epoch| epoch["valid"]["auc"].is_f64()), "{history:?}");
    let record: Value =
        serde_json::from_str(&read(folder.join("runs/a/record.json"))).expect("JSON");
    assert_eq!(record["epochs"], outcome["history"]);
    assert_eq!(record["settings"]["train"]["batch_size"], 50);
    assert_eq!(record["report"]["test"]["auc"], outcome["test_auc"]);
    let points = record["losses"]["points"].as_array().expect("points");
    assert_eq!(points.len(), 3 * 16);
    assert_eq!(points.iter().filter_map(|point| point["rows"].as_u64()).sum::<u64>(), 3 * 800);
    let curves = read(folder.join("runs/a/curves.svg"));
    assert!(curves.contains("Validation AUC") && curves.contains("3 epochs"), "{curves}");
}

#[test]
fn compare_and_board_show_what_differs() {
    let place = workplace();
    let folder = place.path();
    for (run, rate) in [("slow", "0.01"), ("fast", "0.2")] {
        let optimizer = format!("tables.\"*\".optimizer={{kind='adagrad',lr={rate}}}");
        train(folder, run, &["--set", "train.epochs=2", "--set", &optimizer]);
    }
    let text = succeed(folder, &["compare", "runs/slow", "runs/fast"]);
    assert!(text.contains("tables.*.optimizer.lr (2)") && text.contains("test auc"), "{text}");
    assert!(!text.contains("batch_size"), "{text}");
    let json = succeed(folder, &["compare", "runs/slow", "runs/fast", "--json"]);
    let compared: Value = serde_json::from_str(&json).expect("a line of JSON");
    assert_eq!(compared["runs"][1]["name"], "fast");
    assert_eq!(compared["settings"]["tables.*.optimizer.lr (2)"][1], "0.2");
    let auc = compared["figures"].as_array().expect("figures").iter();
    let auc = auc.filter(|figure| figure["name"] == "test auc").collect::<Vec<_>>();
    assert!(auc.len() == 1 && auc[0]["values"][0].is_f64() && auc[0]["values"][1].is_f64());

    succeed(folder, &["board", "runs/slow", "runs/fast", "--out", "board.html"]);
    let page = read(folder.join("board.html"));
    for part in ["Validation AUC", "Calibration", "Settings that differ", "runs/slow", "<h2>Tables"]
    {
        assert!(page.contains(part), "{part} is not on the page");
    }
    for outside in ["http", "<script", "src=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside} is on the page");
    }
    open_in_browser(folder, &page);
    let missing = zillion(folder, &["board", "runs/none"]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && said.contains("runs/none"), "{said}");
}

/// Opens a page in Debian's chromium, and compares what the browser has read with the page.
fn open_in_browser(folder: &Path, page: &str) {
    let file = format!("file://{}", folder.join("board.html").display());
    let picture = format!("--screenshot={}", folder.join("board.png").display());
    let profile = format!("--user-data-dir={}", folder.join("profile").display());
    let open = |way: &str| {
        let mut command = Command::new("chromium");
        command.args(["--headless", "--no-sandbox", "--disable-gpu", &profile, way, &file]);
        command.output()
    };
    let dom = match open("--dump-dom") {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => {
            let line = format!("SKIPPED board_browser: chromium does not start ({error})");
            return writeln!(std::io::stderr(), "{line}").expect("stderr takes a line");
        }
    };
    for tag in ["<svg", "<polyline", "<table", "<tr", "<details", "<h2"] {
        assert_eq!(dom.matches(tag).count(), page.matches(tag).count(), "{tag}");
    }
    open(&picture).expect("chromium runs");
    let bytes = std::fs::metadata(folder.join("board.png")).expect("a picture").len();
    assert!(bytes > 5_000, "the picture has {bytes} bytes");
}

#[test]
fn misplaced_files_are_found_and_swapped_arguments_named() {
    let place = workplace();
    let folder = place.path();
    let elsewhere = tempfile::tempdir().expect("a folder");
    let job = folder.join("job.toml").display().to_string();
    // Some files are beside the job file, and some below the current folder.
    std::fs::write(elsewhere.path().join("other.csv"), "user,item,label\n1,2,0\n").expect("a file");
    let said = fail(elsewhere.path(), &["train", &job, "--set", "data.valid=other.csv"]);
    assert!(said.contains("`data.train`") && said.contains("set `data.root`"), "{said}");
    // All of them are beside the job file.
    succeed(elsewhere.path(), &["train", &job]);
    assert!(elsewhere.path().join("runs/clicks").is_dir());
    let said = fail(elsewhere.path(), &["predict", &job, "runs/clicks"]);
    assert!(said.contains("the arguments are swapped"), "{said}");
}

#[test]
fn a_file_counts_once_and_only_the_wanted_rows_are_scored() {
    let place = workplace();
    let folder = place.path();
    let plateau = "train.plateau={metric='pr_auc'}";
    let output = zillion(folder, &["train", "job.toml", "--threads", "1", "--set", plateau]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let epoch = said.lines().find(|line| line.starts_with("epoch 1 done")).unwrap_or(&said);
    assert!(epoch.contains("  pr_auc 0."), "{epoch}");
    let run = "runs/clicks";
    for twice in ["./valid.csv", "val*.csv"] {
        let output = zillion(folder, &["eval", run, "--data", "valid.csv", "--data", twice]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("valid.csv is listed twice"), "{said}");
    }
    let all = succeed(folder, &["predict", run, "valid.csv"]);
    let some = succeed(folder, &["predict", run, "valid.csv", "--rows", "60"]);
    assert_eq!(all.lines().count(), 301);
    assert!(all.starts_with(&some) && some.lines().count() == 61, "{some}");
}

#[test]
fn progressive_training_scores_each_slice_before_it_learns() {
    let place = workplace();
    let folder = place.path();
    let row = |n: u64| {
        let (user, item) = (n * 7 % 11, n * 13 % 17);
        let time = 1_700_006_400 + n * 60;
        format!("{user},{item},{},{time}\n", u8::from(user % 2 == 0))
    };
    let rows: String = (0..2_000).map(row).collect();
    std::fs::write(folder.join("train.csv"), format!("user,item,label,time\n{rows}"))
        .expect("a file");
    let columns = "columns={event_time='time',event_time_unit='s'}";
    let optimizer = "tables.\"*\".optimizer={kind='adagrad',lr=0.5}";
    let more = ["--set", columns, "--set", optimizer, "--set", "train.batch_size=10"];
    let arguments = [&["train", "job.toml", "--progressive", "12h"][..], &more].concat();
    let json = succeed(folder, &[&arguments[..], &["--json"]].concat());
    let outcome: Value = serde_json::from_str(&json).expect("a line of JSON");
    let slices = outcome["slices"].as_array().expect("slices");
    let counts: Vec<u64> = slices.iter().filter_map(|slice| slice["rows"].as_u64()).collect();
    assert_eq!(counts.iter().sum::<u64>(), 2_000);
    assert!(counts[1..counts.len() - 1].iter().all(|&rows| rows == 720), "{counts:?}");
    // The first slice is scored by a model that has learned nothing, the others by one that has.
    assert!(outcome["later"]["auc"].as_f64().expect("an AUC") > 0.95, "{outcome}");
    assert!(slices[0]["auc"].as_f64().expect("an AUC") < 0.8, "{outcome}");
    assert!(succeed(folder, &arguments).contains("all after the first"));
    assert!(!folder.join("runs").exists());
    let said = zillion(folder, &["train", "job.toml", "--progressive", "12h"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("columns.event_time_unit"), "{said}");
}
