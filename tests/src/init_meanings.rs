//! Tests of what the columns of a drafted job mean: other outcomes, counts, prices, parts of dates,
//! lists in other forms, and the settings by which the user's own file is read.

use std::fmt::Write as _;

use zillion_feature::random::{combine, mix64};

use crate::harness::{Workplace, stderr, stdout, zillion};

fn draw(row: u64, salt: u64, below: u64) -> u64 {
    mix64(combine(row, salt)) % below
}

/// Drafts a job from a file, and returns the job and what `init` said.
fn draft(place: &Workplace, arguments: &[&str]) -> (toml::Table, String) {
    let mut command = zillion(&["init", "log.csv", "--out", "draft.toml"]);
    let result = command.args(arguments).current_dir(place.path("")).output();
    let result = result.expect("the binary runs");
    assert!(result.status.success(), "{}{}", stdout(&result), stderr(&result));
    let text = std::fs::read_to_string(place.path("draft.toml")).expect("the job");
    (text.parse().expect("TOML"), format!("{}{text}", stderr(&result)))
}

#[test]
fn columns_that_later_rows_do_not_have_in_common_are_left_out() {
    let place = Workplace::new();
    let mut text =
        "day,user,month,release_year,day_of_week,item_rows_7d,price,euro,tags,spot,clicked,purchase\n"
            .to_owned();
    for i in 0..3000 {
        let (month, clicked) = (i / 300 + 1, draw(i, 1, 3) == 0);
        let cents = 100 + draw(i, 2, 1_000_000);
        writeln!(
            text,
            "2024-{month:02}-{:02},u{},{month},{},{},{},\"{},{:03}.{:02}\",€{}.{:02},\"['a', 'b{}']\",{},{},{}",
            i % 28 + 1,
            draw(i, 3, 97),
            1990 + draw(i, 9, 30),
            i % 7,
            draw(i, 4, 60),
            1 + cents / 100_000,
            cents / 100 % 1000,
            cents % 100,
            cents / 100,
            cents % 100,
            draw(i, 5, 9),
            if draw(i, 6, 10) == 0 { "NA".to_owned() } else { draw(i, 7, 50).to_string() },
            u8::from(clicked),
            u8::from(clicked && draw(i, 8, 4) == 0),
        )
        .unwrap();
    }
    place.write("log.csv", &text);
    let (job, said) = draft(&place, &[]);
    assert!(said.contains("split by time (`day`): the latest rows are the test"), "{said}");
    assert!(said.contains("note: the label was guessed; `purchase` hold 0 and 1 too"), "{said}");
    for (column, why) in [
        ("purchase", "its name is that of an outcome, and `clicked` is the label"),
        ("month", "it has 10 values, which follow the time of the row"),
        ("price", "numbers such as \""),
        ("euro", "numbers such as \"€"),
        ("tags", "lists in the form of a programming language, such as \"["),
    ] {
        assert!(said.contains(&format!("left out `{column}`: {why}")), "{column}: {said}");
        assert!(job["features"].get(column).is_none(), "{column}: {said}");
    }
    let kind = |name: &str| job["features"][name]["kind"].as_str().unwrap_or_default().to_owned();
    assert_eq!(kind("item_rows_7d"), "numeric", "{said}");
    assert_eq!((kind("day_of_week"), kind("release_year")), ("id".into(), "id".into()), "{said}");
    // The parts are Parquet, but the user's own file has NA.
    let null = job["data"]["null"].as_array().expect("markers");
    assert!(null.iter().any(|marker| marker.as_str() == Some("NA")), "{said}");
    // The other outcome can be the label.
    std::fs::remove_dir_all(place.path("log-split")).expect("the parts");
    std::fs::remove_file(place.path("draft.toml")).expect("the job");
    let (job, said) = draft(&place, &["--label", "purchase"]);
    assert!(job["labels"].get("purchase").is_some(), "{said}");
    assert!(said.contains("left out `clicked`: its name is that of an outcome"), "{said}");
}

#[test]
fn zero_between_two_answers_is_asked_about() {
    let place = Workplace::new();
    let mut text = "user,item,vote\n".to_owned();
    for i in 0..600 {
        let vote = [-1, 0, 1][draw(i, 1, 3) as usize];
        writeln!(text, "u{},i{},{vote}", draw(i, 2, 20), draw(i, 3, 30)).unwrap();
    }
    place.write("log.csv", &text);
    let (job, said) = draft(&place, &["--label", "vote"]);
    assert_eq!(job["labels"]["vote"]["at_least"].as_float(), Some(1.0), "{said}");
    assert!(said.contains("0 counts as -1 does; if it means that nothing is known"), "{said}");
    assert!(said.contains("split at random, because no column has the time of a row"), "{said}");
}

#[test]
fn the_order_of_a_label_gives_it_away_and_shared_markers_do_not() {
    let place = Workplace::new();
    let mut text = "shop,km,price,log_price\n".to_owned();
    for i in 0..2000 {
        let unknown = i % 400 == 7;
        let price = if unknown { 9_999_999.0 } else { 50.0 + draw(i, 1, 100_000) as f64 };
        let km = if unknown { 9_999_999 } else { draw(i, 2, 200_000) };
        writeln!(text, "s{},{km},{price},{:.6}", draw(i, 3, 9), price.ln()).unwrap();
    }
    place.write("log.csv", &text);
    let (job, said) = draft(&place, &["--label", "price"]);
    assert!(said.contains("left out `log_price`: it has the order of the label"), "{said}");
    assert!(job["features"].get("km").is_some(), "{said}");
}

#[test]
fn numbers_and_dates_in_other_forms_are_left_out_with_a_reason() {
    let place = Workplace::new();
    let mut text = "user,sales,day,stamp,price,clicked\n".to_owned();
    for i in 0..2000 {
        let price = match draw(i, 1, 8) {
            0 => "k.A.".to_owned(),
            _ => format!("{}.{:02}", draw(i, 2, 300), draw(i, 3, 100)),
        };
        let (day, month) = (draw(i, 4, 28) + 1, draw(i, 5, 12) as usize);
        let name =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
                [month];
        writeln!(
            text,
            "u{},\"{},{:03}\",{day:02}-{name}-2023,2023{:02}{day:02},{price},{}",
            draw(i, 6, 50),
            draw(i, 7, 40) + 1,
            draw(i, 8, 1000),
            month + 1,
            draw(i, 9, 2),
        )
        .unwrap();
    }
    place.write("log.csv", &text);
    let (job, said) = draft(&place, &[]);
    for (column, why) in [
        ("sales", "numbers such as \""),
        ("day", "dates such as \""),
        ("stamp", "numbers such as 202301"),
        ("price", "numbers, except for "),
    ] {
        assert!(said.contains(&format!("left out `{column}`: {why}")), "{column}: {said}");
    }
    assert!(job["data"].get("decimal").is_none(), "{said}");
}
