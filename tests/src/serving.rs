//! Tests of the life of a model: training, publishing, serving, deltas and rollbacks. All programs
//! must give the same scores.

use serde_json::{Value, json};

use crate::harness::{Workplace, csv, stderr, stdout, zillion};
use crate::server::{MODEL, REGISTRY, Server, floats, infer_body, instances, operate, output};

/// The number of rows that the test scores over each protocol.
const ROWS: usize = 10_000;

/// Trains a run. It publishes a version after every `every` steps and at the end of each epoch.
pub(crate) fn publishing(place: &Workplace, output: &str, every: usize, more: &[&str]) -> String {
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let every = format!("publish.every={every}");
    let mut arguments = vec!["--set", &registry, "--set", &every];
    arguments.extend(more);
    stderr(&place.train_ok(output, &arguments))
}

/// Returns the log odds of the rows of a file, computed with a checkpoint. The batches have the
/// size of the job.
fn trained(place: &Workplace, run: &str, file: &str) -> Vec<f32> {
    logits(zillion(&["predict", &place.text(run), &place.text(file), "--json"]))
}

/// Returns the log odds of the rows of a file, computed with a version in batches of `batch` rows.
pub(crate) fn published(place: &Workplace, version: u64, file: &str, batch: usize) -> Vec<f32> {
    let (registry, version, batch) = (place.text(REGISTRY), version.to_string(), batch.to_string());
    let file = place.text(file);
    logits(zillion(&[
        "predict",
        "--registry",
        &registry,
        "--model",
        MODEL,
        "--version",
        &version,
        "--batch",
        &batch,
        &file,
        "--json",
    ]))
}

fn logits(mut command: std::process::Command) -> Vec<f32> {
    let result = command.output().expect("the binary runs");
    assert!(result.status.success(), "{}", stderr(&result));
    let logit = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("a line of JSON");
        row["logit"].as_f64().expect("a number") as f32
    };
    stdout(&result).lines().map(logit).collect()
}

pub(crate) fn probability(logit: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6)
}

#[test]
fn the_server_scores_as_the_trainer_does() {
    let place = Workplace::new();
    // The batches are those of the job, so that the same rows share a batch on both sides.
    publishing(&place, "run", 1000, &["--set", "train.batch_size=500"]);
    place.write("rows.csv", &csv(7, ROWS));
    let wanted = trained(&place, "run", "rows.csv");
    assert_eq!(wanted.len(), ROWS);
    let latest = operate(&place, &["model", "list", "--json"]);
    let latest: Value = serde_json::from_str(&latest).expect("JSON");
    let latest = latest["versions"][0]["version"].as_u64().expect("a number");
    // `predict` uses the checkpoint of the best epoch. The version of the requests is made from the
    // same checkpoint.
    operate(
        &place,
        &["publish", &place.text("run"), "--set", &format!("data.root={}", place.text(""))],
    );
    assert_eq!(bits(&published(&place, latest, "rows.csv", 500)), bits(&wanted));

    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    server.wait_for(latest);
    let rows = instances(&csv(7, ROWS));
    let chances: Vec<f32> = wanted.iter().map(|&z| probability(z)).collect();
    let (infer, v1) = (format!("/v2/models/{MODEL}/infer"), format!("/v1/models/{MODEL}"));
    for (batch, rows) in rows.chunks(500).enumerate() {
        let at = batch * 500..batch * 500 + rows.len();
        let reply = server.post(&infer, infer_body(rows, &["logits", "probabilities"]).as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.json()["model_version"], latest.to_string());
        assert_eq!(bits(&output(&reply, "logits")), bits(&wanted[at.clone()]));
        assert_eq!(bits(&output(&reply, "probabilities")), bits(&chances[at.clone()]));

        let body = json!({ "instances": rows }).to_string();
        let reply = server.post(&format!("{v1}:predict"), body.as_bytes());
        assert_eq!(bits(&floats(&reply.json()["predictions"])), bits(&chances[at.clone()]));

        let body = json!({ "candidates": rows, "top_k": 3 }).to_string();
        let reply = server.post(&format!("{v1}:rank"), body.as_bytes()).json();
        let scores = floats(&reply["scores"]);
        assert_eq!(bits(&scores), bits(&chances[at]));
        let top = reply["top"].as_array().expect("a list");
        let best = scores.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!((top.len(), top[0]["score"].as_f64().map(|x| x as f32)), (3, Some(best)));
    }
    // The requests have single rows, and then batches of another size.
    for at in 0..20 {
        let body = json!({ "instances": [rows[at]] }).to_string();
        let reply = server.post(&format!("{v1}/versions/{latest}:predict"), body.as_bytes());
        assert!(close(&floats(&reply.json()["predictions"]), &chances[at..=at]), "{at}");
    }
    for rows_at in [3usize, 64, 777] {
        let reply = server.post(&infer, infer_body(&rows[..rows_at], &[]).as_bytes());
        assert!(close(&output(&reply, "probabilities"), &chances[..rows_at]), "{rows_at}");
    }
    // The request contains the context only once for all candidates. The scores are the same as if
    // each candidate had its own copy.
    let context =
        json!({ "user": rows[0]["user"], "tags": rows[0]["tags"], "age": rows[0]["age"] });
    let candidates: Vec<Value> = rows[..50]
        .iter()
        .map(|row| json!({ "item": row["item"], "price": row["price"] }))
        .collect();
    let merged: Vec<Value> = candidates
        .iter()
        .map(|candidate| {
            let mut row = context.as_object().expect("an object").clone();
            row.extend(candidate.as_object().expect("an object").clone());
            Value::Object(row)
        })
        .collect();
    let rank = json!({ "context": context, "candidates": candidates }).to_string();
    let rank = server.post(&format!("{v1}:rank"), rank.as_bytes()).json();
    let each = json!({ "instances": merged }).to_string();
    let each = server.post(&format!("{v1}/labels/stable:predict"), each.as_bytes()).json();
    assert_eq!(bits(&floats(&rank["scores"])), bits(&floats(&each["predictions"])));
    // This request has columns instead of rows.
    let columns: Value = ["user", "item", "tags", "price", "age"]
        .iter()
        .map(|name| ((*name).to_owned(), rows[..9].iter().map(|row| row[*name].clone()).collect()))
        .collect::<serde_json::Map<String, Value>>()
        .into();
    let body = json!({ "inputs": columns, "signature_name": "serving_default" }).to_string();
    let reply = server.post(&format!("{v1}:predict"), body.as_bytes()).json();
    assert!(close(&floats(&reply["outputs"]), &chances[..9]));
    // The server stops without an error.
    assert!(server.terminate().success());
}

#[test]
fn deltas_hold_the_changes_and_rollbacks_are_exact() {
    let place = Workplace::new();
    let said = publishing(&place, "run", 8, &["--set", "train.epochs=2"]);
    assert!(said.contains("version 1 of e2e: a base of"), "{said}");
    assert!(said.contains("rows changed since version 1"), "{said}");
    let list: Value =
        serde_json::from_str(&operate(&place, &["model", "list", "--limit", "100", "--json"]))
            .expect("JSON");
    let versions = list["versions"].as_array().expect("a list");
    let latest = versions[0]["version"].as_u64().expect("a number");
    assert!(latest >= 5, "{list}");
    assert!(
        versions[..versions.len() - 1].iter().all(|v| v["parent"].as_u64().is_some()),
        "{list}"
    );
    operate(&place, &["model", "verify"]);

    // The chain of deltas is equal to the checkpoint of the same step, bit for bit.
    place.write("rows.csv", &csv(7, 300));
    let of_checkpoint = trained(&place, "run", "rows.csv");
    let of_version = |version: u64| published(&place, version, "rows.csv", 64);
    assert_eq!(bits(&of_version(latest)), bits(&of_checkpoint));

    // After a rollback and after the move forward, the server gives the earlier scores again.
    let rows = instances(&csv(7, 64));
    let mut server = Server::start(&place, &["--retain", "2"]);
    assert!(server.becomes_ready());
    server.wait_for(latest);
    let ask = || {
        let body = infer_body(&rows, &["logits"]);
        let reply = server.post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes());
        let version: u64 =
            reply.json()["model_version"].as_str().expect("text").parse().expect("a number");
        (version, output(&reply, "logits"))
    };
    for back in 1..=3 {
        operate(&place, &["model", "rollback", "--note", "a drill"]);
        server.wait_for(latest - back);
        let (version, scores) = ask();
        assert_eq!(version, latest - back);
        assert_eq!(bits(&scores), bits(&of_version(version)[..64]));
    }
    // The pointer goes back to the first version.
    operate(&place, &["model", "rollback", "--to", "1"]);
    server.wait_for(1);
    assert_eq!(bits(&ask().1), bits(&of_version(1)[..64]));

    // The parent of the next published version is the version to which the pointer was rolled back.
    // The server loads it.
    publishing(&place, "run", 8, &["--set", "train.epochs=3", "--resume"]);
    let show: Value =
        serde_json::from_str(&operate(&place, &["model", "show", "--json"])).expect("JSON");
    let newest = show["version"].as_u64().expect("a number");
    server.wait_for(newest);
    let of = |version: u64| -> Value {
        let version = version.to_string();
        serde_json::from_str(&operate(&place, &["model", "show", "--version", &version, "--json"]))
            .expect("JSON")
    };
    assert_eq!(of(latest + 1)["parent"]["version"], 1, "a rollback opens a branch");
    assert_eq!(of(latest + 2)["parent"]["version"], latest + 1);
    assert_eq!(bits(&ask().1), bits(&of_version(newest)[..64]));
    let of_checkpoint = trained(&place, "run", "rows.csv");
    let best = newest_of_best(&place, newest);
    if best == newest {
        assert_eq!(bits(&of_version(newest)), bits(&of_checkpoint));
    }
    let diff = operate(&place, &["model", "diff", &latest.to_string(), &newest.to_string()]);
    assert!(diff.contains("both build on version 1"), "{diff}");
}

/// Returns `newest` if the run still has the checkpoint of this version, otherwise 0.
fn newest_of_best(place: &Workplace, newest: u64) -> u64 {
    let show: Value = serde_json::from_str(&operate(
        place,
        &["model", "show", "--version", &newest.to_string(), "--json"],
    ))
    .expect("JSON");
    let step = show["origin"]["step"].as_u64().expect("a number");
    let manifest = place.path(&format!("run/checkpoints/step-{step:012}"));
    if manifest.exists() { newest } else { 0 }
}

#[test]
fn a_key_s_row_is_explained() {
    let place = Workplace::new();
    publishing(&place, "run", 1000, &[]);
    let explain = |key: &str| -> Value {
        let text = operate(&place, &["explain", "--table", "user", "--key", key, "--json"]);
        serde_json::from_str(&text).expect("JSON")
    };
    let known = explain("u7");
    assert_eq!(known["is_default"], false, "{known}");
    assert!(
        known["count"].as_u64() > Some(0) && known["values"].as_array().map(Vec::len) == Some(5)
    );
    let unknown = explain("nobody");
    assert_eq!((&unknown["is_default"], &unknown["written_by"]), (&json!(true), &Value::Null));
    let refused =
        crate::server::operator(&place, &["explain", "--table", "users", "--key", "1"]).output();
    let refused = refused.expect("the binary runs");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("unknown table `users` (the model has: user, "),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn sibling_versions_are_distinguished_and_moves_are_logged() {
    let place = Workplace::new();
    publishing(&place, "run", 1000, &["--set", "train.epochs=1"]);
    // Two runs start from the same checkpoint. They have the same name and the same steps, but
    // other rows.
    place.write("monday.csv", &csv(21, 400));
    place.write("tuesday.csv", &csv(22, 400));
    let from = place.text("run");
    let next = |output: &str, file: &str| {
        let train = format!("data.train={:?}", place.text(file));
        let more = ["--from", &from, "--set", "train.epochs=1", "--set", &train];
        publishing(&place, output, 1000, &more)
    };
    let first = next("monday", "monday.csv");
    assert!(first.contains("version 2 of e2e") && !first.contains("published before"), "{first}");
    operate(&place, &["model", "rollback"]);
    let second = next("tuesday", "tuesday.csv");
    assert!(
        second.contains("version 3 of e2e") && !second.contains("published before"),
        "{second}"
    );
    let root = format!("data.root={}", place.text(""));
    // If a checkpoint was published before, only the pointer moves. A base of the same checkpoint
    // is a new version.
    let monday = place.text("monday");
    let publish = |more: &[&str]| {
        let mut arguments = vec!["publish", monday.as_str(), "--set", &root];
        arguments.extend(more);
        operate(&place, &arguments)
    };
    let again = publish(&[]);
    assert!(again.contains("version 2") && again.contains("published before"), "{again}");
    let pointer = || -> Value {
        let text = operate(&place, &["model", "show", "--pointer", "stable", "--json"]);
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(pointer()[0]["to"]["version"], 2);
    let base = publish(&["--base"]);
    assert!(base.contains("version 4 of e2e: a base"), "{base}");
    place.write("rows.csv", &csv(7, 50));
    let of = |version: u64| bits(&published(&place, version, "rows.csv", 64));
    assert_eq!(of(4), of(2));
    assert_ne!(of(3), of(2));
    // A promotion to the current version of the pointer is not a move, and a rollback does not skip
    // a move.
    let moves = pointer().as_array().map(Vec::len);
    operate(&place, &["model", "promote", "4"]);
    assert_eq!(pointer().as_array().map(Vec::len), moves);
    operate(&place, &["model", "rollback"]);
    assert_eq!(pointer()[0]["to"]["version"], 2);
    // A pointer cannot move to a version that gc has removed.
    operate(&place, &["model", "promote", "4"]);
    operate(&place, &["model", "gc", "--keep", "1", "--grace", "0"]);
    let refused = crate::server::operator(&place, &["model", "promote", "3"]).output();
    let refused = refused.expect("the binary runs");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("removed by `zillion model gc`"), "{}", stderr(&refused));
    // The removed version does not count as published, so it is published again.
    let anew = operate(&place, &["publish", &place.text("tuesday"), "--set", &root]);
    assert!(anew.contains("version 5 of e2e"), "{anew}");
    operate(&place, &["model", "verify"]);
}

#[test]
fn a_server_outlives_its_cache_and_its_registry() {
    let place = Workplace::new();
    publishing(&place, "run", 8, &["--set", "train.epochs=1"]);
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    // The server may write into the folder while it is removed.
    while place.path("cache").exists() {
        drop(std::fs::remove_dir_all(place.path("cache")));
    }
    operate(&place, &["model", "promote", "1"]);
    server.wait_for(1);
    // The registry disappears, and later it is there again with a new version.
    std::fs::rename(place.path(REGISTRY), place.path("elsewhere")).expect("our own folder");
    // There are one or two failures, because the server may read the registry in the middle of the
    // move.
    let never = format!("zillion_serving_load_failures_total{{model=\"{MODEL}\"}} 0\n");
    let began = std::time::Instant::now();
    while server.get("/metrics").body.contains(&never) {
        assert!(began.elapsed() < crate::server::PATIENCE, "{}", server.get("/metrics").body);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let body = infer_body(&instances(&csv(7, 2)), &[]);
    assert_eq!(server.post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes()).status, 200);
    std::fs::rename(place.path("elsewhere"), place.path(REGISTRY)).expect("our own folder");
    operate(&place, &["model", "promote", "2"]);
    server.wait_for(2);
    assert!(server.terminate().success());
    let log = std::fs::read_to_string(place.path("server.log")).expect("a log");
    assert!(log.contains("this version answers now") && log.contains("keeps answering"), "{log}");
}
