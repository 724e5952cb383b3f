//! Tests of invalid requests to a server. The response must have the status code of the protocol
//! and a message that names the place of the problem. The server must answer the next request as
//! usual.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Workplace, csv};
use crate::server::{MODEL, PATIENCE, REGISTRY, Server, infer_body, instances};

/// Trains a model for a few steps, publishes it and starts its server.
fn served(more: &[&str]) -> (Workplace, Server) {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    place.train_ok("run", &["--set", &registry, "--set", "train.epochs=1"]);
    let mut server = Server::start(&place, more);
    assert!(server.becomes_ready());
    (place, server)
}

fn good_body() -> String {
    infer_body(&instances(&csv(3, 4)), &[])
}

#[test]
fn requests_that_cannot_be_answered_are_refused_by_name() {
    let (_place, mut server) = served(&["--max-rows", "100", "--max-values", "5000"]);
    let infer = format!("/v2/models/{MODEL}/infer");
    let predict = format!("/v1/models/{MODEL}:predict");
    let rank = format!("/v1/models/{MODEL}:rank");
    let row = || instances(&csv(3, 1)).remove(0);
    let with = |name: &str, value: serde_json::Value| {
        let mut row = row();
        row[name] = value;
        json!({ "instances": [row] }).to_string()
    };
    let without = |name: &str| {
        let mut row = row();
        row.as_object_mut().expect("an object").remove(name);
        json!({ "instances": [row] }).to_string()
    };
    let good = good_body();
    let many = json!({ "instances": vec![row(); 101] }).to_string();
    let deep = format!(r#"{{"instances": {}"#, "[".repeat(200_000));
    let deep_value = format!(r#"{{"instances": [{{"user": {}1"#, "[".repeat(200_000));
    let repeated = r#"{"instances": [{"user": "u1", "user": "u2"}]}"#.to_owned();
    let tagged = with("tags", json!(vec!["t"; 5001]));
    let cases: Vec<(&str, String, u16, &str)> = vec![
        (&infer, "{".into(), 400, "not a v2 inference request"),
        (&infer, "null".into(), 400, "not a v2 inference request"),
        (&infer, String::new(), 400, "not a v2 inference request"),
        (&infer, "{}".into(), 400, "no `inputs`"),
        (
            &infer,
            good.replace("\"user\"", "\"usr\""),
            400,
            "input `usr`: the model has no input of this name; did you mean `user`?",
        ),
        (&infer, good.replace("INT64", "FP32").replace("INT32", "FP32"), 400, "input `"),
        (&infer, good.replace("BYTES", "INT64"), 400, "of the data is not of datatype INT64"),
        (&infer, good.replace("\"shape\":[4]", "\"shape\":[5]"), 400, "does not fit the 4 values"),
        (
            &infer,
            good.replace("\"shape\":[4]", "\"shape\":[-4]"),
            400,
            "not a v2 inference request",
        ),
        (&infer, good.replace("\"shape\":[4]", "\"shape\":[2,1,2]"), 400, "must be [rows]"),
        (&infer, good.replace("tags__lengths", "rags__lengths"), 400, "the request has no `rags`"),
        (&infer, bad_lengths(), 400, "input `tags`"),
        (
            &infer,
            good.replace("\"outputs\":[]", "\"outputs\":[{\"name\":\"x\"}]"),
            400,
            "output `x`",
        ),
        (&predict, "{\"instances\": [".into(), 400, "not a predict request"),
        (&predict, "{\"instances\": []}".into(), 400, "no rows"),
        (&predict, "{\"instances\": [{}]}".into(), 400, "not in the request"),
        (&predict, "{\"instance\": [{}]}".into(), 400, "instance"),
        (&predict, with("item", json!("seven")), 400, "input `item`"),
        (&predict, with("item", json!(1.5)), 400, "input `item`"),
        (&predict, with("price", json!("cheap")), 400, "input `price`"),
        (&predict, with("price", json!(1e300)), 400, "input `price`"),
        (&predict, with("price", json!(null)), 400, "input `price`"),
        (&predict, with("item", json!([1, 2])), 400, "input `item`"),
        (&predict, with("prise", json!(1)), 400, "did you mean `price`?"),
        (&predict, without("item"), 400, "input `item`"),
        (
            &predict,
            with("price", json!(1)).replace("\"price\":1", "\"price\":NaN"),
            400,
            "not a predict request",
        ),
        (&predict, deep, 400, "not a predict request"),
        (&predict, repeated, 400, "the key appears twice"),
        (&predict, with("tags", json!("a|b")), 400, "send a list of texts"),
        (&predict, with("tags", json!([["a"]])), 400, "input `tags`, row 0 of `instances`"),
        (&predict, deep_value, 400, "a list inside a list"),
        (&predict, many, 413, "serve.max_rows"),
        (&predict, tagged, 413, "serve.max_values"),
        (&rank, "{\"candidates\": []}".into(), 400, "no rows"),
        (&rank, "{\"context\": {\"user\": \"u1\"}}".into(), 400, "candidates"),
        ("/v2/models/other/infer", good.clone(), 404, "`e2e`"),
        ("/v2/models/../../etc/passwd/infer", good.clone(), 404, "unknown path"),
        ("/v2/models/..%2f..%2fetc%2fpasswd/infer", good.clone(), 404, "unknown model"),
        ("/v2/models/e2e/versions/99/infer", good.clone(), 404, "version 99"),
        ("/v2/models/e2e/versions/x/infer", good.clone(), 404, "unknown path"),
        ("/v1/models/e2e/labels/nightly:predict", with("user", json!("u1")), 404, "`nightly`"),
        ("/", good.clone(), 404, "/openapi.json"),
        ("/metrics", good.clone(), 405, "GET"),
    ];
    for (path, body, status, message) in cases {
        let reply = server.post(path, body.as_bytes());
        let shown: String = body.chars().take(300).collect();
        assert_eq!(reply.status, status, "{path} {shown}\n{reply:?}");
        assert!(reply.error().contains(message), "{path} {shown}\n{reply:?}");
    }
    assert_eq!(server.get(&infer).status, 405);
    // These inputs are unusual but valid: negative ids, ids outside the vocabulary, missing values,
    // no tags.
    for body in [
        with("item", json!(-5)),
        with("item", json!(i64::MIN)),
        with("user", json!("nobody")),
        with("user", json!(null)),
        with("tags", json!([])),
        with("age", json!(null)),
        with("age", json!("")),
        with("price", json!(true)),
        with("user", json!(true)),
    ] {
        assert_eq!(server.post(&predict, body.as_bytes()).status, 200, "{body}");
    }
    let metrics = server.get("/metrics").body;
    let missing = "zillion_serving_missing_keys_total{model=\"e2e\"} ";
    let counted = metrics.lines().find_map(|line| line.strip_prefix(missing)).expect("the series");
    assert!(counted.parse::<u64>().expect("a count") >= 3, "{metrics}");
    assert_eq!(server.post(&infer, good_body().as_bytes()).status, 200);
    assert!(server.is_running());
}

/// Returns a request body with wrong list lengths: their sum is larger than the number of values.
fn bad_lengths() -> String {
    let mut body: serde_json::Value = serde_json::from_str(&good_body()).expect("JSON");
    for input in body["inputs"].as_array_mut().expect("a list") {
        if input["name"] == "tags__lengths" {
            input["data"] = json!([100, 0, 0, 0]);
        }
    }
    body.to_string()
}

#[test]
fn large_slow_and_vanishing_clients_are_dropped() {
    let (_place, mut server) = served(&["--receive-ms", "700", "--max-body-bytes", "1000000"]);
    let path = format!("/v1/models/{MODEL}:predict");

    // The client sends a hundred megabytes, with and without an announced length.
    let huge = vec![b' '; 100 << 20];
    let reply = server.post(&path, &huge);
    assert_eq!(reply.status, 413, "{}", reply.head);
    assert!(reply.error().contains("serve.max_body_bytes"));
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut chunk = format!("{:x}\r\n", 2_000_000).into_bytes();
    chunk.extend(vec![b' '; 2_000_000]);
    chunk.extend(b"\r\n0\r\n\r\n");
    assert_eq!(server.send(&head, &chunk).expect("an answer").status, 413);

    // The server closes the connection of a client that sends its head very slowly. A client that
    // sends its body very slowly gets an answer.
    let began = Instant::now();
    let mut trickle = TcpStream::connect(&server.address).expect("a connection");
    trickle.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    trickle.write_all(b"POST /v1/mo").expect("it takes some");
    let mut rest = Vec::new();
    let _ = trickle.read_to_end(&mut rest);
    assert!(began.elapsed() < Duration::from_secs(10), "{rest:?}");
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
    let reply = server.send(&head, b"{\"inst").expect("an answer");
    assert_eq!(reply.status, 408, "{reply:?}");
    assert!(reply.error().contains("within"), "{reply:?}");

    // Clients that disconnect in the middle of a request leave no resources in use.
    for _ in 0..50 {
        let mut gone = TcpStream::connect(&server.address).expect("a connection");
        gone.write_all(head.as_bytes()).expect("it takes some");
        gone.shutdown(Shutdown::Both).expect("it can be closed");
    }
    let began = Instant::now();
    while !server.get("/metrics").body.contains("zillion_serving_open_connections 1\n") {
        assert!(began.elapsed() < PATIENCE, "connections stay");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The bytes are not HTTP.
    let _ = server.send("\u{0}\u{1}\u{2} nonsense\r\n\r\n", b"");
    let infer = format!("/v2/models/{MODEL}/infer");
    assert_eq!(server.post(&infer, good_body().as_bytes()).status, 200);
    assert!(server.is_running());
}

#[test]
fn an_overloaded_server_answers_with_delay_or_reason() {
    let (place, server) = served(&["--max-bytes-in-flight", "1"]);
    let infer = format!("/v2/models/{MODEL}/infer");
    let reply = server.post(&infer, good_body().as_bytes());
    assert_eq!(reply.status, 429, "{reply:?}");
    assert!(reply.head.to_ascii_lowercase().contains("retry-after: 1"), "{}", reply.head);
    drop(server);
    let mut server = Server::start(&place, &["--request-ms", "1"]);
    assert!(server.becomes_ready());
    // The work for this request takes longer than a millisecond.
    let reply = server.post(&infer, infer_body(&instances(&csv(3, 10_000)), &[]).as_bytes());
    assert_eq!(reply.status, 504, "{reply:?}");
    drop(server);

    let empty = Workplace::new();
    assert!(Server::try_start(&empty, &[], &[]).is_none(), "the folder does not exist");
    std::fs::create_dir(empty.path(REGISTRY)).expect("a folder");
    let server = Server::start(&empty, &[]);
    assert_eq!(server.get("/v2/health/live").status, 200);
    assert_eq!(server.get("/v2/health/ready").status, 503);
    let reply = server.post(&infer, good_body().as_bytes());
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.error().contains("no version of model"), "{reply:?}");
}

#[test]
fn a_stopping_server_answers_open_requests() {
    let (_place, mut server) = served(&[]);
    // When the signal comes, half of the request's body has arrived.
    let path = format!("/v2/models/{MODEL}/infer");
    let body = good_body();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    let mut stream = TcpStream::connect(&server.address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(head.as_bytes()).expect("it takes the head");
    let (first, rest) = body.as_bytes().split_at(length / 2);
    stream.write_all(first).expect("it takes half");
    // The server must have read the head before the signal comes.
    std::thread::sleep(Duration::from_millis(200));
    let pid = server.pid().to_string();
    std::process::Command::new("kill").arg(&pid).status().expect("`kill` runs");
    std::thread::sleep(Duration::from_millis(200));
    stream.write_all(rest).expect("it takes the rest");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(server.terminate().success());
}
