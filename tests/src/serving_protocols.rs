//! Tests of the HTTP protocols other than rows of JSON: binary tensors, compressed bodies,
//! statistics, the repository API, and the reasons why a server is not ready. They use only the
//! HTTP client of this crate.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::harness::{Workplace, csv};
use crate::server::{
    MODEL, PATIENCE, REGISTRY, Server, floats, infer_body, instances, operate, output,
};

fn published() -> Workplace {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    place.train_ok("run", &["--set", &registry, "--set", "train.epochs=1"]);
    place
}

fn served(place: &Workplace, more: &[&str]) -> Server {
    let mut server = Server::start(place, more);
    assert!(server.becomes_ready());
    server
}

/// The response of a server, with its body as bytes.
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

/// Sends a POST request with additional headers.
pub(crate) fn post(server: &Server, path: &str, headers: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(&server.address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).expect("it takes the head");
    stream.write_all(body).expect("it takes the body");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(answer[..end].to_vec()).expect("text").to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    Answer { status, head, body: answer[end + 4..].to_vec() }
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Makes a v2 request for these rows with binary tensors. Returns the length of its JSON part and
/// its body.
pub(crate) fn binary_body(rows: &[Value], outputs: Value) -> (usize, Vec<u8>) {
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    let (mut user, mut item, mut tags) = (Vec::new(), Vec::new(), Vec::new());
    let (mut lengths, mut price, mut age) = (Vec::new(), Vec::new(), Vec::new());
    let mut count = 0;
    for row in rows {
        text(&mut user, row["user"].as_str().expect("text"));
        item.extend(row["item"].as_i64().expect("an id").to_le_bytes());
        let list = row["tags"].as_array().expect("a list");
        list.iter().for_each(|tag| text(&mut tags, tag.as_str().expect("text")));
        count += list.len();
        lengths.extend((list.len() as i32).to_le_bytes());
        price.extend(row["price"].as_f64().expect("a number").to_le_bytes());
        // A NaN is a missing value.
        age.extend(row["age"].as_f64().unwrap_or(f64::NAN).to_le_bytes());
    }
    let input = |name: &str, datatype: &str, values: usize, bytes: &[u8]| {
        json!({ "name": name, "shape": [values], "datatype": datatype,
            "parameters": { "binary_data_size": bytes.len() } })
    };
    let n = rows.len();
    let head = json!({
        "id": "b-1",
        "inputs": [
            input("user", "BYTES", n, &user),
            input("item", "INT64", n, &item),
            input("tags", "BYTES", count, &tags),
            input("tags__lengths", "INT32", n, &lengths),
            input("price", "FP64", n, &price),
            input("age", "FP64", n, &age),
        ],
        "outputs": outputs,
    })
    .to_string();
    let body = [head.as_bytes(), &user, &item, &tags, &lengths, &price, &age].concat();
    (head.len(), body)
}

#[test]
fn binary_tensors_score_as_json_does() {
    let place = published();
    let mut server = served(&place, &[]);
    let rows = instances(&csv(7, 200));
    let path = format!("/v2/models/{MODEL}/infer");
    let wanted = server.post(&path, infer_body(&rows, &["logits", "probabilities"]).as_bytes());
    let (logits, chances) = (output(&wanted, "logits"), output(&wanted, "probabilities"));
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();

    let outputs = json!([
        { "name": "logits", "parameters": { "binary_data": true } },
        { "name": "probabilities" },
    ]);
    let (length, body) = binary_body(&rows, outputs);
    let header = format!("Inference-Header-Content-Length: {length}\r\n");
    let answer = post(&server, &path, &header, &body);
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    let json_length: usize = answer
        .header("inference-header-content-length")
        .and_then(|text| text.parse().ok())
        .expect("the length of the JSON");
    let (head, binary) = answer.body.split_at(json_length);
    let head: Value = serde_json::from_slice(head).expect("JSON");
    assert_eq!((&head["id"], &head["model_name"]), (&json!("b-1"), &json!(MODEL)));
    assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], rows.len() * 4);
    assert_eq!(head["outputs"][0]["data"], Value::Null);
    assert_eq!(bits(&floats(&head["outputs"][1]["data"])), bits(&chances));
    let own: Vec<f32> = binary.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    assert_eq!(bits(&own), bits(&logits));

    // The header and the sizes must add up to the body.
    for (header, message) in [
        (String::new(), "not a v2 inference request"),
        (
            format!("Inference-Header-Content-Length: {}\r\n", length - 1),
            "not a v2 inference request",
        ),
        (
            format!("Inference-Header-Content-Length: {}\r\n", body.len() + 1),
            "the size of the body",
        ),
        ("Inference-Header-Content-Length: many\r\n".to_owned(), "the size of the body"),
    ] {
        let refused = post(&server, &path, &header, &body);
        let said = String::from_utf8_lossy(&refused.body).into_owned();
        assert_eq!(refused.status, 400, "{said}");
        assert!(said.contains(message), "{header}: {said}");
    }
    let refused = post(&server, &path, &header, &body[..body.len() - 8]);
    let said = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(refused.status == 400 && said.contains("input `age`"), "{said}");
    let predict = format!("/v1/models/{MODEL}:predict");
    assert_eq!(post(&server, &predict, &header, &body).status, 400);
    assert!(server.terminate().success());
}

#[test]
fn compressed_bodies_are_read_under_the_limit() {
    let place = published();
    let server = served(&place, &["--max-body-bytes", "100000"]);
    let path = format!("/v1/models/{MODEL}:predict");
    // This is the zlib format for bytes without compression.
    let stored = |bytes: &[u8]| {
        let (low, high) = (bytes.len() as u16).to_le_bytes().into();
        let mut zlib = vec![0x78, 0x01, 0x01, low, high, !low, !high];
        zlib.extend(bytes);
        let (mut a, mut b) = (1u32, 0u32);
        for &byte in bytes {
            a = (a + u32::from(byte)) % 65_521;
            b = (b + a) % 65_521;
        }
        zlib.extend((b << 16 | a).to_be_bytes());
        zlib
    };
    let body = json!({ "instances": instances(&csv(3, 4)) }).to_string();
    let plain = server.post(&path, body.as_bytes());
    let deflated = post(&server, &path, "Content-Encoding: deflate\r\n", &stored(body.as_bytes()));
    assert_eq!(deflated.status, 200, "{}", String::from_utf8_lossy(&deflated.body));
    assert_eq!(String::from_utf8_lossy(&deflated.body), plain.body);
    for (encoding, body, status) in [
        ("br", b"x".to_vec(), 415),
        ("gzip", body.as_bytes().to_vec(), 400),
        ("deflate", stored(&b" ".repeat(60_000))[..30_000].to_vec(), 400),
    ] {
        let refused = post(&server, &path, &format!("Content-Encoding: {encoding}\r\n"), &body);
        assert_eq!(
            refused.status,
            status,
            "{encoding}: {}",
            String::from_utf8_lossy(&refused.body)
        );
        let lists = refused.header("accept-encoding");
        assert_eq!(lists.is_some(), status == 415, "{}", refused.head);
    }
    assert_eq!(server.post(&path, body.as_bytes()).status, 200);
}

#[test]
fn the_repository_is_listed_and_controlled_if_allowed() {
    let place = published();
    let mut server = served(&place, &[]);
    let index = server.post("/v2/repository/index", b"").json();
    assert_eq!(index, json!([{ "name": MODEL, "version": "1", "state": "READY", "reason": "" }]));
    assert_eq!(server.post("/v2/repository/index", br#"{"ready": true}"#).json(), index);
    assert_eq!(server.post("/v2/repository/index", br#"{"rady": true}"#).status, 400);
    for verb in ["load", "unload"] {
        let refused = server.post(&format!("/v2/repository/models/{MODEL}/{verb}"), b"");
        assert_eq!(refused.status, 403, "{refused:?}");
        assert!(refused.error().contains("serve.model_control"), "{refused:?}");
    }
    assert!(server.terminate().success());

    let mut server = served(&place, &["--model-control"]);
    let infer = format!("/v2/models/{MODEL}/infer");
    let body = infer_body(&instances(&csv(3, 4)), &["logits"]);
    let before = server.post(&infer, body.as_bytes());
    let stats = server.get(&format!("/v2/models/{MODEL}/versions/1/stats")).json();
    let stats = &stats["model_stats"][0];
    assert_eq!((&stats["name"], &stats["version"]), (&json!(MODEL), &json!("1")));
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(4), &json!(1)));
    assert_eq!(stats["inference_stats"]["success"]["count"], 1);
    assert_eq!(server.get("/v2/models/stats").json()["model_stats"][0]["inference_count"], 4);
    let config = server.get(&format!("/v2/models/{MODEL}/config")).json();
    assert_eq!(config["input"][1]["data_type"], "TYPE_INT64", "{config}");

    let unload = format!("/v2/repository/models/{MODEL}/unload");
    let load = format!("/v2/repository/models/{MODEL}/load");
    assert_eq!(server.post(&unload, b"{}").status, 200);
    assert_eq!(server.post(&unload, b"{}").status, 404);
    assert_eq!(server.post(&infer, body.as_bytes()).status, 404);
    let index = server.post("/v2/repository/index", b"").json();
    assert_eq!(index[0]["state"], "UNAVAILABLE", "{index}");
    assert_eq!(server.post("/v2/repository/index", br#"{"ready": true}"#).json(), json!([]));
    let refused = server.post(&load, br#"{"parameters": {"config": "{}"}}"#);
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(server.post("/v2/repository/models/other/load", b"").status, 404);
    let loaded = server.post(&load, b"");
    assert_eq!((loaded.status, loaded.json()), (200, json!({})));
    assert_eq!(output(&server.post(&infer, body.as_bytes()), "logits"), output(&before, "logits"));
    assert!(server.terminate().success());
}

#[test]
fn an_unready_server_names_the_models_it_waits_for() {
    let place = Workplace::new();
    std::fs::create_dir(place.path(REGISTRY)).expect("a folder");
    let server = Server::start(&place, &[]);
    let began = std::time::Instant::now();
    let reply = loop {
        let reply = server.get("/v2/health/ready");
        assert_eq!(reply.status, 503, "{reply:?}");
        if reply.body.contains("no_version") {
            break reply.json();
        }
        assert!(began.elapsed() < PATIENCE, "{reply:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert_eq!((&reply["ready"], &reply["models"][0]["name"]), (&json!(false), &json!(MODEL)));
    assert_eq!(reply["models"][0]["reason"], "no_version", "{reply}");
    let model = server.get(&format!("/v2/models/{MODEL}/ready"));
    assert!(model.status == 503 && model.error().contains("no_version"), "{model:?}");
    // Only operators see the reason, in the repository index.
    let index = server.post("/v2/repository/index", b"").json();
    let reason = index[0]["reason"].as_str().expect("text");
    assert!(reason.contains("pointer `stable` was never set"), "{index}");
    // The document exists even without a version, but with less content.
    let document = server.get("/openapi.json").json();
    assert!(document["paths"][format!("/v2/models/{MODEL}/infer")]["post"].is_object());
}

#[test]
fn wrong_methods_are_refused_with_the_allowed_ones() {
    let place = published();
    operate(&place, &["model", "promote", "1", "--to", "canary"]);
    let server = served(&place, &[]);
    for (method, path, allow) in [
        ("DELETE", format!("/v2/models/{MODEL}"), "get, head"),
        ("GET", format!("/v2/models/{MODEL}/infer"), "post"),
        ("PUT", format!("/v1/models/{MODEL}/labels/canary:classify"), "post"),
        ("OPTIONS", "/metrics".to_owned(), "get, head"),
    ] {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        let reply = server.send(&head, b"").expect("an answer");
        assert_eq!(reply.status, 405, "{reply:?}");
        let allowed = format!("allow: {allow}");
        assert!(reply.head.to_ascii_lowercase().contains(&allowed), "{reply:?}");
    }
}

#[test]
fn a_lame_duck_answers_and_is_not_ready() {
    let place = published();
    let mut server = served(&place, &["--lame-duck-ms", "60000"]);
    let terminate = |server: &Server| {
        let pid = server.pid().to_string();
        std::process::Command::new("kill").arg(&pid).status().expect("`kill` runs");
    };
    terminate(&server);
    let began = std::time::Instant::now();
    let reply = loop {
        let reply = server.get("/v2/health/ready");
        if reply.status == 503 {
            break reply;
        }
        assert!(began.elapsed() < PATIENCE, "{reply:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert_eq!(
        (reply.error().as_str(), &reply.json()["models"]),
        ("the server is stopping", &json!([]))
    );
    let body = infer_body(&instances(&csv(3, 4)), &[]);
    assert_eq!(server.post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes()).status, 200);
    // A second signal ends the server.
    assert!(server.terminate().success());
}
