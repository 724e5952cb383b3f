//! Tests of requests that need more work or memory than their size justifies.

use std::collections::BTreeMap;
use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use serde_json::json;
use tonic::Code;
use zillion_feature::FeatureKey;
use zillion_feature::random::mix64;
use zillion_serving::proto::inference::ModelInferRequest;
use zillion_serving::proto::inference::model_infer_request::InferRequestedOutputTensor;
use zillion_serving::proto::tensorflow::serving::{ModelSpec, PredictRequest};
use zillion_serving::proto::tensorflow::tensor_shape_proto::Dim;
use zillion_serving::proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

use super::victim::{SLACK_BYTES, Victim, predict_body, predict_path, publish, wait_until};
use super::wire;
use crate::server::{MODEL, PATIENCE, infer_body, instances};

const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// The time limit of a request whose cost is measured.
const PATIENT: [&str; 2] = ["--request-ms", "60000"];

/// Returns ids whose keys differ only in the high bits. An index that used the low bits of a key
/// would put all of them into one cell.
fn crafted_ids(count: usize) -> Vec<u64> {
    let ids = (1u64..).map(|i| FeatureKey(i << 26).unmix());
    ids.filter(|&id| i64::try_from(id).is_ok()).take(count).collect()
}

/// Returns random ids that have about the same number of digits as the ids of [`crafted_ids`].
fn random_ids(count: usize) -> Vec<u64> {
    (0..count as u64).map(|i| mix64(i) >> 1).collect()
}

/// Returns the processor time of the server, in seconds, for `requests` requests with this body.
fn cpu_of(victim: &Victim, requests: usize, body: &[u8]) -> f64 {
    let before = victim.cpu();
    for _ in 0..requests {
        let reply = wire::post(&victim.public, &predict_path(), "", body).expect("an answer");
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    victim.cpu() - before
}

#[test]
fn crafted_ids_cost_what_random_ids_cost() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &PATIENT);
    let (random, crafted) = (random_ids(60_000), crafted_ids(60_000));
    // The ids are in one list of one row, and then they are divided among the lists of many rows.
    for rows in [1, 600] {
        let body = |ids: &[u64]| {
            let lists: Vec<&[u64]> = ids.chunks(ids.len() / rows).collect();
            predict_body(&lists)
        };
        let (random, crafted) = (body(&random), body(&crafted));
        cpu_of(&victim, 2, &random);
        let honest = cpu_of(&victim, 10, &random);
        let attack = cpu_of(&victim, 10, &crafted);
        eprintln!("{rows} rows: random ids {honest:.2} s, crafted ids {attack:.2} s");
        assert!(attack <= 1.5 * honest + 0.2, "{rows} rows: {attack} s instead of {honest} s");
    }
    victim.survives();
}

/// Returns a tensor whose shape declares `values` values, although only one value is sent.
fn one_for_all(dtype: DataType, values: i64) -> TensorProto {
    let dim = Dim { size: values, name: String::new() };
    TensorProto {
        dtype: dtype.into(),
        tensor_shape: Some(TensorShapeProto { dim: vec![dim], unknown_rank: false }),
        int64_val: if dtype == DataType::DtInt64 { vec![1] } else { Vec::new() },
        string_val: if dtype == DataType::DtString {
            vec![Bytes::from_static(b"u1")]
        } else {
            Vec::new()
        },
        ..TensorProto::default()
    }
}

#[test]
fn a_value_that_stands_for_a_shape_takes_no_memory() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &PATIENT);
    let spec = ModelSpec { name: MODEL.to_owned(), ..ModelSpec::default() };
    let before = victim.resident();
    let most = 4 << 20;
    let unknown = |dtype| (0..40).map(move |i| (format!("x{i}"), one_for_all(dtype, most)));
    let known = |name: &str, dtype| BTreeMap::from([(name.to_owned(), one_for_all(dtype, most))]);
    for (what, inputs) in [
        ("unknown numbers", unknown(DataType::DtInt64).collect()),
        ("unknown texts", unknown(DataType::DtString).collect()),
        ("a known number", known("item", DataType::DtInt64)),
        ("a known text", known("user", DataType::DtString)),
        ("a known list", known("tags", DataType::DtInt64)),
    ] {
        let model_spec = Some(spec.clone());
        let request = PredictRequest { model_spec, inputs, ..PredictRequest::default() };
        let message = request.encode_to_vec();
        let (code, said) = wire::call(&victim.public, PREDICT, &message);
        let is_refused = matches!(code, Code::InvalidArgument | Code::ResourceExhausted);
        assert!(is_refused && said.len() < 1000, "{what}: {code:?} {said}");
        let grown = victim.peak().saturating_sub(before);
        eprintln!("{what}: {} bytes, memory grew by {} KiB", message.len(), grown >> 10);
        let bound = 8 * message.len() as u64 + SLACK_BYTES;
        assert!(grown <= bound, "{what}: {grown} bytes for a message of {}", message.len());
    }
    victim.survives();
}

#[test]
fn an_output_is_answered_once() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &["--max-answer-bytes", "20000"]);
    let rows = instances("x\nu1,1,,1.0,30,0\n");
    let path = format!("/v2/models/{MODEL}/infer");
    let ask = |outputs: &[&str]| {
        let body = infer_body(&rows, outputs);
        wire::post(&victim.public, &path, "", body.as_bytes()).expect("an answer")
    };
    assert_eq!(ask(&["probabilities", "logits"]).status, 200);
    for repeated in [vec!["logits"; 2], vec!["logits"; 20_000]] {
        let reply = ask(&repeated);
        assert!(reply.status == 400 && reply.body.len() < 1000, "{reply:?}");
    }
    let request = ModelInferRequest {
        model_name: MODEL.to_owned(),
        outputs: (0..10_000)
            .map(|_| InferRequestedOutputTensor {
                name: "logits".to_owned(),
                ..InferRequestedOutputTensor::default()
            })
            .collect(),
        ..ModelInferRequest::default()
    };
    let (code, said) = wire::call(&victim.public, INFER, &request.encode_to_vec());
    assert!(code == Code::InvalidArgument && said.len() < 1000, "{code:?} {said}");
    // The size of an answer is limited for every kind of request.
    let many: Vec<&[u64]> = vec![&[1]; 5_000];
    let reply = wire::post(&victim.public, &predict_path(), "", &predict_body(&many));
    let reply = reply.expect("an answer");
    assert!(reply.status == 413 && reply.error().contains("serve.max_answer_bytes"), "{reply:?}");
    victim.survives();
}

#[test]
fn packed_bytes_are_bounded_when_they_are_unpacked() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &PATIENT);
    let before = victim.resident();
    for (what, piece) in [("values", "1,"), ("rows", "{},"), ("lists", "[],"), ("letters", "a")] {
        let quote = if piece == "a" { "\"" } else { "" };
        let filler = piece.repeat((30 << 20) / piece.len());
        let row = format!("{{\"user\":\"u1\",\"item\":1,\"tags\":[{quote}{filler}{quote}1]}}");
        let text = match what {
            "rows" => format!("{{\"instances\":[{filler}{row}]}}"),
            _ => format!("{{\"instances\":[{row}]}}"),
        };
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text.as_bytes()).expect("memory takes bytes");
        let packed = encoder.finish().expect("memory takes bytes");
        let headers = "Content-Encoding: gzip\r\n";
        let used = victim.cpu();
        let reply = wire::post(&victim.public, &predict_path(), headers, &packed);
        let reply = reply.expect("an answer");
        let used = victim.cpu() - used;
        assert!(matches!(reply.status, 400 | 413), "{what}: {} {}", reply.status, reply.head);
        assert!(reply.body.len() < 1000, "{what}: an answer of {} bytes", reply.body.len());
        let grown = victim.peak().saturating_sub(before);
        eprintln!(
            "{what}: {} packed bytes of {}, {used:.2} s, memory grew by {} KiB",
            packed.len(),
            text.len(),
            grown >> 10
        );
        let bound = 8 * packed.len() as u64 + SLACK_BYTES;
        assert!(grown <= bound, "{what}: {grown} bytes for {} packed ones", packed.len());
    }
    victim.survives();
}

#[test]
fn memory_of_a_burst_is_given_back() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &PATIENT);
    for _ in 0..20 {
        cpu_of(&victim, 1, &predict_body(&[&[1, 2, 3]]));
    }
    let before = victim.resident();
    let body = predict_body(&[&random_ids(1_000_000)]);
    let burst: Vec<_> = (0..4)
        .map(|_| {
            let (address, body) = (victim.public.clone(), body.clone());
            std::thread::spawn(move || wire::post(&address, &predict_path(), "", &body))
        })
        .collect();
    let statuses: Vec<u16> = burst
        .into_iter()
        // A client whose request is refused before its body has arrived may miss the answer.
        .map(|client| client.join().expect("no panic").map_or(429, |reply| reply.status))
        .collect();
    // Some may be refused because of the work that waits.
    assert!(statuses.contains(&200), "{statuses:?}");
    // A fifth of the memory before the burst, and what the allocator keeps in its arenas.
    let bound = before * 6 / 5 + (4 << 20);
    let peak = victim.peak();
    let began = std::time::Instant::now();
    while victim.resident() > bound && began.elapsed() < PATIENCE {
        // A server that has little to do shrinks its buffers too.
        cpu_of(&victim, 1, &predict_body(&[&[1, 2, 3]]));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let after = victim.resident();
    eprintln!("memory {} MiB, peak {} MiB, after {} MiB", before >> 20, peak >> 20, after >> 20);
    assert!(after <= bound, "{after} bytes after a burst, {before} before");
    victim.survives();
}

#[test]
fn names_of_any_length_are_cut_in_errors() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &PATIENT);
    let name = "x".repeat(1 << 20);
    let path = format!("/v2/models/{MODEL}/infer");
    let tensor =
        |name: &str| json!({ "name": name, "shape": [1], "datatype": "INT64", "data": [1] });
    let row = json!({ name.as_str(): 1 });
    for (path, body) in [
        (path.clone(), json!({ "inputs": [tensor(&name)] })),
        (path, json!({ "inputs": [tensor("item")], "outputs": [{ "name": name }] })),
        (predict_path(), json!({ "instances": [row] })),
        (predict_path(), json!({ name.as_str(): [1] })),
        (predict_path(), json!({ "signature_name": name, "instances": [{ "item": 1 }] })),
    ] {
        let body = body.to_string();
        let reply = wire::post(&victim.public, &path, "", body.as_bytes()).expect("an answer");
        let begin: String = body.chars().take(60).collect();
        assert_eq!(reply.status, 400, "{begin}");
        assert!(reply.body.len() < 2000, "{begin}: an answer of {} bytes", reply.body.len());
    }
    let mut log = String::new();
    wait_until("the log can be read", || {
        log = std::fs::read_to_string(place.path("server.log")).unwrap_or_default();
        true
    });
    assert!(!log.contains(&name), "the log repeats a name of 1 MiB");
    victim.survives();
}
