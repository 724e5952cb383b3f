//! Tests of the command `zillion init` on data files without any preparation. Either the drafted
//! job must run, or the error message must name the required change.

use std::fmt::Write as _;

use serde_json::Value;
use zillion_feature::random::{combine, mix64};

use crate::harness::{Workplace, stderr, stdout, zillion};

/// Draws the values of one row: a user, an item, a number, and a click that depends on the user and
/// the item.
fn drawn(i: u64) -> (u64, u64, f64, u8) {
    let draw = |salt: u64| mix64(combine(i, salt));
    let (user, item) = (draw(1) % 40, draw(2) % 60);
    let price = (draw(3) % 10_000) as f64 / 100.0;
    let taste = |id: u64| (mix64(id + 500) % 100) as f64 / 20.0 - 2.5;
    let chance = 1.0 / (1.0 + (-(taste(user) + taste(item + 1000))).exp());
    (user, item, price, u8::from((draw(4) % 1000) as f64 / 1000.0 < chance))
}

/// Runs `init`, `check` and `train`, and asserts that all three succeed. Returns the job and the
/// messages of `init`.
fn walks(place: &Workplace, file: &str, text: &str) -> (toml::Table, String) {
    place.write(file, text);
    let job = format!("{file}.toml");
    let run = |arguments: &[&str]| {
        let result = zillion(arguments).current_dir(place.path("")).output();
        let result = result.expect("the binary runs");
        assert!(result.status.success(), "{arguments:?}: {}{}", stdout(&result), stderr(&result));
        result
    };
    let said = stderr(&run(&["init", file, "--no-split", "--out", &job]));
    let checked: Value =
        serde_json::from_str(stdout(&run(&["check", &job, "--json"])).trim()).expect("JSON");
    let bad = |f: &&Value| f["severity"] != "note";
    let findings = checked["findings"].as_array().expect("a list");
    assert_eq!(findings.iter().filter(bad).count(), 0, "{findings:#?}");
    // The model has learned something, because its loss is below the loss of the base rate, which
    // is near ln 2.
    let output = format!("run.output=run-{file}");
    let trained = run(&["train", &job, "--set", &output, "--set", "train.epochs=5", "--json"]);
    let line = stderr(&trained);
    let last = line.lines().rev().find(|l| l.starts_with("epoch 5 done")).expect("five epochs");
    let loss: f64 = last
        .split_whitespace()
        .skip_while(|w| *w != "loss")
        .nth(1)
        .and_then(|w| w.parse().ok())
        .expect("a loss");
    assert!(loss < 0.62, "{last}");
    let job = std::fs::read_to_string(place.path(&job)).expect("the job");
    (job.parse().expect("TOML"), said)
}

fn kind<'a>(job: &'a toml::Table, feature: &str) -> &'a str {
    job["features"][feature]["kind"].as_str().unwrap_or_default()
}

#[test]
fn json_lines_are_drafted() {
    let place = Workplace::new();
    let mut text = String::new();
    for i in 0..3000 {
        let (user, item, price, label) = drawn(i);
        let tags = [format!("t{}", user % 7), format!("t{}", item % 9)];
        let price = if i % 5 == 0 { Value::Null } else { price.into() };
        let row = serde_json::json!({"user": format!("u{user}"), "item_id": item, "tags": tags,
            "price": price, "click": label == 1, "context": {"page": i}});
        writeln!(text, "{row}").unwrap();
    }
    let (job, said) = walks(&place, "events.ndjson", &text);
    assert_eq!(job["features"]["user"]["type"].as_str(), Some("string"));
    assert_eq!(kind(&job, "tags"), "ids");
    assert_eq!(kind(&job, "price"), "numeric");
    assert_eq!(job["labels"]["click"]["column"].as_str(), Some("click"));
    assert!(said.contains("`context`: no feature reads a column of type object"), "{said}");
    let result = zillion(&["data", "inspect", &place.text("events.ndjson"), "--json"]).output();
    let report: Value =
        serde_json::from_str(stdout(&result.expect("it runs")).trim()).expect("JSON");
    assert_eq!((&report["rows"], &report["columns"][0]["kind"]), (&3000.into(), &"boolean".into()));
}

#[test]
fn libsvm_with_queries_is_drafted() {
    let place = Workplace::new();
    let mut text = "# label qid:query user:1 item:1 price:value\n".to_owned();
    for i in 0..3000 {
        let (user, item, price, label) = drawn(i);
        let label = if label == 1 { "+1" } else { "-1" };
        writeln!(text, "{label} qid:{} {user}:1 {}:1 999:{price}", i / 10, item + 100).unwrap();
    }
    let (job, _) = walks(&place, "sparse.svm", &text);
    assert_eq!(kind(&job, "features"), "ids");
    assert_eq!(job["features"]["features"]["pooling"].as_str(), Some("sum"));
    assert_eq!(job["columns"]["group"].as_str(), Some("qid"));
}

#[test]
fn semicolons_and_decimal_commas_are_drafted() {
    let place = Workplace::new();
    let mut text = "Kunde;Artikel-Nr.;Preis;Umsatz;Datum;geklickt\n".to_owned();
    for i in 0..3000 {
        let (user, item, price, label) = drawn(i);
        let price = format!("{price:.2}").replace('.', ",");
        let day = i % 28 + 1;
        writeln!(text, "K{user};{item};{price};1.{:03},50;{day}.05.2024;{label}", i % 1000)
            .unwrap();
    }
    let (job, said) = walks(&place, "shop.csv", &text);
    assert_eq!(job["data"]["delimiter"].as_str(), Some(";"));
    assert_eq!(job["data"]["decimal"].as_str(), Some(","));
    assert_eq!(job["labels"]["geklickt"]["column"].as_str(), Some("geklickt"));
    assert_eq!(job["features"]["Kunde"]["type"].as_str(), Some("string"));
    assert_eq!(job["features"]["Artikel-Nr_"]["column"].as_str(), Some("Artikel-Nr."));
    assert_eq!(kind(&job, "Preis"), "numeric");
    // The message names the column that cannot be read, and the remedy.
    assert!(said.contains("`Umsatz`") && said.contains("separators of thousands"), "{said}");
    // The days of the month are above 12 in some rows, so the order of the dates is known.
    assert_eq!(job["columns"]["event_time"].as_str(), Some("Datum"));
    assert_eq!(job["columns"]["event_date_order"].as_str(), Some("day_first"));
}

#[test]
fn quoted_newlines_lists_and_a_bom_are_drafted() {
    let place = Workplace::new();
    let mut text = "\u{feff}id,user,comment,tags,\"clicked\"\r\n".to_owned();
    for i in 0..3000 {
        let (user, item, _, label) = drawn(i);
        let tags = format!("t{},t{}", item, item % 7);
        let comment = format!("said \"\"{i}, yes\"\"\nand left;\n\n|really|");
        write!(text, "{i},user-{user},\"{comment}\",\"{tags}\",{label}\r\n").unwrap();
    }
    let (job, said) = walks(&place, "quoted.csv", &text);
    assert_eq!(job["data"].get("delimiter"), None, "a comma is the default");
    assert_eq!(job["data"]["list_separator"].as_str(), Some(","));
    assert_eq!((kind(&job, "user"), kind(&job, "tags")), ("id", "ids"));
    assert!(said.contains("`id`") && said.contains("`comment`"), "{said}");
}

#[test]
fn missing_values_in_every_spelling_are_recognised() {
    let place = Workplace::new();
    let mut text = "user_id\titem_id\tage\tincome\tcity\tscore\tlabel\n".to_owned();
    for i in 0..3000 {
        let (user, item, price, label) = drawn(i);
        let age = ["NA", "?", "31", "44", "27"][(i % 5) as usize];
        let income = [r"\N".to_owned(), String::new(), format!("{:.1}", price * 1000.0)];
        let city = ["null", "Ulm", "Bonn", "N/A", "Köln"][(i % 5) as usize];
        let score = if i % 9 == 0 { "-".to_owned() } else { format!("{price:.3}") };
        let income = &income[(i % 3) as usize];
        writeln!(text, "{user}\t{item}\t{age}\t{income}\t{city}\t{score}\t{label}").unwrap();
    }
    let (job, _) = walks(&place, "gaps.tsv", &text);
    let null: Vec<&str> =
        job["data"]["null"].as_array().expect("a list").iter().filter_map(|v| v.as_str()).collect();
    for marker in ["NA", "?", r"\N", "null", "N/A", "-"] {
        assert!(null.contains(&marker), "{marker} in {null:?}");
    }
    assert_eq!((kind(&job, "user_id"), kind(&job, "age")), ("id", "id"));
    assert_eq!((kind(&job, "income"), kind(&job, "score")), ("numeric", "numeric"));
    assert!(job["features"]["income"].get("missing").is_some());
}

#[test]
fn a_file_without_a_header_is_drafted() {
    let place = Workplace::new();
    let rows = |range: std::ops::Range<u64>| {
        let line = |i| {
            let (user, item, price, label) = drawn(i);
            format!("{user},{item},{price:.2},{label}\n")
        };
        range.map(line).collect::<String>()
    };
    for (name, range) in [("x-val.csv", 0..300), ("x-test.csv", 300..600)] {
        place.write(name, &rows(range));
    }
    let (job, said) = walks(&place, "x-train.csv", &rows(600..3000));
    assert!(said.contains("no header"), "{said}");
    assert_eq!(job["data"]["valid"].as_str(), Some("x-val.csv"));
    assert_eq!(job["data"]["test"].as_str(), Some("x-test.csv"));
    assert_eq!(job["data"]["header"].as_array().map(Vec::len), Some(4));
    assert_eq!(job["labels"]["c4"]["column"].as_str(), Some("c4"));
}

#[test]
fn files_that_cannot_be_drafted_get_a_remedy() {
    let place = Workplace::new();
    let init = |file: &str, text: &str, more: &[&str]| {
        place.write(file, text);
        let arguments = ["init", file, "--out", "draft.toml"];
        let result = zillion(&[&arguments[..], more].concat()).current_dir(place.path("")).output();
        let result = result.expect("the binary runs");
        (result.status.code().unwrap_or(-1), stderr(&result))
    };
    let names: String = (0..200).map(|i| format!("{},n{}\n", i % 7, i % 60)).collect();
    let refusals = [
        (format!("user,place\n{names}"), vec![], 2, "no column holds only 0 and 1"),
        (format!("user,place\n{names}"), vec!["--label", "place"], 2, "holds 60 values"),
        (format!("user,place\n{names}"), vec!["--label", "stars"], 2, "unknown column `stars`"),
        ("user,label\n1,a\n2,b\n3,c\n".to_owned(), vec![], 2, "name those that make"),
        ("a,b,user\n0,1,5\n1,0,6\n1,1,7\n".to_owned(), vec![], 2, "the setting `label`: a, b"),
        ("just words\nand more\n".to_owned(), vec![], 1, "data.delimiter"),
        (String::new(), vec![], 1, "empty"),
        ("user,user,label\n1,2,0\n2,3,1\n".to_owned(), vec![], 2, "more than once"),
        (
            "user,label\n1,0\n2,1,\n3,1\n4,0\n5,0\n6,1\n7,0\n8,1\n9,0\n9,1\n8,1\n7,1\n".to_owned(),
            vec![],
            1,
            "row 2",
        ),
    ];
    for (text, more, code, words) in refusals {
        let (exit, said) = init("bad.csv", &text, &more);
        assert_eq!(exit, code, "{said}");
        assert!(said.contains(words), "expected `{words}` in {said}");
        assert!(!place.path("draft.toml").exists(), "nothing is written");
    }
    let (exit, said) = init("empty.csv", "", &[]);
    assert_eq!(exit, 1, "{said}");
    // An existing job is not overwritten.
    place.write("good.csv", "user,label\n1,0\n2,1\n1,1\n");
    let result = zillion(&["init", "good.csv"]).current_dir(place.path("")).output();
    let result = result.expect("it runs");
    assert_eq!(result.status.code(), Some(3), "{}", stderr(&result));
}

#[test]
fn parquet_is_drafted_from_its_types() {
    let place = Workplace::new();
    let made = zillion(&["data", "synth", "--rows", "20000", "--out", &place.text("log")]).output();
    assert!(made.expect("it runs").status.success());
    let result = zillion(&["init", "log/train.parquet", "--out", "-"])
        .current_dir(place.path(""))
        .output()
        .expect("it runs");
    assert!(result.status.success(), "{}", stderr(&result));
    let job: toml::Table = stdout(&result).parse().expect("TOML");
    assert_eq!(job["data"]["valid"].as_str(), Some("valid.parquet"));
    assert_eq!((kind(&job, "C3"), kind(&job, "I5")), ("id", "numeric"));
    assert_eq!(job["features"]["I5"]["transform"].as_str(), Some("log1p"));
    assert_eq!(job["labels"]["label"]["column"].as_str(), Some("label"));
}

#[test]
fn a_single_file_is_split_and_gets_an_auc() {
    let place = Workplace::new();
    let mut text = "user,item,price,click\n".to_owned();
    for i in 0..6000 {
        let (user, item, price, label) = drawn(i);
        writeln!(text, "{user},{item},{price:.2},{label}").unwrap();
    }
    place.write("log.csv", &text);
    let run = |arguments: &[&str]| {
        let result = zillion(arguments).current_dir(place.path("")).output();
        result.expect("the binary runs")
    };
    let drafted = run(&["init", "log.csv", "--out", "draft.toml"]);
    assert!(drafted.status.success(), "{}", stderr(&drafted));
    let said = stderr(&drafted);
    assert!(said.contains("log-split/valid.parquet"), "{said}");
    let trained = run(&["train", "draft.toml", "--set", "train.epochs=5", "--json"]);
    assert!(trained.status.success(), "{}", stderr(&trained));
    let lines = stderr(&trained);
    assert!(lines.contains("valid auc"), "{lines}");
    let report: Value = serde_json::from_str(stdout(&trained).trim()).expect("JSON");
    assert!(report["test"]["auc"].as_f64().expect("an AUC") > 0.6, "{report}");
    // A second split puts the same rows into the same parts. Files that exist are not overwritten.
    let split = |more: &[&str]| run(&[&["data", "split", "log.csv", "--json"], more].concat());
    let again = split(&["--out", "again"]);
    assert!(again.status.success(), "{}", stderr(&again));
    let read = |folder: &str, part: &str| {
        std::fs::read(place.path(&format!("{folder}/{part}.parquet"))).expect("the part")
    };
    for part in ["train", "valid", "test"] {
        assert!(read("again", part) == read("log-split", part), "{part}");
    }
    let refused = split(&["--out", "again"]);
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    let wrong = split(&["--out", "b", "--parts", "train=0.5,test=0.4"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    let by_user = split(&["--out", "by-user", "--by-group", "user", "--parts", "a=0.5,b=0.5"]);
    let report: Value = serde_json::from_str(stdout(&by_user).trim()).expect("JSON");
    let rows = |part: usize| report["files"][part]["rows"].as_u64().expect("rows");
    assert_eq!(rows(0) + rows(1), 6000);
}
