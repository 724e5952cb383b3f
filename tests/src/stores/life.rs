//! Tests of the life of versions in a bucket with many faults. The versions are published, loaded,
//! promoted, rolled back, verified and collected. They must give the same scores as in a registry
//! in a folder.

use serde_json::Value;

use super::place::{S3Place, URL};
use super::proxy::{Fault, Proxy, storm};
use super::s3::{Create, S3Server};
use crate::harness::{csv, stderr};
use crate::server::{MODEL, PATIENCE, REGISTRY, Server, infer_body, instances, output};

/// The number of rows that the test scores.
const ROWS: usize = 200;

/// The number of requests with a fault, out of a thousand requests.
const SHARE: u64 = 120;

fn ask(server: &Server) -> Vec<f32> {
    let body = infer_body(&instances(&csv(7, ROWS)), &["logits"]);
    let reply = server.post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes());
    assert_eq!(reply.status, 200, "{reply:?}");
    output(&reply, "logits")
}

/// Returns the sum of a counter over all its series.
fn counter(server: &Server, name: &str) -> f64 {
    let metrics = server.get("/metrics").body;
    let of = metrics.lines().filter(|line| line.starts_with(name));
    of.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn the_whole_loop_works_among_store_faults() {
    let server = S3Server::start(Create::Honoured);
    let proxy = Proxy::start(server.address, storm(1, SHARE));
    let s3 = S3Place::new(proxy.address);
    let place = &s3.place;
    let run = ["--set", "publish.every=10", "--set", "train.epochs=1"];
    s3.train_ok("run", &run);
    // The same training also publishes into a folder.
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    place.train_ok("local-run", &[&["--set", &registry], &run[..]].concat());
    let newest = s3.latest();
    assert!(newest >= 3, "{newest}");
    let wanted = {
        let mut local = Server::start(place, &["--cache", &place.text("local-cache")]);
        assert!(local.becomes_ready());
        local.wait_for(newest);
        ask(&local)
    };
    let mut running = s3.serve(&[]);
    assert!(running.becomes_ready());
    running.wait_for(newest);
    assert_eq!(ask(&running), wanted);
    let said = s3.operator(&["model", "verify", "--json"]).output().expect("the binary runs");
    let verified: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(verified["versions"], newest, "{}", stderr(&said));
    assert!(verified["store"]["requests"].as_u64() > Some(10), "{verified}");
    // The new versions are loaded, promoted and rolled back.
    s3.train_ok("run", &["--resume", "--set", "publish.every=10", "--set", "train.epochs=2"]);
    let later = s3.latest();
    assert!(later > newest);
    running.wait_for(later);
    assert_ne!(ask(&running), wanted);
    s3.operate(&["model", "promote", &later.to_string(), "--to", "canary"]);
    s3.operate(&["model", "rollback", "--to", &newest.to_string()]);
    running.wait_for(newest);
    assert_eq!(ask(&running), wanted);
    s3.operate(&["model", "pin", &newest.to_string()]);
    s3.operate(&["model", "gc", "--keep", "1", "--grace", "0"]);
    s3.operate(&["model", "verify", "--version", &newest.to_string()]);
    // After the collection, a server starts without files.
    let mut fresh = s3.serve(&["--cache", &place.text("fresh-cache")]);
    assert!(fresh.becomes_ready());
    fresh.wait_for(newest);
    assert_eq!(ask(&fresh), wanted);
    // The metrics count the faults and the retries.
    assert!(proxy.broken() > 20, "{}", proxy.broken());
    let began = std::time::Instant::now();
    let store = |name: &str| counter(&running, &format!("zillion_registry_store_{name}"));
    while store("retries_total") == 0.0 {
        assert!(began.elapsed() < PATIENCE, "{}", running.get("/metrics").body);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(store("backoff_seconds_total") > 0.0);
    assert!(store("requests_total{operation=\"get\",outcome=\"ok\"}") > 0.0);
    assert!(store("received_bytes_total") > 0.0);
    assert!(fresh.terminate().success());
}

#[test]
fn commands_name_the_problem_of_a_bucket() {
    let server = S3Server::start(Create::Honoured);
    let s3 = S3Place::new(server.address);
    let fails = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = s3.operator(arguments);
        command.envs(variables.iter().copied()).env("ZILLION_STORE_TRIES", "2");
        let output = command.output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(!said.contains("hunter"), "{said}");
        said
    };
    let empty = fails(&["model", "show"], &[]);
    assert!(empty.contains("has no version in the registry"), "{empty}");
    let wrong = fails(&["model", "show"], &[("AWS_SECRET_ACCESS_KEY", "hunter33")]);
    assert!(wrong.contains("check that the credentials") && wrong.contains(URL), "{wrong}");
    s3.place.write("config", "[profile work]\nsso_session = x\n");
    let profile = [
        ("AWS_CONFIG_FILE", s3.place.text("config")),
        ("AWS_PROFILE", "work".to_owned()),
        ("AWS_ACCESS_KEY_ID", String::new()),
        ("AWS_SECRET_ACCESS_KEY", String::new()),
    ];
    let profile: Vec<(&str, &str)> = profile.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let said = fails(&["model", "show"], &profile);
    assert!(said.contains("export-credentials"), "{said}");
    let setting = fails(&["model", "show"], &[("ZILLION_STORE_AT_ONCE", "many")]);
    assert!(setting.contains("ZILLION_STORE_AT_ONCE"), "{setting}");
}

#[test]
fn a_server_that_stops_does_not_wait_for_a_store_that_hangs() {
    let server = S3Server::start(Create::Honoured);
    let hangs = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let switch = hangs.clone();
    let proxy = Proxy::start(server.address, move |_| {
        if switch.load(std::sync::atomic::Ordering::Relaxed) { Fault::Hang } else { Fault::None }
    });
    let s3 = S3Place::new(proxy.address);
    s3.train_ok("run", &["--set", "train.epochs=1", "--set", "publish.every=1000"]);
    let patient = |mut command: std::process::Command| {
        command.env("ZILLION_STORE_REQUEST_MS", "3600000");
        command.env("ZILLION_STORE_OPERATION_MS", "3600000");
        command
    };
    let mut running = Server::launch(&s3.place, URL, &[], |command| patient(s3.command(command)))
        .expect("the server listens");
    assert!(running.becomes_ready());
    let scores = ask(&running);
    hangs.store(true, std::sync::atomic::Ordering::Relaxed);
    while proxy.broken() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // The server still answers, and it stops when it gets the signal.
    assert_eq!(ask(&running), scores);
    assert!(running.terminate().success());
}
