//! Tests of a server whose scores a GPU computes. The emulated GPU takes its place, which only the
//! binary of the tests has. Every answer is compared with the scores of its version on processors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Workplace, csv, stderr, stdout, zillion};
use crate::server::{MODEL, REGISTRY, Server, infer_body, instances, operate, output};
use crate::serving::{bits, published, publishing};

const ROWS: usize = 40;

/// Returns the value of a series without labels.
fn series(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").body;
    let prefix = format!("{name} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {text}"))
}

#[test]
fn a_server_on_a_device_answers_each_version_with_the_bits_of_processors() {
    let place = Workplace::new();
    place.write("rows.csv", &csv(7, ROWS));
    let rows = instances(&csv(7, ROWS));
    publishing(&place, "run", 1000, &[]);
    let listed: Value =
        serde_json::from_str(&operate(&place, &["model", "list", "--json"])).expect("JSON");
    let newest = listed["versions"][0]["version"].as_u64().expect("a number");
    let versions: Vec<u64> = (newest.saturating_sub(2)..=newest).filter(|&v| v > 0).collect();
    let wanted: Vec<Vec<u32>> = versions
        .iter()
        .map(|&version| bits(&published(&place, version, "rows.csv", ROWS)))
        .collect();
    let options = ["--device", "emulated:3", "--gpu-memory", "64MiB"];
    let mut server = Server::start(&place, &options);
    assert!(server.becomes_ready());
    let infer = format!("/v2/models/{MODEL}/infer");
    let body = infer_body(&rows, &["logits"]);
    let check = |server: &Server| {
        let reply = server.post(&infer, body.as_bytes());
        // Under load, some requests are refused, and none has a wrong answer.
        if reply.status == 429 || reply.status == 503 || reply.status == 504 {
            return false;
        }
        assert_eq!(reply.status, 200, "{reply:?}");
        let answer = reply.json();
        let version: u64 =
            answer["model_version"].as_str().expect("a version").parse().expect("a number");
        let at = versions.iter().position(|&known| known == version).expect("a known version");
        assert_eq!(bits(&output(&reply, "logits")), wanted[at], "version {version}");
        true
    };
    // The pointer moves back and forth while eight clients ask.
    let is_over = AtomicBool::new(false);
    let answers: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut answers = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        answers += usize::from(check(&server));
                    }
                    answers
                })
            })
            .collect();
        for &version in versions.iter().rev().chain(&versions) {
            operate(&place, &["model", "promote", &version.to_string()]);
            let until = Instant::now() + Duration::from_secs(1);
            while Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert!(answers > 0);
    let read = |name: &str| series(&server, &format!("zillion_serving_device_{name}"));
    assert!(read("requests_total") >= answers as f64);
    assert!(read("batches_total") > 0.0 && read("resident_rows") > 0.0);
    assert!(read("hits_total") > 0.0 && read("hits_total") <= read("keys_total"));
    assert!(read("used_bytes") > 0.0 && read("used_bytes") <= read("budget_bytes"));
    assert!(server.terminate().success());
}

#[test]
fn commands_on_a_device_print_the_scores_of_processors() {
    let place = Workplace::new();
    place.write("rows.csv", &csv(7, ROWS));
    publishing(&place, "run", 1000, &[]);
    let (registry, file, run) = (place.text(REGISTRY), place.text("rows.csv"), place.text("run"));
    let on = |device: &str, arguments: &[&str]| {
        let arguments = [arguments, &["--json", "--device", device]].concat();
        let result = zillion(&arguments).output().expect("the binary runs");
        assert!(result.status.success(), "{}", stderr(&result));
        stdout(&result)
    };
    let by_version = ["predict", "--registry", &registry, "--model", MODEL, &file];
    let by_run = ["predict", &run, &file];
    let eval = ["eval", &run, "--data", &file];
    for arguments in [&by_version[..], &by_run, &eval] {
        assert_eq!(on("emulated:4", arguments), on("cpu", arguments), "{arguments:?}");
    }
    let refused = |arguments: &[&str]| {
        let result = zillion(arguments).output().expect("the binary runs");
        assert!(!result.status.success());
        stderr(&result)
    };
    let both = [&by_run[..], &["--device", "emulated:4", "--dense", "int8"]].concat();
    assert!(refused(&both).contains("remove --dense or --device"));
    let wrong = refused(&[&eval[..], &["--device", "rocm:0"]].concat());
    assert!(wrong.contains("rocm:0") && wrong.contains("cuda:0"), "{wrong}");
    // Memory of a GPU without a GPU, and a budget that no version fits into.
    let serve = ["serve", "--registry", &registry, "--model", MODEL, "--http", "127.0.0.1:0"];
    let alone = refused(&[&serve[..], &["--gpu-memory", "1GiB"]].concat());
    assert!(alone.contains("serve.gpu_memory") && alone.contains("serve.device"), "{alone}");
}
