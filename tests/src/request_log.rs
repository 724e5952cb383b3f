//! Tests of the log of requests: what was served is what is trained on. A server logs requests of
//! all protocols, and a run over streams follows the folder of the log and joins the rows with
//! feedback.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tonic::transport::Channel;
use zillion_serving::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use zillion_serving::proto::inference::model_infer_request::InferInputTensor;
use zillion_serving::proto::inference::{InferTensorContents, ModelInferRequest};
use zillion_serving::proto::tensorflow::serving::model_spec::VersionChoice;
use zillion_serving::proto::tensorflow::serving::prediction_service_client::PredictionServiceClient;
use zillion_serving::proto::tensorflow::serving::{ModelSpec, PredictRequest};
use zillion_serving::proto::tensorflow::tensor_shape_proto::Dim;
use zillion_serving::proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

use crate::harness::stderr;
use crate::online::place::{PATIENCE, Place, ROWS, files_below, mix, now_ms, rows};
use crate::server::Server;

/// The name of the model in the jobs of streams.
const MODEL: &str = "live";

/// Trains a model from a stream of rows until it has two versions at least. Returns the first and
/// the last one.
fn publish(place: &Place) -> (u64, u64) {
    for file in 0..3 {
        place.put("events/a", &file.to_string(), &rows(file * 400..(file + 1) * 400, now_ms()));
    }
    let mut run = place.start(&[]);
    run.wait_for_messages(1200);
    run.wait_until("a version is published", |status| status["version"].is_u64());
    let first = place.status().and_then(|status| status["version"].as_u64()).expect("a version");
    place.put("events/a", "9", &rows(1200..2000, now_ms()));
    run.wait_until("a later version", |status| status["version"].as_u64() > Some(first));
    run.stop();
    let shown = place.ok(&["model", "show", "--registry", "registry", "--model", MODEL, "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    (1, shown["version"].as_u64().expect("a number"))
}

/// Starts a server of the model with a log of its requests.
fn serve(place: &Place, more: &[&str]) -> Server {
    let mut arguments = vec!["serve", "--registry", "registry", "--model", MODEL];
    arguments.extend(["--http", "127.0.0.1:0", "--threads", "2", "--poll-ms", "20"]);
    arguments.extend(["--name", "replica", "--request-log", "log"]);
    arguments.extend(more);
    // Two servers of a test write to one file.
    let log = OpenOptions::new().create(true).append(true).open(place.path("server.log"));
    let log = log.expect("a log file");
    let mut command = place.command(&arguments);
    command.stdout(Stdio::piped()).stderr(log);
    let mut server = Server::adopt(command.spawn(), false).expect("the server listens");
    assert!(server.becomes_ready());
    server
}

/// Returns the lines of the complete files of the log in their order.
fn logged(place: &Place) -> Vec<Value> {
    let files = files_below(&place.path("log/live/replica"));
    let complete = files.iter().filter(|(name, _)| !name.starts_with('.'));
    let text = |path: &Path| std::fs::read_to_string(path).expect("lines");
    let text: String = complete.map(|(_, path)| text(path)).collect();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn text<'a>(line: &'a Value, column: &str) -> &'a str {
    line[column].as_str().unwrap_or_else(|| panic!("no {column}: {line}"))
}

fn number(line: &Value, column: &str) -> u64 {
    line[column].as_u64().unwrap_or_else(|| panic!("no {column}: {line}"))
}

/// A request as its client remembers it.
#[derive(Debug)]
struct Asked {
    id: String,
    rows: Vec<(u64, u64)>,
    /// The version in the answer, for protocols whose answers have it.
    version: Option<u64>,
}

/// Returns the users and items of request number `number`.
fn draw(number: u64) -> Vec<(u64, u64)> {
    let rows = 1 + mix(number) % 6;
    let user = mix(number ^ 3) % 400;
    // The items of a request differ, because they are a part of the key of the join.
    (0..rows).map(|row| (user, 10 * (mix(number ^ row) % 50) + row)).collect()
}

/// Sends a request over HTTP with headers.
fn post(server: &Server, path: &str, headers: &str, body: &Value) -> crate::server::Reply {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    let reply = server.send(&head, body.as_bytes()).expect("the server answers");
    assert_eq!(reply.status, 200, "{reply:?}");
    reply
}

/// Returns the id in the head of an answer.
fn id_of(reply: &crate::server::Reply) -> String {
    let head = reply.head.to_ascii_lowercase();
    let line = head.lines().find_map(|line| line.strip_prefix("x-request-id: "));
    line.unwrap_or_else(|| panic!("no id: {reply:?}")).to_owned()
}

fn column(rows: &[(u64, u64)], of: impl Fn(&(u64, u64)) -> u64) -> Vec<i64> {
    rows.iter().map(|row| of(row) as i64).collect()
}

/// Sends requests over HTTP in three forms, until told to stop.
fn ask_over_http(server: &Server, is_over: &AtomicBool) -> Vec<Asked> {
    let mut asked = Vec::new();
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let rows = draw(number);
        let (users, items) = (column(&rows, |row| row.0), column(&rows, |row| row.1));
        let named = format!("http-{number}");
        let header = format!("X-Request-Id: {named}\r\n");
        let reply = match number % 4 {
            0 => {
                let input = |name, data: &[i64]| json!({ "name": name, "shape": [rows.len()], "datatype": "INT64", "data": data });
                let inputs = [input("user", &users), input("item", &items)];
                let body = json!({ "id": named, "inputs": inputs });
                post(server, "/v2/models/live/infer", "X-Request-Id: other\r\n", &body)
            }
            1 => {
                let candidates: Vec<Value> =
                    items.iter().map(|item| json!({ "item": item })).collect();
                let context = json!({ "user": users[0] });
                let body = json!({ "context": context, "candidates": candidates, "top_k": 1 });
                post(server, "/v1/models/live:rank", &header, &body)
            }
            2 => {
                let body = json!({ "inputs": { "user": users, "item": items } });
                post(server, "/v1/models/live:predict", &header, &body)
            }
            // The server makes the id of a request without one.
            _ => {
                let body = json!({ "inputs": { "user": users, "item": items } });
                post(server, "/v1/models/live:predict", "", &body)
            }
        };
        let id = id_of(&reply);
        assert!(id == named || number % 4 == 3, "{id} is not {named}");
        let version = reply.json()["model_version"].as_str().map(|v| v.parse().expect("a number"));
        assert!(version.is_some() || number % 4 != 0, "{reply:?}");
        asked.push(Asked { id, rows, version });
    }
    asked
}

/// Sends requests over both protocols of gRPC, until told to stop.
async fn ask_over_grpc(address: &str, is_over: &AtomicBool) -> Vec<Asked> {
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    let channel = channel.connect().await.expect("a connection");
    let mut triton = GrpcInferenceServiceClient::new(channel.clone());
    let mut tensorflow = PredictionServiceClient::new(channel);
    let mut asked = Vec::new();
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let rows = draw(number ^ 0xffff);
        let id = format!("grpc-{number}");
        let columns = [("user", column(&rows, |row| row.0)), ("item", column(&rows, |row| row.1))];
        let size = rows.len() as i64;
        let (head, version) = if number % 2 == 0 {
            let input = |(name, values): (&str, Vec<i64>)| InferInputTensor {
                name: name.to_owned(),
                datatype: "INT64".to_owned(),
                shape: vec![size],
                contents: Some(InferTensorContents {
                    int64_contents: values,
                    ..InferTensorContents::default()
                }),
                ..InferInputTensor::default()
            };
            let request = ModelInferRequest {
                model_name: MODEL.to_owned(),
                id: id.clone(),
                inputs: columns.map(input).into(),
                ..ModelInferRequest::default()
            };
            let answer = triton.model_infer(request).await.expect("scores");
            let version = answer.get_ref().model_version.parse().expect("a number");
            (answer.metadata().clone(), version)
        } else {
            let input = |(name, values): (&str, Vec<i64>)| {
                let dim = Dim { size, name: String::new() };
                let tensor = TensorProto {
                    dtype: DataType::DtInt64.into(),
                    tensor_shape: Some(TensorShapeProto { dim: vec![dim], unknown_rank: false }),
                    int64_val: values,
                    ..TensorProto::default()
                };
                (name.to_owned(), tensor)
            };
            let spec = ModelSpec { name: MODEL.to_owned(), ..ModelSpec::default() };
            let inputs = columns.map(input).into();
            let predict =
                PredictRequest { model_spec: Some(spec), inputs, ..PredictRequest::default() };
            let mut request = tonic::Request::new(predict);
            request.metadata_mut().insert("x-request-id", id.parse().expect("a value"));
            let answer = tensorflow.predict(request).await.expect("scores");
            let spec = answer.get_ref().model_spec.clone().expect("a model");
            let Some(VersionChoice::Version(version)) = spec.version_choice else {
                panic!("{spec:?}")
            };
            (answer.metadata().clone(), version.value as u64)
        };
        let known = head.get("x-request-id").and_then(|id| id.to_str().ok());
        assert_eq!(known, Some(id.as_str()));
        asked.push(Asked { id, rows, version: Some(version) });
    }
    asked
}

/// Sends requests of all protocols while the pointer moves to another version and back.
fn ask(place: &Place, server: &Server, versions: (u64, u64)) -> Vec<Asked> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let http = scope.spawn(|| ask_over_http(server, &is_over));
        let grpc = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(ask_over_grpc(&server.address, &is_over))
        });
        for version in [versions.0, versions.1] {
            let scored = |version: u64| {
                let series = format!("nv_inference_count{{model=\"live\",version=\"{version}\"}} ");
                let metrics = server.get("/metrics").body;
                let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
                line.and_then(|count| count.parse().ok()).unwrap_or(0u64)
            };
            let version_text = version.to_string();
            place.ok(&[
                "model",
                "promote",
                &version_text,
                "--registry",
                "registry",
                "--model",
                MODEL,
            ]);
            let before = scored(version);
            let began = Instant::now();
            while scored(version) < before + 60 {
                assert!(began.elapsed() < PATIENCE, "version {version} does not answer");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let mut asked = http.join().expect("the client ends");
        asked.extend(grpc.join().expect("the client ends"));
        asked
    })
}

/// Compares the lines of the log with what the clients remember.
fn compare(asked: &[Asked], lines: &[Value]) {
    let mut by_id: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    lines.iter().for_each(|line| by_id.entry(text(line, "request")).or_default().push(line));
    assert_eq!(by_id.len(), asked.len());
    for request in asked {
        let lines = by_id.get(request.id.as_str()).unwrap_or_else(|| panic!("no {request:?}"));
        let rows: Vec<(u64, u64)> =
            lines.iter().map(|line| (number(line, "user"), number(line, "item"))).collect();
        assert_eq!(rows, request.rows, "{request:?}");
        for (row, line) in lines.iter().enumerate() {
            assert_eq!(
                (number(line, "served_row"), text(line, "served_model")),
                (row as u64, MODEL)
            );
            let version = number(line, "served_version");
            assert_eq!(version, number(lines[0], "served_version"), "one version answers");
            assert!(request.version.is_none_or(|answered| answered == version), "{request:?}");
        }
    }
}

/// Compares the scores in the log with those of `zillion predict` for the logged rows.
fn compare_scores(place: &Place, lines: &[Value]) {
    let versions: BTreeSet<u64> = lines.iter().map(|line| number(line, "served_version")).collect();
    assert!(versions.len() >= 2, "{versions:?}");
    for version in versions {
        let of_version = lines.iter().filter(|line| number(line, "served_version") == version);
        let of_version: Vec<&Value> = of_version.collect();
        let rows = of_version.iter().fold(String::new(), |mut all, line| {
            writeln!(all, "{line}").expect("a string grows");
            all
        });
        std::fs::write(place.path("served.jsonl"), rows).expect("a file");
        let version = version.to_string();
        let scored = place.ok(&[
            "predict",
            "served.jsonl",
            "--registry",
            "registry",
            "--model",
            MODEL,
            "--version",
            &version,
            "--json",
        ]);
        assert_eq!(scored.lines().count(), of_version.len());
        for (scored, line) in scored.lines().zip(of_version) {
            let scored: Value = serde_json::from_str(scored).expect("JSON");
            let bits = |value: &Value| {
                (value.as_f64().unwrap_or_else(|| panic!("{value}")) as f32).to_bits()
            };
            assert_eq!(bits(&line["served_logit"]), bits(&scored["logit"]), "{line} {scored}");
            let probability = bits(&line["served_probability"]);
            assert_eq!(probability, bits(&scored["probability"]), "{line} {scored}");
        }
    }
}

/// Returns the number of rows with an id that the published version has learned from, or `None` if
/// it has not learned from any.
fn count_trained(place: &Place, table: &str, id: u64) -> Option<u64> {
    let id = id.to_string();
    let registry = ["--registry", "registry", "--model", MODEL, "--json"];
    let key = ["explain", "--table", table, "--key", &id];
    let row: Value =
        serde_json::from_str(&place.ok(&[&key[..], &registry].concat())).expect("JSON");
    (row["is_default"] == false).then(|| number(&row, "count"))
}

#[test]
fn the_rows_that_were_served_are_trained_on() {
    let place = Place::new(ROWS);
    let versions = publish(&place);
    let server = &mut serve(&place, &["--request-log-close-ms", "50"]);
    let folder = place.path("log/live");
    let streams = format!(
        "[join]\nkey = [\"request\", \"item\"]\nwait_seconds = 60.0\n\
         [[stream]]\nname = \"impressions\"\npath = {:?}\nrole = \"impressions\"\n\
         [[stream]]\nname = \"clicks\"\npath = \"clicks\"\nrole = \"feedback\"\nlabel = \"click\"\n",
        folder.to_str().expect("plain names")
    );
    let following = Place::new(&streams);
    // A batch has one row, because a row of a table counts the batches that had its id.
    let job = std::fs::read_to_string(following.path("job.toml")).expect("a job");
    let job = job.replace("batch_size = 256", "batch_size = 1");
    std::fs::write(following.path("job.toml"), job).expect("a job");
    let mut run = following.start(&[]);
    let asked = ask(&place, server, versions);
    assert!(server.terminate().success());
    let lines = logged(&place);
    compare(&asked, &lines);
    compare_scores(&place, &lines);

    // Every third row is clicked. Later events end the wait of all rows.
    let clicked = lines.iter().enumerate().filter(|(at, _)| at % 3 == 0).map(|(_, line)| {
        let time = number(line, "time") + 1;
        json!({ "request": line["request"], "item": line["item"], "time": time }).to_string()
    });
    let clicked: Vec<String> = clicked.collect();
    following.put("clicks/a", "0", &clicked);
    let messages = (lines.len() + clicked.len()) as u64;
    run.wait_for_messages(messages);
    let late = now_ms() + 200_000;
    let last = format!("{{\"request\":\"last\",\"user\":1,\"item\":1,\"time\":{late}}}");
    following.put("clicks/a", "1", &[format!("{{\"request\":\"x\",\"item\":1,\"time\":{late}}}")]);
    place.put("log/live/other", "0", &[last]);
    run.wait_until("the rows are trained on", |status| {
        status["feed"]["rows"].as_u64() == Some(lines.len() as u64)
    });
    let counters = following.status().expect("a status")["feed"]["join"]["counters"].clone();
    assert_eq!(number(&counters, "positives"), clicked.len() as u64, "{counters}");
    assert_eq!(number(&counters, "joined_feedback"), clicked.len() as u64, "{counters}");
    let mut served = [BTreeMap::new(), BTreeMap::new()];
    for line in &lines {
        for (counts, column) in served.iter_mut().zip(["user", "item"]) {
            *counts.entry(number(line, column)).or_insert(0u64) += 1;
        }
    }
    let last = number(lines.last().expect("a line"), "user");
    let began = Instant::now();
    while count_trained(&following, "user", last) != served[0].get(&last).copied() {
        assert!(began.elapsed() < PATIENCE, "the rows are not published");
        std::thread::sleep(Duration::from_millis(100));
    }
    let report = run.stop();
    assert_eq!(report["rejected"], 0, "{report}");
    // Exactly the ids of the served rows have rows, each with the number of its served rows.
    for (table, counts, ids) in [("user", &served[0], 0..400), ("item", &served[1], 0..500)] {
        for id in ids.step_by(4) {
            assert_eq!(
                count_trained(&following, table, id),
                counts.get(&id).copied(),
                "{table} {id}"
            );
        }
    }
}

#[test]
fn settings_of_the_request_log_are_refused_by_name() {
    let place = Place::new(ROWS);
    std::fs::create_dir(place.path("registry")).expect("a folder");
    let usual = ["serve", "--registry", "registry", "--model", MODEL, "--http", "127.0.0.1:0"];
    for (more, said) in [
        (&["--request-log-share", "0.5"][..], "`folder` is missing"),
        (&["--request-log", "log", "--request-log-share", "0"], "`share` is 0"),
        (&["--request-log", "log", "--request-log-disk-bytes", "9"], "`max_disk_bytes` is 9"),
        (&["--request-log", "log", "--name", "a/b"], "`serve.name`"),
    ] {
        let error = place.fails(&[&usual[..], more].concat());
        assert!(error.contains("`serve.request_log`") && error.contains(said), "{error}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_fails_no_request() {
    let place = Place::new(ROWS);
    publish(&place);
    // A file has the name of the folder.
    std::fs::write(place.path("log"), "x").expect("a file");
    let mut server = serve(&place, &["--request-log-close-ms", "50"]);
    let body = json!({ "inputs": { "user": [1, 2], "item": [3, 4] } });
    let failed = "zillion_serving_request_log_rows_total{model=\"live\",outcome=\"failed\"} ";
    let count = |server: &Server, series: &str| {
        let metrics = server.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(series));
        line.and_then(|count| count.parse::<u64>().ok()).unwrap_or_else(|| panic!("{metrics}"))
    };
    for _ in 0..20 {
        post(&server, "/v1/models/live:predict", "", &body);
    }
    let began = Instant::now();
    while count(&server, failed) < 40 {
        assert!(began.elapsed() < PATIENCE, "the rows are not given up");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The folder is repaired, and the log goes on.
    std::fs::remove_file(place.path("log")).expect("a file");
    let written = "zillion_serving_request_log_rows_total{model=\"live\",outcome=\"written\"} ";
    while count(&server, written) == 0 {
        assert!(began.elapsed() < PATIENCE, "the folder is not tried again");
        post(&server, "/v1/models/live:predict", "", &body);
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = std::fs::read_to_string(place.path("server.log")).expect("text");
    assert_eq!(log.matches("loses rows").count(), 1, "{log}");
    assert_eq!(log.matches("is written again").count(), 1, "{log}");
    assert!(server.terminate().success());
    assert!(!logged(&place).is_empty());
}

#[test]
fn a_killed_server_leaves_whole_lines_to_the_next_one() {
    let place = Place::new(ROWS);
    publish(&place);
    let mut server = serve(&place, &["--request-log-close-ms", "3600000"]);
    let body = json!({ "inputs": { "user": [1, 2], "item": [3, 4] } });
    let ids: Vec<String> =
        (0..10).map(|_| id_of(&post(&server, "/v1/models/live:predict", "", &body))).collect();
    let began = Instant::now();
    let written = "rows_total{model=\"live\",outcome=\"written\"} 20\n";
    while !server.get("/metrics").body.contains(written) {
        assert!(began.elapsed() < PATIENCE, "the rows are not written");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(logged(&place).is_empty());
    server.kill();
    let mut second = serve(&place, &[]);
    while logged(&place).len() < 20 {
        assert!(began.elapsed() < PATIENCE, "the rows do not appear");
        std::thread::sleep(Duration::from_millis(5));
    }
    let lines = logged(&place);
    let found: BTreeSet<&str> = lines.iter().map(|line| text(line, "request")).collect();
    assert_eq!(found, ids.iter().map(String::as_str).collect(), "{lines:?}");
    // A second server of the same name and folder does not write there.
    let log = place.path("server.log");
    let mut third = serve(&place, &[]);
    while !std::fs::read_to_string(&log).expect("text").contains("another server writes") {
        assert!(began.elapsed() < PATIENCE, "the lock is not reported");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(second.terminate().success() && third.terminate().success());
}

#[test]
fn a_model_of_settings_has_columns_left_out() {
    let place = Place::new(ROWS);
    publish(&place);
    let settings = "[serve.request_log]\nid_column = \"query\"\nid_header = \"x-query\"\n\
                    [serve.request_log.models.live]\nomit = [\"user\"]\n";
    std::fs::write(place.path("serve.toml"), settings).expect("a file");
    let mut server = serve(&place, &["--config", "serve.toml"]);
    let body = json!({ "inputs": { "user": [1, 2], "item": [3, 4] } });
    post(&server, "/v1/models/live:predict", "X-Query: q7\r\n", &body);
    assert!(server.terminate().success());
    let lines = logged(&place);
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert!(line.get("user").is_none() && text(line, "query") == "q7", "{line}");
    }
    // A misspelt name must not log what must not be logged.
    std::fs::write(place.path("serve.toml"), settings.replace("\"user\"", "\"usr\""))
        .expect("a file");
    let mut server = serve(&place, &["--config", "serve.toml"]);
    post(&server, "/v1/models/live:predict", "X-Query: q8\r\n", &body);
    assert!(server.get("/metrics").body.contains("outcome=\"unfit\"} 1\n"));
    assert!(server.terminate().success());
    assert_eq!(logged(&place).len(), 2);
    let log = std::fs::read_to_string(place.path("server.log")).expect("text");
    assert!(log.contains("`omit` names the column `usr`"), "{log}");
    let unknown = "[serve.request_log.models.live]\nomits = []\n";
    std::fs::write(place.path("serve.toml"), unknown).expect("a file");
    let output = place
        .command(&["serve", "--registry", "registry", "--model", MODEL, "--config", "serve.toml"])
        .output();
    let error = stderr(&output.expect("the binary runs"));
    assert!(error.contains("did you mean `omit`"), "{error}");
}
