//! A server in a process of its own, for benchmarks: started, asked, measured from outside, stopped.
//!
//! A benchmark of a server must not share its allocator, its pool of threads or its figures of memory.

mod ask;
mod proc;
mod scrape;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use zillion_registry::VersionId;

pub(super) use ask::Asker;
pub(super) use proc::{Memory, cpu_seconds};
pub(super) use scrape::{Series, Summary};

use super::bench_criteo::MODEL;
use crate::args::Protocol;
use crate::load::target::Target;

/// How long a server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(600);

/// A running `zillion serve`, stopped when dropped.
pub(super) struct ServerChild {
    child: Child,
    url: String,
    log: PathBuf,
    /// When it was started.
    started: Instant,
}

impl ServerChild {
    /// Starts a server of the benchmarks' model on a free port. `name` is its own, in the registry and of its log,
    /// which is written to `folder`.
    pub(super) fn start(
        name: &str,
        registry: &Path,
        cache: &Path,
        folder: &Path,
        threads: Option<NonZeroUsize>,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("this program's own path")?;
        let log = folder.join(format!("{name}.log"));
        let stderr =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let started = Instant::now();
        let mut child = Command::new(program)
            .args(["serve", "--model", MODEL, "--http", "127.0.0.1:0", "--name", name])
            .arg("--registry")
            .arg(registry)
            .arg("--cache")
            .arg(cache)
            .args(threads.map(|threads| format!("--threads={threads}")))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // Ctrl-C is for this program, which stops the server in good order.
            .process_group(0)
            .spawn()
            .context("cannot start the server")?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let url = line.trim().replace("listening on ", "");
        let server = Self { child, url, log, started };
        if !server.url.starts_with("http://") {
            bail!("the server did not start; it said: {}", server.said());
        }
        Ok(server)
    }

    /// The server's process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where requests for scores go.
    pub(super) fn target(&self) -> Result<Target> {
        Target::new(&self.url, MODEL, None, Protocol::V2)
    }

    /// Waits until it is ready. Returns the time since it was started.
    pub(super) fn wait_ready(&self) -> Result<Duration> {
        let asker = Asker::new(&self.url)?;
        loop {
            let (status, body) = asker.get("/v2/health/ready")?;
            if status == 200 {
                return Ok(self.started.elapsed());
            }
            if self.started.elapsed() > PATIENCE {
                let body = String::from_utf8_lossy(&body).into_owned();
                bail!("the server is not ready after {PATIENCE:?}: {status} {body}{}", self.said());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What it measures about itself, now.
    pub(super) fn series(&self) -> Result<Series> {
        let (status, body) = Asker::new(&self.url)?.get("/metrics")?;
        if status != 200 {
            bail!("the server answered {status} to GET /metrics");
        }
        Ok(Series::parse(&String::from_utf8_lossy(&body)))
    }

    /// What it has written to its log: warnings and errors, which a good run does not have.
    pub(super) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        // SIGTERM by the shell's own word, because the standard library only knows SIGKILL.
        let told = Command::new("kill").arg(self.child.id().to_string()).status();
        if !told.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// The version that an answer names.
pub(super) fn version_of(answer: &[u8]) -> Option<VersionId> {
    #[derive(serde::Deserialize)]
    struct Named {
        model_version: String,
    }
    serde_json::from_slice::<Named>(answer).ok()?.model_version.parse().ok()
}
