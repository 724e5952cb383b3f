//! Tests of a server whose scores a GPU computes. The emulated GPU takes its place, which only the
//! binary of the tests has. Every answer is compared with the scores of its version on processors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use zillion_serving::proto::inference::ServerReadyRequest;

use crate::grpc;
use crate::harness::{Workplace, csv, stderr, stdout, zillion};
use crate::server::{MODEL, PATIENCE, REGISTRY, Server, infer_body, instances, operate, output};
use crate::serving::{bits, published, publishing};

const ROWS: usize = 40;

/// Returns the value of a series without labels.
fn series(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").body;
    let prefix = format!("{name} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {text}"))
}

/// A published model: the rows of a request, and the wanted scores of each version by its number.
struct Published {
    rows: Vec<Value>,
    wanted: Vec<(u64, Vec<u32>)>,
}

impl Published {
    fn new(place: &Workplace, more: &[&str]) -> Self {
        place.write("rows.csv", &csv(7, ROWS));
        publishing(place, "run", 1000, more);
        let listed: Value =
            serde_json::from_str(&operate(place, &["model", "list", "--json"])).expect("JSON");
        let newest = listed["versions"][0]["version"].as_u64().expect("a number");
        let versions = (newest.saturating_sub(2)..=newest).filter(|&version| version > 0);
        let wanted =
            versions.map(|at| (at, bits(&published(place, at, "rows.csv", ROWS)))).collect();
        Self { rows: instances(&csv(7, ROWS)), wanted }
    }

    fn check(&self, version: &str, scores: Vec<u32>) {
        let version: u64 = version.parse().expect("a number");
        let wanted = self.wanted.iter().find(|(known, _)| *known == version);
        assert_eq!(wanted.expect("a known version").1, scores, "version {version}");
    }

    /// Sends requests over HTTP until the end. Returns the numbers of answers and of refusals.
    fn ask_http(&self, server: &Server, is_over: &AtomicBool) -> (usize, usize) {
        let (infer, body) =
            (format!("/v2/models/{MODEL}/infer"), infer_body(&self.rows, &["logits"]));
        let (mut answers, mut refusals) = (0, 0);
        while !is_over.load(Ordering::Relaxed) {
            let reply = server.post(&infer, body.as_bytes());
            if reply.status == 200 {
                let answer = reply.json();
                let version = answer["model_version"].as_str().expect("a version").to_owned();
                self.check(&version, bits(&output(&reply, "logits")));
                answers += 1;
                continue;
            }
            assert_eq!(reply.status, 429, "{reply:?}");
            assert!(reply.head.to_lowercase().contains("retry-after:"), "{reply:?}");
            refusals += 1;
        }
        (answers, refusals)
    }

    /// Sends requests over gRPC until the end. Returns the numbers of answers and of refusals.
    fn ask_grpc(&self, address: &str, is_over: &AtomicBool) -> (usize, usize) {
        grpc::run(async {
            let mut client = grpc::connect(address).await;
            let (mut answers, mut refusals) = (0, 0);
            while !is_over.load(Ordering::Relaxed) {
                match client.model_infer(grpc::request(&self.rows, &["logits"])).await {
                    Ok(answer) => {
                        let answer = answer.into_inner();
                        self.check(&answer.model_version, grpc::bits(&answer, "logits"));
                        answers += 1;
                    }
                    Err(status) => {
                        assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
                        let pause = status.metadata().get("grpc-retry-pushback-ms");
                        assert!(pause.is_some(), "{status:?}");
                        refusals += 1;
                    }
                }
            }
            (answers, refusals)
        })
    }
}

#[test]
fn a_crowded_server_on_a_device_answers_with_the_bits_of_processors() {
    let place = Workplace::new();
    let model = Published::new(&place, &["--set", "publish.hot_keys=100"]);
    operate(&place, &["model", "verify"]);
    assert!(operate(&place, &["model", "show", "--json"]).contains("\"hot\":"));
    // Two requests may wait, and there are ten clients.
    let options = ["--device", "emulated:3", "--gpu-memory", "64MiB", "--max-waiting", "2"];
    let mut server = Server::start(&place, &[&options[..], &["--grpc", "127.0.0.1:0"]].concat());
    assert!(server.becomes_ready());
    let address = server.grpc.clone().expect("it was asked for");
    // The pointer moves back and forth while the clients ask.
    let is_over = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let (model, server, is_over, address) = (&model, &server, &is_over, &address);
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(scope.spawn(move || model.ask_http(server, is_over)));
        }
        for _ in 0..2 {
            clients.push(scope.spawn(move || model.ask_grpc(address, is_over)));
        }
        for (version, _) in model.wanted.iter().rev().chain(&model.wanted) {
            operate(&place, &["model", "promote", &version.to_string()]);
            std::thread::sleep(Duration::from_millis(250));
        }
        is_over.store(true, Ordering::Relaxed);
        let asked: Vec<_> = clients.into_iter().map(|one| one.join().expect("a client")).collect();
        asked
    });
    let (http, grpc) = asked.split_at(8);
    let sum =
        |of: &[(usize, usize)]| of.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let ((answers, refusals), (more_answers, more_refusals)) = (sum(http), sum(grpc));
    assert!(answers > 0 && more_answers > 0, "{asked:?}");
    assert!(refusals + more_refusals > 0, "ten clients crowd two places: {asked:?}");
    let read = |name: &str| series(&server, &format!("zillion_serving_device_{name}"));
    assert!(read("requests_total") >= (answers + more_answers) as f64);
    assert!(read("batches_total") > 0.0 && read("resident_rows") > 0.0);
    assert!(read("uploaded_rows_total") >= read("resident_rows") && read("failed") == 0.0);
    assert!(read("hits_total") > 0.0 && read("hits_total") <= read("keys_total"));
    assert!(read("used_bytes") > 0.0 && read("used_bytes") <= read("budget_bytes"));
    assert!(server.terminate().success());
}

#[test]
fn a_server_whose_device_fails_is_not_ready() {
    let place = Workplace::new();
    let model = Published::new(&place, &["--set", "train.epochs=1"]);
    let options = ["--device", "emulated:5:fail=9000", "--grpc", "127.0.0.1:0"];
    let mut server = Server::start(&place, &options);
    assert!(server.becomes_ready());
    let (infer, body) = (format!("/v2/models/{MODEL}/infer"), infer_body(&model.rows, &["logits"]));
    let began = Instant::now();
    while server.post(&infer, body.as_bytes()).status == 200 {
        assert!(began.elapsed() < PATIENCE, "the device does not fail");
    }
    let ready = server.get("/v2/health/ready");
    assert!(ready.status == 503 && ready.error().contains("the GPU has failed"), "{ready:?}");
    assert_eq!(series(&server, "zillion_serving_device_failed"), 1.0);
    let address = server.grpc.clone().expect("it was asked for");
    let is_ready = grpc::run(async {
        let mut client = grpc::connect(&address).await;
        client.server_ready(ServerReadyRequest {}).await.expect("an answer").get_ref().ready
    });
    assert!(!is_ready && server.terminate().success());
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
