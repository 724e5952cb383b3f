//! Scores of a version by its two ways in: `predict --model` on files, and `loadgen` on a server.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const JOB: &str = r#"
name = "load"
seed = 5
[data]
train = ["train.csv"]
valid = ["valid.csv"]
[features.user]
kind = "id"
type = "string"
[features.item]
kind = "id"
[features.tags]
kind = "ids"
type = "string"
pooling = "mean"
[features.price]
kind = "numeric"
transform = "standardise"
[labels.label]
[tables."*"]
dim = 4
[model]
kind = "deepfm"
hidden = [8]
[train]
epochs = 1
batch_size = 64
[run]
output = "run"
threads = 1
"#;

/// Rows without randomness: what they are does not matter, that they differ does.
fn csv(rows: usize) -> String {
    let mut text = "user,item,tags,price,label\n".to_owned();
    for i in 0..rows {
        let tags = ["", "a", "a|b", "b|c|a"][i % 4];
        let price = (i * 37 % 1000) as f64 / 100.0;
        writeln!(text, "u{},{},{tags},{price},{}", i * 7 % 50, i * 13 % 80, i * i % 7 % 2).unwrap();
    }
    text
}

fn zillion(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zillion"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ZILLION_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command
}

fn output(folder: &Path, arguments: &[&str]) -> Output {
    zillion(folder, arguments).output().expect("the binary runs")
}

fn ok(folder: &Path, arguments: &[&str]) -> String {
    let output = output(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// The exit code, and what was said.
fn fails(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = output(folder, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A folder with a trained run that is published as version 1.
fn published() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("job.toml"), JOB).unwrap();
    std::fs::write(path.join("train.csv"), csv(640)).unwrap();
    std::fs::write(path.join("valid.csv"), csv(200)).unwrap();
    ok(path, &["train", "job.toml"]);
    ok(path, &["publish", "run", "--registry", "registry", "--model", "clicks"]);
    folder
}

const VERSION: [&str; 5] = ["predict", "--registry", "registry", "--model", "clicks"];

#[test]
fn a_version_scores_a_file_as_the_checkpoint_that_it_came_from() {
    let folder = published();
    let path = folder.path();
    for more in [&[][..], &["--json"]] {
        let checkpoint = ok(path, &[&["predict", "run", "valid.csv"], more].concat());
        let version = ok(path, &[&VERSION, more, &["valid.csv"]].concat());
        assert_eq!(checkpoint, version);
        assert_eq!(version.lines().count(), 200 + usize::from(more.is_empty()));
        // In other batches: the same scores, perhaps not the same bits.
        let small =
            ok(path, &[&VERSION, more, &["--batch", "7", "--version", "1", "valid.csv"]].concat());
        assert_eq!(small.lines().count(), version.lines().count());
        let scores = |text: &str| -> Vec<f64> {
            text.lines().filter_map(|line| line.parse().ok()).collect()
        };
        let pairs = scores(&small).into_iter().zip(scores(&version));
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() <= 1e-6));
        assert_eq!(pairs.count(), if more.is_empty() { 200 } else { 0 });
    }
    let semicolons = csv(200).replace(',', ";");
    std::fs::write(path.join("other.csv"), semicolons).unwrap();
    let dialect = [&VERSION[..], &["other.csv", "--set", "data.delimiter=;"]].concat();
    assert_eq!(ok(path, &dialect), ok(path, &[&VERSION[..], &["valid.csv"]].concat()));
}

#[test]
fn what_a_version_cannot_score_is_said() {
    let folder = published();
    let path = folder.path();
    let refused = |more: &[&str]| fails(path, &[&VERSION[..], more].concat());
    let (code, said) = refused(&["-"]);
    assert!(code == Some(2) && said.contains("not stdin"), "{said}");
    let (code, said) = refused(&["run", "valid.csv"]);
    assert!(code == Some(2) && said.contains("not by both"), "{said}");
    let (code, said) = refused(&["valid.csv", "--set", "train.epochs=2"]);
    assert!(code == Some(2) && said.contains("only data.* can"), "{said}");
    let (code, said) = refused(&["valid.csv", "--version", "9"]);
    assert!(code == Some(1) && said.contains("no version 9"), "{said}");
    let (code, said) = fails(path, &["predict", "valid.csv"]);
    assert!(code == Some(2) && said.contains("--model"), "{said}");
    let (code, said) = fails(path, &["predict", "--model", "clicks", "valid.csv"]);
    assert!(code == Some(2) && said.contains("--registry"), "{said}");
}

/// A server that ends with the test.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let arguments = [
            "serve",
            "--registry",
            "registry",
            "--model",
            "clicks",
            "--http",
            "127.0.0.1:0",
            "--threads",
            "2",
            "--poll-ms",
            "20",
        ];
        let mut child = zillion(folder, &arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().rsplit(' ').next().unwrap().to_owned();
        let server = Self { child, url };
        // It listens before it has loaded.
        for _ in 0..200 {
            if server.load(folder, &["--rate", "50", "--seconds", "0.02"]).status.success() {
                return server;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("the server is not ready after ten seconds");
    }

    fn load(&self, folder: &Path, more: &[&str]) -> Output {
        let arguments = [
            "loadgen",
            "--registry",
            "registry",
            "--model",
            "clicks",
            "--data",
            "valid.csv",
            "--url",
            &self.url,
            "--candidates",
            "20",
            "--bodies",
            "5",
            "--json",
        ];
        output(folder, &[&arguments, more].concat())
    }

    fn figures(&self, folder: &Path, more: &[&str]) -> (bool, Value) {
        let output = self.load(folder, more);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr);
        let figures = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{said}"));
        (output.status.success(), figures)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_answer_of_a_server_is_checked_bit_for_bit() {
    let folder = published();
    let path = folder.path();
    let server = Server::start(path);
    for protocol in [
        &["--protocol", "v2"][..],
        &["--protocol", "rank"],
        &["--protocol", "rank", "--context", "user,tags"],
        &["--protocol", "predict", "--version", "1"],
    ] {
        let more = [protocol, &["--rate", "200", "--seconds", "0.5", "--check"]].concat();
        let (good, figures) = server.figures(path, &more);
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
    let folder = published();
    let path = folder.path();
    let server = Server::start(path);
    // A registry whose version 1 was trained otherwise: what the server says is not what this version says.
    let other = published();
    ok(other.path(), &["train", "job.toml", "--set", "seed=6", "--set", "run.output=again"]);
    std::fs::remove_dir_all(other.path().join("registry")).unwrap();
    ok(other.path(), &["publish", "again", "--registry", "registry", "--model", "clicks"]);
    let (good, figures) =
        server.figures(other.path(), &["--rate", "100", "--seconds", "0.2", "--check"]);
    assert!(!good);
    assert_eq!(
        (&figures["failed"], &figures["check"]["mismatches"]),
        (&0.into(), &20.into()),
        "{figures}"
    );
    assert!(figures["check"]["first"].as_str().unwrap().contains("version 1, body 0"), "{figures}");

    let url = server.url.clone();
    drop(server);
    let gone = Server { child: zillion(path, &["--version"]).spawn().unwrap(), url };
    let (good, figures) = gone.figures(path, &["--rate", "100", "--seconds", "0.1"]);
    assert!(!good);
    assert_eq!(figures["failures"]["no connection"], 10, "{figures}");
    assert_eq!((&figures["sent"], &figures["ok"]), (&0.into(), &0.into()), "{figures}");
}

#[test]
fn what_loadgen_needs_is_said() {
    let folder = published();
    let path = folder.path();
    let bare = ["loadgen", "--model", "clicks", "--data", "valid.csv"];
    let refused = |more: &[&str]| fails(path, &[&bare[..], more].concat());
    let (code, said) = refused(&[]);
    assert!(code == Some(2) && said.contains("--registry"), "{said}");
    let with = ["--registry", "registry"];
    let (code, said) = refused(&[&with[..], &["--protocol", "predict", "--check"]].concat());
    assert!(code == Some(2) && said.contains("names no version"), "{said}");
    let (code, said) = refused(&[&with[..], &["--url", "127.0.0.1:80"]].concat());
    assert!(code == Some(2) && said.contains("http://"), "{said}");
    let (code, said) = refused(&[&with[..], &["--context", "user"]].concat());
    assert!(code == Some(2) && said.contains("--protocol rank"), "{said}");
    let (code, said) = refused(&[&with[..], &["--candidates", "1000"]].concat());
    assert!(code == Some(1) && said.contains("--candidates"), "{said}");
    let (code, said) = refused(&[&with[..], &["--protocol", "rank", "--context", "usr"]].concat());
    assert!(code == Some(1) && said.contains("`user`: --context usr"), "{said}");
    let (code, _) = refused(&["--rate", "0"]);
    assert_eq!(code, Some(2));
}
