//! Tests of the dashboards, the rules and the list of metrics. They compare the metric names in
//! these files with the metrics that real processes expose to a real Prometheus.
//!
//! A trainer publishes versions, a server follows them, and clients send requests. A parameter
//! server has a run with one table, and a run follows streams. A Prometheus from the packages of
//! Debian scrapes all four. It is started as `dashboards/README.md` describes.

mod exposition;
mod holder;
mod prometheus;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::exposition::{Families, names_in, series_of};
use self::holder::Holder;
use self::prometheus::Prometheus;
use crate::harness::{ROWS, Workplace, root, row, stderr};
use crate::online::place::{JOINED, JUDGED, Place, impressions, now_ms};
use crate::server::{MODEL, PATIENCE, REGISTRY, Server, infer_body, instances};
use crate::trainer::Trainer;

fn folder() -> PathBuf {
    root().join("dashboards")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Returns the expressions of all panels, each with the name of its dashboard.
fn panel_expressions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder().join("grafana"))
        .expect("the dashboards are there")
        .map(|entry| entry.expect("the folder can be listed").path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 6, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a dashboard is text");
        let dashboard: Value = serde_json::from_str(&text).expect("a dashboard is JSON");
        let name = dashboard["uid"].as_str().expect("a dashboard has a uid").to_owned();
        let panels = dashboard["panels"].as_array().expect("a dashboard has panels");
        for panel in panels.iter().filter(|panel| panel["type"] != "row") {
            let targets = panel["targets"].as_array().expect("a panel has targets");
            assert!(!targets.is_empty(), "{name}: {panel}");
            for target in targets {
                found.push((
                    name.clone(),
                    target["expr"].as_str().expect("an expression").to_owned(),
                ));
            }
        }
    }
    found
}

/// Returns the expressions of the rules in a file. An expression is a JSON string after `expr:`.
fn rule_expressions(file: &str) -> Vec<String> {
    let text = read(&format!("dashboards/prometheus/{file}"));
    let expressions = text.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    expressions.map(|text| serde_json::from_str(text).expect("a quoted expression")).collect()
}

fn values_of(file: &str, key: &str) -> Vec<String> {
    let text = read(&format!("dashboards/prometheus/{file}"));
    let lines = text.lines().map(|line| line.trim().trim_start_matches("- "));
    lines.filter_map(|line| line.strip_prefix(key)).map(|value| value.trim().to_owned()).collect()
}

/// Returns the names of all metrics that dashboards and rules mention.
fn named() -> BTreeSet<String> {
    let panels = panel_expressions().into_iter().map(|(_, expression)| expression);
    let rules = ["recording.yml", "alerts.yml"].into_iter().flat_map(rule_expressions);
    panels.chain(rules).flat_map(|expression| names_in(&expression)).collect()
}

#[test]
fn generated_dashboards_equal_the_committed_ones() {
    let output = Command::new("python3")
        .arg(folder().join("make.py"))
        .arg("--check")
        .output()
        .expect("python3 runs");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn every_alert_gives_advice_and_has_a_test() {
    let alerts = values_of("alerts.yml", "alert:");
    assert!(alerts.len() > 20, "{alerts:?}");
    assert_eq!(alerts.iter().collect::<BTreeSet<_>>().len(), alerts.len(), "{alerts:?}");
    // Each alert is tested twice: in a state in which it must not fire, and in a state in which it
    // must fire.
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    values_of("tests.yml", "alertname:")
        .into_iter()
        .for_each(|name| *asked.entry(name).or_default() += 1);
    let wanted: BTreeMap<String, usize> = alerts.iter().map(|name| (name.clone(), 2)).collect();
    assert_eq!(asked, wanted);
    let quiet = values_of("tests.yml", "exp_alerts: []").len();
    assert_eq!(quiet, alerts.len(), "one moment of each is quiet");
    let descriptions = values_of("alerts.yml", "description:");
    assert_eq!(descriptions.len(), alerts.len());
    assert_eq!(values_of("alerts.yml", "summary:").len(), alerts.len());
    for description in descriptions {
        let advice = description.contains("Likely causes: (1) ");
        assert!(advice && description.contains("Look at: `zillion "), "{description}");
    }
}

/// Checks that every command in the text of an alert exists.
#[test]
fn commands_of_alerts_exist() {
    for description in values_of("alerts.yml", "description:") {
        let (_, command) = description.rsplit_once("Look at: `zillion ").expect("a command");
        let words: Vec<&str> = command.split_whitespace().collect();
        let is_word = |word: &&&str| {
            word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
        };
        let noun: Vec<&str> = words.iter().take_while(is_word).copied().collect();
        let help = crate::harness::zillion(&noun).arg("--help").output().expect("the binary runs");
        let text = crate::harness::stdout(&help);
        assert!(help.status.success(), "zillion {}: {}", noun.join(" "), stderr(&help));
        for option in words.iter().filter(|word| word.starts_with("--")) {
            let option = option.trim_end_matches(['`', '"']);
            assert!(text.contains(option), "zillion {} has no {option}", noun.join(" "));
        }
    }
}

/// Creates a workplace. Its data has event times and a side table with attributes of the items.
fn place() -> Workplace {
    let place = Workplace::new();
    for (file, part, rows) in [("train.csv", 0, ROWS), ("valid.csv", 1, 400), ("test.csv", 2, 400)]
    {
        let mut text = format!("{},at\n", crate::harness::HEADER);
        for index in 0..rows {
            text.push_str(&format!("{},{}\n", row(part, index), 1_700_000_000 + index));
        }
        // One row is bad.
        if part == 0 {
            text.push_str("u1,no number,t1,1.0,5,1,1700000000\n");
        }
        place.write(file, &text);
    }
    let side: String = (0..70).map(|item| format!("{item},b{}\n", item % 7)).collect();
    place.write("items.csv", &format!("item,brand\n{side}"));
    let job = crate::harness::JOB
        .replace("[labels.label]", "[features.brand]\nkind = \"id\"\ntype = \"string\"\nside = \"items\"\n\n[side.items]\npath = \"items.csv\"\nkey = \"item\"\n\n[labels.label]\n\n[columns]\nevent_time = \"at\"\nevent_time_unit = \"s\"")
        .replace("plateau = { factor = 0.5, patience = 3 }", "")
        .replace("test = [\"test.csv\"]", "test = [\"test.csv\"]\nmax_bad_rows = 1");
    place.write("job.toml", &job);
    place
}

/// Creates a folder with a job over streams, and with impressions and clicks of half a minute.
fn place_of_streams() -> Place {
    let place = Place::new(&format!("{JUDGED}{JOINED}"));
    let (shown, clicked) = impressions(0..3_000, now_ms() - 3_600_000);
    place.put("impressions/a", "0", &shown);
    place.put("clicks/a", "0", &clicked);
    place
}

/// Sends valid requests over every protocol, and one invalid request.
fn ask(server: &Server) {
    let rows = instances(&format!("{}\n{}\n{}\n", crate::harness::HEADER, row(2, 1), row(2, 2)));
    let v2 = infer_body(&rows, &[]);
    let predict = serde_json::json!({ "instances": rows }).to_string();
    let rank = serde_json::json!({
        "context": { "user": rows[0]["user"], "tags": rows[0]["tags"], "price": 1.0, "age": 7 },
        "candidates": [{ "item": 1 }, { "item": 2 }],
    });
    let rank = rank.to_string();
    for (path, body, status) in [
        (format!("/v2/models/{MODEL}/infer"), v2.as_str(), 200),
        (format!("/v1/models/{MODEL}:predict"), predict.as_str(), 200),
        (format!("/v1/models/{MODEL}:rank"), rank.as_str(), 200),
        (format!("/v2/models/{MODEL}/infer"), "{", 400),
    ] {
        let reply = server.post(&path, body.as_bytes());
        assert_eq!(reply.status, status, "{path}: {reply:?}");
    }
}

#[test]
fn dashboards_rules_and_documents_match_exposed_metrics() {
    let Some(prometheus) = prometheus::programs() else { return };
    prometheus.check_rules();

    let place = place();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let more = [
        "--set",
        &registry,
        "--set",
        "publish.every=400",
        "--set",
        "train.epochs=1000000",
        "--set",
        "train.checkpoint_every=400",
    ];
    let mut trainer = Trainer::start(&place, "run", &more);
    trainer.wait_for_line("version 1 of ");
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    ask(&server);
    let holder = Holder::start(&place);
    let streams = place_of_streams();
    let (_run, online) = streams.start_with_metrics(&[]);
    let targets = [&trainer.address, &online, &server.address, &holder.metrics];
    let targets = targets.map(String::as_str);
    let scraping = Prometheus::start(&prometheus, &place, targets);

    // Every series that a dashboard or a rule names must appear.
    let named = named();
    let began = Instant::now();
    loop {
        let known = scraping.names();
        let absent: Vec<&String> = named.difference(&known).collect();
        // Recording rules compute rates, and freshness needs a version that was loaded while the
        // server was running.
        let fresh = scraping.query("zillion_serving_freshness_seconds_count > 0").len();
        let servable =
            scraping.query("zillion_serving_publish_to_servable_seconds_count > 0").len();
        if absent.is_empty() && fresh == 1 && servable == 1 {
            break;
        }
        let said = trainer.output();
        assert!(
            began.elapsed() < 2 * PATIENCE,
            "not scraped: {absent:?}, {fresh}, {servable}\n{said}"
        );
        std::thread::sleep(Duration::from_millis(200));
        ask(&server);
    }
    for (dashboard, expression) in panel_expressions() {
        let plain = expression
            .replace("$__rate_interval", "1m")
            .replace("$instance", ".*")
            .replace("$model", ".*");
        assert!(!plain.contains('$'), "{dashboard}: {expression}");
        let found = scraping.query(&plain);
        // Differences and quotients may have no value. A plain selector always has a value.
        let selects = plain.starts_with("zillion") || plain.starts_with("process");
        assert!(!selects || !found.is_empty(), "{dashboard} shows nothing: {plain}");
    }
    assert_eq!(scraping.query("up == 1").len(), 4);
    assert_eq!(scraping.query("zillion_serving_ready == 1").len(), 1);
    assert_eq!(scraping.query("zillion_build_info == 1").len(), 4);

    // Every metric is on a dashboard, and its description is right.
    let trained = Families::parse(&scraping.get(&trainer.address, "/metrics"));
    let served = Families::parse(&scraping.get(&server.address, "/metrics"));
    let held = Families::parse(&scraping.get(&holder.metrics, "/metrics"));
    let followed = Families::parse(&scraping.get(&online, "/metrics"));
    let exposed = trained.and(&followed).and(&served).and(&held);
    let shown = |name: &String| series_of(name).iter().any(|series| named.contains(series));
    let unseen: Vec<&String> = exposed.0.keys().filter(|name| !shown(name)).collect();
    assert!(unseen.is_empty(), "on no dashboard and in no rule: {unseen:?}");
    let documented = Families::documented(&read("docs/METRICS.md"));
    let missing: Vec<&String> =
        exposed.0.keys().filter(|name| !documented.0.contains_key(*name)).collect();
    assert!(missing.is_empty(), "not in docs/METRICS.md: {missing:?}");
    for (name, family) in &documented.0 {
        match exposed.0.get(name) {
            Some(found) => assert_eq!(family, found, "docs/METRICS.md says otherwise of {name}"),
            None => panic!("docs/METRICS.md has {name}, and no process"),
        }
    }
    assert!(trainer.terminate().success(), "{}", trainer.output());
}
