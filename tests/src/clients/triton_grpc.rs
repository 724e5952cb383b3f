//! Tests with the unmodified Python clients of Triton over gRPC, which the script
//! `tests/clients/triton_grpc.py` runs.

use serde_json::Value;

use super::{Python, run};
use crate::harness::{Workplace, csv};
use crate::server::{MODEL, REGISTRY, Server, instances};

/// Trains a model for a short time and publishes it. Returns the workplace and the path of the file
/// with the rows to score.
pub(super) fn published() -> (Workplace, String) {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    place.train_ok("run", &["--set", &registry, "--set", "train.epochs=1"]);
    place.write("rows.json", &Value::from(instances(&csv(3, 40))).to_string());
    let rows = place.text("rows.json");
    (place, rows)
}

/// Starts the server of the model with a second address for gRPC. Returns the server, the gRPC
/// address and the number of the version that answers.
pub(super) fn served(place: &Workplace) -> (Server, String, String) {
    let mut server = Server::start(place, &["--grpc", "127.0.0.1:0"]);
    assert!(server.becomes_ready());
    let status = server.get(&format!("/v1/models/{MODEL}")).json();
    let version = status["model_version_status"][0]["version"].as_str().expect("text").to_owned();
    let grpc = server.grpc.clone().expect("it was asked for");
    (server, grpc, version)
}

#[test]
fn tritons_grpc_clients_work_unmodified() {
    let Some(python) = Python::get() else { return };
    let (place, rows) = published();
    let (mut server, grpc, version) = served(&place);
    // A second server starts without models. It has its own cache, as on another machine.
    let cache = place.text("controlled-cache");
    let mut controlled = Server::configured(
        &place,
        &["--model-control", "--grpc", "127.0.0.1:0", "--cache", &cache],
        &[],
    );
    assert!(controlled.becomes_ready());
    let control = controlled.grpc.clone().expect("it was asked for");
    let arguments = [&server.address, &grpc, MODEL, &version, &rows, &control];
    let said = run(&mut python.script("triton_grpc.py", &arguments));
    assert!(said.contains("all right"), "{said}");
    assert!(server.terminate().success() && controlled.terminate().success());
}
