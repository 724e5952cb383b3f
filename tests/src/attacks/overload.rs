//! Tests of load above the capacity of the server. The goodput (answers with scores per second)
//! must reach a constant level and must not fall.
//!
//! The capacity is measured with the same generator and the same requests. Each connection sends
//! its next request after the answer to the last one. Then an open loop sends requests at three
//! times this rate. In both measurements, the server shares the machine with the generator in the
//! same way. `zillion bench overload` measures the same figures with a larger model and for a
//! longer time.

use serde_json::Value;

use super::victim::{Pulse, Victim, publish};
use super::wire;
use crate::harness::{Workplace, stderr, stdout, zillion};
use crate::server::operator;

/// Sends the rows of a file in requests of `rows` rows, and returns the figures.
fn load(place: &Workplace, address: &str, rows: usize, more: &[&str]) -> Value {
    let (url, data) = (format!("http://{address}"), place.text("valid.csv"));
    let rows = rows.to_string();
    let usual = ["loadgen", "--url", &url, "--data", &data, "--candidates", &rows, "--json"];
    let output = operator(place, &[&usual[..], &["--bodies", "4"], more].concat()).output();
    let output = output.expect("the binary runs");
    let text = stdout(&output);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", stderr(&output)))
}

fn number(figures: &Value, name: &str) -> f64 {
    figures[name].as_f64().unwrap_or_else(|| panic!("no {name}: {figures}"))
}

/// Measures the capacity, and then the goodput at three times the capacity. Returns the goodput
/// divided by the capacity.
fn goodput_share(place: &Workplace, victim: &Victim, rows: usize) -> f64 {
    const SECONDS: f64 = 4.0;
    // All requests are due at once, so each connection sends one request after another.
    let seconds = if rows == 1 { "0.003" } else { "0.0004" };
    let at_once = ["--rate", "1000000", "--seconds", seconds, "--timeout-ms", "60000"];
    let closed = [&at_once[..], &["--connections", "4"]].concat();
    load(place, &victim.public, rows, &closed);
    let capacity = number(&load(place, &victim.public, rows, &closed), "achieved_rate");
    let (rate, seconds) = (format!("{:.1}", 3.0 * capacity), SECONDS.to_string());
    let open = ["--rate", &rate, "--seconds", &seconds, "--timeout-ms", "2000"];
    let pulse = Pulse::start(&victim.admin);
    let figures =
        load(place, &victim.public, rows, &[&open[..], &["--connections", "128"]].concat());
    pulse.finish().assert_alive(&format!("three times the capacity, {rows} rows"));
    let goodput = number(&figures, "ok") / SECONDS;
    let by_second = figures["slices"].as_array().expect("seconds").iter();
    let by_second: Vec<f64> =
        by_second.map(|s| number(s, "requests") - number(s, "failed")).collect();
    let share = goodput / capacity;
    let late = figures["failures"]["status 504"].as_f64().unwrap_or(0.0);
    let ok = number(&figures, "ok");
    assert!(late <= 0.05 * ok, "{late} requests were admitted and not answered, {ok} were");
    eprintln!(
        "{rows} rows: capacity {capacity:.0}/s, offered {rate}/s, goodput {goodput:.0}/s = {share:.2} of it, \
         by second {by_second:?}, failures {}",
        figures["failures"]
    );
    share
}

/// Asserts that no request began after a wait of more than twice the bound and ten times the mean
/// work of a request. The server counts the waits itself.
fn assert_waits(victim: &Victim) {
    const BOUND: f64 = 0.03;
    let metrics = wire::get(&victim.admin, "/metrics").expect("the server answers").body;
    let of = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse::<f64>().expect("a number"))
    };
    let stage = |what: &str, stage: &str| {
        of(&format!("zillion_serving_stage_seconds_{what}{{stage=\"{stage}\"}}"))
    };
    let begun = stage("count", "queue");
    let work: f64 = ["parse", "score", "write"].map(|name| stage("sum", name)).iter().sum();
    let most = 2.0 * BOUND + 10.0 * work / begun;
    let mut in_time = None;
    for line in metrics.lines() {
        let bucket = "zillion_serving_stage_seconds_bucket{stage=\"queue\",le=\"";
        let Some((limit, count)) =
            line.strip_prefix(bucket).and_then(|rest| rest.split_once("\"} "))
        else {
            continue;
        };
        let limit: f64 = limit.parse().expect("a number");
        if in_time.is_none() && limit >= most {
            in_time = Some(count.parse::<f64>().expect("a number"));
        }
    }
    assert!(begun > 100.0, "{begun} requests began");
    assert_eq!(in_time, Some(begun), "requests that began within {most} s");
}

#[test]
fn goodput_levels_off_above_the_capacity() {
    // The model is large, so that the work of the server fills the processors, and not the work of
    // the generator.
    let place = publish(&["--set", "model.hidden=[512, 256]"]);
    let victim = Victim::start(&place, &[]);
    for rows in [1, 100] {
        // Other programs may use the machine during one of the two measurements, but hardly during
        // three attempts.
        let shares: Vec<f64> = (0..3)
            .map(|_| goodput_share(&place, &victim, rows))
            .take_while(|&share| share < 0.5)
            .collect();
        assert!(shares.len() < 3, "{rows} rows: shares of the capacity: {shares:?}");
        assert_waits(&victim);
    }
    victim.survives();
}

#[test]
fn the_benchmark_of_overload_has_all_figures() {
    let arguments = ["--rows", "2000", "--candidates", "1,20", "--seconds", "0.5", "--json"];
    let output = zillion(&[&["bench", "overload"], &arguments[..]].concat()).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let figures: Value = serde_json::from_str(stdout(&output).trim()).expect("JSON");
    let runs = figures["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 2, "{figures}");
    for run in runs {
        assert!(number(run, "capacity") > 0.0 && number(run, "goodput") > 0.0, "{run}");
        let offered = number(run, "offered") / number(run, "capacity");
        assert!((offered - 3.0).abs() < 0.01, "{run}");
        assert_eq!(run["goodput_by_second"].as_array().map(Vec::len), Some(1), "{run}");
        assert!(number(&run["admitted"], "p99_ms") > 0.0, "{run}");
        assert_eq!(number(run, "refusals") > 0.0, number(&run["refused"], "p99_ms") > 0.0, "{run}");
    }
}
