//! Tests of two commands that score rows with a version: `predict --model` reads files, and
//! `loadgen` asks a server.

use serde_json::Value;

use crate::harness::{Workplace, stderr, stdout, zillion};
use crate::server::{MODEL, REGISTRY, Server, operator};

/// Creates a workplace with a trained run, and publishes the run as version 1.
fn published() -> Workplace {
    let place = Workplace::new();
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    place.train_ok("run", &["--set", &registry, "--set", "train.epochs=1"]);
    place
}

fn ok(mut command: std::process::Command) -> String {
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Runs a command that must fail. Returns its exit code and its error message.
fn fails(mut command: std::process::Command) -> (Option<i32>, String) {
    let output = command.output().expect("the binary runs");
    assert!(!output.status.success(), "{}", stdout(&output));
    (output.status.code(), stderr(&output))
}

/// Returns the command `predict` for the published version.
fn predict(place: &Workplace, more: &[&str]) -> std::process::Command {
    operator(place, &[&["predict"], more].concat())
}

#[test]
fn a_version_scores_a_file_as_its_checkpoint_does() {
    let place = published();
    let (run, valid) = (place.text("run"), place.text("valid.csv"));
    for more in [&[][..], &["--json"]] {
        let checkpoint = ok(zillion(&[&["predict", &run, &valid], more].concat()));
        // With the batches of the job, the scores have the same bits.
        let version = ok(predict(&place, &[more, &["--batch", "64", &valid]].concat()));
        assert_eq!(checkpoint, version);
        assert_eq!(version.lines().count(), 400 + usize::from(more.is_empty()));
        // With other batches, the scores are the same, but their bits may differ.
        let small = [more, &["--batch", "7", "--version", "1", &valid]].concat();
        let small = ok(predict(&place, &small));
        assert_eq!(small.lines().count(), version.lines().count());
        let scores = |text: &str| -> Vec<f64> {
            text.lines().filter_map(|line| line.parse().ok()).collect()
        };
        let pairs = scores(&small).into_iter().zip(scores(&version));
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() <= 1e-6));
        assert_eq!(pairs.count(), if more.is_empty() { 400 } else { 0 });
    }
    let text = std::fs::read_to_string(&valid).expect("a file");
    place.write("other.csv", &text.replace(',', ";"));
    let other = place.text("other.csv");
    let dialect = ok(predict(&place, &[&other, "--set", "data.delimiter=;"]));
    assert_eq!(dialect, ok(predict(&place, &[&valid])));
}

#[test]
fn files_that_a_version_cannot_score_are_refused() {
    let place = published();
    let (run, valid) = (place.text("run"), place.text("valid.csv"));
    let refused = |more: &[&str]| fails(predict(&place, more));
    let (code, said) = refused(&["-"]);
    assert!(code == Some(2) && said.contains("not stdin"), "{said}");
    let (code, said) = refused(&[&run, &valid]);
    assert!(code == Some(2) && said.contains("both given"), "{said}");
    let (code, said) = refused(&[&valid, "--set", "train.epochs=2"]);
    assert!(code == Some(2) && said.contains("set only `data.*`"), "{said}");
    let (code, said) = refused(&[&valid, "--version", "9"]);
    assert!(code == Some(1) && said.contains("unknown version 9 of model"), "{said}");
    let (code, said) = fails(zillion(&["predict", &valid]));
    assert!(code == Some(2) && said.contains("--model"), "{said}");
    let (code, said) = fails(zillion(&["predict", "--model", MODEL, &valid]));
    assert!(code == Some(2) && said.contains("--registry"), "{said}");
}

/// Returns the command `loadgen`, which sends requests to the server at `address` and uses the
/// registry of `place`.
fn load(place: &Workplace, address: &str, more: &[&str]) -> std::process::Command {
    let (url, valid) = (format!("http://{address}"), place.text("valid.csv"));
    let fixed = ["loadgen", "--url", &url, "--data", &valid, "--candidates", "20", "--bodies", "5"];
    operator(place, &[&fixed[..], &["--json"], more].concat())
}

fn figures_of(mut command: std::process::Command) -> (bool, Value) {
    let output = command.output().expect("the binary runs");
    let text = stdout(&output);
    let figures = serde_json::from_str(&text);
    let figures = figures.unwrap_or_else(|_| panic!("{text}{}", stderr(&output)));
    (output.status.success(), figures)
}

#[test]
fn every_answer_of_a_server_is_checked_bit_for_bit() {
    let place = published();
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    for protocol in [
        &["--protocol", "v2"][..],
        &["--protocol", "rank"],
        &["--protocol", "rank", "--context", "user,tags"],
        &["--protocol", "predict", "--version", "1"],
        &["--protocol", "grpc"],
        &["--protocol", "grpc", "--version", "1"],
    ] {
        let more = [protocol, &["--rate", "200", "--seconds", "0.5", "--check"]].concat();
        let (good, figures) = figures_of(load(&place, &server.address, &more));
        assert!(good, "{figures}");
        assert_eq!(
            (&figures["requests"], &figures["ok"], &figures["failed"]),
            (&100.into(), &100.into(), &0.into())
        );
        assert_eq!(figures["check"]["compared"], 100, "{figures}");
        assert_eq!(figures["check"]["mismatches"], 0, "{figures}");
        assert_eq!(figures["slices"].as_array().map(Vec::len), Some(1));
        if protocol[1] != "predict" {
            assert_eq!(figures["versions"]["1"], 100);
        }
    }
}

#[test]
fn wrong_answers_and_failures_are_exit_code_one() {
    let place = published();
    let mut server = Server::start(&place, &[]);
    assert!(server.becomes_ready());
    // Version 1 of the other registry was trained with other settings, so the server's answers
    // differ from it.
    let other = Workplace::new();
    let registry = format!("publish.registry={}", other.text(REGISTRY));
    other.train_ok("run", &["--set", &registry, "--set", "train.epochs=1", "--set", "seed=6"]);
    let checked = ["--rate", "100", "--seconds", "0.2", "--check"];
    let (good, wrong) = figures_of(load(&other, &server.address, &checked));
    assert!(!good);
    assert_eq!(
        (&wrong["failed"], &wrong["check"]["mismatches"]),
        (&0.into(), &20.into()),
        "{wrong}"
    );
    assert!(
        wrong["check"]["first"].as_str().expect("text").contains("version 1, body 0"),
        "{wrong}"
    );

    let address = server.address.clone();
    drop(server);
    let (good, gone) = figures_of(load(&place, &address, &["--rate", "100", "--seconds", "0.1"]));
    assert!(!good);
    assert_eq!(gone["failures"]["no connection"], 10, "{gone}");
    assert_eq!((&gone["sent"], &gone["ok"]), (&0.into(), &0.into()), "{gone}");
}

#[test]
fn missing_arguments_of_loadgen_are_named() {
    let place = published();
    let valid = place.text("valid.csv");
    let (code, said) = fails(zillion(&["loadgen", "--model", MODEL, "--data", &valid]));
    assert!(code == Some(2) && said.contains("--registry"), "{said}");
    let refused =
        |more: &[&str]| fails(operator(&place, &[&["loadgen", "--data", &valid], more].concat()));
    for (more, wanted, message) in [
        (&["--protocol", "predict", "--check"][..], 2, "does not name its version"),
        (&["--url", "127.0.0.1:80"], 2, "http://"),
        (&["--context", "user"], 2, "--protocol rank"),
        (&["--candidates", "1000"], 1, "--candidates"),
        (
            &["--protocol", "rank", "--context", "usr"],
            1,
            "unknown input `usr` in --context (the model has: ",
        ),
        (&["--rate", "0"], 2, "--rate"),
    ] {
        let (code, said) = refused(more);
        assert!(code == Some(wanted) && said.contains(message), "{more:?}: {said}");
    }
}
