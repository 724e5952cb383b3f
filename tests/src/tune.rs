//! Tests of `zillion tune` and `zillion importance`, from the job file to the table.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Workplace, last_json, stderr, stdout, zillion};

const SPACE: &str = "\n[tune]\ntrials = 4\n[tune.space]\n\
    \"tables.*.optimizer.lr\" = { low = 0.01, high = 0.5, log = true }\n\
    \"tables.*.dim\" = { choices = [4, 8] }\n";

/// Returns the arguments of a tune into a folder.
fn arguments(place: &Workplace, folder: &str) -> Vec<String> {
    let root = format!("data.root={}", place.text(""));
    let output = format!("run.output={}", place.text("run"));
    let mut arguments = vec!["tune".to_owned(), place.text("tune.toml"), "--json".to_owned()];
    for set in [&root, &output, "train.epochs=3", "train.batch_size=300"] {
        arguments.extend(["--set".to_owned(), set.to_owned()]);
    }
    arguments.extend(["--output".to_owned(), place.text(folder)]);
    arguments
}

fn prepare() -> Workplace {
    let place = Workplace::new();
    let job = std::fs::read_to_string(place.path("job.toml")).expect("a job");
    place.write("tune.toml", &format!("{job}{SPACE}"));
    place
}

/// Runs a tune, which a failpoint may kill. Returns the outcome of a tune that ended.
fn tune(place: &Workplace, folder: &str, failpoint: Option<u64>) -> Option<Value> {
    let arguments = arguments(place, folder);
    let mut command = zillion(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    if let Some(operation) = failpoint {
        command.env("ZILLION_FAILPOINT", format!("{operation}:kill"));
    }
    let output = command.output().expect("the binary runs");
    if failpoint.is_some() {
        return output.status.success().then(|| last_json(&stdout(&output)));
    }
    assert!(output.status.success(), "{}", stderr(&output));
    Some(last_json(&stdout(&output)))
}

/// Returns the table of a tune without times and folders.
fn table(outcome: &Value) -> Value {
    let mut table = outcome["trials"].clone();
    for line in table.as_array_mut().expect("trials") {
        let line = line.as_object_mut().expect("a trial");
        line.remove("seconds");
        line.remove("folder");
    }
    table
}

fn has_checkpoints(folder: &Path) -> bool {
    folder.join("checkpoints").exists()
}

#[test]
fn a_killed_tune_goes_on_to_the_same_table() {
    let place = prepare();
    let whole = tune(&place, "whole", None).expect("it ends");
    let trials = whole["trials"].as_array().expect("trials");
    assert_eq!(trials.len(), 4);
    let best = whole["best"].as_u64().expect("a number") as usize;
    assert_eq!(trials[0]["trial"].as_u64(), Some(best as u64));
    let metrics: Vec<f64> = trials.iter().filter_map(|line| line["metric"].as_f64()).collect();
    assert_eq!(metrics.len(), 4);
    // The best trial and the job as written had all epochs; the others had one.
    for line in trials {
        let number = line["trial"].as_u64().expect("a number");
        let is_last = line["rung"].as_u64() == Some(2);
        assert_eq!(line["epochs"].as_u64(), Some(if is_last { 3 } else { 1 }), "{line}");
        let folder = place.path("whole").join(format!("{number:03}"));
        assert_eq!(has_checkpoints(&folder), number == best as u64, "{line}");
        assert!(folder.join("record.json").exists() && folder.join("curves.svg").exists());
    }
    assert!(place.path("whole").join("tune.svg").exists());

    // A kill at file operations inside of trials and between them changes nothing.
    for first in [5, 40] {
        let folder = format!("killed-{first}");
        let mut kills = 0;
        let killed = loop {
            match tune(&place, &folder, Some(first + 37 * kills)) {
                Some(outcome) => break outcome,
                None => kills += 1,
            }
            assert!(kills < 40, "the tune does not go on");
        };
        assert!(kills > 0);
        assert_eq!(table(&killed), table(&whole), "after {kills} kills");
    }

    // The best job trains to the validation metric of its trial.
    let job = whole["best_job"].as_str().expect("a path");
    let text = std::fs::read_to_string(job).expect("a job");
    assert!(text.starts_with("# The best of 4 trials"), "{text}");
    let output = zillion(&["train", job, "--json"]).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let trained = last_json(&stdout(&output));
    assert_eq!(trained["valid_auc"].as_f64(), trials[0]["metric"].as_f64());
    assert!(trained["test"].is_object(), "the best job has its test files");
}

#[test]
fn a_trial_that_diverges_is_ranked_last() {
    let place = prepare();
    let job = std::fs::read_to_string(place.path("job.toml")).expect("a job");
    let space = "\n[tune]\ntrials = 3\n[tune.space]\n\
        \"train.optimizer\" = { choices = [{ kind = 'sgd', lr = 1e30 }, { kind = 'sgd', lr = 0.01 }] }\n";
    place.write("tune.toml", &format!("{job}{space}"));
    let outcome = tune(&place, "tune", None).expect("it ends");
    let trials = outcome["trials"].as_array().expect("trials");
    let last = trials.last().expect("a trial");
    let failure = last["failure"].as_str().expect("a reason");
    assert!(failure.contains("diverged"), "{last}");
    assert!(trials[0]["failure"].is_null());
    let folder =
        place.path("tune").join(format!("{:03}", last["trial"].as_u64().expect("a number")));
    assert!(!has_checkpoints(&folder));
}

#[test]
fn importance_begins_with_the_metric_of_eval() {
    let place = Workplace::new();
    let run = place.text("run");
    let root = format!("data.root={}", place.text(""));
    let output = format!("run.output={run}");
    let train = ["train", &place.text("job.toml"), "--set", &root, "--set", &output];
    let trained = zillion(&train).output().expect("the binary runs");
    assert!(trained.status.success(), "{}", stderr(&trained));
    let json = |arguments: &[&str]| {
        let output = zillion(arguments).output().expect("the binary runs");
        assert!(output.status.success(), "{}", stderr(&output));
        last_json(&stdout(&output))
    };
    let data = place.text("test.csv");
    let evaluated = json(&["eval", &run, "--data", &data, "--json"]);
    let measured = json(&["importance", &run, &data, "--repeat", "2", "--json"]);
    let task = &measured["tasks"][0];
    assert_eq!(task["value"], evaluated["auc"]);
    assert_eq!(measured["has_more_rows"], Value::Bool(false));
    let features = task["features"].as_array().expect("features");
    assert!(features[0]["importance"].as_f64() > Some(0.01), "{measured}");
    let output = zillion(&["importance", &run, &data, "--rows", "100"]).output().expect("it runs");
    let said = stdout(&output);
    assert!(
        said.contains("the first 100 rows") && said.contains("share their importance"),
        "{said}"
    );
}
