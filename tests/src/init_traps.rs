//! Tests of the jobs that `zillion init` drafts from data with known traps. In each of them a wrong
//! guess costs quality or hides that the data cannot be learned from, and no error says so.

use std::fmt::Write as _;

use zillion_feature::random::{combine, mix64};

use crate::harness::{Workplace, stderr, stdout, zillion};

/// Returns a number below `below` that depends on the row and on `salt`.
fn draw(row: u64, salt: u64, below: u64) -> u64 {
    mix64(combine(row, salt)) % below
}

/// Returns the label of a row: 1 with the chance of one of its ids, which has no order.
fn label_of(row: u64, id: u64) -> u8 {
    u8::from(draw(row, 99, 100) < mix64(id + 500) % 100)
}

/// Writes a file of 6,000 rows with the columns `user` and `label` and more columns. `row` returns
/// the cells of these for a row. Drafts a job from the file and checks it. Returns the job and what
/// `init` said.
fn draft(columns: &str, more: &[&str], row: impl Fn(u64, u8) -> String) -> (toml::Table, String) {
    let place = Workplace::new();
    let mut text = format!("user,{columns},label\n");
    for i in 0..6000 {
        let user = draw(i, 1, 40);
        let label = label_of(i, user);
        writeln!(text, "u{user},{},{label}", row(i, label)).unwrap();
    }
    place.write("log.csv", &text);
    let run = |arguments: &[&str]| {
        let result = zillion(arguments).current_dir(place.path("")).output();
        let result = result.expect("the binary runs");
        assert!(result.status.success(), "{arguments:?}: {}{}", stdout(&result), stderr(&result));
        stderr(&result)
    };
    let said = run(&[&["init", "log.csv", "--out", "draft.toml"], more].concat());
    run(&["train", "draft.toml", "--set", "train.epochs=1"]);
    let job = std::fs::read_to_string(place.path("draft.toml")).expect("the job");
    // The reasons stand in comments, which a parser drops.
    (job.parse().expect("TOML"), format!("{said}{job}"))
}

/// Returns a setting of a feature, or an empty text if there is no such feature or setting.
fn setting<'a>(job: &'a toml::Table, feature: &str, key: &str) -> &'a str {
    let feature = job["features"].get(feature);
    feature.and_then(|of| of.get(key)).and_then(toml::Value::as_str).unwrap_or_default()
}

#[test]
fn times_of_any_unit_are_the_event_time() {
    for (unit, factor) in [("s", 1), ("ms", 1000), ("us", 1_000_000), ("ns", 1_000_000_000)] {
        // The times of a data set of films lie in 1997.
        let (job, said) = draft("timestamp,release_date", &[], |i, _| {
            format!("{},{}", (874_724_710 + i * 60) * factor, 600_000_000 + draw(i, 2, 30) * 86_400)
        });
        assert_eq!(job["columns"]["event_time"].as_str(), Some("timestamp"), "{said}");
        assert_eq!(job["columns"]["event_time_unit"].as_str(), Some(unit), "{said}");
        assert_eq!(setting(&job, "timestamp", "kind"), "");
        // A second time is a feature with its day, and the parts of the first one are offered.
        assert_eq!(setting(&job, "release_date", "derive"), "days", "{said}");
        assert_eq!(setting(&job, "release_date", "time_unit"), "s", "{said}");
        let offer = "# [features.timestamp_hour]\n# column = \"timestamp\"\n# kind = \"id\"\n\
                     # derive = \"hour\"\n# time_unit = ";
        assert!(said.contains(offer), "{said}");
    }
}

#[test]
fn dates_in_texts_are_times() {
    let place = Workplace::new();
    let mut text = "user,seen,born,paid,label\n".to_owned();
    for i in 0..3000_u64 {
        let (day, hour) = (1 + i / 120, i % 24);
        let born = format!("{:02}.{:02}.{}", 1 + i % 28, 1 + i % 12, 1950 + i % 50);
        let label = if label_of(i, i % 30) == 1 { "yes" } else { "no" };
        let paid = if i.is_multiple_of(3) { "True" } else { "False" };
        writeln!(text, "u{},2024-05-{day:02} {hour:02}:30:00,{born},{paid},{label}", i % 30)
            .unwrap();
    }
    place.write("log.csv", &text);
    let run = |arguments: &[&str]| {
        let result = zillion(arguments).current_dir(place.path("")).output();
        let result = result.expect("the binary runs");
        assert!(result.status.success(), "{arguments:?}: {}{}", stdout(&result), stderr(&result));
        (stdout(&result), stderr(&result))
    };
    let (_, said) = run(&["init", "log.csv", "--no-split", "--out", "draft.toml"]);
    let drafted = std::fs::read_to_string(place.path("draft.toml")).expect("the job");
    let job: toml::Table = drafted.parse().expect("TOML");
    assert_eq!(job["columns"]["event_time"].as_str(), Some("seen"), "{said}");
    assert_eq!(job["columns"]["event_time_unit"].as_str(), Some("s"), "{said}");
    assert_eq!(setting(&job, "born", "date_order"), "day_first", "{drafted}");
    let label = &job["labels"]["label"];
    assert_eq!((label["positive"].as_str(), label["negative"].as_str()), (Some("yes"), Some("no")));
    // The offered parts of the time are valid settings.
    let (job, offers) = drafted.split_once("remove the signs #").expect("the offers");
    let active: String = offers
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(setting) if setting.starts_with('[') => setting,
            Some(setting) if setting.split(" = ").next().is_some_and(|key| !key.contains(' ')) => {
                setting
            }
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let active = active.replacen(" before", "# before", 1);
    place.write("active.toml", &format!("{job}{active}"));
    run(&["train", "active.toml", "--set", "train.epochs=1", "--set", "run.output=run"]);
    // Scores are the same from a file of texts and from one of Parquet, and ids go through.
    run(&["data", "convert", "log.csv", "--output", "wide"]);
    let parquet = std::fs::read_dir(place.path("wide")).expect("the folder");
    let parquet = parquet.map(|file| file.expect("a file").path());
    let parquet = parquet.into_iter().find(|path| path.extension().is_some_and(|e| e == "parquet"));
    let parquet = parquet.expect("a file of Parquet").display().to_string();
    let (from_text, _) = run(&["predict", "run", "log.csv", "--keep", "user,seen"]);
    let (from_parquet, _) = run(&["predict", "run", &parquet, "--keep", "user,seen"]);
    assert!(from_text.starts_with("user\tseen\tlabel\nu0\t2024-05-01 00:30:00\t"), "{from_text}");
    assert_eq!(from_text, from_parquet);
    let (lines, _) = run(&["predict", "run", "log.csv", "--keep", "user", "--json"]);
    assert!(lines.starts_with("{\"row\":0,\"kept\":{\"user\":\"u0\"},\"logit\":"), "{lines}");
}

#[test]
fn lists_of_floats_are_vectors() {
    let place = Workplace::new();
    let mut text = String::new();
    for i in 0..2000_u64 {
        let label = draw(i, 1, 2);
        let taste: Vec<String> = (0..4)
            .map(|at| format!("{:.2}", label as f64 * 0.4 + draw(i, at + 5, 100) as f64 / 100.0))
            .collect();
        writeln!(text, "{{\"item\":{},\"taste\":[{}],\"label\":{label}}}", i % 50, taste.join(","))
            .unwrap();
    }
    place.write("log.jsonl", &text);
    let run = |arguments: &[&str]| {
        let result = zillion(arguments).current_dir(place.path("")).output();
        let result = result.expect("the binary runs");
        assert!(result.status.success(), "{arguments:?}: {}{}", stdout(&result), stderr(&result));
        (stdout(&result), stderr(&result))
    };
    let (_, said) = run(&["init", "log.jsonl", "--out", "draft.toml"]);
    let job = std::fs::read_to_string(place.path("draft.toml")).expect("the job");
    let job: toml::Table = job.parse().expect("TOML");
    assert_eq!(setting(&job, "taste", "kind"), "vector", "{said}");
    assert_eq!(job["features"]["taste"]["size"].as_integer(), Some(4), "{said}");
    let valid = "data.valid=log.jsonl";
    run(&[
        "train",
        "draft.toml",
        "--set",
        valid,
        "--set",
        "train.epochs=2",
        "--set",
        "run.output=run",
    ]);
    let (scores, _) = run(&["predict", "run", "log.jsonl"]);
    assert_eq!(scores.lines().count(), 2001);
}

#[test]
fn whole_numbers_are_ids_unless_their_order_predicts() {
    let (job, said) = draft("kanal,punkte", &[], |i, label| {
        // A channel of 300 goes with the label like an id. More points go with more labels.
        let channel = draw(i, 2, 300) * 2 + u64::from(label);
        let points = draw(i, 3, 2000) + 700 * u64::from(label);
        format!("{},{points}", mix64(channel) % 300)
    });
    assert_eq!(setting(&job, "kanal", "kind"), "id", "{said}");
    assert_eq!(setting(&job, "punkte", "kind"), "numeric", "{said}");
    assert!(said.contains("whose order predicts the label less than they do as ids"), "{said}");
    assert!(said.contains("whose order predicts the label (loss on held-out rows"), "{said}");
}

#[test]
fn large_amounts_that_hardly_repeat_are_no_ids() {
    let (job, said) = draft("weight,page", &[], |i, _| {
        let amount = 12_000 + draw(i, 2, 1400) * draw(i, 3, 1100);
        format!("{amount},{}", draw(i, 4, 1 << 33))
    });
    assert_eq!(setting(&job, "weight", "kind"), "numeric", "{said}");
    assert_eq!(setting(&job, "page", "kind"), "id", "{said}");
}

#[test]
fn a_kind_of_model_is_drafted_with_its_rates() {
    let (job, said) = draft("shop", &["--model", "fm"], |i, _| format!("{}", draw(i, 2, 30)));
    assert_eq!(job["model"]["kind"].as_str(), Some("fm"), "{said}");
    assert!(job["model"].get("hidden").is_none() && job["model"].get("dropout").is_none());
    let (deep, _) = draft("shop", &[], |i, _| format!("{}", draw(i, 2, 30)));
    assert_eq!(deep["model"]["kind"].as_str(), Some("deepfm"));
    let rate = |job: &toml::Table| job["tables"]["*"]["optimizer"]["lr"].as_float();
    assert!(rate(&job) > rate(&deep), "{said}");
}

#[test]
fn whole_numbers_with_gaps_are_ids() {
    let (job, said) = draft("item_id", &[], |i, _| match draw(i, 2, 10) {
        0 => String::new(),
        _ => format!("{}.0", draw(i, 3, 200)),
    });
    assert_eq!(setting(&job, "item_id", "kind"), "id", "{said}");
    assert_eq!(job["features"]["item_id"].get("type"), None, "{said}");
}

#[test]
fn prices_with_gaps_are_numbers() {
    let price = |i: u64, spelling: fn(u64) -> String| match draw(i, 2, 10) {
        0 => String::new(),
        _ => spelling(draw(i, 3, 3) + 1),
    };
    let (job, said) = draft("price,weight", &["--no-split"], |i, _| {
        format!("{},{}", price(i, |x| format!("{x}0.00")), price(i + 1, |x| format!("{x}e2")))
    });
    assert_eq!(setting(&job, "price", "kind"), "numeric", "{said}");
    assert_ne!(setting(&job, "weight", "kind"), "", "{said}");
}

#[test]
fn ids_are_compared_as_what_they_are() {
    let (job, said) = draft("long,hex,code", &[], |i, _| {
        let long = format!("12345678901234567890{:02}", draw(i, 2, 50));
        let hex = [format!("{}e{}", draw(i, 3, 9) + 1, draw(i, 4, 9)), format!("a{}", i % 7)];
        format!("{long},{},{:05}", hex[(i % 2) as usize], draw(i, 5, 400))
    });
    for (column, values) in [("long", 50), ("hex", 88)] {
        assert_eq!(setting(&job, column, "type"), "string", "{said}");
        assert!(
            said.contains(&format!("[features.{column}]  # {values} different texts")),
            "{said}"
        );
    }
    assert_eq!(setting(&job, "code", "type"), "string", "{said}");
}

#[test]
fn a_column_that_tells_the_label_is_left_out() {
    let (job, said) = draft("rating,session_id,impression_id", &[], |i, label| {
        let rating = if label == 1 { 4 + draw(i, 2, 2) } else { 1 + draw(i, 2, 3) };
        format!("{rating},{},i{}", 10_000 + i * 2 / 3, mix64(i))
    });
    assert_eq!(setting(&job, "rating", "kind"), "");
    assert!(
        said.contains("left out `rating`: it separates the label alone (an AUC of 1.0000"),
        "{said}"
    );
    assert!(said.contains("left out `session_id`: a value occurs in 1.5 rows"), "{said}");
    assert!(said.contains("left out `impression_id`"), "{said}");
}

#[test]
fn other_encodings_are_read() {
    let place = Workplace::new();
    let mut text = b"stadt,label\n".to_vec();
    for i in 0..6000_u64 {
        let city: [&[u8]; 3] = [b"K\xf6ln", b"M\xfcnchen", b"Ulm"];
        text.extend_from_slice(city[draw(i, 1, 3) as usize]);
        text.extend_from_slice(format!(",{}\n", label_of(i, draw(i, 1, 3))).as_bytes());
    }
    std::fs::write(place.path("log.csv"), text).expect("a file");
    let run = |arguments: &[&str]| {
        let result = zillion(arguments).current_dir(place.path("")).output();
        let result = result.expect("the binary runs");
        assert!(result.status.success(), "{arguments:?}: {}", stderr(&result));
        stderr(&result)
    };
    let said = run(&["init", "log.csv", "--no-split", "--out", "draft.toml"]);
    assert!(said.contains("the file is not UTF-8 and is read as windows-1252"), "{said}");
    run(&["train", "draft.toml", "--set", "train.epochs=1"]);
    let job = std::fs::read_to_string(place.path("draft.toml")).expect("the job");
    let job: toml::Table = job.parse().expect("TOML");
    assert_eq!(job["data"]["encoding"].as_str(), Some("windows-1252"));
    // The split writes Parquet, whose texts are UTF-8.
    run(&["init", "log.csv", "--out", "split.toml"]);
    run(&["train", "split.toml", "--set", "train.epochs=1"]);
    let profile = zillion(&["data", "inspect", &place.text("log-split/train.parquet"), "--json"]);
    let profile = stdout(&{ profile }.output().expect("it runs"));
    assert!(profile.contains("Köln"), "{profile}");
}

#[test]
fn a_label_of_a_few_texts_becomes_classes() {
    let (job, said) = draft("genre", &["--label", "genre"], |i, label| {
        ["drama", "comedy", "horror"][(draw(i, 2, 2) + u64::from(label)) as usize].to_owned()
    });
    let label = &job["labels"]["genre"];
    assert_eq!(label["kind"].as_str(), Some("class"), "{said}");
    let classes = label["classes"].as_array().expect("a list");
    let classes: Vec<_> = classes.iter().filter_map(toml::Value::as_str).collect();
    assert_eq!(classes, ["comedy", "drama", "horror"]);
    assert!(said.contains("the label is one of 3 classes"), "{said}");
}

#[test]
fn grades_and_signs_become_labels_by_a_bound() {
    type Row = fn(u64, u8) -> String;
    let cases: [(&str, f64, Row); 4] = [
        ("sign", 1.0, |_, label| (i64::from(label) * 2 - 1).to_string()),
        ("class", 2.0, |_, label| (label + 1).to_string()),
        ("stars", 4.0, |i, label| (1 + draw(i, 2, 3) + 2 * u64::from(label)).to_string()),
        ("depth", 1.0, |i, label| (u64::from(label) * draw(i, 2, 5)).to_string()),
    ];
    for (name, bound, row) in cases {
        let (job, said) = draft(name, &["--label", name], row);
        let label = &job["labels"][name];
        assert_eq!(label["at_least"].as_float(), Some(bound), "{said}");
        assert!(said.contains("on what you want to predict?"), "{said}");
        // The other choice stands beside it.
        assert_eq!(
            said.contains("# kind = \"class\""),
            ["stars", "depth"].contains(&name),
            "{said}"
        );
        let is_copy = ["sign", "class"].contains(&name);
        assert_eq!(
            said.contains("left out `label`: it separates the label alone"),
            is_copy,
            "{said}"
        );
    }
}

/// Writes files into a place and runs commands in it. Returns what each of them said.
fn say(place: &Workplace, files: &[(&str, &[u8])], commands: &[&[&str]]) -> Vec<(bool, String)> {
    for (name, bytes) in files {
        std::fs::write(place.path(name), bytes).expect("a file");
    }
    let run = |arguments: &&[&str]| {
        let result = zillion(arguments).current_dir(place.path("")).output();
        let result = result.expect("the binary runs");
        (result.status.success(), format!("{}{}", stdout(&result), stderr(&result)))
    };
    commands.iter().map(run).collect()
}

#[test]
fn utf_16_is_read_and_checked() {
    let place = Workplace::new();
    let mut text = "\u{feff}stadt,label\n".to_owned();
    for i in 0..3000_u64 {
        let city = ["Köln", "München", "Ulm"][draw(i, 1, 3) as usize];
        writeln!(text, "{city},{}", label_of(i, draw(i, 1, 3))).unwrap();
    }
    let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let said = say(
        &place,
        &[("log.csv", &bytes)],
        &[
            &["init", "log.csv", "--no-split", "--out", "draft.toml"],
            &["check", "draft.toml", "--sample", "500"],
        ],
    );
    assert!(said.iter().all(|(worked, _)| *worked), "{said:?}");
    let job = std::fs::read_to_string(place.path("draft.toml")).expect("the job");
    let job: toml::Table = job.parse().expect("TOML");
    assert_eq!(job["data"]["encoding"].as_str(), Some("utf-16le"), "{said:?}");
    assert_eq!(setting(&job, "stadt", "type"), "string", "{said:?}");
    // The check does not claim to have seen the whole file.
    assert!(said[1].1.contains("the first 500 of them examined"), "{}", said[1].1);
    assert!(said[1].1.contains("the sample is the beginning of the data"), "{}", said[1].1);
}

#[test]
fn a_rare_label_is_drafted_and_starts_at_its_rate() {
    let (job, said) = draft("item,click", &["--label", "click", "--no-split"], |i, _| {
        format!("{},{}", draw(i, 2, 30), u8::from(draw(i, 3, 200) == 0))
    });
    assert_eq!(job["labels"]["click"]["column"].as_str(), Some("click"), "{said}");
    assert_eq!(setting(&job, "item", "kind"), "id", "{said}");
}

#[test]
fn a_slice_without_values_is_read_as_missing_values() {
    let place = Workplace::new();
    let rows = |has_values: bool| {
        let mut text = "user,age,label\n".to_owned();
        for i in 0..1500 {
            let user = draw(i, 1, 40);
            let age = match has_values && draw(i, 3, 10) > 0 {
                true => draw(i, 2, 500).to_string(),
                false => String::new(),
            };
            writeln!(text, "u{user},{age},{}", label_of(i, user)).unwrap();
        }
        text
    };
    let said = say(
        &place,
        &[("train.csv", rows(true).as_bytes()), ("test.csv", rows(false).as_bytes())],
        &[
            &["init", "train.csv", "--out", "draft.toml"],
            &["check", "draft.toml"],
            &["train", "draft.toml", "--set", "train.epochs=1"],
        ],
    );
    let job = std::fs::read_to_string(place.path("draft.toml")).expect("the job");
    assert!(said.iter().all(|(worked, _)| *worked), "{said:?}\n{job}");
    let job: toml::Table = job.parse().expect("TOML");
    assert_ne!(setting(&job, "age", "kind"), "", "{said:?}");
}

#[test]
fn a_headerless_file_beside_one_with_a_header_is_named_once() {
    let place = Workplace::new();
    let columns: Vec<String> = (0..44).map(|c| format!("c{c}")).collect();
    let rows = |first: u64| {
        let mut text = String::new();
        for i in first..first + 300 {
            let cells: Vec<String> = (0..44).map(|c| draw(i, c, 9).to_string()).collect();
            writeln!(text, "{},{}", cells.join(","), draw(i, 99, 2)).unwrap();
        }
        text
    };
    let with = format!("{},label\n{}", columns.join(","), rows(0));
    let features: String =
        columns.iter().map(|name| format!("[features.{name}]\nkind = 'id'\n")).collect();
    let job = format!(
        "[data]\ntrain = ['train.csv']\nvalid = ['valid.csv']\n{features}[labels.label]\n\
         [model]\nkind = 'lr'\n"
    );
    let said = say(
        &place,
        &[
            ("train.csv", with.as_bytes()),
            ("valid.csv", rows(300).as_bytes()),
            ("job.toml", job.as_bytes()),
        ],
        &[
            &["init", "train.csv", "--label", "label", "--out", "draft.toml"],
            &["check", "job.toml"],
            &["train", "job.toml"],
        ],
    );
    for (worked, said) in &said {
        assert!(!worked, "{said}");
        assert_eq!(said.matches("has no header").count(), 1, "{said}");
        assert!(said.contains("valid.csv"), "{said}");
        let errors = said.lines().filter(|line| line.contains("error")).count();
        assert_eq!(errors, 1, "{said}");
    }
    assert!(said[0].1.contains("but train.csv beside it has one"), "{}", said[0].1);
}
