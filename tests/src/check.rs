//! Tests of the findings and the exit codes of the command `check`, which examines a job before it
//! runs.

use serde_json::Value;

use crate::harness::{HEADER, Workplace, csv, row, stderr, stdout, zillion};

/// Runs `check --json`, and returns the exit code and the report of the command.
fn check(place: &Workplace, more: &[&str]) -> (i32, Value) {
    let root = format!("data.root={}", place.text(""));
    let run = format!("run.output={}", place.text("run"));
    let job = place.text("job.toml");
    let arguments = ["check", &job, "--json", "--set", &root, "--set", &run];
    let result = zillion(&[&arguments[..], more].concat()).output().expect("the binary runs");
    let said = stdout(&result);
    assert!(!stderr(&result).contains("panicked"), "{}", stderr(&result));
    let report = serde_json::from_str(said.trim()).unwrap_or_else(|e| panic!("{e}: {said}"));
    (result.status.code().unwrap_or(-1), report)
}

/// Asserts that the report has a finding with this severity about this key, and that the finding
/// contains all words of `words`.
fn finds(report: &Value, severity: &str, about: &str, words: &[&str]) {
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().any(|f| {
        let text = f["text"].as_str().unwrap_or_default();
        f["severity"] == severity && f["about"] == about && words.iter().all(|w| text.contains(w))
    });
    assert!(found, "no {severity} about {about} with {words:?} in {findings:#?}");
}

#[test]
fn check_predicts_the_cost_of_a_good_job() {
    let place = Workplace::new();
    let (code, report) = check(&place, &[]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["data"]["rows"], 1500);
    assert!(!place.path("run").exists(), "a check writes nothing");
    let trained = place.train_ok("run", &["--json", "--set", "train.epochs=1"]);
    let trained: Value = serde_json::from_str(stdout(&trained).trim()).expect("JSON");
    let tables = |of: &Value| of["tables"].as_array().expect("a list").clone();
    for (told, real) in tables(&report).iter().zip(tables(&trained)) {
        assert_eq!(told["name"], real["name"]);
        let (told_rows, rows) = (told["rows"].as_f64(), real["rows"].as_f64());
        let (told_rows, rows) = (told_rows.expect("rows"), rows.expect("rows"));
        // There may be fewer buckets than requested if values repeat, and there may be no bucket
        // for a missing value.
        assert!(told_rows >= rows && told_rows <= rows + 3.0, "{told} {real}");
        let ratio = told["bytes"].as_f64().expect("bytes") / real["bytes"].as_f64().expect("bytes");
        assert!((0.6..1.7).contains(&ratio), "{ratio}: {told} {real}");
    }
    // The text contains the figures too. If there are checkpoints, it also names the remedy for
    // `train`.
    let text = zillion(&["check", &place.text("job.toml"), "--set"])
        .arg(format!("data.root={}", place.text("")))
        .args(["--set", &format!("run.output={}", place.text("run"))])
        .output()
        .expect("the binary runs");
    let text = stdout(&text);
    assert!(text.contains("the job can run") && text.contains("--resume"), "{text}");
}

#[test]
fn the_bounds_of_an_extrapolated_sample_hold() {
    let place = Workplace::new();
    let log = place.text("log");
    let made = zillion(&["data", "synth", "--rows", "100000", "--out", &log]).output();
    assert!(made.expect("the binary runs").status.success());
    place.write(
        "job.toml",
        "[data]\ntrain = \"log/train.parquet\"\n[labels.click]\ncolumn = \"label\"\n\
         [features.C3]\nkind = \"id\"\n[features.C4]\nkind = \"id\"\n[features.C12]\nkind = \"id\"\n\
         [model]\nkind = \"lr\"\n",
    );
    let tables = |sample: &str| {
        let (code, report) = check(&place, &["--sample", sample]);
        assert_eq!(code, 0, "{report:#}");
        report["tables"].as_array().expect("a list").clone()
    };
    let rows = |t: &Value, key: &str| t[key].as_u64().expect("a number");
    for (part, all) in tables("20000").iter().zip(tables("80000")) {
        let truth = rows(&all, "rows");
        assert_eq!(rows(&all, "rows_low"), rows(&all, "rows_high"), "all rows were looked at");
        let (low, high) = (rows(part, "rows_low"), rows(part, "rows_high"));
        assert!(low as f64 <= 1.03 * truth as f64 && truth <= high, "{part} {all}");
        let error = rows(part, "rows") as f64 / truth as f64;
        assert!((0.8..1.25).contains(&error), "{error}: {part} {all}");
    }
}

#[test]
fn all_errors_of_a_job_are_reported_at_once() {
    let place = Workplace::new();
    // The job has an unknown key.
    let (code, report) = check(&place, &["--set", "model.hiden=[3]"]);
    assert_eq!(code, 1);
    finds(&report, "error", "job", &["did you mean `hidden`?"]);
    // Two columns are missing, and one has another type.
    let more =
        ["--set", "features.user.column=\"usr\"", "--set", "features.price.column=\"prise\""];
    let (code, report) = check(&place, &more);
    assert_eq!(code, 1);
    finds(&report, "error", "features.user", &["did you mean `user`?"]);
    finds(&report, "error", "features.price", &["did you mean `price`?"]);
    // Two columns have values that a feature refuses.
    let rows: Vec<String> = (0..50).map(|i| row(0, i)).collect();
    let bad = rows[7].replacen(',', ",x", 1).replace(",1", ",2").replace(",0", ",2");
    place.write("train.csv", &format!("{HEADER}\n{}\n{bad}\n", rows.join("\n")));
    let (code, report) = check(&place, &[]);
    assert_eq!(code, 1);
    finds(&report, "error", "features.item", &["row 51", "whole number"]);
    finds(&report, "error", "labels.label", &["row 51", "is not 0 or 1"]);
    // A file is missing.
    let (code, report) = check(&place, &["--set", "data.train=\"gone.csv\""]);
    assert_eq!(code, 1);
    finds(&report, "error", "data.train", &["gone.csv"]);
    let result = zillion(&["check", "/nonexistent/job.toml"]).output().expect("it runs");
    assert_eq!(result.status.code(), Some(1));
    // A wrong command line has its own exit code.
    assert_eq!(zillion(&["check"]).output().expect("it runs").status.code(), Some(2));
}

#[test]
fn check_reports_a_missing_number_without_a_default() {
    let place = Workplace::new();
    let empty: Vec<String> = csv(0, 200)
        .lines()
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let price = if cells[1].ends_with('7') { "" } else { cells[3] };
            [cells[0], cells[1], cells[2], price, cells[4], cells[5]].join(",")
        })
        .collect();
    place.write("train.csv", &empty.join("\n"));
    let (code, report) = check(&place, &[]);
    assert_eq!(code, 1);
    finds(&report, "error", "features.price", &["have no value", "missing = <number>"]);
    let (code, _) = check(&place, &["--set", "features.price.missing=1.0"]);
    assert_eq!(code, 0);
}

#[test]
fn a_job_that_should_not_run_is_exit_code_three() {
    let place = Workplace::new();
    // The columns contain no information about the label.
    let ones: Vec<String> = csv(0, 200)
        .lines()
        .map(|l| if l.ends_with(",0") { format!("{}1", &l[..l.len() - 1]) } else { l.to_owned() })
        .collect();
    place.write("train.csv", &ones.join("\n"));
    let (code, report) = check(&place, &[]);
    assert_eq!(code, 3);
    finds(&report, "stop", "labels.label", &["is 1 in all"]);
    // The job needs more memory than the machine has, because of vectors of a quarter of a megabyte
    // and many buckets.
    let place = Workplace::new();
    let huge = ["--set", "tables.age.dim=65536", "--set", "features.age.buckets=400000000"];
    let lr = ["--set", "model={kind=\"dnn\"}", "--set", "tables.age.max_rows=2000000000"];
    let (code, report) = check(&place, &[&huge[..], &lr[..]].concat());
    assert_eq!(code, 3, "{report:#}");
    finds(&report, "stop", "tables", &["MiB will be needed"]);
}

#[test]
fn columns_that_teach_nothing_are_named() {
    let place = Workplace::new();
    let with = |line: &str, i: usize| match i {
        0 => format!("row,same,{line}"),
        _ => format!("{i},7,{line}"),
    };
    let text: Vec<String> = csv(0, 300).lines().enumerate().map(|(i, l)| with(l, i)).collect();
    place.write("train.csv", &text.join("\n"));
    let more = ["--set", "features.row.kind=\"id\"", "--set", "features.same.kind=\"id\""];
    let none = ["--set", "data.valid=[]", "--set", "data.test=[]"];
    let (code, report) = check(&place, &[&more[..], &none[..]].concat());
    assert_eq!(code, 0, "{report:#}");
    finds(&report, "warning", "features.row", &["a different id in every row"]);
    finds(&report, "warning", "features.same", &["the same in every row"]);
    finds(&report, "note", "data.test", &["no test AUC"]);
}

#[test]
fn a_sample_of_a_sorted_log_is_spread_over_it() {
    let place = Workplace::new();
    // New users come all the time, and clicks begin in the second half.
    let text = |quote: &str| {
        let row = |i: u64| format!("{quote}u{}{quote},{}\n", i / 20, u8::from(i >= 20_000));
        format!("user,click\n{}", (0..40_000).map(row).collect::<String>())
    };
    place.write("log.csv", &text(""));
    let convert = zillion(&["data", "convert", &place.text("log.csv"), "--output"])
        .args([place.text("log.parquet"), "--group-rows".to_owned(), "40000".to_owned()])
        .output();
    assert!(convert.expect("the binary runs").status.success());
    place.write("quoted.csv", &text("\""));
    for file in ["log.csv", "log.parquet", "quoted.csv"] {
        place.write(
            "job.toml",
            &format!(
                "[data]\ntrain = '{file}'\n[labels.click]\n[features.user]\nkind = 'id'\n\
                 type = 'string'\n[model]\nkind = 'lr'\n"
            ),
        );
        let (code, report) = check(&place, &["--sample", "1600"]);
        assert_eq!(code, 0, "{report:#}");
        let data = &report["data"];
        assert_eq!((&data["sampled"], &data["places"]), (&1600.into(), &16.into()), "{data:#}");
        assert_eq!(data["is_spread"], true, "{data:#}");
        let rate = data["labels"][0]["base_rate"].as_f64().expect("a rate");
        assert!((0.45..0.55).contains(&rate), "{rate}");
        // Each of the 16 places shows five users or six.
        let users = data["features"][0]["distinct"].as_u64().expect("a number");
        assert!((80..=96).contains(&users), "{users}");
    }
}
