//! Server processes for tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use zillion_ps::{RemoteOptions, TrainerPlace};

use super::proxy::PATIENCE;
use crate::harness::{stderr, stdout, zillion};

/// A server process. It is killed when the value is dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    store: PathBuf,
    /// The address that the server listens on.
    pub(crate) address: String,
}

impl ServerProcess {
    /// Starts a server whose store is a folder.
    pub(crate) fn start(store: &Path, more: &[&str]) -> Self {
        Self::start_at(store, "127.0.0.1:0", more, None)
    }

    /// Starts several servers with the same store.
    pub(crate) fn start_group(store: &Path, count: usize, more: &[&str]) -> Vec<Self> {
        (0..count).map(|_| Self::start(store, more)).collect()
    }

    /// Starts a server that listens on an address. One of its durable operations fails if a
    /// failpoint is given.
    pub(crate) fn start_at(
        store: &Path,
        address: &str,
        more: &[&str],
        failpoint: Option<&str>,
    ) -> Self {
        Self::launch(store, address, more, |mut command| {
            command.envs(failpoint.map(|failpoint| ("ZILLION_FAILPOINT", failpoint)));
            command
        })
    }

    /// Starts a server whose command `prepare` completes, for example with environment variables.
    pub(crate) fn launch(
        store: &Path,
        address: &str,
        more: &[&str],
        prepare: impl FnOnce(Command) -> Command,
    ) -> Self {
        let mut command =
            zillion(&["--log-filter", "error", "ps", "serve", "--listen", address, "--store"]);
        command.arg(store).args(more);
        Self::spawn(prepare(command), store)
    }

    /// Starts a server that writes its warnings to a file.
    pub(crate) fn start_with_log(store: &Path, more: &[&str], log: &Path) -> Self {
        let mut command =
            zillion(&["--log-filter", "warn", "ps", "serve", "--listen", "127.0.0.1:0", "--store"]);
        command.arg(store).args(more);
        command.stderr(std::fs::File::create(log).expect("a file for the log"));
        Self::spawn(command, store)
    }

    /// Starts the command of a server, and waits until the server listens.
    pub(crate) fn spawn(mut command: Command, store: &Path) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
        let output = child.stdout.take().expect("stdout is a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("the server writes its address");
        let address = line.trim().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("the server says {line:?}")).to_owned();
        Self { child, store: store.to_owned(), address }
    }

    /// Kills the process and starts another one at the same address.
    pub(crate) fn kill_and_restart(&mut self, more: &[&str]) {
        self.kill();
        *self = Self::start_at(&self.store, &self.address, more, None);
    }

    /// Kills the process, and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("our own child can be killed");
        self.child.wait().expect("our own child can be waited for");
    }

    /// Waits until the process has ended, and returns whether it succeeded.
    pub(crate) fn wait(&mut self) -> bool {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child can be asked") {
                return status.success();
            }
            assert!(began.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts another process at the address of this one, which has ended.
    pub(crate) fn restart(&mut self) {
        *self = Self::start_at(&self.store, &self.address, &[], None);
    }

    /// Returns whether the process still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our own child can be asked").is_none()
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: &str) {
        send_signal(self.child.id(), signal);
    }

    /// Returns the state that `zillion ps status --json` prints.
    pub(crate) fn status(&self) -> Value {
        let asked = zillion(&["ps", "status", &self.address, "--json"]).output();
        let asked = asked.expect("the binary runs");
        assert!(asked.status.success(), "{}", stderr(&asked));
        let states: Value = serde_json::from_str(&stdout(&asked)).expect("the states are JSON");
        states[0].clone()
    }

    /// Returns a number of the state that `zillion ps status --json` prints.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let status = self.status();
        status[name].as_u64().unwrap_or_else(|| panic!("no number `{name}` in {status}"))
    }

    /// Returns the bytes of memory that the process has in use.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        1024 * kib.and_then(|kib| kib.parse::<u64>().ok()).expect("the system counts memory")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A process that is killed leaves its scratch folder.
        let scratch = format!("zillion-ps-{}", self.address.replace(':', "-"));
        let _ = std::fs::remove_dir_all(std::env::temp_dir().join(scratch));
    }
}

/// Sends a signal to a process that the test has started.
pub(crate) fn send_signal(pid: u32, signal: &str) {
    let pid = pid.to_string();
    let sent = Command::new("kill").args([signal, &pid]).status();
    assert!(sent.expect("`kill` runs").success(), "kill {signal} {pid}");
}

/// Returns the settings of the only trainer of a run.
pub(crate) fn options(servers: Vec<String>, run: &str, store: &Path) -> RemoteOptions {
    RemoteOptions {
        servers,
        directory: None,
        place: TrainerPlace::ALONE,
        run: run.to_owned(),
        job_digest: "job".to_owned(),
        store: store.to_owned(),
        token: None,
        tls: None,
        pace: None,
        bf16_gradients: false,
        deadline: Duration::from_secs(10),
        after: 0,
        patience: Duration::from_secs(10),
        stop: Default::default(),
        clock: None,
    }
}
