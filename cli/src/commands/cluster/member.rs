//! A member of a cluster: a server or a trainer in a process of its own.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The pause before a member is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// The task of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A server of the parameter service.
    Server,
    /// A process that trains.
    Trainer,
}

/// A server or a trainer, and its present process.
#[derive(Debug)]
pub(super) struct Member {
    role: Role,
    index: usize,
    /// The arguments with which the process is started again.
    again: Vec<String>,
    /// The file of the messages; `None` for the terminal.
    log: Option<PathBuf>,
    state: State,
}

#[derive(Debug)]
enum State {
    Running(Child),
    /// The process was killed. Another one is started at this moment.
    Waiting(Instant),
    Ended(ExitStatus),
}

impl Member {
    /// Starts a server on a free port. `more` are further arguments. Returns the server and its
    /// address.
    pub(super) fn server(
        index: usize,
        store: &Path,
        logs: &Path,
        more: &[String],
    ) -> Result<(Self, String)> {
        let arguments = |listen: &str| {
            let id = index.to_string();
            let store = store.to_string_lossy().into_owned();
            let own = ["ps", "serve", "--id", &id, "--listen", listen, "--store", &store];
            own.map(str::to_owned).into_iter().chain(more.iter().cloned()).collect::<Vec<_>>()
        };
        let log = logs.join(format!("server-{index}.log"));
        clear(&log)?;
        let mut child = spawn(&arguments("127.0.0.1:0"), Some(&log), Stdio::piped())?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let Some(address) = line.trim().strip_prefix("listening on ").map(str::to_owned) else {
            let _ = child.wait();
            bail!("server {index} has not started; its log is {}", log.display());
        };
        let again = arguments(&address);
        let state = State::Running(child);
        Ok((Self { role: Role::Server, index, again, log: Some(log), state }, address))
    }

    /// Starts a trainer. The first trainer writes to the terminal. `again` are the arguments with
    /// which the trainer is started after it was killed.
    pub(super) fn trainer(
        index: usize,
        arguments: &[String],
        again: Vec<String>,
        logs: &Path,
    ) -> Result<Self> {
        let log = (index > 0).then(|| logs.join(format!("trainer-{index}.log")));
        log.as_deref().map_or(Ok(()), clear)?;
        let child = spawn(arguments, log.as_deref(), Stdio::null())?;
        Ok(Self { role: Role::Trainer, index, again, log, state: State::Running(child) })
    }

    /// Returns the name of the member for messages.
    pub(super) fn name(&self) -> String {
        let role = if self.role == Role::Server { "server" } else { "trainer" };
        format!("{role} {}", self.index)
    }

    /// Returns the id of the process, or `None` if there is none.
    pub(super) fn process(&self) -> Option<u32> {
        match &self.state {
            State::Running(child) => Some(child.id()),
            State::Waiting(_) | State::Ended(_) => None,
        }
    }

    /// Returns how the member has ended, or `None` if it has not ended.
    pub(super) fn ended(&self) -> Option<ExitStatus> {
        match self.state {
            State::Ended(status) => Some(status),
            State::Running(_) | State::Waiting(_) => None,
        }
    }

    /// Returns whether the member has ended in a way that a new process would repeat.
    pub(super) fn has_failed(&self) -> bool {
        self.ended().is_some_and(|status| !status.success())
    }

    /// Looks whether the process has ended, and starts a process that was killed again if
    /// `restarts` is true. A trainer that has ended by itself is not started again. A server that
    /// has ended by itself is, unless it has failed.
    pub(super) fn look(&mut self, restarts: bool) -> Result<()> {
        match &mut self.state {
            State::Running(child) => {
                let Some(status) = child.try_wait().context("cannot ask for a process")? else {
                    return Ok(());
                };
                let was_killed = status.signal().is_some();
                let has_stopped = self.role == Role::Server && status.success();
                if restarts && (was_killed || has_stopped) {
                    say(&format!("{} has ended ({status}); it is started again", self.name()));
                    self.state = State::Waiting(Instant::now() + PAUSE);
                } else {
                    self.state = State::Ended(status);
                }
            }
            State::Waiting(moment) if restarts && Instant::now() >= *moment => {
                let child = spawn(&self.again, self.log.as_deref(), Stdio::null())?;
                say(&format!("{}: process {}", self.name(), child.id()));
                self.state = State::Running(child);
            }
            State::Waiting(_) if !restarts => self.state = State::Ended(ExitStatus::default()),
            State::Waiting(_) | State::Ended(_) => {}
        }
        Ok(())
    }

    /// Sends the process a signal, such as `TERM`.
    pub(super) fn signal(&self, signal: &str) {
        let Some(process) = self.process() else { return };
        // The standard library can only send SIGKILL, so the command `kill` sends the signal.
        let sent =
            Command::new("kill").args([&format!("-{signal}"), &process.to_string()]).status();
        if !sent.is_ok_and(|status| status.success()) {
            tracing::warn!("the signal {signal} cannot be sent to {}", self.name());
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let State::Running(child) = &mut self.state {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Removes the messages of an earlier cluster from a log.
fn clear(log: &Path) -> Result<()> {
    File::create(log).map(drop).with_context(|| format!("cannot write {}", log.display()))
}

/// Starts this program with other arguments. Its messages are added to the end of `log`.
fn spawn(arguments: &[String], log: Option<&Path>, stdout: Stdio) -> Result<Child> {
    let program = zillion_console::program().context("cannot find the path of this program")?;
    let open = |path: &Path| -> Result<File> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("cannot write {}", path.display()))
    };
    let stderr = log.map(open).transpose()?.map_or_else(Stdio::inherit, Stdio::from);
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        // Ctrl-C must reach only this program, which then ends the processes in good order.
        .process_group(0)
        .spawn()
        .context("cannot start a process of the cluster")
}

/// Prints a line about the cluster on stdout.
#[expect(clippy::print_stdout, reason = "the result of a command")]
pub(super) fn say(line: &str) {
    println!("{line}");
}
