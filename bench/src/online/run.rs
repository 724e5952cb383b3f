//! `zillion online` in a process of its own.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use zillion_device::machine::process::cpu_seconds;

use super::job::JOB;
use crate::server::{Asker, Series};

/// The time within which a run must say where its metrics are.
const START: Duration = Duration::from_secs(60);
/// The time within which a run must end after it was asked to stop.
const STOP: Duration = Duration::from_secs(120);
/// The time between two looks at the process.
const PAUSE: Duration = Duration::from_millis(2);

/// A running `zillion online`. It is killed when this value is dropped.
pub(super) struct OnlineRun {
    child: Child,
    /// The file of everything that the run prints on stderr.
    log: PathBuf,
    /// The time at which the process was started.
    pub(super) started: Instant,
}

impl OnlineRun {
    /// Starts the run of the job in `folder`, with a log of this name.
    pub(super) fn start(folder: &Path, name: &str) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let arguments = ["online", JOB, "--metrics", "127.0.0.1:0"];
        let (child, started) = (spawn(folder, &log, &arguments)?, Instant::now());
        Ok(Self { child, log, started })
    }

    /// Waits until the run has a listener of metrics.
    pub(super) fn metrics(&mut self) -> Result<RunMetrics> {
        loop {
            let said = self.read_log();
            let url = said.lines().find_map(|line| line.strip_prefix("metrics on "));
            if let Some(url) = url {
                let host = url.trim_end_matches("/metrics");
                return Ok(RunMetrics { asker: Asker::new(host)? });
            }
            self.check()?;
            if self.started.elapsed() > START {
                bail!("the run has no metrics after {START:?}; its log: {said}");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns an error if the run has ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the run ended ({status}); its log: {}", self.read_log()),
        }
    }

    /// Returns the processor time of the run in seconds.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        cpu_seconds(self.child.id())
    }

    /// Stops the run by SIGKILL. Returns when the process has ended.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill the run")?;
        self.child.wait().context("cannot wait for the end of the run")?;
        Ok(())
    }

    /// Asks the run to stop, and waits until it has ended.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.check()?;
        // The standard library can only send SIGKILL.
        let sent = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status()?;
        if !sent.success() {
            bail!("the command `kill` cannot signal the run; install it (procps)");
        }
        let asked = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!("the run ended ({status}); its log: {}", self.read_log());
            }
            if asked.elapsed() > STOP {
                bail!(
                    "the run has not ended {STOP:?} after a signal; its log: {}",
                    self.read_log()
                );
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn read_log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for OnlineRun {
    fn drop(&mut self) {
        // A process that has ended is not signalled.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The metrics of a run.
pub(super) struct RunMetrics {
    asker: Asker,
}

impl RunMetrics {
    /// Reads the present values.
    pub(super) fn read(&self) -> Result<Series> {
        let (status, body) = self.asker.get("/metrics")?;
        if status != 200 {
            bail!("the run answered GET /metrics with status {status} instead of 200");
        }
        Ok(Series::parse(&String::from_utf8_lossy(&body)))
    }
}

/// Repeats the log of a run in other folders. Returns the time that it took.
pub(super) fn replay(folder: &Path, of: &str, (run, registry): (&str, &str)) -> Result<Duration> {
    let log = folder.join("replay.log");
    let sets = [format!("run.output=\"{run}\""), format!("publish.registry=\"{registry}\"")];
    let arguments = ["stream", "replay", JOB, "--of", of, "--set", &sets[0], "--set", &sets[1]];
    let began = Instant::now();
    let status = spawn(folder, &log, &arguments)?.wait()?;
    if !status.success() {
        bail!("the replay ended ({status}); its log: {}", fs::read_to_string(&log)?);
    }
    Ok(began.elapsed())
}

/// Starts this program with other arguments in `folder`.
fn spawn(folder: &Path, log: &Path, arguments: &[&str]) -> Result<Child> {
    let program = zillion_console::program().context("cannot find the path of this program")?;
    let stderr = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("ZILLION_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        // Ctrl-C must reach only this program.
        .process_group(0)
        .spawn()
        .context("cannot start the run")
}
