//! Tests of the quickstart. It must finish, report its metrics, resume to the same bytes, and print
//! commands that work.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Workplace, binary, stderr, stdout, zillion};

fn outcome(text: &str) -> Value {
    serde_json::from_str(text.lines().last().expect("a line")).expect("the last line is JSON")
}

#[test]
fn the_first_run_and_its_printed_commands_work() {
    let place = Workplace::new();
    let run = |output: &str, more: &[&str]| {
        let mut command = zillion(&["quickstart", "--rows", "20000", "--output", output, "--json"]);
        let output = command.args(more).current_dir(place.path("")).output();
        output.expect("the binary runs")
    };
    let first = run("first run", &[]);
    assert!(first.status.success(), "{}", stderr(&first));
    let said = stderr(&first);
    let report = outcome(&stdout(&first));
    assert_eq!(report["resumed_to_same_bytes"], true);
    let (stopped, steps) = (report["interrupted_at_step"].as_u64(), report["steps"].as_u64());
    assert!(stopped < steps && stopped > Some(0), "{said}");
    let auc = report["test_auc"].as_f64().expect("a test AUC");
    let ceiling = report["data"]["truth_auc"].as_f64().expect("a ceiling");
    let share = report["share_of_ceiling"].as_f64().expect("a share");
    assert!((share - (auc - 0.5) / (ceiling - 0.5)).abs() < 1e-9);
    assert!(share > 0.6 && auc < ceiling + 0.02, "{auc} of {ceiling}");
    assert!(said.contains("ceiling") && said.contains("every byte"), "{said}");

    // A shell runs the commands one after another, in the same folder.
    let commands = report["commands"].as_array().expect("a list");
    assert!(commands.len() >= 6);
    for command in commands {
        let command = command.as_str().expect("a text");
        assert!(said.contains(command), "{command}");
        let result = Command::new("sh").arg("-c").arg(command).current_dir(place.path("")).output();
        let result = result.expect("a shell");
        assert!(result.status.success(), "{command}\n{}", stderr(&result));
    }
    let scores = std::fs::read_to_string(place.path("first run/scores.csv")).expect("scores");
    assert_eq!(scores.lines().count(), 2001);
    assert!(commands[0].as_str().is_some_and(|c| c.contains(binary().to_str().expect("a path"))));

    // The same seed gives the same data and the same model, also with one thread. Another seed
    // gives other data and another model.
    let again = outcome(&stdout(&run("again", &["--threads", "1"])));
    assert_eq!(again["test_auc"], report["test_auc"]);
    assert_eq!(place.digest("again/data"), place.digest("first run/data"));
    let other = outcome(&stdout(&run("other", &["--seed", "2"])));
    assert_ne!(other["data"]["truth_auc"], report["data"]["truth_auc"]);

    // A second run does not overwrite the files of the first one.
    let refused = run("again", &[]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(stderr(&refused).contains("--output"), "{}", stderr(&refused));
}

#[test]
fn the_data_can_be_written_alone() {
    let place = Workplace::new();
    let out = place.text("log");
    let made = zillion(&["data", "synth", "--rows", "5000", "--out", &out, "--json"]).output();
    let made = made.expect("the binary runs");
    assert!(made.status.success(), "{}", stderr(&made));
    assert_eq!(outcome(&stdout(&made))["rows"], serde_json::json!([4000, 500, 500]));
}

#[test]
fn online_training_is_shown_in_a_short_form() {
    let place = Workplace::new();
    let mut command = zillion(&["quickstart", "--online", "--short", "--json"]);
    let output = command.current_dir(place.path("")).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let (said, report) = (stderr(&output), outcome(&stdout(&output)));
    assert!(said.contains("caught after") && said.contains("look around with"), "{said}");
    let number = |key: &str| report[key].as_f64().expect("a number");
    assert!(number("quarantines") >= 1.0 && number("batches") > 10.0, "{report}");
    assert!(number("item_after") > number("item_before"), "{report}");
    assert!(number("auc_after") > 0.6 && number("auc_lowest") > 0.6, "{report}");
    // The commands that it prints work.
    for command in report["commands"].as_array().expect("a list").iter().take(3) {
        let command = command.as_str().expect("a text");
        let result = Command::new("sh").arg("-c").arg(command).current_dir(place.path("")).output();
        let result = result.expect("a shell");
        assert!(result.status.success(), "{command}\n{}", stderr(&result));
    }
}
