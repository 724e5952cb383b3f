//! Tests with unmodified HTTP clients: tritonclient with JSON and binary tensors, and clients of
//! the REST API of TensorFlow Serving.

use super::{Python, run};
use crate::harness::Workplace;
use crate::server::{MODEL, REGISTRY, Server, operate};

/// Publishes several versions. The pointer `stable` names the newest version, and the pointer
/// `canary` names the first version.
fn published() -> Workplace {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let settings = ["--set", &registry, "--set", "publish.every=12", "--set", "train.epochs=1"];
    place.train_ok("run", &settings);
    operate(&place, &["model", "promote", "1", "--to", "canary"]);
    place
}

fn server(place: &Workplace, more: &[&str]) -> Server {
    let mut arguments = vec!["--request-ms", "30000"];
    arguments.extend(more);
    let mut server = Server::start(place, &arguments);
    assert!(server.becomes_ready());
    server
}

#[test]
fn tritonclient_works_unmodified_over_http() {
    let Some(python) = Python::get() else { return };
    let place = published();
    for (control, more) in [("no", &[][..]), ("yes", &["--model-control"])] {
        let mut server = server(&place, more);
        let said = run(&mut python.script("http_triton.py", &[&server.address, MODEL, control]));
        assert!(said.contains("64 rows, bit for bit"), "{said}");
        assert!(server.terminate().success());
    }
}

#[test]
fn tf_serving_clients_work_unmodified_over_http() {
    let Some(python) = Python::get() else { return };
    let place = published();
    let mut server = server(&place, &[]);
    let said = run(&mut python.script("http_tf.py", &[&server.address, MODEL]));
    assert!(said.contains("50 rows over 2 versions"), "{said}");
    assert!(server.terminate().success());
}
