//! Tests of the log and the traces: log lines in JSON, invalid filters, and spans that a collector
//! receives.

mod collector;

use serde_json::Value;

use self::collector::{Collector, Span};
use crate::harness::{Workplace, row, stderr, stdout, zillion};
use crate::server::{MODEL, REGISTRY, Server, infer_body, instances, operate};

/// The trace id that a client sends. It is the example of the W3C trace context specification.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn published(more: &[&str]) -> Workplace {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let mut arguments = vec!["--set", &registry, "--set", "train.epochs=1"];
    arguments.extend(more);
    place.train_ok("run", &arguments);
    place
}

/// Sends a request with these headers, and returns the status code of the response.
fn infer(server: &Server, headers: &str, body: &str) -> u16 {
    let head = format!(
        "POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    server.send(&head, body.as_bytes()).expect("the server answers").status
}

fn body() -> String {
    infer_body(&instances(&format!("{}\n{}\n", crate::harness::HEADER, row(2, 1))), &[])
}

#[test]
fn a_clients_trace_is_continued_to_the_collector() {
    let collector = Collector::start();
    let place = published(&["--otlp", &collector.url()]);
    let trained = collector.spans();
    let named = |spans: &[Span], name: &str| -> Vec<Span> {
        spans.iter().filter(|span| span.name == name).cloned().collect()
    };
    // The last spans of the run are sent before it ends.
    let (checkpoints, publications) = (named(&trained, "checkpoint"), named(&trained, "publish"));
    assert_eq!(publications.len(), 1, "{trained:?}");
    assert!(checkpoints.len() > 1, "{trained:?}");
    assert!(trained.iter().all(|span| span.service == "zillion"), "{trained:?}");

    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        ("OTEL_SERVICE_NAME", "ranker".to_owned()),
    ];
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let mut server = Server::try_start(&place, &[], &environment).expect("the server listens");
    assert!(server.becomes_ready());
    let sampled = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: vendor=x\r\n");
    assert_eq!(infer(&server, &sampled, &body()), 200);
    // If a client does not want to be sampled, its request is not sampled. If a client sends an
    // invalid header, a new trace begins.
    let unsampled = format!("traceparent: 00-{}-{PARENT}-00\r\n", TRACE.replace('4', "5"));
    assert_eq!(infer(&server, &unsampled, &body()), 200);
    assert_eq!(infer(&server, "traceparent: nonsense\r\n", &body()), 200);
    assert!(server.terminate().success());

    let spans = collector.spans();
    assert!(spans.iter().skip(trained.len()).all(|span| span.service == "ranker"), "{spans:?}");
    assert_eq!(named(&spans, "load").len(), 1, "{spans:?}");
    let ours: Vec<Span> = spans.iter().filter(|span| span.trace == TRACE).cloned().collect();
    let requests = named(&ours, &format!("v2 {MODEL}"));
    let [request] = &requests[..] else { panic!("{ours:?}") };
    assert_eq!((request.parent.as_str(), request.state.as_str()), (PARENT, "vendor=x"));
    assert_eq!(request.kind, 2, "a server's span: {request:?}");
    for stage in ["receive", "queue", "parse", "score", "write"] {
        let found = named(&ours, stage);
        let [span] = &found[..] else { panic!("{stage}: {ours:?}") };
        assert_eq!(span.parent, request.id, "{stage}");
        assert!(span.start >= request.start && span.end <= request.end, "{stage}: {ours:?}");
    }
    assert_eq!(ours.len(), 6, "{ours:?}");
    let all = named(&spans, &format!("v2 {MODEL}"));
    assert_eq!(all.len(), 2, "the sampled one and the one of its own: {all:?}");
    assert!(all.iter().any(|span| span.parent.is_empty() && span.trace != TRACE), "{all:?}");
}

#[test]
fn the_log_is_json_a_line_with_the_trace_of_a_request() {
    let collector = Collector::start();
    let place = published(&[]);
    let url = collector.url();
    let more =
        ["--log-format", "json", "--otlp", &url, "--log-filter", "info,zillion_serving=debug"];
    let mut server = Server::start(&place, &more);
    assert!(server.becomes_ready());
    let sampled = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n");
    assert_eq!(infer(&server, &sampled, "{"), 400);
    assert!(server.terminate().success());
    let log = std::fs::read_to_string(place.path("server.log")).expect("the log is there");
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let up = lines.iter().find(|line| line["message"] == "this version answers now");
    let up = up.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(
        (&up["level"], &up["target"]),
        (&"INFO".into(), &"zillion_serving::loader::follower".into())
    );
    assert_eq!((&up["fields"]["model"], &up["fields"]["version"]), (&MODEL.into(), &1.into()));
    let refused = lines.iter().find(|line| line["trace_id"] == TRACE);
    let refused = refused.unwrap_or_else(|| panic!("{log}"));
    assert_eq!((&refused["level"], &refused["fields"]["status"]), (&"DEBUG".into(), &400.into()));
    // The line contains the id of the span that the collector received.
    let spans = collector.spans();
    let request = spans.iter().find(|span| span.trace == TRACE && span.parent == PARENT);
    assert_eq!(request.map(|span| span.id.as_str()), refused["span_id"].as_str(), "{spans:?}");
    let at = up["timestamp"].as_str().expect("a time");
    assert!(at.len() >= 20 && at.ends_with('Z'), "{at}");
}

#[test]
fn an_error_is_json_too() {
    let output = zillion(&[
        "--log-format",
        "json",
        "serve",
        "--registry",
        "/nowhere/at/all",
        "--model",
        "m",
    ])
    .output()
    .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    let line: Value = serde_json::from_str(said.trim()).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(line["level"], "ERROR");
    assert!(
        line["message"].as_str().is_some_and(|text| text.contains("/nowhere/at/all")),
        "{said}"
    );
}

#[test]
fn an_invalid_setting_is_a_usage_error_with_its_name() {
    let refused = |arguments: &[&str], environment: &[(&str, &str)]| {
        let output =
            zillion(arguments).envs(environment.iter().copied()).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        stderr(&output)
    };
    let said = refused(&["--log-filter", "info,zillion=loud", "completions", "bash"], &[]);
    assert!(said.contains("--log-filter") && said.contains("`zillion=loud`"), "{said}");
    let misspelt = refused(&["--log-filter", "zillion_servng=debug", "completions", "bash"], &[]);
    assert!(misspelt.contains("did you mean `zillion_serving`?"), "{misspelt}");
    let said = refused(&["completions", "bash"], &[("ZILLION_LOG", "loud")]);
    assert!(said.contains("ZILLION_LOG") && said.contains("`loud`"), "{said}");
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let said =
        refused(&["completions", "bash"], &[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
    assert!(
        said.contains("OTEL_EXPORTER_OTLP_PROTOCOL=grpc") && said.contains("http/protobuf"),
        "{said}"
    );
    let said = refused(&["--otlp", "nowhere", "completions", "bash"], &[]);
    assert!(said.contains("--otlp=nowhere"), "{said}");
}

/// Checks that a server works when its collector cannot be reached, and that it reports this once.
#[test]
fn a_missing_collector_is_reported() {
    let place = published(&[]);
    let more = ["--otlp", "http://127.0.0.1:9"];
    let mut server = Server::start(&place, &more);
    assert!(server.becomes_ready());
    assert_eq!(infer(&server, "", &body()), 200);
    assert!(server.terminate().success());
    let log = std::fs::read_to_string(place.path("server.log")).expect("the log is there");
    assert_eq!(log.matches("spans are lost").count(), 1, "{log}");
    // A command without spans reports nothing.
    let listed = operate(&place, &["model", "list"]);
    assert!(listed.contains('1'), "{listed}");
    assert!(!stdout(&zillion(&["completions", "bash"]).output().expect("it runs")).is_empty());
}
