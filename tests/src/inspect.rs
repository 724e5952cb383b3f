//! Tests of the command `zillion data inspect`: summaries of columns, and the drift between two
//! data sets.

use serde_json::Value;

use crate::harness::{HEADER, Workplace, csv, row, stderr, stdout, zillion};

fn inspect(place: &Workplace, arguments: &[&str]) -> Value {
    let result = zillion(&[&["data", "inspect"], arguments, &["--json"]].concat())
        .current_dir(place.path(""))
        .output()
        .expect("the binary runs");
    assert!(result.status.success(), "{}", stderr(&result));
    serde_json::from_str(stdout(&result).trim()).expect("JSON")
}

fn column<'a>(columns: &'a Value, name: &str) -> &'a Value {
    let found = columns.as_array().expect("a list").iter().find(|c| c["name"] == name);
    found.unwrap_or_else(|| panic!("no column {name}"))
}

#[test]
fn columns_are_counted_and_described() {
    let place = Workplace::new();
    let report = inspect(&place, &["train.csv", "--top", "60"]);
    assert_eq!((&report["rows"], &report["complete"]), (&1500.into(), &true.into()));
    let user = column(&report["columns"], "user");
    assert_eq!((&user["kind"], &user["distinct"]), (&"text".into(), &50.into()));
    // The most frequent user is counted by hand.
    let text = csv(0, 1500);
    let of = |user: &str| text.lines().filter(|l| l.split(',').next() == Some(user)).count() as u64;
    let top = user["top"].as_array().expect("a list");
    let counts: Vec<u64> = top.iter().filter_map(|c| c["count"].as_u64()).collect();
    assert!(counts.is_sorted_by(|a, b| a >= b) && counts.iter().sum::<u64>() == 1500);
    assert_eq!(counts[0], of(top[0]["value"].as_str().expect("a text")));
    let age = column(&report["columns"], "age");
    let empty = text.lines().filter(|l| l.split(',').nth(4) == Some("")).count();
    assert_eq!(age["missing_share"].as_f64(), Some(empty as f64 / 1500.0));
    let price = &column(&report["columns"], "price")["numbers"];
    let mut prices: Vec<f64> =
        text.lines().skip(1).filter_map(|l| l.split(',').nth(3)?.parse().ok()).collect();
    prices.sort_unstable_by(f64::total_cmp);
    assert_eq!(price["min"].as_f64(), Some(prices[0]));
    assert_eq!(price["p50"].as_f64(), Some(prices[750]));
    assert_eq!(inspect(&place, &["train.csv", "--rows", "100"])["complete"], false);
}

#[test]
fn equal_sets_do_not_drift_and_changed_ones_do() {
    let place = Workplace::new();
    let same = inspect(&place, &["train.csv", "--against", "valid.csv", "test.csv"]);
    assert_eq!(same["against"]["rows"], 800);
    for drifted in same["against"]["columns"].as_array().expect("a list") {
        let psi = drifted["numeric"].as_f64().unwrap_or(0.0);
        assert!(psi < 0.1, "{drifted}");
    }
    // Prices rise by a half, and half of the items are new. All other values stay the same.
    let mut text = format!("{HEADER}\n");
    for i in 0..800 {
        let line = row(3, i);
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        let price: f64 = cells[3].parse().expect("a price");
        cells[3] = (price + 5.0).to_string();
        if i % 2 == 0 {
            cells[1] = format!("9{}", cells[1]);
        }
        text.push_str(&format!("{}\n", cells.join(",")));
    }
    place.write("later.csv", &text);
    let report = inspect(&place, &["train.csv", "--against", "later.csv"]);
    let drift = |name: &str| column(&report["against"]["columns"], name);
    assert!(drift("price")["numeric"].as_f64().expect("a number") > 0.25);
    assert!(drift("item")["values"].as_f64().expect("a number") > 0.25);
    let unseen = drift("item")["unseen"].as_f64().expect("a share");
    assert!((0.4..0.55).contains(&unseen), "{unseen}");
    assert!(drift("age")["numeric"].as_f64().expect("a number") < 0.1);
    assert_eq!(drift("user")["unseen"].as_f64(), Some(0.0));
    // The job describes the format of the text.
    let result =
        zillion(&["data", "inspect", "train.csv", "--job", "job.toml", "--against", "later.csv"])
            .current_dir(place.path(""))
            .output()
            .expect("it runs");
    let said = stdout(&result);
    assert!(said.contains("changed") && said.contains("population stability index"), "{said}");
}
