//! Tests of the options `--fetch` and `--step` and of the command `zillion model graph`. They must
//! show the values of a run and must not change its result.

use std::fs::File;

use serde_json::Value;

use crate::harness::{Workplace, stderr, stdout, zillion};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn fetched_values_are_those_that_the_model_computes() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    let (run, rows) = (place.text("run"), place.text("test.csv"));
    let predict = |more: &[&str]| {
        let mut arguments = vec!["predict", &run, &rows];
        arguments.extend(more);
        let output = zillion(&arguments).output().expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let scores = lines(&predict(&["--json"]));
    let fetched = lines(&predict(&["--fetch", "logits"]));
    assert_eq!(fetched.len(), scores.len());
    for (row, (fetched, score)) in fetched.iter().zip(&scores).enumerate() {
        assert_eq!((&fetched["row"], &fetched["node"]), (&Value::from(row), &"logits".into()));
        assert_eq!(fetched["values"][0], score["logit"], "row {row}");
    }

    let some = lines(&predict(&[
        "--fetch",
        "mlp.0.activation",
        "--fetch",
        "output.weight",
        "--fetch-rows",
        "0,5,377",
    ]));
    let of = |node: &str| some.iter().filter(|line| line["node"] == node).collect::<Vec<_>>();
    let rows: Vec<_> = of("mlp.0.activation").iter().map(|line| line["row"].clone()).collect();
    assert_eq!(rows, [0, 5, 377].map(Value::from));
    for line in of("mlp.0.activation") {
        let values = line["values"].as_array().expect("a list");
        assert_eq!(values.len(), 16);
        assert!(values.iter().all(|x| x.as_f64().is_some_and(|x| x >= 0.0)), "{line}");
    }
    // A weight has the same value for every row.
    assert_eq!(of("output.weight").len(), 1);
    assert_eq!(of("output.weight")[0]["values"].as_array().map(Vec::len), Some(8));
    assert_eq!(lines(&predict(&["--fetch", "logits", "--rows", "3"])).len(), 3);
}

#[test]
fn looking_changes_no_byte() {
    let place = Workplace::new();
    place.train_ok("reference", &[]);
    let output = place.train_ok(
        "fetched",
        &[
            "--fetch",
            "mlp.1",
            "--fetch",
            "vector.tags",
            "--fetch",
            "loss",
            "--fetch",
            "mlp.0.grad",
            "--fetch-every",
            "10",
            "--fetch-rows",
            "0,3",
            "--json",
        ],
    );
    assert_eq!(place.digest("fetched/checkpoints"), place.digest("reference/checkpoints"));
    let mut lines = lines(&stdout(&output));
    let outcome = lines.pop().expect("the outcome is the last line");
    let steps = outcome["steps"].as_u64().expect("a number");
    assert_eq!(lines.len() as u64, steps / 10 * 7, "two rows of three nodes, and the loss");
    assert_eq!(lines[0]["step"], 10);
    assert!(lines.iter().all(|line| line["values"].as_array().is_some_and(|v| !v.is_empty())));

    place.write("answers", "c\n");
    let answers = File::open(place.path("answers")).expect("it was written");
    let stepped = place.train("stepped", &["--step"]).stdin(answers).output().expect("it runs");
    assert!(stepped.status.success(), "{}", stderr(&stepped));
    assert_eq!(place.digest("stepped/checkpoints"), place.digest("reference/checkpoints"));
}

#[test]
fn an_unknown_node_is_answered_with_the_nearest() {
    let place = Workplace::new();
    let (code, said) = place.train_fails(&["--fetch", "mpl.0"]);
    assert_eq!(code, 2, "{said}");
    let expected =
        "unknown node `mpl.0`; did you mean `mlp.0`? list all nodes with `zillion model graph JOB`";
    assert!(said.contains(expected), "{said}");
    let (code, said) = place.train_fails(&["--fetch", "rows.user"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("rows of a table"), "{said}");

    place.train_ok("run", &["--set", "train.epochs=1"]);
    for what in [place.text("job.toml"), place.text("run")] {
        let output = zillion(&["model", "graph", &what]).output().expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        let text = stdout(&output);
        assert!(text.contains("mlp.0.norm"), "{text}");
        assert!(
            text.lines().any(|l| l.starts_with("probabilities") && l.contains("[B, 1]")),
            "{text}"
        );
        assert!(!text.contains(".grad"), "{text}");
    }
    let training = zillion(&["model", "graph", &place.text("job.toml"), "--train"]).output();
    assert!(stdout(&training.expect("it runs")).contains("mlp.0.grad"));

    let shown = |more: &[&str]| {
        let job = place.text("job.toml");
        let all: Vec<&str> = ["model", "graph", &job].iter().chain(more).copied().collect();
        zillion(&all).output().expect("it runs")
    };
    let text = stdout(&shown(&["--train", "--pass", "epilogues"]));
    assert!(text.starts_with("# after running_sums: "), "{text}");
    assert!(text.contains("\n# after epilogues: ") && text.contains("+relu("), "{text}");
    // The pass over the buffers prints three sizes: with a separate buffer for each value, planned,
    // and planned in place. After operations have been fused, this pass saves little. The tests of
    // `nn` show a case in which it saves more. With few small buffers, another order of assigning
    // them may even need one row more.
    let apart = [
        ["--set", "train.tile_rows=256"],
        ["--set", "train.passes_off=[\"epilogues\"]"],
        ["--rows", "4096"],
        ["--pass", "in_place"],
    ];
    let text = stdout(&shown(&apart.concat()));
    let bytes = |line: &str| -> f64 {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[words.len() - 2].parse().expect("a number of KiB")
    };
    let sizes: Vec<f64> = text.lines().skip(1).map(bytes).collect();
    assert!(text.contains("4096 rows") && sizes.len() == 3, "{text}");
    assert!(
        sizes[0] > 2.0 * sizes[1] && sizes[0] > 2.0 * sizes[2] && sizes[1] != sizes[2],
        "{text}"
    );
    // A pass that the job switches off does not run.
    let left_out = ["--train", "--pass", "in_place", "--set", "train.passes_off=[\"in_place\"]"];
    let text = stdout(&shown(&left_out));
    assert!(text.lines().count() == 3 && !text.contains("after in_place"), "{text}");
    let left_out = ["--train", "--pass", "all", "--set", "train.passes_off=[\"epilogues\"]"];
    let text = stdout(&shown(&left_out));
    assert!(text.contains("after algebra") && !text.contains("after epilogues"), "{text}");
    let text = stdout(&shown(&["--format", "svg", "--rows", "10"]));
    assert!(text.starts_with("<svg ") && text.contains("as built"), "{text}");
    assert!(stdout(&shown(&["--format", "dot"])).starts_with("digraph \"as built\" {"));
    let refused = shown(&["--pass", "epilogue"]);
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("did you mean \"epilogues\"?"), "{}", stderr(&refused));
}

#[test]
fn a_step_shows_its_worst_rows_and_waits() {
    let place = Workplace::new();
    place.write("answers", "\nhelp\n2\nq\n");
    let answers = File::open(place.path("answers")).expect("it was written");
    let output = place.train("run", &["--step"]).stdin(answers).output().expect("it runs");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let steps: Vec<&str> = said.lines().filter(|line| line.starts_with("step ")).collect();
    let numbers: Vec<&str> = steps.iter().filter_map(|l| l.split_whitespace().nth(1)).collect();
    assert_eq!(numbers, ["1", "2", "4"], "{said}");
    assert!(steps[0].contains("epoch 1  rows 0..64  loss 0."), "{said}");
    assert!(said.contains("gradient norms: dense "), "{said}");
    assert!(said.contains("Enter: next step"), "{said}");
    let worst: Vec<&str> = said.lines().filter(|line| line.starts_with("row ")).collect();
    assert_eq!(worst.len(), 9, "{said}");
    let loss = |line: &str| line.split_whitespace().nth(3).and_then(|x| x.parse::<f64>().ok());
    assert!(loss(worst[0]) >= loss(worst[1]) && loss(worst[1]) >= loss(worst[2]), "{said}");
    // Ids of integers are shown as in the data, and ids of text are shown as keys. A list in
    // brackets and a number follow.
    let row = said.lines().find(|line| line.trim_start().starts_with("user=0x")).expect("a row");
    let value = |name: &str| row.split(&format!(" {name}=")).nth(1).expect("the feature");
    let item: u64 = value("item").split(' ').next().and_then(|x| x.parse().ok()).expect("an id");
    assert!(item < 80, "{row}");
    assert!(value("tags").starts_with('['), "{row}");
    assert!(said.contains("interrupted: go on with --resume"), "{said}");
}
