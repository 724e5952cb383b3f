//! A server in a separate process, for the quickstart and for the benchmarks. The module starts and
//! ends the server, sends requests to it and measures it from outside.
//!
//! The process is separate because a benchmark must not share the allocator, the pool of threads or
//! the memory figures with the server that it measures.

mod ask;
mod memory;
mod scrape;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use zillion_rows::ByteSize;
use zillion_scorer::DenseType;

pub use ask::Asker;
pub(crate) use memory::Memory;
pub(crate) use scrape::{Series, Summary};

use crate::Protocol;
use crate::criteo::MODEL;
use crate::load::target::Target;

/// The maximum time until a server must be ready.
const PATIENCE: Duration = Duration::from_secs(600);

/// The settings that a server is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The model that the server serves.
    pub model: &'a str,
    /// The name of the server in the registry, or `None` for the default name.
    pub name: Option<&'a str>,
    /// The folder of the registry.
    pub registry: &'a Path,
    /// The folder of the cache, or `None` for the default of `serve`.
    pub cache: Option<&'a Path>,
    /// The file that the server's log is written to.
    pub log: &'a Path,
    /// The level of the server's log, such as `info` or `warn`.
    pub level: &'a str,
    /// The number of threads that score, or `None` for one thread per processor.
    pub threads: Option<NonZeroUsize>,
    /// The processors that the server may use, as in `0,2-3`, or `None` for all of them.
    pub cpus: Option<&'a str>,
    /// The settings file with the listeners of the server, or `None` for one listener on a free
    /// port.
    pub config: Option<&'a Path>,
    /// The folder of the request log, in which all requests are logged, or `None` for no log.
    pub request_log: Option<&'a Path>,
    /// The number type of the dense layers, or `None` for that of the settings.
    pub dense: Option<DenseType>,
    /// The GPU that computes the scores, or `None` for processors.
    pub device: Option<&'a str>,
    /// The memory of the GPU, or `None` for the default of `serve`.
    pub gpu_memory: Option<ByteSize>,
}

impl<'a> Setup<'a> {
    /// Returns the settings of a server of one model on all processors, which logs at the level
    /// `info`.
    pub fn new(model: &'a str, registry: &'a Path, log: &'a Path) -> Self {
        Self {
            model,
            name: None,
            registry,
            cache: None,
            log,
            level: "info",
            threads: None,
            cpus: None,
            config: None,
            request_log: None,
            dense: None,
            device: None,
            gpu_memory: None,
        }
    }
}

/// The processors and the GPU of a server of the benchmarks' model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place<'a> {
    /// The number of threads that score, or `None` for one thread per processor.
    pub(crate) threads: Option<NonZeroUsize>,
    /// The processors that the server may use, or `None` for all of them.
    pub(crate) cpus: Option<&'a str>,
    /// The number type of the dense layers, or `None` for that of the settings.
    pub(crate) dense: Option<DenseType>,
    /// The GPU that computes the scores, or `None` for processors.
    pub(crate) device: Option<&'a str>,
    /// The memory of the GPU, or `None` for the default of `serve`.
    pub(crate) gpu_memory: Option<ByteSize>,
}

/// A running `zillion serve`. The server is stopped when this value is dropped.
pub struct ServerChild {
    /// The process, or `None` after [`Self::leave`].
    child: Option<Child>,
    model: String,
    url: String,
    other_url: String,
    log: PathBuf,
    /// The time at which the server was started.
    started: Instant,
}

impl ServerChild {
    /// Starts a server on a free port.
    pub fn start(setup: Setup<'_>) -> Result<Self> {
        let program = zillion_console::program().context("cannot find the path of this program")?;
        let log = setup.log.to_owned();
        let stderr =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let started = Instant::now();
        let mut command = match setup.cpus {
            // `taskset` replaces itself with the server, so that the process id is the server's.
            Some(cpus) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", cpus]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(["serve", "--model", setup.model, "--registry"]).arg(setup.registry);
        match setup.config {
            Some(config) => command.arg("--config").arg(config),
            None => command.args(["--http", "127.0.0.1:0"]),
        };
        if let Some(cache) = setup.cache {
            command.arg("--cache").arg(cache);
        }
        if let Some(folder) = setup.request_log {
            command.arg("--request-log").arg(folder);
        }
        let mut child = command
            .args(setup.name.map(|name| format!("--name={name}")))
            .args(setup.threads.map(|threads| format!("--threads={threads}")))
            .args(setup.dense.map(|dense| format!("--dense={dense}")))
            .args(setup.device.map(|device| format!("--device={device}")))
            .args(setup.gpu_memory.map(|memory| format!("--gpu-memory={}", memory.0)))
            .env("ZILLION_LOG", setup.level)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // Ctrl-C must reach only this program. This program then stops the server by a signal.
            .process_group(0)
            .spawn()
            .context(
                "cannot start the server; with `--server-cpus`, install `taskset` (util-linux)",
            )?;
        let mut urls = [const { String::new() }; 2];
        if let Some(stdout) = child.stdout.take() {
            let mut lines = BufReader::new(stdout);
            // Only a settings file may have a second listener.
            for url in urls.iter_mut().take(1 + usize::from(setup.config.is_some())) {
                lines.read_line(url)?;
            }
        }
        let [url, other_url] = urls.map(|url| url.trim().replace("listening on ", ""));
        let model = setup.model.to_owned();
        let server = Self { child: Some(child), model, url, other_url, log, started };
        if !server.url.starts_with("http://") {
            bail!("the server did not start; its log: {}", server.read_log());
        }
        Ok(server)
    }

    /// Starts a server of the benchmarks' model, and waits until it is ready. In `folder`, the
    /// registry is `registry`, the cache is `cache`, and the log is `<name>.log`. Also returns the
    /// time that the start took.
    pub(crate) fn start_in(
        folder: &Path,
        name: &str,
        threads: Option<NonZeroUsize>,
    ) -> Result<(Self, Duration)> {
        Self::start_on(folder, name, Place { threads, ..Place::default() })
    }

    /// Starts a server as [`Self::start_in`] does, on the processors or the GPU of `place`.
    pub(crate) fn start_on(
        folder: &Path,
        name: &str,
        place: Place<'_>,
    ) -> Result<(Self, Duration)> {
        let server = Self::start(Setup {
            model: MODEL,
            name: Some(name),
            registry: &folder.join("registry"),
            cache: Some(&folder.join("cache")),
            log: &folder.join(format!("{name}.log")),
            // If a run has no problems, the server logs nothing at this level.
            level: "warn",
            threads: place.threads,
            cpus: place.cpus,
            config: None,
            request_log: None,
            dense: place.dense,
            device: place.device,
            gpu_memory: place.gpu_memory,
        })?;
        let time = server.wait_ready()?;
        Ok((server, time))
    }

    /// Returns the URL at which the server answers.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the URL of the second listener, or `None` if the server has only one.
    pub(crate) fn other_url(&self) -> Option<&str> {
        (!self.other_url.is_empty()).then_some(&self.other_url)
    }

    /// Consumes this value without stopping the server. Returns the process id of the server.
    pub fn leave(mut self) -> u32 {
        let pid = self.pid();
        self.child = None;
        pid
    }

    /// Returns the id of the server's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Returns the target for requests for scores.
    pub fn target(&self) -> Result<Target> {
        Target::new(&self.url, &self.model, None, Protocol::V2)
    }

    /// Waits until the server is ready. Returns the time since the start of the server.
    pub(crate) fn wait_ready(&self) -> Result<Duration> {
        let asker = Asker::new(&self.url)?;
        loop {
            let (status, body) = asker.get("/v2/health/ready")?;
            if status == 200 {
                return Ok(self.started.elapsed());
            }
            if self.started.elapsed() > PATIENCE {
                let body = String::from_utf8_lossy(&body).into_owned();
                let log = self.read_log();
                bail!(
                    "the server is not ready after {PATIENCE:?}, and answers with status {status}: \
                     {body}; correct the problem that its log names: {log}"
                );
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads the current values of the metrics that the server exports.
    pub(crate) fn series(&self) -> Result<Series> {
        let (status, body) = Asker::new(&self.url)?.get("/metrics")?;
        if status != 200 {
            bail!("the server answered GET /metrics with status {status} instead of 200");
        }
        Ok(Series::parse(&String::from_utf8_lossy(&body)))
    }

    /// Reads the server's log.
    pub(crate) fn read_log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // SIGTERM is sent by the command `kill`, because the standard library can only send
        // SIGKILL.
        let signalled = Command::new("kill").arg(child.id().to_string()).status();
        if !signalled.is_ok_and(|status| status.success()) {
            let _ = child.kill();
        }
        let _ = child.wait();
    }
}
