//! Tests of the metrics of a run over streams. They are compared with the status and with the
//! history of the validation, which the run writes to files.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::place::{JOINED, JUDGED, PATIENCE, Place, impressions, now_ms};
use crate::server::Server;

/// The series of a process with their values. Each has its labels in alphabetical order.
type Series = BTreeMap<String, f64>;

/// The number of impressions of a round.
const ROUND: u64 = 1_000;

/// Returns the series that a process serves.
fn scrape(address: &str) -> Series {
    let head = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let stream = TcpStream::connect(address).expect("the run listens");
    let reply = Server::over(stream, head, b"").expect("the run answers");
    assert_eq!(reply.status, 200, "{reply:?}");
    let lines = reply.body.lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    lines.filter_map(parse).collect()
}

/// Returns a number of a file. A figure that is absent or null is NaN.
fn number(value: &Value) -> f64 {
    match value {
        Value::Bool(is_true) => f64::from(*is_true),
        value => value.as_f64().unwrap_or(f64::NAN),
    }
}

/// Returns the series that the status of a run describes.
fn of_status(status: &Value) -> Series {
    let feed = &status["feed"];
    let mut series = Series::new();
    for place in feed["partitions"].as_array().expect("partitions") {
        let text = |key: &str| place[key].as_str().expect("a name").to_owned();
        let labels =
            format!("{{partition=\"{}\",stream=\"{}\"}}", text("partition"), text("stream"));
        let newest = number(&place["newest_ms"]) / 1000.0;
        series.insert(format!("zillion_stream_lag{labels}"), number(&place["lag"]));
        series.insert(format!("zillion_stream_newest_event_timestamp_seconds{labels}"), newest);
        series.insert(format!("zillion_stream_idle{labels}"), number(&place["is_idle"]));
    }
    let join = &feed["join"];
    let counters = &join["counters"];
    for (name, value) in [
        ("watermark_timestamp_seconds", number(&feed["watermark_ms"]) / 1000.0),
        ("paused", number(&feed["is_paused"])),
        ("batches_total{reason=\"full\"}", number(&feed["full"])),
        ("batches_total{reason=\"linger\"}", number(&feed["lingered"])),
        ("rows_total", number(&feed["rows"])),
        ("messages_total", number(&feed["messages"])),
        ("rejected_messages_total", number(&feed["rejected"])),
        ("join_pending_rows", number(&join["pending_rows"])),
        ("join_early_feedback", number(&join["early_feedback"])),
        ("join_bytes{place=\"disk\"}", number(&join["disk_bytes"])),
        ("join_bytes{place=\"memory\"}", number(&join["memory_bytes"])),
        ("join_events_total{outcome=\"impression\"}", number(&counters["impressions"])),
        ("join_events_total{outcome=\"joined_feedback\"}", number(&counters["joined_feedback"])),
        ("join_events_total{outcome=\"negative_row\"}", number(&counters["negatives"])),
        ("join_events_total{outcome=\"positive_row\"}", number(&counters["positives"])),
    ] {
        series.insert(format!("zillion_stream_{name}"), value);
    }
    series
}

/// Returns the series that the closed windows and the verdicts of a run describe.
fn of_history(place: &Place) -> Series {
    let text = std::fs::read_to_string(place.path("runs/live/stream/validation.jsonl"));
    let mut series = Series::new();
    for line in text.unwrap_or_default().lines() {
        // The run may be writing the last line.
        let Ok(entry) = serde_json::from_str::<Value>(line) else { break };
        if entry["window"].is_object() {
            add_window(&mut series, &entry["window"]);
        }
        if entry["verdict"].is_object() {
            add_verdict(&mut series, &entry["verdict"]);
        }
    }
    series
}

fn add_window(series: &mut Series, window: &Value) {
    let length = number(&window["length"]) / 1000.0;
    let mut set = |name: &str, labels: &str, value: f64| {
        let labels = format!("{labels}window=\"{length}\"");
        series.insert(format!("zillion_stream_validation_{name}{{{labels}}}"), value);
    };
    set("rows", "", number(&window["rows"]));
    set("end_timestamp_seconds", "", number(&window["start"]) / 1000.0 + length);
    for (version, figures) in [("live", &window["live"]), ("stable", &window["paired"]["stable"])] {
        for figure in ["auc", "logloss", "calibration"] {
            set(figure, &format!("version=\"{version}\","), number(&figures[figure]));
        }
    }
    for metric in ["auc", "logloss"] {
        let difference = &window["paired"][metric];
        let labels = format!("metric=\"{metric}\",");
        set("difference", &labels, number(&difference["value"]));
        set("difference_error", &labels, number(&difference["error"]));
    }
    let total = format!("zillion_stream_validation_windows_total{{window=\"{length}\"}}");
    *series.entry(total).or_default() += 1.0;
}

fn add_verdict(series: &mut Series, verdict: &Value) {
    let outcome = verdict["outcome"].as_str().expect("an outcome");
    let total = format!("zillion_stream_gate_verdicts_total{{outcome=\"{outcome}\"}}");
    *series.entry(total).or_default() += 1.0;
    let order = |check: &Value| {
        let names = ["pass", "warn", "hold", "fail"];
        names.iter().position(|name| check["outcome"] == *name).expect("one")
    };
    let checks = verdict["checks"].as_array().expect("checks");
    for check in checks {
        let is_same =
            |other: &&Value| other["leg"] == check["leg"] && other["name"] == check["name"];
        let shown = checks.iter().filter(is_same).max_by_key(|other| order(other));
        let shown = shown.expect("the check itself");
        let text = |key: &str| shown[key].as_str().expect("a name").to_owned();
        let labels = format!("check=\"{}\",leg=\"{}\"", text("name"), text("leg"));
        let mut set = |name: &str, labels: &str, value: f64| {
            series.insert(format!("zillion_stream_gate_{name}{{{labels}}}"), value);
        };
        set("value", &labels, number(&shown["value"]));
        set("error", &labels, number(&shown["error"]));
        set("outcome", &labels, order(shown) as f64);
        for bound in ["warn", "hold", "fail"] {
            let labels = format!("bound=\"{bound}\",{labels}");
            set("threshold", &labels, number(&shown[bound]));
        }
    }
}

/// Returns whether two values are equal, apart from the rounding of their texts. NaN equals NaN.
fn is_equal(a: f64, b: f64) -> bool {
    (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

/// Waits until the metrics are those that the files of the run describe, and returns them.
fn wait_for_agreement(place: &Place, address: &str, messages: u64) -> Series {
    let began = Instant::now();
    loop {
        let status = place.status().unwrap_or_default();
        let is_read = status["feed"]["messages"].as_u64() == Some(messages);
        let mut expected = if is_read { of_status(&status) } else { Series::new() };
        expected.extend(of_history(place));
        let found = scrape(address);
        let differs = |(name, value): &(&String, &f64)| {
            !found.get(*name).is_some_and(|found| is_equal(*found, **value))
        };
        let different: Vec<_> = expected.iter().filter(differs).collect();
        if is_read && different.is_empty() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{different:?} differ from\n{found:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn metrics_show_streams_windows_and_verdicts() {
    let place = Place::new(&format!("{JUDGED}{JOINED}"));
    let begin = now_ms() / 60_000 * 60_000 - 3_600_000;
    // Without idle partitions, the join loses no click, whichever file is read first. Both streams
    // have their partition before the run starts.
    let awake = ["--set", "online.idle_seconds=1000"];
    place.put("impressions/a", "empty", &[]);
    place.put("clicks/a", "empty", &[]);
    let (mut run, address) = place.start_with_metrics(&awake);
    let (mut messages, mut clicks) = (0, 0);
    for round in 0..6 {
        let (mut shown, clicked) =
            impressions(round * ROUND..(round + 1) * ROUND, begin + 10 * round * ROUND);
        if round == 3 {
            shown.push("no JSON".to_owned());
        }
        messages += (shown.len() + clicked.len()) as u64;
        clicks += clicked.len() as u64;
        place.put("impressions/a", &format!("round-{round}"), &shown);
        place.put("clicks/a", &format!("round-{round}"), &clicked);
        run.wait_for_messages(messages);
    }
    let found = wait_for_agreement(&place, &address, messages);
    let value = |name: &str| found[&format!("zillion_stream_{name}")];
    assert_eq!(value("messages_total"), messages as f64);
    assert_eq!(value("rejected_messages_total"), 1.0);
    assert_eq!(value("lag{partition=\"a\",stream=\"clicks\"}"), 0.0);
    assert_eq!(value("join_events_total{outcome=\"joined_feedback\"}"), clicks as f64);
    let newest = value("newest_event_timestamp_seconds{partition=\"a\",stream=\"impressions\"}");
    assert!(is_equal(newest * 1000.0, (begin + 10 * (6 * ROUND - 1)) as f64), "{newest}");
    for version in ["live", "stable"] {
        let auc = value(&format!("validation_auc{{version=\"{version}\",window=\"10\"}}"));
        assert!(auc > 0.4 && auc < 1.0, "{version}: {auc}");
    }
    assert!(value("validation_difference_error{metric=\"auc\",window=\"10\"}") > 0.0);
    let verdicts = ["pass", "warn", "hold", "fail"]
        .map(|outcome| value(&format!("gate_verdicts_total{{outcome=\"{outcome}\"}}")));
    assert!(verdicts[0] + verdicts[1] >= 1.0 && verdicts[3] == 0.0, "{verdicts:?}");
    assert!(value("gate_threshold{bound=\"fail\",check=\"not_finite\",leg=\"inputs\"}") == 0.0);

    place.ok(&["stream", "pause", "runs/live"]);
    run.wait_until("the run pauses", |status| status["feed"]["is_paused"] == true);
    let found = wait_for_agreement(&place, &address, messages);
    assert_eq!(found["zillion_stream_paused"], 1.0);
    place.ok(&["stream", "resume", "runs/live"]);
    run.stop();

    // Counters begin anew in the next process, and places go on.
    let (mut run, address) = place.start_with_metrics(&awake);
    let (shown, _) = impressions(6 * ROUND..6 * ROUND + 50, begin + 60 * ROUND);
    place.put("impressions/a", "round-6", &shown);
    run.wait_for_messages(messages + 50);
    let began = Instant::now();
    while scrape(&address).get("zillion_stream_messages_total") != Some(&50.0) {
        assert!(began.elapsed() < PATIENCE, "{:?}", scrape(&address));
        std::thread::sleep(Duration::from_millis(50));
    }
    let newest = "zillion_stream_newest_event_timestamp_seconds\
                  {partition=\"a\",stream=\"impressions\"}";
    let expected = (begin + 60 * ROUND + 10 * 49) as f64;
    assert!(is_equal(scrape(&address)[newest] * 1000.0, expected), "{expected}");
    run.stop();
}
