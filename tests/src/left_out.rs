//! Tests of rows that training leaves out: bad rows up to a limit, rows outside of a sample, and
//! some rows with label 0. The calibration of the scores must not change when rows with label 0 are
//! left out. Interrupted and resumed runs must end with the same bytes as other runs.

use serde_json::Value;

use crate::harness::{Workplace, csv, stderr, stdout, zillion};

fn json(text: &str) -> Value {
    let line = text.lines().last().expect("something on stdout");
    serde_json::from_str(line).expect("the last line is JSON")
}

/// The numbers of the bad rows of the training file, counted from 1.
const BAD: [usize; 5] = [3, 200, 201, 700, 1500];

/// Inserts bad rows at the given places of a CSV text. Returns the new text and the text of each
/// bad row.
fn dirty(clean: &str, places: &[usize]) -> (String, Vec<String>) {
    let bad = ["u1,x7,,1.0,3,1", "u1,7", "u1,7,t1,1.0,3,2", "u1,7,t1,many,3,1", "u1,7,t1,1,,"];
    let mut lines: Vec<String> = clean.lines().map(str::to_owned).collect();
    for (place, bad) in places.iter().zip(bad) {
        lines.insert(*place, bad.to_owned());
    }
    (lines.join("\n") + "\n", bad[..places.len()].iter().map(|&b| b.to_owned()).collect())
}

fn rejects(place: &Workplace, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(place.path(name)).expect("a file of rejected rows");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn left_out_rows_do_not_change_the_result() {
    let place = Workplace::new();
    let unshuffled = ["--json", "--set", "data.shuffle=false"];
    let tables = |output: &str| {
        let files = place.digest(&format!("{output}/checkpoints"));
        let files = files.into_iter().filter(|(name, _)| !name.ends_with("MANIFEST"));
        files.collect::<Vec<_>>()
    };
    let clean = json(&stdout(&place.train_ok("clean", &unshuffled)));
    assert_eq!(clean["rejected_rows"], 0);
    let (text, lines) = dirty(&csv(0, 1500), &BAD);
    place.write("train.csv", &text);
    let (text, _) = dirty(&csv(2, 400), &[10, 20]);
    place.write("test.csv", &text);

    let (code, said) = place.train_fails(&unshuffled);
    assert_eq!(code, 1);
    // The pass before the first step reads only numbers. A record with two cells stops it too.
    assert!(said.contains("row 200 (byte"), "{said}");

    let rejected = format!("data.rejects={}", place.text("out/rejects.jsonl"));
    let allowed = ["--set", "data.max_bad_rows=5", "--set", &rejected];
    let output = place.train_ok("dirty", &[&unshuffled[..], &allowed].concat());
    let outcome = json(&stdout(&output));
    assert_eq!(outcome["rejected_rows"], 5);
    assert_eq!(outcome["test"]["rejected_rows"], 2);
    assert_eq!(outcome["epoch_rows"], 1500);
    assert_eq!(outcome["test_auc"], clean["test_auc"]);
    assert!(stderr(&output).contains("5 of the training rows are bad"), "{}", stderr(&output));
    assert_eq!(tables("dirty"), tables("clean"));
    let told = rejects(&place, "out/rejects.jsonl");
    let of = |file: &str| told.iter().filter(|r| r["file"] == file).collect::<Vec<_>>();
    let trained = of("train.csv");
    assert_eq!(trained.len(), 5);
    for ((row, line), told) in BAD.iter().zip(&lines).zip(&trained) {
        assert_eq!((&told["row"], &told["line"]), (&(*row).into(), &line.as_str().into()));
        assert!(told["reason"].as_str().is_some_and(|r| r.len() > 10), "{told}");
    }
    assert_eq!(trained[0]["column"], "item");
    assert_eq!(of("test.csv").len(), 2);

    // If the limit is lower by one, the pass before the first step stops. The error names the first
    // bad rows, and the file lists all of them.
    let rejected = format!("data.rejects={}", place.text("rejects.jsonl"));
    let too_few = ["--set", "data.max_bad_rows=4", "--set", &rejected];
    let (code, said) = place.train_fails(&[&unshuffled[..], &too_few].concat());
    assert_eq!(code, 1);
    assert!(said.contains("more than 4 bad row(s)") && said.contains("row 200"), "{said}");
    assert_eq!(rejects(&place, "rejects.jsonl").len(), 5);
    let (code, said) = place.train_fails(&["--set", &rejected]);
    assert_eq!(code, 2, "rejected rows without leave to reject any: {said}");
}

#[test]
fn scores_stay_beside_their_rows() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    let run = place.text("run");
    let score = |file: &str, more: &[&str]| {
        zillion(&[&["predict", &run, &place.text(file)], more].concat()).output().expect("it runs")
    };
    let clean = stdout(&score("test.csv", &[]));
    let (text, _) = dirty(&csv(2, 400), &[1, 30, 31, 403]);
    place.write("dirty.csv", &text);
    let strict = score("dirty.csv", &[]);
    assert_eq!(strict.status.code(), Some(1));
    assert!(stderr(&strict).contains("row 1 "), "{}", stderr(&strict));

    let rejected = format!("data.rejects={}", place.text("unscored.jsonl"));
    let leave = ["--set", "data.max_bad_rows=4", "--set", &rejected];
    let lenient = score("dirty.csv", &leave);
    assert!(lenient.status.success(), "{}", stderr(&lenient));
    assert!(stderr(&lenient).contains("4 rows are bad"), "{}", stderr(&lenient));
    assert_eq!(rejects(&place, "unscored.jsonl").len(), 4);
    let lines: Vec<String> = stdout(&lenient).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 405);
    let empty: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].is_empty()).collect();
    assert_eq!(empty, [1, 30, 31, 403]);
    let scored: Vec<&String> = lines.iter().filter(|line| !line.is_empty()).collect();
    assert!(scored.into_iter().eq(clean.lines()));
    let objects = stdout(&score("dirty.csv", &[&leave[..], &["--json"]].concat()));
    for (i, line) in objects.lines().enumerate() {
        let object: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(object["row"], i);
        assert_eq!(object["probability"].is_null(), empty.contains(&(i + 1)), "{object}");
    }

    // If all rows of a file are bad, the output still has one line for each row. The metrics count
    // the rows that were left out.
    place.write("bad.csv", "user,item,tags,price,age,label\nu1,x,,1,1,1\nu1,y,,1,1,1\n");
    let none = score("bad.csv", &leave);
    assert_eq!(stdout(&none), "label\n\n\n", "{}", stderr(&none));
    let data = place.text("dirty.csv");
    let eval = ["eval", &run, "--data", &data, "--json"];
    let strict = zillion(&eval).output().expect("it runs");
    assert_eq!(strict.status.code(), Some(1));
    let output = zillion(&[&eval[..], &leave].concat()).output().expect("it runs");
    assert_eq!(json(&stdout(&output))["rejected_rows"], 4, "{}", stderr(&output));
    assert_eq!(json(&stdout(&output))["rows"], 400);
}

#[test]
fn a_check_counts_the_bad_rows_of_its_sample() {
    let place = Workplace::new();
    let (text, _) = dirty(&csv(0, 1500), &BAD);
    place.write("train.csv", &text);
    let check = |more: &[&str]| {
        let root = format!("data.root={}", place.text(""));
        let job = place.text("job.toml");
        let arguments = ["check", &job, "--json", "--set", &root];
        let output = zillion(&[&arguments[..], more].concat()).output().expect("it runs");
        (output.status.code(), json(&stdout(&output)))
    };
    let finding = |report: &Value, severity: &str, words: &str| {
        let findings = report["findings"].as_array().expect("a list");
        let found = findings.iter().any(|f| {
            f["severity"] == severity && f["text"].as_str().is_some_and(|t| t.contains(words))
        });
        assert!(found, "no {severity} with {words:?} in {findings:#?}");
    };
    let (code, report) = check(&["--set", "data.max_bad_rows=5"]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(
        (&report["data"]["rejected"], &report["data"]["sampled"]),
        (&5.into(), &1500.into())
    );
    finding(&report, "note", "5 of 1505 rows are bad and left out");
    assert_eq!(check(&["--set", "data.max_bad_rows=4"]).0, Some(1));
    assert_eq!(check(&[]).0, Some(1));

    // A tenth of the rows is bad. The limit is enough for the sample but not for all rows.
    let lines: Vec<String> = csv(0, 120_000)
        .lines()
        .enumerate()
        .map(|(i, line)| if i % 10 == 1 { "u1,x,,1,1,1".to_owned() } else { line.to_owned() })
        .collect();
    place.write("train.csv", &lines.join("\n"));
    let (code, report) = check(&["--sample", "5000", "--set", "data.max_bad_rows=9000"]);
    assert_eq!(code, Some(3), "{report:#}");
    finding(&report, "stop", "9000 may be left out");
    let (code, report) = check(&["--sample", "5000", "--set", "data.max_bad_rows=15000"]);
    assert_eq!(code, Some(0), "{report:#}");
    // The number of rows for training is smaller.
    let (_, report) = check(&["--set", "data.max_bad_rows=15000", "--set", "data.sample=0.25"]);
    let rows = report["data"]["rows"].as_f64().expect("a number");
    assert!((28_000.0..32_000.0).contains(&rows), "{rows}");
}

/// Tests the combination of several files, bad rows, a sample, fewer rows with label 0 and
/// shuffling.
#[test]
fn a_resumed_run_leaves_out_the_same_rows() {
    let place = Workplace::new();
    let (text, _) = dirty(&csv(0, 900), &[3, 200, 201, 700, 899]);
    std::fs::create_dir(place.path("parts")).expect("a new folder");
    place.write("parts/a.csv", &text);
    let (text, _) = dirty(&csv(7, 600), &[1, 50, 51, 400, 600]);
    place.write("parts/b.csv", &text);
    let rejected = format!("data.rejects={}", place.text("rejects.jsonl"));
    let settings = [
        "--json",
        "--set",
        "data.train=\"parts\"",
        "--set",
        "data.max_bad_rows=10",
        "--set",
        "data.sample=0.8",
        "--set",
        "data.negatives={keep=0.6}",
        "--set",
        "data.shuffle_window=400",
        "--set",
        "train.checkpoint_every=3",
        "--set",
        &rejected,
    ];
    let whole = json(&stdout(&place.train_ok("reference", &settings)));
    let reference = place.digest("reference/checkpoints");
    let told = std::fs::read_to_string(place.path("rejects.jsonl")).expect("rejected rows");
    let rows = whole["epoch_rows"].as_f64().expect("rows of an epoch");
    assert!((700.0..1200.0).contains(&rows), "{rows}");
    assert!(told.lines().count() > 3, "{told}");
    let threads = place.train_ok("threads", &[&settings[..], &["--set", "run.threads=4"]].concat());
    assert_eq!(json(&stdout(&threads))["rejected_rows"], whole["rejected_rows"]);
    assert_eq!(place.digest("threads/checkpoints"), reference);
    let mut killed = 0;
    for operation in (10..400).step_by(37) {
        std::fs::remove_file(place.path("rejects.jsonl")).expect("our own file");
        let output = format!("killed-{operation}");
        let result = place
            .train(&output, &settings)
            .env("ZILLION_FAILPOINT", format!("{operation}:kill"))
            .output()
            .expect("the binary runs");
        killed += u32::from(!result.status.success());
        let resumed = place.train_ok(&output, &[&settings[..], &["--resume"]].concat());
        assert_eq!(json(&stdout(&resumed))["rejected_rows"], whole["rejected_rows"]);
        assert_eq!(place.digest(&format!("{output}/checkpoints")), reference, "{operation}");
        let again = std::fs::read_to_string(place.path("rejects.jsonl")).expect("rejected rows");
        assert_eq!(again, told, "{operation}");
    }
    assert!(killed >= 5, "{killed}");
}

#[test]
fn a_sample_is_a_share_of_the_rows_and_zero_is_refused() {
    let place = Workplace::new();
    let run = |output: &str, more: &[&str]| {
        json(&stdout(&place.train_ok(output, &[&["--json"], more].concat())))
    };
    let rows = run("third", &["--set", "data.sample=0.3"])["epoch_rows"].as_f64().expect("rows");
    assert!((390.0..510.0).contains(&rows), "{rows}");
    let whole = run("whole", &["--set", "data.sample=1.0", "--set", "train.epochs=1"]);
    assert_eq!(whole["epoch_rows"], 1500);
    assert_eq!(run("plain", &["--set", "train.epochs=1"])["test_auc"], whole["test_auc"]);
    // The validation and test data are never sampled.
    assert_eq!(whole["test"]["rows"], 400);
    // The usual job has passes before the first step, which would already fail because they find no
    // rows. This job has no such passes.
    place.write(
        "job.toml",
        "[data]\ntrain = [\"train.csv\"]\n[features.item]\nkind = \"id\"\n[labels.label]\n\
         [model]\nkind = \"lr\"\n",
    );
    let (code, said) = place.train_fails(&["--set", "data.sample=1e-9"]);
    assert_eq!(code, 1);
    assert!(said.contains("none of the 1500 training rows is left"), "{said}");
}

/// Compares scores with the known probabilities. The second model is trained on a tenth of the rows
/// with label 0. It must be nearly as good as the first model. Its scores must be calibrated,
/// because inference corrects the odds.
#[test]
fn fewer_negatives_keep_the_scores_calibrated() {
    let place = Workplace::new();
    let log = place.text("log");
    let made = zillion(&["data", "synth", "--rows", "100000", "--out", &log, "--json"]).output();
    let truth = json(&stdout(&made.expect("it runs")));
    let ids: String = (1..=26)
        .map(|i| format!("[features.C{i}]\nkind = \"id\"\n"))
        .chain((1..=13).map(|i| {
            format!("[features.I{i}]\nkind = \"numeric\"\ntransform = \"log1p\"\nmissing = 0.0\n")
        }))
        .collect();
    place.write(
        "job.toml",
        &format!(
            "name = \"fewer\"\n[data]\ntrain = \"log/train.parquet\"\nvalid = \"log/valid.parquet\"\n\
             test = \"log/test.parquet\"\n{ids}[labels.click]\ncolumn = \"label\"\n[tables.\"*\"]\n\
             optimizer = {{ kind = \"adagrad\", lr = 0.08 }}\n[model]\nkind = \"lr\"\n[train]\n\
             epochs = 5\nbatch_size = 256\noptimizer = {{ kind = \"adam\", lr = 0.01 }}\n"
        ),
    );
    let run = |output: &str, more: &[&str]| {
        json(&stdout(&place.train_ok(output, &[&["--json"], more].concat())))
    };
    let number = |outcome: &Value, key: &str| outcome[key].as_f64().expect("a number");
    let all = run("all", &[]);
    let fewer = run("fewer", &["--set", "data.negatives={keep=0.1,label=\"click\"}"]);
    eprintln!("truth {truth}");
    for (name, outcome) in [("all", &all), ("fewer", &fewer)] {
        let figures = ["test_auc", "test_logloss", "calibration", "epoch_rows"];
        let figures = figures.map(|key| (key, outcome[key].clone()));
        eprintln!("{name} {figures:?}");
    }
    // Of 80,000 rows, a tenth of the rows with label 0 and all rows with label 1 remain.
    let ones = 80_000.0 * number(&truth, "base_rate");
    let expected = ones + 0.1 * (80_000.0 - ones);
    assert!((number(&fewer, "epoch_rows") / expected - 1.0).abs() < 0.03, "{fewer}");
    assert!((number(&fewer, "calibration") - 1.0).abs() < 0.1, "{fewer}");
    assert!(number(&fewer, "test_logloss") < number(&all, "test_logloss") + 0.02, "{fewer} {all}");
    assert!(number(&fewer, "test_auc") > number(&all, "test_auc") - 0.02, "{fewer} {all}");

    // The printed logits contain the correction ln(keep). Without it, the scores would be far off.
    let scored =
        zillion(&["predict", &place.text("fewer"), &format!("{log}/test.parquet"), "--json"])
            .output()
            .expect("it runs");
    let (mut corrected, mut learned, mut rows) = (0.0, 0.0, 0.0);
    for line in stdout(&scored).lines() {
        let object: Value = serde_json::from_str(line).expect("JSON");
        let logit = object["logit"].as_f64().expect("a number");
        corrected += 1.0 / (1.0 + (-logit).exp());
        learned += 1.0 / (1.0 + (-(logit - 0.1f64.ln())).exp());
        rows += 1.0;
    }
    let clicks = rows * number(&truth, "base_rate");
    assert!((corrected / clicks - number(&fewer, "calibration")).abs() < 1e-3);
    assert!(learned / clicks > 2.0, "{}", learned / clicks);
}
