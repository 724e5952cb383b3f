//! A workplace whose registry is in a bucket.

use std::net::SocketAddr;
use std::process::{Command, Output};

use crate::harness::{Workplace, stderr, stdout, zillion};
use crate::server::{MODEL, Server};

pub(crate) const BUCKET: &str = "models";
pub(crate) const KEY: &str = "AKIAEXAMPLE";
pub(crate) const SECRET: &str = "hunter22hunter22";

/// The URL of the registry.
pub(crate) const URL: &str = "s3://models/of/a/team";

/// Returns the environment variables for a process that uses the bucket at this address. The
/// variables set short waits and small ranges.
pub(crate) fn environment(address: SocketAddr) -> Vec<(&'static str, String)> {
    let text = |text: &str| text.to_owned();
    vec![
        ("AWS_ACCESS_KEY_ID", text(KEY)),
        ("AWS_SECRET_ACCESS_KEY", text(SECRET)),
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("NO_PROXY", text("127.0.0.1")),
        ("ZILLION_STORE_TRIES", text("40")),
        ("ZILLION_STORE_BACKOFF_MS", text("5")),
        ("ZILLION_STORE_LONGEST_BACKOFF_MS", text("50")),
        ("ZILLION_STORE_REQUEST_MS", text("1500")),
        ("ZILLION_STORE_FETCH_BYTES", text("1500")),
    ]
}

/// A workplace with environment variables for its bucket.
pub(crate) struct S3Place {
    pub(crate) place: Workplace,
    environment: Vec<(&'static str, String)>,
}

impl S3Place {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { place: Workplace::new(), environment: environment(address) }
    }

    /// Adds an environment variable.
    pub(crate) fn set(&mut self, name: &'static str, value: &str) {
        self.environment.push((name, value.to_owned()));
    }

    /// Adds the environment variables of the bucket to a command.
    pub(crate) fn command(&self, mut command: Command) -> Command {
        // The profiles and proxies of this machine are not used.
        for name in
            ["AWS_PROFILE", "AWS_REGION", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
        {
            command.env_remove(name);
        }
        command.env("HOME", self.place.path("home"));
        command.envs(self.environment.iter().map(|(name, value)| (*name, value.as_str())));
        command
    }

    /// Returns the command `zillion <arguments> --registry … --model …`.
    pub(crate) fn operator(&self, arguments: &[&str]) -> Command {
        let mut all = arguments.to_vec();
        all.extend(["--registry", URL, "--model", MODEL]);
        self.command(zillion(&all))
    }

    /// Runs [`S3Place::operator`], asserts that it succeeds, and returns its stdout.
    pub(crate) fn operate(&self, arguments: &[&str]) -> String {
        let output = self.operator(arguments).output().expect("the binary runs");
        assert!(output.status.success(), "{arguments:?}\n{}", stderr(&output));
        stdout(&output)
    }

    /// Returns a `zillion train` command that publishes versions into the bucket.
    pub(crate) fn train(&self, run: &str, more: &[&str]) -> Command {
        let registry = format!("publish.registry={URL}");
        let mut arguments = vec!["--set", &registry];
        arguments.extend(more);
        self.command(self.place.train(run, &arguments))
    }

    pub(crate) fn train_ok(&self, run: &str, more: &[&str]) -> Output {
        let output = self.train(run, more).output().expect("the binary runs");
        assert!(output.status.success(), "{}", stderr(&output));
        output
    }

    /// Starts a server with the registry in the bucket.
    pub(crate) fn serve(&self, more: &[&str]) -> Server {
        let server = Server::launch(&self.place, URL, more, |command| self.command(command));
        server.unwrap_or_else(|| {
            let log = std::fs::read_to_string(self.place.path("server.log"));
            panic!("the server does not listen: {log:?}")
        })
    }

    /// Returns the number of the newest version.
    pub(crate) fn latest(&self) -> u64 {
        let list = self.operate(&["model", "list", "--json"]);
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        list["versions"][0]["version"].as_u64().expect("a number")
    }
}
