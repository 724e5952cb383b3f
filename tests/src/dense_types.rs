//! Tests of dense layers in another number type than f32: the same rounded scores from a server,
//! from `zillion predict` with a version and with a checkpoint, and their AUC from `zillion eval`.

use serde_json::Value;

use crate::harness::{Workplace, csv, stderr, stdout, zillion};
use crate::server::{MODEL, REGISTRY, Server, infer_body, instances, operate, output};
use crate::serving::{bits, published, publishing};

const ROWS: usize = 500;

/// Returns the log odds of the rows of a file with dense layers in 8-bit integers.
fn predict(arguments: &[&str]) -> Vec<f32> {
    predict_as("int8", arguments)
}

/// Returns the log odds of the rows of a file with dense layers of a number type.
fn predict_as(dense: &str, arguments: &[&str]) -> Vec<f32> {
    let result = zillion(&[&["predict", "--dense", dense, "--json"], arguments].concat())
        .output()
        .expect("the binary runs");
    assert!(result.status.success(), "{}", stderr(&result));
    let logit = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("a line of JSON");
        row["logit"].as_f64().expect("a number") as f32
    };
    stdout(&result).lines().map(logit).collect()
}

#[test]
fn rounded_layers_score_the_same_everywhere() {
    let place = Workplace::new();
    place.write("rows.csv", &csv(7, ROWS));
    let rows = instances(&csv(7, ROWS));
    publishing(&place, "run", 1000, &["--set", "model.hidden=[48,32]"]);
    let listed: Value =
        serde_json::from_str(&operate(&place, &["model", "list", "--json"])).expect("JSON");
    let newest = listed["versions"][0]["version"].as_u64().expect("a number");
    let exact = published(&place, newest, "rows.csv", ROWS);
    let (registry, file, run) = (place.text(REGISTRY), place.text("rows.csv"), place.text("run"));
    let version = newest.to_string();
    let by_version = ["--registry", &registry, "--model", MODEL, "--version", &version, &file];
    let wanted = predict(&by_version);
    let pairs = || wanted.iter().zip(&exact);
    assert!(pairs().all(|(rounded, exact)| (rounded - exact).abs() <= 0.5 * exact.abs().max(1.0)));
    assert!(pairs().any(|(rounded, exact)| rounded != exact), "layers of 48 and 32 are rounded");

    let infer = format!("/v2/models/{MODEL}/infer");
    let mut server = Server::start(&place, &["--dense", "int8"]);
    assert!(server.becomes_ready());
    server.wait_for(newest);
    let reply = server.post(&infer, infer_body(&rows, &["logits"]).as_bytes());
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(bits(&output(&reply, "logits")), bits(&wanted));
    assert!(server.terminate().success());

    // The checkpoint of the best epoch need not be that of the version.
    let by_checkpoint = predict(&[&run, &file]);
    let exact = predict_as("f32", &[&run, &file]);
    assert_eq!((by_checkpoint.len(), exact.len()), (ROWS, ROWS));
    let pairs = || by_checkpoint.iter().zip(&exact);
    assert!(pairs().all(|(rounded, exact)| (rounded - exact).abs() <= 0.5 * exact.abs().max(1.0)));
    assert!(pairs().any(|(rounded, exact)| rounded != exact), "a checkpoint is rounded too");
    let report = |dense: &str| {
        let arguments = ["eval", &run, "--data", &file, "--dense", dense, "--json"];
        let result = zillion(&arguments).output().expect("the binary runs");
        serde_json::from_str::<Value>(stdout(&result).trim()).expect("JSON")
    };
    let auc = |dense: &str| report(dense)["auc"].as_f64().expect("a number");
    let (whole, rounded) = (auc("f32"), auc("int8"));
    assert!(whole > 0.5 && (whole - rounded).abs() < 0.01, "{whole} {rounded}");
    let loss = |dense: &str| report(dense)["logloss"].as_f64().expect("a number");
    assert_ne!(loss("f32"), loss("int8"), "the layers of the checkpoint are rounded");
}

#[test]
fn a_version_has_a_number_type_of_its_own() {
    let place = Workplace::new();
    place.write("rows.csv", &csv(7, ROWS));
    let rows = instances(&csv(7, ROWS));
    place.train_ok("run", &["--set", "model.hidden=[48,32]"]);
    let (registry, file) = (place.text(REGISTRY), place.text("rows.csv"));
    let (run, root) = (place.text("run"), format!("data.root={}", place.text("")));
    let publish = ["publish", &run, "--registry", &registry, "--model", MODEL, "--set", &root];
    let valid = ["--set", "data.valid=['rows.csv']", "--dense", "int8", "--json"];
    let result = zillion(&[&publish[..], &valid].concat()).output().expect("the binary runs");
    assert!(result.status.success(), "{}", stderr(&result));
    let said: Value = serde_json::from_str(stdout(&result).trim()).expect("JSON");
    let cost = &said["rounding"];
    assert_eq!((&cost["dense"], &cost["row_type"]), (&"int8".into(), &"f32".into()), "{said}");
    let figure = |name: &str| cost[name].as_f64().expect("a number");
    assert!((figure("whole") - figure("rounded")).abs() < 0.01, "{said}");
    let shown = operate(&place, &["model", "show"]);
    assert!(shown.contains("layers in int8"), "{shown}");
    assert!(shown.contains("valid_auc_as_published"), "{shown}");

    let by_version = ["--registry", &registry, "--model", MODEL, "--version", "1", &file];
    let rounded = predict(&by_version);
    let infer = format!("/v2/models/{MODEL}/infer");
    let scores = |options: &[&str]| {
        let mut server = Server::start(&place, options);
        assert!(server.becomes_ready());
        server.wait_for(1);
        let reply = server.post(&infer, infer_body(&rows, &["logits"]).as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(server.terminate().success());
        bits(&output(&reply, "logits"))
    };
    assert_eq!(scores(&[]), bits(&rounded));
    let exact = scores(&["--dense", "f32"]);
    assert_ne!(exact, bits(&rounded));
    // Without the option, the next version has the type of this one.
    let again = zillion(&[&publish[..], &["--base"]].concat()).output().expect("the binary runs");
    assert!(stderr(&again).contains("in int8, as those of version 1"), "{}", stderr(&again));
}

#[test]
fn an_unknown_number_type_and_fetched_nodes_are_refused() {
    let place = Workplace::new();
    let refused = |arguments: &[&str]| {
        let result = zillion(arguments).output().expect("the binary runs");
        assert_eq!(result.status.code(), Some(2), "{}", stderr(&result));
        stderr(&result)
    };
    let said = refused(&["eval", &place.text("run"), "--dense", "int4"]);
    assert!(said.contains("int4") && said.contains("f32, bf16, int8"), "{said}");
    place.train_ok("run", &["--set", "train.epochs=1"]);
    place.write("rows.csv", &csv(7, 10));
    let (run, rows) = (place.text("run"), place.text("rows.csv"));
    let node = "probabilities";
    let said = refused(&["predict", &run, &rows, "--dense", "int8", "--fetch", node]);
    assert!(said.contains("remove --dense or --fetch"), "{said}");
}
