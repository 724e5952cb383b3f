//! Test of the option `--profile`. It must write a trace for other tools and a summary that names
//! the slowest part of the work, and must not change the result of the run.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::{Workplace, stderr, stdout, zillion};

#[test]
fn a_profile_is_a_trace_with_every_stage_and_names_a_bound() {
    let place = Workplace::new();
    let trace = place.text("trace.json");
    let more = ["--profile", &trace, "--profile-every", "4", "--json"];
    let output = place.train_ok("run", &more);
    let text = std::fs::read_to_string(&trace).expect("the trace is there");
    let trace: Value = serde_json::from_str(&text).expect("it is JSON");
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let of = |category: &str| -> BTreeSet<&str> {
        let events = events.iter().filter(|event| event["cat"] == category);
        events.filter_map(|event| event["name"].as_str()).collect()
    };
    let stages = of("stage");
    for stage in ["prepare", "decode", "plan", "pull", "model", "push", "optimizer", "checkpoint"] {
        assert!(stages.contains(stage), "{stage} of {stages:?}");
    }
    assert!(of("wait").contains("wait for a batch"));
    assert!(of("step").contains("step 1"));
    assert!(of("kernel").len() > 5 && !of("pass").is_empty());
    for event in events.iter().filter(|event| event["ph"] == "X") {
        assert!(event["ts"].as_f64() >= Some(0.0) && event["dur"].as_f64() >= Some(0.0), "{event}");
    }
    let names = events.iter().filter(|event| event["name"] == "thread_name");
    let names: Vec<&Value> = names.map(|event| &event["args"]["name"]).collect();
    assert_eq!(names[0], "training");

    let said = stderr(&output);
    let has_advice = ["bounds this job", "bound this job"].iter().any(|text| said.contains(text));
    assert!(said.contains("bound by ") && has_advice, "{said}");
    let outcome: Value = serde_json::from_str(stdout(&output).trim()).expect("a line of JSON");
    let bound = outcome["profile"]["bound"].as_str().expect("a bound");
    assert!(["reader", "table", "products", "memory", "waiting"].contains(&bound), "{bound}");
    assert_eq!(trace["otherData"]["summary"]["bound"], bound);
}

#[test]
fn an_unwritable_profile_is_refused_before_the_run() {
    let place = Workplace::new();
    let nowhere = place.text("nowhere/trace.json");
    let output = place.train("run", &["--profile", &nowhere]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("the path is not a file in an existing folder"));
    assert!(!place.path("run").exists());
    let output = zillion(&["train", "job.toml", "--profile-every", "3"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
