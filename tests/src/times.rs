//! Tests of features of times, of vectors and of a text label, from the job file to the server and
//! the exported model.

use std::fmt::Write as _;

use serde_json::{Value, json};
use zillion_feature::random::{combine, mix64};

use crate::harness::{Workplace, stderr, stdout, zillion};
use crate::server::{MODEL, REGISTRY, Server, floats, operate, output};
use crate::serving::bits;

const JOB: &str = r#"
[data]
train = "rows.jsonl"
valid = "rows.jsonl"
[features.user]
kind = "id"
[features.hour]
kind = "id"
column = "seen"
derive = "hour"
zone = "-03:00"
time_unit = "s"
[features.day]
kind = "bucketized"
column = "seen"
derive = "days"
buckets = 4
time_unit = "s"
[features.taste]
kind = "vector"
size = 3
missing = 0.0
[labels.label]
positive = ["yes", "sure"]
negative = "no"
[columns]
event_time = "seen"
event_time_unit = "ms"
[tables."*"]
dim = 4
[model]
kind = "deepfm"
hidden = [8]
[train]
epochs = 1
batch_size = 100
"#;

/// Returns 400 rows as objects, whose times are texts.
fn rows() -> Vec<Value> {
    let row = |i: u64| {
        let draw = |salt: u64| mix64(combine(i, salt));
        let (day, hour) = (1 + draw(1) % 28, draw(2) % 24);
        let label = ["no", "yes", "sure"][(draw(3) % 3) as usize];
        let taste: Vec<f64> = (4..7).map(|salt| (draw(salt) % 100) as f64 / 64.0).collect();
        let taste = if i.is_multiple_of(9) { Value::Null } else { json!(taste) };
        json!({
            "user": draw(8) % 20,
            "seen": format!("2024-05-{day:02}T{hour:02}:15:00+02:00"),
            "taste": taste,
            "label": label,
        })
    };
    (0..400).map(row).collect()
}

fn predict(arguments: &[&str]) -> Vec<f32> {
    let run = zillion(arguments).output().expect("the binary runs");
    assert!(run.status.success(), "{}", stderr(&run));
    let logit = |line: &str| -> f32 {
        let row: Value = serde_json::from_str(line).expect("JSON");
        row["logit"].as_f64().expect("a number") as f32
    };
    stdout(&run).lines().map(logit).collect()
}

#[test]
fn times_and_vectors_score_alike_in_every_way() {
    let place = Workplace::new();
    let rows = rows();
    let mut text = String::new();
    rows.iter().for_each(|row| writeln!(text, "{row}").expect("a text"));
    place.write("rows.jsonl", &text);
    place.write("job.toml", JOB);
    let (run, file) = (place.text("run"), place.text("rows.jsonl"));
    let root = format!("data.root={}", place.text(""));
    let output_folder = format!("run.output={run}");
    let train = ["train", &place.text("job.toml"), "--set", &root, "--set", &output_folder];
    let trained = zillion(&train).output().expect("the binary runs");
    assert!(trained.status.success(), "{}", stderr(&trained));
    operate(&place, &["publish", &run, "--set", &root]);
    let scores = predict(&["predict", &run, &file, "--json"]);
    let registry = place.text(REGISTRY);
    let version = ["predict", "--registry", &registry, "--model", MODEL, &file, "--json"];
    assert_eq!(bits(&predict(&version)), bits(&scores));

    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    let url = format!("/v1/models/{MODEL}:predict");
    let asked: Vec<Value> = rows[..60]
        .iter()
        .map(|row| json!({ "user": row["user"], "seen": row["seen"], "taste": row["taste"] }))
        .collect();
    let reply = server.post(&url, json!({ "instances": asked }).to_string().as_bytes());
    assert_eq!(reply.status, 200, "{reply:?}");
    let wanted: Vec<f32> =
        scores[..60].iter().map(|&z| (1.0 / (1.0 + (-f64::from(z)).exp())) as f32).collect();
    assert_eq!(bits(&floats(&reply.json()["predictions"])), bits(&wanted));
    // A tensor has a vector in each row, and times as texts.
    let of =
        |name: &str| -> Vec<Value> { rows[1..3].iter().map(|row| row[name].clone()).collect() };
    let taste: Vec<Value> =
        of("taste").iter().flat_map(|row| row.as_array().cloned().unwrap_or_default()).collect();
    let body = json!({ "inputs": [
        { "name": "user", "shape": [2], "datatype": "INT64", "data": of("user") },
        { "name": "seen", "shape": [2], "datatype": "BYTES", "data": of("seen") },
        { "name": "taste", "shape": [2, 3], "datatype": "FP32", "data": taste },
    ]});
    let reply = server.post(&format!("/v2/models/{MODEL}/infer"), body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(bits(&output(&reply, "probabilities")), bits(&wanted[1..3]));
    // Whole numbers score alike, with a sign and without.
    let seconds = |datatype: &str| {
        json!({ "inputs": [
            { "name": "user", "shape": [2], "datatype": datatype, "data": of("user") },
            { "name": "seen", "shape": [2], "datatype": datatype,
              "data": [1_714_608_000, 1_714_653_123] },
            { "name": "taste", "shape": [2, 3], "datatype": "FP32", "data": taste },
        ]})
    };
    let score = |body: Value| {
        let reply = server.post(&format!("/v2/models/{MODEL}/infer"), body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
        bits(&output(&reply, "probabilities"))
    };
    assert_eq!(score(seconds("UINT64")), score(seconds("INT64")));
    for (name, value, problem) in [
        ("seen", json!("yesterday"), "not a time"),
        ("seen", json!(1_714_608_000_000_u64), "seconds since 1970"),
        ("taste", json!([1, 2]), "2 numbers, but the feature has size 3"),
    ] {
        let mut wrong = asked[1].clone();
        wrong[name] = value;
        let reply = server.post(&url, json!({ "instances": [wrong] }).to_string().as_bytes());
        assert_eq!(reply.status, 400, "{reply:?}");
        let said = reply.json().to_string();
        assert!(said.contains(problem), "{said}");
    }
    let described = server.get(&format!("/v2/models/{MODEL}")).json().to_string();
    assert!(described.contains("seen") || described.contains("hour"), "{described}");

    let folder = place.text("exported");
    operate(&place, &["model", "export", "--output", &folder, "--json"]);
    let about =
        std::fs::read_to_string(place.path("exported").join("export.json")).expect("a file");
    let about: Value = serde_json::from_str(&about).expect("JSON");
    let feature = |name: &str| {
        let features = about["features"].as_array().expect("a list");
        features.iter().find(|feature| feature["name"] == name).cloned().expect("a feature")
    };
    assert_eq!(
        (&feature("hour")["derive"], &feature("hour")["zone"]),
        (&json!("hour"), &json!("-03:00"))
    );
    assert_eq!(feature("taste")["size"], 3);
    let inputs = about["graph"]["inputs"].as_array().expect("a list");
    let floats = inputs.iter().filter(|input| input["feature"] == "taste").map(|i| i["at"].clone());
    assert_eq!(floats.collect::<Vec<_>>(), [json!(0), json!(1), json!(2)]);
}
