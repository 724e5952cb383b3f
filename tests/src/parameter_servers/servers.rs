//! Server processes for tests.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use zillion_ps::{RemoteOptions, TrainerPlace};

use crate::harness::binary;

/// A server process. It is killed when the value is dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    /// The address that the server listens on.
    pub(crate) address: String,
}

impl ServerProcess {
    /// Starts a server whose store is a folder.
    pub(crate) fn start(store: &Path, more: &[&str]) -> Self {
        Self::start_at(store, "127.0.0.1:0", more)
    }

    /// Starts a server that listens on an address.
    pub(crate) fn start_at(store: &Path, address: &str, more: &[&str]) -> Self {
        let mut child = Command::new(binary())
            .env("ZILLION_LOG", "warn")
            .args(["ps", "serve", "--listen", address, "--store"])
            .arg(store)
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let output = child.stdout.take().expect("stdout is a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("the server writes its address");
        let address = line.trim().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("the server says {line:?}")).to_owned();
        Self { child, address }
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("`kill` runs");
        assert!(sent.success(), "kill {signal} {pid}");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the settings of the only trainer of a run.
pub(crate) fn options(servers: Vec<String>, run: &str, store: &Path) -> RemoteOptions {
    RemoteOptions {
        servers,
        place: TrainerPlace::ALONE,
        run: run.to_owned(),
        job_digest: "job".to_owned(),
        store: store.to_owned(),
        token: None,
        deadline: Duration::from_secs(10),
        after: 0,
        patience: Duration::from_secs(10),
    }
}
