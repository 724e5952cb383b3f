//! Tests of the rules of the command line: the layers of settings, the results on stdout, and the
//! exit codes.

use std::io::Write;
use std::process::Stdio;

use crate::harness::{ROWS, Workplace, csv, last_json, stderr, stdout, zillion};

#[test]
fn train_reports_its_outcome_as_json_on_the_last_line() {
    let place = Workplace::new();
    let output = place.train_ok("run", &["--json"]);
    let outcome = last_json(&stdout(&output));
    for key in ["test_auc", "test_logloss", "calibration", "samples_per_second", "peak_rss_mib"] {
        assert!(outcome[key].is_f64(), "{key}: {outcome}");
    }
    let auc = outcome["test_auc"].as_f64().expect("a number");
    assert!(auc > 0.7, "the planted biases are learned: {auc}");
    let checkpoint = outcome["checkpoint"].as_str().expect("a path");
    assert!(std::path::Path::new(checkpoint).join("MANIFEST").exists());
    let rows = outcome["tables"][0]["rows"].as_u64().expect("a number");
    assert_eq!(rows, 50, "users of the generator");
    // Without --json, the command prints nothing on stdout.
    assert_eq!(stdout(&place.train_ok("quiet", &["--set", "train.epochs=1"])), "");
}

#[test]
fn settings_come_in_layers_and_can_be_printed() {
    let place = Workplace::new();
    let print = |more: &[&str], variable: Option<(&str, &str)>| {
        let mut command = place.train("run", &[&["--print-config"], more].concat());
        if let Some((name, value)) = variable {
            command.env(name, value);
        }
        let output = command.output().expect("the binary runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).parse::<toml::Table>().expect("it prints TOML")
    };
    let epochs = |config: &toml::Table| config["train"]["epochs"].as_integer();
    assert_eq!(epochs(&print(&[], None)), Some(3));
    let variable = Some(("ZILLION_TRAIN__EPOCHS", "7"));
    assert_eq!(epochs(&print(&[], variable)), Some(7));
    assert_eq!(epochs(&print(&["--set", "train.epochs=9"], variable)), Some(9));
    // The printed job contains all defaults, and the command runs nothing.
    let config = print(&[], None);
    assert_eq!(config["tables"]["age"]["dim"].as_integer(), Some(4));
    assert!(config["train"].get("keep").is_some());
    assert!(!place.path("run").exists());
    // The printed job has the same meaning.
    place.write("printed.toml", &toml::to_string(&config).expect("it is TOML"));
    let again = zillion(&["train", &place.text("printed.toml"), "--print-config"]).output();
    let again = stdout(&again.expect("the binary runs")).parse::<toml::Table>();
    assert_eq!(again.expect("it prints TOML"), config);
}

#[test]
fn a_job_extends_another() {
    let place = Workplace::new();
    place.write("child.toml", "extends = \"job.toml\"\nname = \"child\"\n[train]\nepochs = 1\n");
    let output = zillion(&["train", &place.text("child.toml"), "--print-config"]).output();
    let config: toml::Table = stdout(&output.expect("it runs")).parse().expect("TOML");
    assert_eq!(config["name"].as_str(), Some("child"));
    assert_eq!(config["train"]["epochs"].as_integer(), Some(1));
    assert_eq!(config["train"]["batch_size"].as_integer(), Some(64));
    place.write("job.toml", "extends = \"child.toml\"\n");
    let output = zillion(&["train", &place.text("child.toml")]).output().expect("it runs");
    assert!(stderr(&output).contains("circle"), "{}", stderr(&output));
}

#[test]
fn eval_repeats_the_test_of_training() {
    let place = Workplace::new();
    let trained = last_json(&stdout(&place.train_ok("run", &["--json"])));
    let output = zillion(&["eval", &place.text("run"), "--json"]).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let report = last_json(&stdout(&output));
    assert_eq!(report["auc"], trained["test_auc"]);
    assert_eq!(report["logloss"], trained["test_logloss"]);
    assert_eq!(report["rows"], 400);
    // The same file is given by its name, the checkpoint by its folder, and the number of threads
    // is different.
    let checkpoint = trained["checkpoint"].as_str().expect("a path");
    let data = place.text("test.csv");
    let output =
        zillion(&["eval", checkpoint, "--data", &data, "--threads", "1", "--json"]).output();
    assert_eq!(last_json(&stdout(&output.expect("it runs")))["auc"], trained["test_auc"]);
}

#[test]
fn predict_scores_files_and_stdin_with_and_without_labels() {
    let place = Workplace::new();
    let trained = last_json(&stdout(&place.train_ok("run", &["--json"])));
    let from_file = zillion(&["predict", &place.text("run"), &place.text("test.csv")]).output();
    let from_file = from_file.expect("it runs");
    assert!(from_file.status.success(), "{}", stderr(&from_file));
    let lines: Vec<String> = stdout(&from_file).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 401);
    assert_eq!(lines[0], "label");
    let scores: Vec<f64> = lines[1..].iter().map(|l| l.parse().expect("a number")).collect();
    assert!(scores.iter().all(|p| (0.0..=1.0).contains(p)));

    // The mean log loss of the printed scores is equal to the log loss that training reported.
    let test = csv(2, 400);
    let labels: Vec<f64> =
        test.lines().skip(1).map(|l| if l.ends_with(",1") { 1.0 } else { 0.0 }).collect();
    let loss = |(p, y): (&f64, &f64)| -(y * p.ln() + (1.0 - y) * (1.0 - p).ln());
    let logloss = scores.iter().zip(&labels).map(loss).sum::<f64>() / 400.0;
    let reported = trained["test_logloss"].as_f64().expect("a number");
    assert!((logloss - reported).abs() < 1e-5, "{logloss} {reported}");

    // The rows have no label column, and they are read from stdin.
    let bare: String =
        test.lines().map(|l| format!("{}\n", l.rsplit_once(',').expect("cells").0)).collect();
    let mut child = zillion(&["predict", &place.text("run"), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(bare.as_bytes()).expect("it reads");
    drop(stdin);
    let piped = child.wait_with_output().expect("it ends");
    assert_eq!(stdout(&piped), stdout(&from_file));

    let json =
        zillion(&["predict", &place.text("run"), &place.text("test.csv"), "--json"]).output();
    let json = stdout(&json.expect("it runs"));
    assert_eq!(json.lines().count(), 400);
    assert!(last_json(&json)["probability"].is_f64());
}

#[test]
fn resume_goes_on_from_a_finished_run_and_with_more_epochs() {
    let place = Workplace::new();
    let first = last_json(&stdout(&place.train_ok("run", &["--json"])));
    let again = last_json(&stdout(&place.train_ok("run", &["--json", "--resume"])));
    assert_eq!(first["test_auc"], again["test_auc"]);
    assert_eq!(first["steps"], again["steps"]);
    let more = ["--json", "--resume", "--set", "train.epochs=4"];
    let longer = last_json(&stdout(&place.train_ok("run", &more)));
    let steps_of_an_epoch = ROWS.div_ceil(64) as u64;
    assert_eq!(longer["steps"].as_u64(), Some(4 * steps_of_an_epoch));
    let straight = place.train_ok("straight", &["--json", "--set", "train.epochs=4"]);
    assert_eq!(longer["test_auc"], last_json(&stdout(&straight))["test_auc"]);
}
