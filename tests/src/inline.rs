//! Tests of small requests, which the network thread that read them scores: the answers are those
//! of the threads for scoring, and connections are served by several network threads.

use serde_json::{Value, json};

use crate::harness::{Workplace, csv};
use crate::server::{MODEL, REGISTRY, Server, infer_body, instances, operator};

fn published() -> Workplace {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    place.train_ok("run", &["--set", &registry, "--set", "train.epochs=1"]);
    place
}

/// Returns the number of requests that the server scored on its network threads.
fn inline_count(server: &Server) -> u64 {
    let name = format!("zillion_serving_scored_inline_total{{model=\"{MODEL}\"}} ");
    let text = server.get("/metrics").body;
    let count = text.lines().find_map(|line| line.strip_prefix(&name)).expect("the series exists");
    count.parse().expect("a number")
}

/// Returns the paths and the bodies of small requests of all protocols over HTTP.
fn requests() -> Vec<(String, String)> {
    let rows = instances(&csv(5, 3));
    let bad = json!({ "instances": [{ "user": [1, 2] }] }).to_string();
    let context = json!({ "user": rows[0]["user"], "age": rows[0]["age"] });
    let candidates: Vec<Value> = rows
        .iter()
        .map(|row| json!({ "item": row["item"], "tags": row["tags"], "price": row["price"] }))
        .collect();
    let rank = json!({ "context": context, "candidates": candidates }).to_string();
    let path = |verb: &str| format!("/v1/models/{MODEL}:{verb}");
    vec![
        (format!("/v2/models/{MODEL}/infer"), infer_body(&rows[..1], &[])),
        (format!("/v2/models/{MODEL}/infer"), infer_body(&rows, &["logits"])),
        (format!("/v2/models/{MODEL}/infer"), infer_body(&rows[..1], &["no such output"])),
        (path("predict"), json!({ "instances": rows }).to_string()),
        (path("predict"), bad),
        (path("rank"), rank),
    ]
}

#[test]
fn small_and_queued_requests_get_the_same_bytes() {
    let place = published();
    // The bound is so high that a busy machine does not reach it.
    let start = |inline_us, cache| {
        let cache = place.text(cache);
        let more = ["--inline-us", inline_us, "--network-threads", "3", "--cache", &cache];
        let mut server = Server::start(&place, &more);
        assert!(server.becomes_ready());
        server
    };
    let (inline, queued) = (start("2000", "cache-a"), start("0", "cache-b"));
    let ask = |server: &Server, path: &str, body: &str| {
        let reply = server.post(path, body.as_bytes());
        (reply.status, reply.body)
    };
    for (path, body) in requests() {
        let expected = ask(&queued, &path, &body);
        // The first request of a size is measured on the threads for scoring.
        (0..20).for_each(|_| assert_eq!(ask(&inline, &path, &body), expected, "{path} {body}"));
    }
    assert!(inline_count(&inline) > 0);
    assert_eq!(inline_count(&queued), 0);
    // The same over gRPC, compared with scores that the client computes.
    for server in [&inline, &queued] {
        let (url, valid) = (format!("http://{}", server.address), place.text("valid.csv"));
        let command = [
            &["loadgen", "--url", &url, "--data", &valid, "--candidates", "1", "--bodies", "50"][..],
            &["--protocol", "grpc", "--rate", "300", "--seconds", "1", "--check", "--json"],
        ];
        let before = inline_count(server);
        let output = operator(&place, &command.concat()).output().expect("the binary runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let figures: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let check = (&figures["check"]["compared"], &figures["check"]["mismatches"]);
        assert_eq!(check, (&300.into(), &0.into()), "{figures}");
        assert_eq!(inline_count(server) > before, std::ptr::eq(server, &inline));
    }
}
