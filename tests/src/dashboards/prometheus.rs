//! The Prometheus from the packages of Debian, which `dashboards/start.sh` starts, and its HTTP
//! API.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::folder;
use crate::clients::{run, target};
use crate::harness::{Workplace, skip, stderr, stdout};
use crate::server::PATIENCE;

/// The folder with the programs prometheus and promtool.
pub(super) struct Programs(PathBuf);

fn script() -> Command {
    let mut command = Command::new("sh");
    command.arg(folder().join("start.sh")).arg("--cache").arg(target().join("prometheus"));
    command.stdin(Stdio::null());
    command
}

/// Unpacks the programs prometheus and promtool into the build folder. If the servers of Debian
/// cannot be reached, prints a message and returns `None`.
pub(super) fn programs() -> Option<Programs> {
    let output = script().arg("--fetch").output().expect("sh runs");
    if output.status.code() == Some(4) {
        skip("prometheus", "it is not on PATH, and Debian's servers cannot be reached");
        return None;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    Some(Programs(PathBuf::from(stdout(&output).trim())))
}

impl Programs {
    /// Runs `promtool check rules` and `promtool test rules`.
    pub(super) fn check_rules(&self) {
        let promtool = || {
            let mut command = Command::new(self.0.join("promtool"));
            command.current_dir(folder().join("prometheus"));
            command
        };
        run(promtool().args(["check", "rules", "recording.yml", "alerts.yml"]));
        run(promtool().args(["test", "rules", "tests.yml"]));
    }
}

/// A running Prometheus. The process is killed when the value is dropped.
pub(super) struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    /// Starts Prometheus with the addresses of a trainer, a run over streams, a server and a
    /// parameter server.
    pub(super) fn start(_: &Programs, place: &Workplace, targets: [&str; 4]) -> Self {
        let [trainer, online, server, holder] = targets;
        let log = place.path("prometheus.log");
        let child = script()
            .args(["--trainer", trainer, "--trainer", online, "--server", server, "--ps", holder])
            .args(["--listen", "127.0.0.1:0"])
            .args(["--interval", "1s", "--data", &place.text("prometheus")])
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a log file"))
            .spawn()
            .expect("sh runs");
        let mut prometheus = Self { child, address: String::new() };
        let began = Instant::now();
        while prometheus.address.is_empty() {
            let said = std::fs::read_to_string(&log).expect("the log can be read");
            let line = said.lines().find(|line| line.contains("msg=\"Listening on\""));
            let address = line.and_then(|line| line.split("address=").nth(1));
            prometheus.address = address.unwrap_or_default().trim().to_owned();
            let running = prometheus.child.try_wait().expect("it can be asked").is_none();
            assert!(running && began.elapsed() < PATIENCE, "Prometheus does not listen:\n{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
        prometheus
    }

    /// Sends a GET request and returns the body of the response. The request uses HTTP/1.0, so that
    /// the server does not send the body in chunks.
    pub(super) fn get(&self, address: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time that is none of zero");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers in text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        // Prometheus answers a bad expression with the status 400 and a reason.
        let is_answered = [" 200 ", " 400 ", " 503 "].iter().any(|status| head.contains(status));
        assert!(is_answered, "{path}: {answer}");
        body.to_owned()
    }

    fn api(&self, path: &str) -> Option<Value> {
        let body = self.get(&self.address, path);
        // A Prometheus that is not ready answers with plain text.
        let answer: Value = serde_json::from_str(&body).ok()?;
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        Some(answer["data"].clone())
    }

    /// Returns the names of all metrics that Prometheus has scraped.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let names = self.api("/api/v1/label/__name__/values").unwrap_or_default();
        let names = names.as_array().cloned().unwrap_or_default();
        names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    }

    /// Returns the current result of an expression.
    pub(super) fn query(&self, expression: &str) -> Vec<Value> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let encoded: String =
            expression
                .bytes()
                .map(|byte| {
                    if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
                })
                .collect();
        let data = self.api(&format!("/api/v1/query?query={encoded}")).unwrap_or_default();
        data["result"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
