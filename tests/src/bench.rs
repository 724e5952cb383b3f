//! Tests of the benchmarks with small sizes. A benchmark of a table takes about a second, and
//! checks that its table has the right contents.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Workplace, root, stderr, stdout, zillion};

/// Runs a benchmark and returns its output as JSON.
fn bench(arguments: &[&str]) -> Value {
    let result = zillion(&[&["bench"], arguments].concat()).output().expect("the binary runs");
    assert!(result.status.success(), "{arguments:?}: {}", stderr(&result));
    let said = stdout(&result);
    serde_json::from_str(said.trim()).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// Asserts that the benchmark checked `rows` rows, and that no row is lost, miscounted or wrong.
fn all_right(said: &Value, rows: u64) {
    assert_eq!(said["checked_rows"], rows, "{said:#}");
    for figure in ["lost_rows", "miscounted_rows", "wrong_rows"] {
        assert!(said[figure].is_null() || said[figure] == 0, "{figure}: {said:#}");
    }
    assert!(!said["lost_rows"].is_null() && !said["wrong_rows"].is_null(), "{said:#}");
}

/// Returns all speed-ups that a benchmark reports. A speed-up compares a rate with several threads
/// to the same rate with one thread.
fn speedups(said: &Value) -> Vec<f64> {
    let figures = said.as_object().expect("an object").iter();
    let speedups = figures.filter(|(name, _)| name.ends_with("_speedup"));
    speedups
        .map(|(name, ratio)| ratio.as_f64().unwrap_or_else(|| panic!("{name}: {ratio}")))
        .collect()
}

#[test]
fn rows_of_the_table_benchmark_hold_what_was_pushed() {
    for dtype in ["f32", "bf16"] {
        let small = ["embedding", "--rows", "150000", "--dim", "5", "--seconds", "0.05"];
        let more = ["--threads", "2", "--dtype", dtype, "--check", "--json"];
        let said = bench(&[&small[..], &more].concat());
        all_right(&said, 150_000);
        assert!(said["pull_uniform_mrows_s"].as_f64() > Some(0.0), "{said:#}");
        let ratios = speedups(&said);
        assert!(ratios.len() == 8 && ratios.iter().all(|&ratio| ratio > 0.0), "{said:#}");
    }
    let said = bench(&["embedding", "--rows", "1000", "--seconds", "0", "--json"]);
    assert!(speedups(&said).is_empty(), "one thread has no speed-up: {said:#}");
    assert!(said["checked_rows"].is_null(), "rows are counted only with --check: {said:#}");
}

#[test]
fn the_parameter_server_benchmark_measures_every_request() {
    let small = ["ps", "--rows", "100000", "--dim", "4", "--seconds", "0.05", "--json"];
    for more in [&["--idle", "20"][..], &["--clients", "3"]] {
        let said = bench(&[&small[..], more].concat());
        let figures = said["figures"].as_array().expect("a list of figures");
        assert_eq!(figures.len(), 4, "{said:#}");
        for call in figures.iter().flat_map(|figure| [&figure["pull"], &figure["push"]]) {
            assert!(call["mkeys_s"].as_f64() > Some(0.0), "{said:#}");
            assert!(call["p99_ms"].as_f64() >= call["p50_ms"].as_f64(), "{said:#}");
            assert!(call["table_share"].as_f64() > Some(0.0), "{said:#}");
        }
        let idle = more.contains(&"--idle");
        assert_eq!(said["idle"]["connections"].as_u64(), idle.then_some(20), "{said:#}");
    }
}

#[test]
fn the_benchmarks_of_online_training_lose_nothing() {
    let place = Workplace::new();
    let folder = place.text("online");
    std::fs::create_dir(&folder).expect("the folder can be made");
    let online = |arguments: &[&str]| {
        bench(&[&["online"], arguments, &["--folder", &folder, "--json"]].concat())
    };
    let positive = |figure: &Value| figure.as_f64() > Some(0.0);

    let said = online(&["ingest", "--rows", "20000", "--repeat", "1"]);
    for format in ["json", "arrow"] {
        assert!(positive(&said[format]["rows_per_cpu_second"]), "{said:#}");
    }

    let said = online(&["catchup", "--rate", "10000", "--seconds", "2"]);
    assert_eq!(said["events"], 20_000, "{said:#}");
    assert!(positive(&said["times_real_time"]), "{said:#}");

    let short = ["--rate", "2000", "--seconds", "3", "--warm-up", "0.5"];
    let quick = ["--publish-seconds", "0.2", "--checkpoint-seconds", "1"];
    let said = online(&[&["freshness"], &short[..], &quick].concat());
    let [events, published] = ["freshness", "until_published"].map(|times| &said[times]);
    assert!(positive(&events["count"]) && said["unanswered"] == 0, "{said:#}");
    assert!(events["p50"].as_f64() > published["p50"].as_f64(), "{said:#}");
    assert!(events["max"].as_f64() >= events["p99"].as_f64(), "{said:#}");
    let slowest = said["slowest"].as_array().expect("a list of versions");
    assert_eq!(slowest[0]["seconds"], events["max"], "{said:#}");

    let small = ["--kills", "2", "--bytes", "4MiB", "--seconds", "4"];
    let said = online(&[&["kills"], &small[..], &["--checkpoint-seconds", "0.5"]].concat());
    assert_eq!(said["messages"], said["written"], "{said:#}");
    assert_eq!(said["rows"], said["written"], "{said:#}");
    assert!(said["versions"]["compared"].as_u64() > Some(1), "{said:#}");
    assert_eq!(said["recovery_seconds"].as_array().map(Vec::len), Some(2), "{said:#}");
}

#[test]
fn the_benchmark_of_a_whole_server_counts_its_answers() {
    let place = Workplace::new();
    let folder = place.text("");
    let small = ["grpc", "--rows", "2000", "--candidates", "1,20", "--repeat", "1"];
    let short = ["--warm-up", "0.05", "--seconds", "0.2", "--rate", "50", "--folder", &folder];
    for more in [
        &["--connections", "2", "--streams", "3", "--dense", "int8"][..],
        &["--protocol", "grpc,v2,predict,rank", "--connections", "2"],
    ] {
        let said = bench(&[&small[..], &short, more, &["--json"]].concat());
        assert_eq!(said["dense"], if more.contains(&"int8") { "int8" } else { "f32" });
        let runs = said["runs"].as_array().expect("a list of runs");
        assert_eq!(runs.len(), if more.contains(&"--streams") { 2 } else { 8 }, "{said:#}");
        for run in runs {
            let (capacity, open) = (&run["capacity"], &run["open"]);
            assert!(capacity["answers"].as_u64() > Some(0), "{run:#}");
            let rows = capacity["requests_s"].as_f64().expect("a rate")
                * run["candidates"].as_f64().expect("a number of rows");
            let rows_s = capacity["rows_s"].as_f64().expect("a rate");
            assert!((rows_s / rows - 1.0).abs() < 1e-3, "{run:#}");
            // 50 a second for a fifth of a second.
            assert_eq!(open["requests"], 10, "{run:#}");
            let is_alone = run["candidates"] == 1 || run["protocol"] == "predict";
            assert_eq!(run["shared_fields"], if is_alone { 0 } else { 20 }, "{run:#}");
        }
    }
    let refused = ["bench", "grpc", "--protocol", "v2", "--streams", "2"];
    let refused = zillion(&refused).output().expect("the binary runs");
    assert!(stderr(&refused).contains("--streams"), "{}", stderr(&refused));
}

#[test]
fn rows_of_the_spilling_benchmark_come_back_right() {
    let place = Workplace::new();
    let folder = place.text("spill");
    let small = ["spill", "--rows", "60000", "--dim", "4", "--memory-share", "0.25"];
    let short = ["--warm-up", "0.1", "--seconds", "0.3", "--ahead", "2", "--folder", &folder];
    let said = bench(&[&small[..], &short, &["--json"]].concat());
    all_right(&said, 60_000);
    assert!(said["spilled"].as_u64() > Some(0), "rows left memory: {said:#}");
}

#[test]
fn fresher_versions_are_compared_by_event_time() {
    let place = Workplace::new();
    let (data, svg) = (place.text("ml1m"), place.text("freshness.svg"));
    let examples = root().join("examples/ml1m");
    let made = Command::new("python3").arg(examples.join("make_data.py")).arg(&data).output();
    assert!(made.expect("python3 runs").status.success());
    let job = examples.join("online.toml").display().to_string();
    let bench = ["bench", "online", "movielens", "--data", &data, "--job", &job];
    let more = ["--seeds", "1", "--threads", "1", "--svg", &svg, "--json"];
    let result = zillion(&[&bench[..], &more].concat()).output().expect("the binary runs");
    assert!(result.status.success(), "{}", stderr(&result));
    let said = stdout(&result);
    let replays: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&str> = replays.iter().filter_map(|replay| replay["cadence"].as_str()).collect();
    assert_eq!(names, ["never", "1 h", "10 min", "1 min"]);
    let versions: Vec<u64> =
        replays.iter().filter_map(|replay| replay["versions"].as_u64()).collect();
    // The ratings of the example are up to 90 seconds apart.
    assert!(versions[0] == 0 && versions[1] > 10, "{versions:?}");
    assert!(versions.is_sorted() && versions[3] > 2 * versions[2], "{versions:?}");
    for replay in &replays {
        assert_eq!(replay["rows"], 6000, "{replay}");
        assert!(replay["test_auc"].as_f64() > Some(0.6), "{replay}");
    }
    assert_ne!(replays[0]["test_auc"], replays[1]["test_auc"]);
    let drawn = std::fs::read_to_string(svg).expect("a plot");
    assert!(drawn.contains(">1 min</text>") && drawn.matches("<polyline").count() == 4, "{drawn}");
}
