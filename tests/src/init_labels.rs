//! Tests of the jobs that `zillion init` drafts for labels of amounts and for dates in texts, and
//! of what it says about them.

use std::fmt::Write as _;

use zillion_feature::random::{combine, mix64};

use crate::harness::{Workplace, stderr, stdout, zillion};

/// Returns a number below `below` that depends on the row and on `salt`.
fn draw(row: u64, salt: u64, below: u64) -> u64 {
    mix64(combine(row, salt)) % below
}

/// Runs a command in the folder of a test and returns what it printed.
fn run(place: &Workplace, arguments: &[&str]) -> (String, String) {
    let result = zillion(arguments).current_dir(place.path("")).output();
    let result = result.expect("the binary runs");
    assert!(result.status.success(), "{arguments:?}: {}{}", stdout(&result), stderr(&result));
    (stdout(&result), stderr(&result))
}

/// Drafts a job from a file of 4,000 rows with the columns `shop`, `item`, `cents` and `label`.
/// `value` returns the label of a row of a shop. Trains the job for some epochs. Returns the job,
/// what `init` said with the text of the job, and the share of the variance of the label that the
/// model does not explain.
fn amounts(label: &str, value: impl Fn(u64, u64) -> f64) -> (toml::Table, String, f64) {
    let place = Workplace::new();
    let mut text = format!("shop,item,cents,{label}\n");
    let mut values = Vec::new();
    for i in 0..4000 {
        let shop = draw(i, 1, 20);
        let value = value(i, shop);
        values.push(value);
        writeln!(text, "s{shop},{},{},{value}", draw(i, 2, 30), 100.0 * value).unwrap();
    }
    place.write("log.csv", &text);
    let (_, said) = run(&place, &["init", "log.csv", "--label", label, "--out", "draft.toml"]);
    // The label in another unit is no feature, but a shop that tells much of it is one.
    assert!(said.contains("left out `cents`: it seems to be the label in another unit"), "{said}");
    assert!(!said.contains("left out `shop`"), "{said}");
    let job = std::fs::read_to_string(place.path("draft.toml")).expect("the job");
    let (report, _) = run(&place, &["train", "draft.toml", "--set", "train.epochs=12", "--json"]);
    let report: serde_json::Value = serde_json::from_str(report.trim()).expect("JSON");
    let rmse = report["test"]["rmse"].as_f64().expect("an error");
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (job.parse().expect("TOML"), format!("{said}{job}"), rmse * rmse / variance)
}

#[test]
fn amounts_from_zero_on_are_learned_by_their_logarithm() {
    // Prices of 100 to 100,000 by shop.
    let (job, said, unexplained) = amounts("price", |i, shop| {
        (100.0 * 1.4_f64.powi(shop as i32) * (0.9 + draw(i, 3, 200) as f64 / 1000.0)).round() + 0.5
    });
    assert_eq!(job["labels"]["price"]["kind"].as_str(), Some("count"), "{said}");
    assert!(said.contains("note: the label `price` is predicted as a number"), "{said}");
    assert!(said.contains("kind = \"count\"  # are these amounts ("), "{said}");
    assert_eq!(job["train"]["plateau"]["metric"].as_str(), Some("rmse"), "{said}");
    assert!(unexplained < 0.5, "{unexplained}: {said}");
    // Whole numbers are counts, even a few small ones if the name says so.
    for values in [5, 40] {
        let (job, said, _) =
            amounts("purchases", |i, shop| ((shop + draw(i, 3, 20)) % values) as f64);
        assert_eq!(job["labels"]["purchases"]["kind"].as_str(), Some("count"), "{said}");
        assert!(said.contains("are these whole numbers (0 to "), "{said}");
    }
}

#[test]
fn other_numbers_are_learned_as_they_are() {
    let (job, said, unexplained) =
        amounts("target", |i, shop| shop as f64 / 4.0 - 3.0 + draw(i, 3, 100) as f64 / 200.0);
    assert_eq!(job["labels"]["target"]["kind"].as_str(), Some("number"), "{said}");
    assert!(job["train"].get("loss").is_none(), "{said}");
    assert!(unexplained < 0.5, "{unexplained}: {said}");
    // A few numbers are far from all others, so squared errors are not drafted.
    let (job, said, _) = amounts("change", |i, shop| match i % 500 {
        0 => 500_000.0,
        _ => 50.0 * (shop as f64 - 10.0) + draw(i, 3, 100) as f64,
    });
    assert_eq!(job["labels"]["change"]["kind"].as_str(), Some("number"), "{said}");
    assert_eq!(job["train"]["loss"]["*"]["kind"].as_str(), Some("huber"), "{said}");
    assert_eq!(job["train"]["plateau"]["metric"].as_str(), Some("mae"), "{said}");
    assert!(said.contains("divide the column by a number near half its spread"), "{said}");
}

#[test]
fn dates_of_either_order_are_the_event_time() {
    type DateOf = fn(u64) -> String;
    let dates: [(&str, DateOf, &str); 3] = [
        ("day_first", |day| format!("{:02}.{:02}.2024", 1 + day % 28, 1 + day / 28), "above 12"),
        ("month_first", |day| format!("{:02}/{:02}/2024", 1 + day / 28, 1 + day % 28), "above 12"),
        // Only the order of the rows tells the day from the month.
        ("day_first", |day| format!("{:02}/{:02}/2024", 1 + day % 12, 1 + day / 12), "ascend"),
    ];
    for (order, date, why) in dates {
        let place = Workplace::new();
        let mut text = "user,day,era,label\n".to_owned();
        for i in 0..3000 {
            // The last rows alone have another era.
            let era = if i < 2900 { "old" } else { "new" };
            let user = draw(i, 1, 30);
            writeln!(text, "u{user},{},{era},{}", date(i / 30), draw(i, user, 2)).unwrap();
        }
        place.write("log.csv", &text);
        let (_, said) = run(&place, &["init", "log.csv", "--out", "draft.toml"]);
        let text = std::fs::read_to_string(place.path("draft.toml")).expect("the job");
        let job: toml::Table = text.parse().expect("TOML");
        let columns = &job["columns"];
        assert_eq!(columns["event_time"].as_str(), Some("day"), "{text}");
        assert_eq!(columns["event_date_order"].as_str(), Some(order), "{text}");
        let line = text.lines().find(|line| line.starts_with("event_date_order")).expect("a line");
        assert!(line.contains(why), "{line}");
        assert!(text.contains(&format!("# date_order = \"{order}\"")), "{text}");
        // The notes are those of the training part, which is the job's: it has one era.
        let left = "left out `era`: every row has the same value";
        assert!(said.contains(left), "{said}");
        assert!(text.contains("#   era: every row has the same value"), "{text}");
        assert!(said.contains("examined 3,000 rows"), "{said}");
        let train = ["train", "draft.toml", "--set", "train.epochs=1", "--set", "run.output=run"];
        run(&place, &train);
        // The parts are in the order of time: no row of the test is before one of the training.
        let days = |part: &str| -> Vec<(u64, u64)> {
            let file = format!("log-split/{part}.parquet");
            let (scores, _) = run(&place, &["predict", "run", &file, "--keep", "day"]);
            let day = |line: &str| {
                let numbers = line.split(['.', '/']).take(2).map(|n| n.parse().expect("a number"));
                let numbers: Vec<u64> = numbers.collect();
                let (first, second) = (numbers[0], numbers[1]);
                if order == "day_first" { (second, first) } else { (first, second) }
            };
            scores.lines().skip(1).map(day).collect()
        };
        let (train, test) = (days("train"), days("test"));
        assert!(!test.is_empty() && train.iter().max() < test.iter().min(), "{order}");
    }
}
