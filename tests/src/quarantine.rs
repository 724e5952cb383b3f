//! Tests of versions in quarantine: servers leave them without a failed request, training goes on
//! from the version before, and the log of the pointer says why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::harness::{Workplace, csv, stderr};
use crate::server::{MODEL, Server, infer_body, instances, operate, operator, output};
use crate::serving::{bits, published, publishing};

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Quarantines or lifts the quarantine of a version.
fn quarantine(place: &Workplace, version: u64, more: &[&str]) -> String {
    let version = version.to_string();
    let mut arguments = vec!["model", "quarantine", version.as_str(), "--reason", "a drill"];
    arguments.extend(more);
    operate(place, &arguments)
}

fn refuse(place: &Workplace, arguments: &[&str], part: &str) {
    let output = operator(place, arguments).output().expect("the binary runs");
    let said = stderr(&output);
    assert!(!output.status.success() && said.contains(part), "{said}");
}

#[test]
fn servers_leave_a_version_in_quarantine() {
    let place = Workplace::new();
    publishing(&place, "run", 8, &["--set", "train.epochs=2"]);
    let newest = parse(&operate(&place, &["model", "show", "--json"]));
    let newest = newest["version"].as_u64().expect("a number");
    assert!(newest >= 5, "{newest}");
    place.write("rows.csv", &csv(7, 16));
    let rows = instances(&csv(7, 16));
    let body = infer_body(&rows, &["logits"]);

    let mut server = Server::start(&place, &["--retain", "2"]);
    let name = format!("{MODEL}@latest");
    let cache = place.text("other-cache");
    let mut latest = Server::configured(&place, &["--model", &name, "--cache", &cache], &[]);
    assert!(server.becomes_ready() && latest.becomes_ready());
    server.wait_for(newest);
    latest.wait_for(newest);

    // Requests go on all the time. Each answer has the scores of its version.
    let stop = AtomicBool::new(false);
    let answers = std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            let mut answers: BTreeMap<u64, BTreeSet<Vec<u32>>> = BTreeMap::new();
            while !stop.load(Ordering::Relaxed) {
                for server in [&server, &latest] {
                    let path = format!("/v2/models/{MODEL}/infer");
                    let reply = server.post(&path, body.as_bytes());
                    assert_eq!(reply.status, 200, "{reply:?}");
                    let version = reply.json()["model_version"].as_str().map(str::parse);
                    let version = version.expect("text").expect("a number");
                    let scores = bits(&output(&reply, "logits"));
                    answers.entry(version).or_default().insert(scores);
                }
            }
            answers
        });
        let said = quarantine(&place, 3, &[]);
        let expected = format!("stable: quarantine of version 3 {newest} -> 2 by ");
        assert!(said.contains(&expected) && said.contains(": a drill"), "{said}");
        server.wait_for(2);
        latest.wait_for(2);
        stop.store(true, Ordering::Relaxed);
        asker.join().expect("no request fails")
    });
    assert!(answers.contains_key(&newest), "{:?}", answers.keys());
    for (version, scores) in &answers {
        let expected = bits(&published(&place, *version, "rows.csv", 64));
        assert_eq!(scores.iter().collect::<Vec<_>>(), [&expected], "version {version}");
    }

    // The log says who moved the pointer and why; a repeated quarantine adds nothing.
    let log = || parse(&operate(&place, &["model", "log", "--json"]));
    let before = log();
    quarantine(&place, 3, &[]);
    assert_eq!(log(), before);
    let entry = &before[0];
    let field = |name: &str| entry[name].clone();
    assert_eq!((field("kind"), field("note")), ("quarantine".into(), "a drill".into()));
    assert_eq!((field("about"), field("from")), (3.into(), newest.into()));
    assert_eq!((&entry["to"]["version"], field("quarantined")), (&2.into(), vec![3].into()));
    let text = operate(&place, &["model", "log", "--limit", "1"]);
    assert!(
        text.contains("quarantine of version 3") && text.contains("in quarantine: 3"),
        "{text}"
    );
    refuse(&place, &["model", "log", "--pointer", "stabel"], "was never set");

    // Neither the version nor those that build on it can be promoted.
    for version in ["3", "4"] {
        let said = format!("version {version} of model `{MODEL}` is or builds on version 3");
        refuse(&place, &["model", "promote", version], &said);
    }
    refuse(&place, &["model", "rollback", "--to", "4"], "in quarantine");

    // Training goes on from the version before, and both servers follow.
    publishing(&place, "run", 8, &["--set", "train.epochs=3", "--resume"]);
    let parent = (newest + 1).to_string();
    let show = parse(&operate(&place, &["model", "show", "--version", &parent, "--json"]));
    assert_eq!(show["parent"]["version"], 2);
    let next = parse(&operate(&place, &["model", "show", "--json"]));
    let next = next["version"].as_u64().expect("a number");
    server.wait_for(next);
    latest.wait_for(next);

    // Lifted, it can be promoted again.
    refuse(&place, &["model", "quarantine", "4", "--lift", "--reason", "x"], "builds on version 3");
    quarantine(&place, 3, &["--lift"]);
    operate(&place, &["model", "promote", "4"]);
    server.wait_for(4);
    let reply = server.post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes());
    let expected = bits(&published(&place, 4, "rows.csv", 64));
    assert_eq!(bits(&output(&reply, "logits")), expected);
}
