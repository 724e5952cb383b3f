//! Tests of the commands that compute more than the statistics of a table: histograms, the
//! explanation of a key, smaller checkpoints, and plans with other settings.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::harness::{ROWS, Workplace, csv, stderr, stdout, zillion};

fn table(place: &Workplace, arguments: &[&str]) -> Value {
    let result = zillion(&[&["table"], arguments, &["--json"]].concat())
        .current_dir(place.path(""))
        .output()
        .expect("the binary runs");
    assert!(result.status.success(), "{arguments:?}: {}", stderr(&result));
    serde_json::from_str(stdout(&result).trim()).expect("JSON")
}

fn text(place: &Workplace, arguments: &[&str]) -> String {
    let result = zillion(&[&["table"], arguments].concat())
        .current_dir(place.path(""))
        .output()
        .expect("the binary runs");
    assert!(result.status.success(), "{arguments:?}: {}", stderr(&result));
    stdout(&result)
}

fn fails(place: &Workplace, arguments: &[&str]) -> (i32, String) {
    let result = zillion(&[&["table"], arguments].concat())
        .current_dir(place.path(""))
        .output()
        .expect("the binary runs");
    assert!(!result.status.success(), "{arguments:?}");
    assert!(!stderr(&result).contains("panicked"), "{}", stderr(&result));
    (result.status.code().unwrap_or(-1), stderr(&result))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn share(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The settings of a run with one epoch and steps of 64 rows. The table `user` admits a key at its
/// third occurrence, and evicts a row that was not pushed for ten steps.
const SHORT: [&str; 6] = [
    "--set",
    "train.epochs=1",
    "--set",
    "tables.user.eviction={ kind = 'unseen', steps = 10 }",
    "--set",
    "tables.user.admission={ kind = 'count', at_least = 3 }",
];

#[test]
fn histograms_hold_every_row() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    for of in ["count", "last_step", "norm", "age"] {
        let report = table(&place, &["histogram", "run", "--of", of, "--bins", "7"]);
        let tables = report["tables"].as_array().expect("a list");
        assert_eq!(tables.len(), 4);
        for t in tables {
            let bins = t["bins"].as_array().expect("a list");
            let sum: u64 = bins.iter().map(|bin| number(&bin["rows"])).sum();
            assert_eq!(sum, number(&t["rows"]), "{t}");
            assert!((1..=7).contains(&bins.len()), "{t}");
            assert!(bins.iter().all(|bin| share(&bin["from"]) <= share(&bin["to"])), "{t}");
        }
        assert!(text(&place, &["histogram", "run", "--of", of]).contains("table item, 80 rows"));
    }
    // The rows of the list are the rows of the histogram.
    let top = table(&place, &["top", "run", "--table", "item", "-n", "1000"]);
    let counts = top["rows"].as_array().expect("a list").iter().map(|row| share(&row["count"]));
    let counts: Vec<f64> = counts.collect();
    let report =
        table(&place, &["histogram", "run", "--table", "item", "--of", "count", "--bins", "5"]);
    for bin in report["tables"][0]["bins"].as_array().expect("a list") {
        let (from, to) = (share(&bin["from"]), share(&bin["to"]));
        let inside = counts.iter().filter(|&&count| count >= from && count <= to).count();
        assert_eq!(inside as u64, number(&bin["rows"]), "{bin}");
    }
    let plot = ["histogram", "run", "--of", "norm", "--svg", "norms.svg"];
    let _ = text(&place, &plot);
    let svg = std::fs::read_to_string(place.path("norms.svg")).expect("the plot is there");
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("class=\"b\"") && !svg.contains("NaN"));
    let (code, said) = fails(&place, &["histogram", "run", "--of", "colour"]);
    assert!(code == 2 && said.contains("last_step"), "{said}");
}

#[test]
fn explain_predicts_the_eviction_of_a_key() {
    let place = Workplace::new();
    let every = ["--set", "train.checkpoint_every=1", "--set", "train.keep=50"];
    place.train_ok("run", &[&SHORT[..], &every].concat());
    let at = |step: u64| format!("run/checkpoints/step-{step:012}");
    // At the tenth step, about a hundredth of the users have occurred less than three times.
    let users: Vec<String> = (0..50).map(|id| format!("u{id}")).collect();
    let explain = |step: u64, user: &str| {
        table(&place, &["explain", &at(step), "--table", "user", "--key", user])
    };
    let mut states = BTreeSet::new();
    for user in &users {
        for step in [2u64, 10] {
            let now = explain(step, user);
            let state = now["admission"]["state"].as_str().expect("a state").to_owned();
            match state.as_str() {
                "has_row" => {
                    assert!(now["row"]["count"].is_u64() && now["waiting"].is_null(), "{now}");
                    assert_eq!(now["row"]["segments"].as_array().map(Vec::len), Some(2));
                }
                "waits" => {
                    let seen = now["waiting"]["count"].as_u64().unwrap_or(0);
                    assert_eq!(number(&now["admission"]["missing"]) + seen, 3, "{now}");
                }
                other => panic!("{other}"),
            }
            // A key with a row stays until its eviction if it does not occur again.
            if let Some(goes) = now["eviction"]["at_step"].as_u64() {
                assert!(goes > step && goes <= step + 20, "{now}");
            } else {
                assert!(now["waiting"].is_null() && now["row"].is_null(), "{now}");
            }
            states.insert(state);
        }
    }
    assert_eq!(states.len(), 2, "{states:?}");
    let said = text(&place, &["explain", &at(10), "--table", "user", "--key", "u7"]);
    assert!(said.contains("of 4,096") && said.contains("if it is not seen again"), "{said}");
    // A dense table has neither admission nor eviction.
    let said = text(&place, &["explain", &at(10), "--table", "item", "--key", "79"]);
    assert!(said.contains("has a row") && said.contains("evicts nothing"), "{said}");
    let never = table(&place, &["explain", &at(10), "--table", "item", "--key", "8000"]);
    assert_eq!(never["admission"]["state"], "never");
    let (code, said) = fails(&place, &["explain", &at(10), "--table", "item", "--key", "four"]);
    assert!(code == 2 && said.contains("four"), "{said}");
}

#[test]
fn a_shrunk_checkpoint_is_a_checkpoint() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    let before = place.digest("run");
    let shrink = ["shrink", "run", "--table", "user", "--keep-rows", "20"];
    let dry = table(&place, &[&shrink[..], &["--dry-run"]].concat());
    assert_eq!((number(&dry["before"]["rows"]), number(&dry["after"]["rows"])), (50, 20));
    let report = table(&place, &[&shrink[..], &["--out", "small", "--eval", "test.csv"]].concat());
    assert_eq!((&report["before"], &report["after"]), (&dry["before"], &dry["after"]));
    assert!(number(&report["after"]["file_bytes"]) < number(&report["before"]["file_bytes"]));
    let (was, is) = (&report["evaluated"]["before"], &report["evaluated"]["after"]);
    assert_eq!(was["rows"], is["rows"]);
    assert!(number(&is["missing_keys"]) > number(&was["missing_keys"]), "{report}");
    assert!(share(&is["auc"]) != share(&was["auc"]), "{report}");
    // The rows with the most pushes stay unchanged. The other tables do not change.
    let rows = |of: &str, name: &str| {
        let top = table(&place, &["top", of, "--table", name, "-n", "1000"]);
        top["rows"].as_array().expect("a list").clone()
    };
    let kept = rows("small", "user");
    let least = number(&kept[19]["count"]);
    assert_eq!(kept.len(), 20);
    for row in rows("run", "user") {
        assert!(kept.contains(&row) || number(&row["count"]) <= least, "{row}");
    }
    for name in ["item", "tags", "age"] {
        assert_eq!(rows("small", name), rows("run", name));
    }
    assert_eq!(place.digest("run"), before, "the old one was touched");
    // A second shrinking gives the same bytes, also with another number of threads.
    let again = [&shrink[..], &["--out", "again", "--threads", "3"]].concat();
    let said = text(&place, &again);
    assert!(
        said.contains("30 rows are removed (60.0 %)") && said.contains("zillion eval"),
        "{said}"
    );
    assert_eq!(place.digest("again"), place.digest("small"));
    // Training resumes from the smaller checkpoint, and evicted keys get rows again.
    let on = place
        .train("on", &["--from", &place.text("small"), "--set", "train.epochs=1"])
        .output()
        .expect("the binary runs");
    assert!(on.status.success(), "{}", stderr(&on));
    assert_eq!(rows("on", "user").len(), 50);

    // The test continues with other rules and with settings that are refused.
    let waits = "tables.user.admission={ kind = 'count', at_least = 31 }";
    place.train_ok("waits", &["--set", "train.epochs=1", "--set", waits]);
    let sizes = |rule: &[&str]| {
        table(&place, &[&["shrink", "waits", "--table", "user", "--dry-run"], rule].concat())
    };
    let counts: Vec<u64> = rows("waits", "user").iter().map(|row| number(&row["count"])).collect();
    let often = counts.iter().filter(|&&count| count >= 3).count() as u64;
    assert_eq!(number(&sizes(&["--min-count", "3"])["after"]["rows"]), often);
    let all = sizes(&["--min-norm", "0"]);
    assert_eq!(all["before"], all["after"]);
    let fresh = sizes(&["--unseen-steps", "2"]);
    assert!(number(&fresh["after"]["candidates"]) < number(&fresh["before"]["candidates"]));
    let refused = |arguments: &[&str]| fails(&place, &[&["shrink", "run"], arguments].concat());
    let (code, said) = refused(&["--table", "user", "--min-count", "2", "--out", "small"]);
    assert!(code == 3 && said.contains("small"), "{said}");
    let (code, said) = refused(&["--table", "item", "--min-count", "2", "--out", "x"]);
    assert!(code == 1 && said.contains("`item`") && said.contains("dense = false"), "{said}");
    let (code, said) = refused(&["--table", "usr", "--min-count", "2", "--out", "x"]);
    assert!(code == 2 && said.contains("user, item, tags, age"), "{said}");
    let (code, said) = refused(&["--table", "user", "--min-norm", "-1", "--out", "x"]);
    assert!(code == 2, "{said}");
    assert_eq!(refused(&["--table", "user", "--out", "x"]).0, 2);
    assert_eq!(refused(&["--table", "user", "--min-count", "2"]).0, 2);
    assert!(!place.path("x").exists());
}

#[test]
fn a_shrunk_checkpoint_is_whole_or_absent() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    let shrink = ["table", "shrink", "run", "--table", "user", "--min-count", "30", "--out", "out"];
    let mut whole = 0;
    for operation in 1..200u32 {
        let failing = format!("{operation}:{}", ["kill", "enospc", "torn"][operation as usize % 3]);
        let result = zillion(&shrink)
            .current_dir(place.path(""))
            .env("ZILLION_FAILPOINT", &failing)
            .output()
            .expect("the binary runs");
        if place.path("out").exists() {
            let _ = text(&place, &["stats", "out"]);
            std::fs::remove_dir_all(place.path("out")).expect("our own folder");
        } else {
            assert!(!result.status.success(), "{failing}");
        }
        if result.status.success() {
            whole += 1;
            break;
        }
    }
    assert_eq!(whole, 1, "no number was beyond the last operation");
    // The remains of earlier runs do not stop the command.
    let result = zillion(&shrink).current_dir(place.path("")).output().expect("the binary runs");
    assert!(result.status.success(), "{}", stderr(&result));
}

/// Returns the users of the generated rows in the order of the file, in groups of 64 rows.
fn user_steps() -> Vec<Vec<String>> {
    let text = csv(0, ROWS);
    let users: Vec<String> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').next().unwrap_or_default().to_owned())
        .collect();
    users.chunks(64).map(<[String]>::to_vec).collect()
}

#[test]
fn a_plan_predicts_training() {
    let place = Workplace::new();
    let order = ["--set", "data.shuffle=false", "--set", "train.epochs=1"];
    let root = format!("data.root={}", place.text(""));
    let plan = |more: &[&str]| {
        let fixed = ["plan", "job.toml", "--set", &root];
        table(&place, &[&fixed[..], &order, more].concat())
    };
    let report = plan(&["--sample", "train.csv", "--svg", "plan.svg"]);
    assert_eq!((number(&report["rows"]), number(&report["batch_size"])), (1500, 64));
    assert_eq!(report["data_rows"], 1500);
    assert_eq!(report["buckets"][0], "age");
    let tables = report["tables"].as_array().expect("a list");
    let names: Vec<&str> = tables.iter().filter_map(|t| t["table"].as_str()).collect();
    assert_eq!(names, ["user", "item", "tags"]);
    let user = &tables[0];
    assert_eq!((number(&user["keys"]), number(&user["values"])), (50, 1500));
    assert_eq!(number(&user["one_in"]), 1);
    // The plan is compared with the actual rows.
    let steps = user_steps();
    for point in user["admission"].as_array().expect("a list") {
        let at_least = number(&point["at_least"]);
        let (mut counts, mut found) = (BTreeMap::new(), 0u64);
        for step in &steps {
            let has = |user: &&String| counts.get(*user).is_some_and(|&n: &u64| n >= at_least);
            found += step.iter().filter(has).count() as u64;
            step.iter().for_each(|user| *counts.entry(user.clone()).or_insert(0) += 1);
        }
        let rows = counts.values().filter(|&&n| n >= at_least).count() as u64;
        assert_eq!(number(&point["rows"]), rows, "{point}");
        assert!((share(&point["found"]) - found as f64 / 1500.0).abs() < 1e-9, "{point}");
    }
    // The plan is compared with a training that uses one of these settings.
    place.train_ok(
        "run",
        &[&order[..], &["--set", "tables.user.admission={ kind = 'count', at_least = 20 }"]]
            .concat(),
    );
    let trained = table(&place, &["stats", "run", "--table", "user"]);
    let twenty = user["admission"]
        .as_array()
        .and_then(|points| points.iter().find(|point| number(&point["at_least"]) == 20));
    let twenty = twenty.expect("20 is on the grid");
    assert_eq!(number(&twenty["rows"]), number(&trained["tables"][0]["rows"]));

    let svg = std::fs::read_to_string(place.path("plan.svg")).expect("the plot is there");
    assert!(svg.contains("Admission") && svg.contains("user: 50 keys"), "{svg}");
    assert!(!svg.contains("NaN") && svg.trim_end().ends_with("</svg>"));
    // The test also plans with the data of the job, with a part of this data, and with a setting
    // that is not in the grid.
    assert_eq!(plan(&[])["tables"], report["tables"]);
    assert_eq!(number(&plan(&["--rows", "100"])["rows"]), 128);
    let own = plan(&["--set", "tables.user.eviction={ kind = 'unseen', steps = 7 }"]);
    let limits = own["tables"][0]["eviction"].as_array().expect("a list");
    assert!(limits.iter().any(|point| number(&point["unseen"]) == 7), "{own}");
    let said = text(&place, &["plan", "job.toml", "--set", &root, "--set", "train.batch_size=16"]);
    for words in ["admission count", "a cache of", "table tags", "buckets of numbers: age"] {
        assert!(said.contains(words), "{said}");
    }
    // All formats give the same result.
    place.write("train.tsv", &csv(0, ROWS).replace(',', "\t"));
    assert_eq!(plan(&["--sample", "train.tsv"])["tables"], report["tables"]);
    let (code, said) = fails(&place, &["plan", "job.toml", "--sample", "gone.csv"]);
    assert!(code == 1 && said.contains("gone.csv"), "{said}");
    let (code, _) = fails(&place, &["plan", "job.toml", "--set", "train.epoch=3"]);
    assert_eq!(code, 2);
    let (code, _) = fails(&place, &["plan", "job.toml", "--keys", "3"]);
    assert_eq!(code, 2);
}
