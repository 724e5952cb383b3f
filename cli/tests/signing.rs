//! Tests of keys, tokens, signed versions and audit logs on the command line. An earlier release
//! wrote the registry, without signatures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const MODEL: [&str; 4] = ["--registry", "registry", "--model", "fixture"];
const CHECKPOINT: &str = "run/checkpoints/step-000000000016";

/// A copy of the files of an earlier release. The commands run in this folder.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a temporary folder");
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/formats-1");
        copy(&fixture, place.path());
        Self(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("the file can be read")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zillion"));
        command.args(arguments).current_dir(&self.0);
        for name in ["ZILLION_TRUST", "ZILLION_SIGN_KEY", "ZILLION_AUDIT_LOG"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// Runs a command, asserts that it succeeds, and returns its stdout.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command, asserts that it fails with the exit code `code`, and returns its stderr.
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        error
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder can be made");
    for entry in std::fs::read_dir(from).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("a file can be copied");
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn keys_are_made_shown_and_trusted() {
    let place = Place::new();
    let made = place.ok(&["key", "new", "--out", "a.b"]);
    let shown = place.ok(&["key", "show", "a.b.key"]);
    let (id, _) = shown.split_once("  private key").expect("the kind of the key");
    assert!(made.contains(id), "{made}");
    assert!(place.ok(&["key", "show", "a.b.pub"]).starts_with(&format!("{id}  public key")));
    place.ok(&["key", "trust", "a.b.pub", "--keys", "trusted"]);
    assert!(place.ok(&["key", "show", "trusted"]).contains(id));
    let secret = place.read("a.b.key");
    assert!(place.refused(1, &["key", "new", "--out", "a.b"]).contains("exists already"));
    assert_eq!(place.read("a.b.key"), secret);
    // A private key must not be in a folder of trusted keys.
    place.refused(1, &["key", "trust", "a.b.key", "--keys", "trusted"]);
    place.refused(1, &["key", "show", "job.toml"]);
}

#[test]
fn a_token_is_printed_apart_from_its_entry() {
    let place = Place::new();
    let arguments = ["access", "token", "--name", "ranker", "--roles", "score,read"];
    let output = place.run(&arguments);
    let (entry, shown) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{shown}");
    let token = shown.trim().rsplit(' ').next().expect("a token");
    assert!(token.starts_with("zln_") && !entry.contains("zln_"), "{entry}");
    let entry: toml::Table = entry.parse().expect("TOML");
    assert_eq!(entry["token"][0]["name"].as_str(), Some("ranker"));
    assert_eq!(entry["token"][0]["roles"].as_array().map(Vec::len), Some(2));
    let again = text(&place.run(&arguments).stderr);
    assert_ne!(again, shown);
    place.refused(2, &["access", "token", "--name", "a", "--roles", "root"]);
    let past = ["--expires", "2020-01-01T00:00:00Z"];
    place.refused(2, &[&arguments[..], &past].concat());
}

#[test]
fn moves_are_audited_and_the_log_is_verified() {
    let place = Place::new();
    let log = ["--audit-log", "audit.jsonl"];
    let promote =
        |version| [&["model", "promote", version, "--to", "canary"], &MODEL[..], &log].concat();
    place.ok(&promote("1"));
    let verify = ["audit", "verify", "audit.jsonl"];
    let first = place.ok(&verify);
    let hash = first.trim().rsplit(' ').next().expect("a hash").to_owned();
    place.ok(&promote("2"));
    place.refused(1, &promote("9"));
    place.ok(&[&["model", "rollback", "--pointer", "canary"], &MODEL[..], &log].concat());
    let whole = place.read("audit.jsonl");
    let outcomes: Vec<String> = whole
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            format!("{} {}", line["action"], line["outcome"]).replace('"', "")
        })
        .collect();
    let expected = [
        "promote asked",
        "promote done",
        "promote asked",
        "promote done",
        "promote asked",
        "promote failed",
        "rollback asked",
        "rollback done",
    ];
    assert_eq!(outcomes, expected);
    assert!(whole.contains("from version 1 to version 2, move 2, not signed"), "{whole}");
    let last = [&verify[..], &["--last", &hash]].concat();
    assert!(place.ok(&last).contains("line 2"));
    // If lines at the end are removed, the chain is still valid, but the log does not contain the
    // last hash any more.
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    std::fs::write(place.path("audit.jsonl"), lines[0]).expect("a file");
    place.ok(&verify);
    assert!(place.refused(1, &last).contains("cut off"));
    // A changed line breaks the chain, and then every action is refused.
    std::fs::write(place.path("audit.jsonl"), whole.replacen("done", "none", 1)).expect("a file");
    assert!(place.refused(1, &verify).contains("line 2"));
    let pointer = ["model", "show", "--pointer", "canary"];
    let moves = place.ok(&[&pointer[..], &MODEL].concat());
    assert!(place.refused(1, &promote("2")).contains("evidence"));
    assert_eq!(place.ok(&[&pointer[..], &MODEL].concat()), moves);
}

#[test]
fn readers_with_trusted_keys_take_only_what_was_signed() {
    let place = Place::new();
    for name in ["release", "other"] {
        place.ok(&["key", "new", "--out", name]);
    }
    place.ok(&["key", "trust", "release.pub", "--keys", "trusted"]);
    let trust = ["--trust", "trusted"];
    let verify = [&["model", "verify"], &MODEL[..], &trust].concat();
    let predict = [&["predict"], &MODEL[..], &trust, &["rows.csv"]].concat();
    assert!(place.refused(1, &verify).contains("no signature"));
    assert!(place.refused(1, &predict).contains("no signature"));

    // The checkpoint was published without a signature before. It is published again with a
    // signature.
    let publish = [&["publish", CHECKPOINT, "--parity", "valid.csv"], &MODEL[..]].concat();
    let sign = ["--sign", "release.key", "--valid-for", "1d", "--audit-log", "audit.jsonl"];
    let published = place.ok(&[&publish[..], &sign].concat());
    assert!(published.contains("version 3 of fixture: a base"), "{published}");
    place.ok(&verify);
    place.ok(&predict);
    let log = place.read("audit.jsonl");
    assert!(log.contains("to version 3, move 3, signed with key"), "{log}");
    let shown = place.ok(&["key", "show", "release.pub"]);
    assert!(log.contains(shown.split(' ').next().expect("an id")), "{log}");

    // The trusted keys refuse an unsigned version, and also a move that another key signed.
    let promote =
        |version, key| [&["model", "promote", version, "--sign", key], &MODEL[..], &trust].concat();
    assert!(place.refused(1, &promote("1", "release.key")).contains("no signature"));
    assert!(place.refused(1, &promote("3", "other.key")).contains("no trusted key"));
    place.ok(&promote("3", "release.key"));
    place.ok(&[&["model", "rollback", "--to", "2"], &MODEL[..]].concat());
    assert!(place.refused(1, &predict).contains("move 4 of pointer `stable`"));
    place.ok(&promote("3", "release.key"));
    place.ok(&predict);
}

#[test]
fn a_key_is_a_file_and_is_never_printed() {
    let place = Place::new();
    place.ok(&["key", "new", "--out", "release"]);
    let secret = place.read("release.key");
    let promote = [&["model", "promote", "1"], &MODEL[..]].concat();
    let mut command = place.command(&promote);
    let output = command.env("ZILLION_SIGN_KEY", &secret).output().expect("the binary runs");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    let body = secret.lines().nth(1).expect("a line of the key");
    assert!(error.contains("path of its file") && !error.contains(body), "{error}");
    let mut command = place.command(&[&promote[..], &["--help"]].concat());
    let output = command.env("ZILLION_SIGN_KEY", &secret).output().expect("the binary runs");
    assert!(!text(&output.stdout).contains(body));
    // A validity is allowed only together with a signature.
    let valid_for = ["--valid-for", "1d"];
    place.refused(2, &[&promote[..], &valid_for].concat());
}

/// A server that reads the registry of a [`Place`]. The server is killed when the value is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts a server with trusted keys and with the audit log `log`.
    fn start(place: &Place, log: &str) -> Self {
        let options = ["--trust", "trusted", "--cache", "cache", "--audit-log", log];
        let more = ["--http", "127.0.0.1:0", "--poll-ms", "20", "--threads", "1"];
        let mut command = place.command(&[&["serve"], &MODEL[..], &options, &more].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim().rsplit('/').next().expect("an address").to_owned();
        Self { child, address }
    }

    /// Returns the head and the body of the answer to a GET request.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    fn is_ready(&self) -> bool {
        self.get("/v2/models/fixture/ready").starts_with("HTTP/1.1 200")
    }

    /// Returns whether the server answers with version 3 and has no other version open.
    fn serves_only_the_signed_version(&self) -> bool {
        self.is_ready() && self.get("/v2/models/fixture").contains("\"versions\":[\"3\"]")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process of the server may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a condition holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_follows_only_signed_moves_and_never_back() {
    let place = Place::new();
    place.ok(&["key", "new", "--out", "release"]);
    place.ok(&["key", "trust", "release.pub", "--keys", "trusted"]);
    let sign = ["--sign", "release.key", "--valid-for", "1d"];
    let publish = [&["publish", CHECKPOINT, "--parity", "valid.csv"], &MODEL[..], &sign].concat();
    place.ok(&publish);
    let server = Server::start(&place, "first.jsonl");
    wait_for("the signed version answers", || server.serves_only_the_signed_version());
    let has_refused = |log: &str, reason: &str| {
        std::fs::read_to_string(place.path(log)).unwrap().contains(reason)
    };

    // A writer without a key moves the pointer.
    place.ok(&[&["model", "rollback", "--to", "2"], &MODEL[..]].concat());
    wait_for("the move is refused", || has_refused("first.jsonl", "untrusted_version"));
    assert!(server.serves_only_the_signed_version());
    place.ok(&[&["model", "promote", "3"], &MODEL[..], &sign].concat());
    let memory = place.path("cache/fixture/pointers/stable.json");
    wait_for("the new move is taken", || {
        std::fs::read_to_string(&memory).unwrap().contains("\"number\": 5")
    });

    // A writer without a key removes the moves after the first signed one.
    for number in [4, 5] {
        let name = format!("stable/00000000000000/000/{number:020}.json");
        std::fs::remove_file(place.path("registry/fixture/pointers").join(name)).unwrap();
    }
    wait_for("the old move is refused", || has_refused("first.jsonl", "replayed_move"));
    assert!(server.serves_only_the_signed_version());
    drop(server);
    let server = Server::start(&place, "second.jsonl");
    wait_for("the old move is refused", || has_refused("second.jsonl", "replayed_move"));
    // The cache holds the signed version, and the server still answers with this version after a
    // restart.
    wait_for("the signed version answers", || server.serves_only_the_signed_version());
    place.ok(&["audit", "verify", "second.jsonl"]);
}
