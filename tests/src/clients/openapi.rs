//! Test of the OpenAPI document. The program schemathesis makes valid and invalid requests from the
//! document, and checks that every response agrees with it.

use super::{Python, run};
use crate::harness::{Workplace, root};
use crate::server::{MODEL, REGISTRY, Server, operate};

/// The smallest number of requests that schemathesis must make.
const CASES: usize = 2_000;

#[test]
fn every_answer_follows_the_openapi_document() {
    let Some(python) = Python::get() else { return };
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let settings = ["--set", &registry, "--set", "publish.every=12", "--set", "train.epochs=1"];
    place.train_ok("run", &settings);
    operate(&place, &["model", "promote", "1", "--to", "canary"]);
    // A request that waits a long time for a processor is not an error of the document.
    let mut server = Server::start(&place, &["--request-ms", "30000", "--receive-ms", "30000"]);
    assert!(server.becomes_ready());

    let document = server.get("/openapi.json").json();
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() > 35, "{paths:?}");
    // Each path that names a model without a parameter exists for every model.
    for path in [
        format!("/v2/models/{MODEL}/infer"),
        format!("/v1/models/{MODEL}/labels/{{label}}:predict"),
        "/v2/models/{model}/versions/{version}/stats".to_owned(),
        "/v2/repository/index".to_owned(),
        "/metrics".to_owned(),
    ] {
        assert!(paths.contains_key(&path), "{path}");
    }

    let config = root().join("tests/clients/schemathesis.toml");
    let url = format!("http://{}/openapi.json", server.address);
    let mut command = python.program(
        "schemathesis",
        &[
            "--config-file",
            config.to_str().expect("a plain path"),
            "run",
            &url,
            "--checks=all",
            "--seed=5",
            "--max-examples=30",
            "--request-timeout=30",
            "--no-color",
        ],
    );
    // The program writes a folder of examples, from which its next run would start.
    let said = run(command.current_dir(place.path("")));
    let generated = said
        .lines()
        .find_map(|line| line.trim().split_once(" generated, ")?.0.parse::<usize>().ok())
        .unwrap_or_else(|| panic!("{said}"));
    assert!(generated >= CASES, "{said}");
    assert!(said.contains(&format!("{generated} generated, {generated} passed")), "{said}");
    assert!(server.is_running());
    assert!(server.terminate().success());
}
