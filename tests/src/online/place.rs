//! A folder with a job over streams, a writer of events, and runs that follow them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::harness::{stderr, stdout, zillion};

/// The beginning of every job: the features, the label and the model.
const JOB: &str = r#"
name = "live"
[features.user]
kind = "id"
[features.item]
kind = "id"
[labels.click]
[columns]
event_time = "time"
event_time_unit = "ms"
[model]
kind = "deepfm"
hidden = [8]
[train]
batch_size = 256
keep = 1000
[publish]
registry = "registry"
[online]
checkpoint_seconds = 1.0
publish_seconds = 0.3
linger_seconds = 0.05
idle_seconds = 0.5
disorder_seconds = 0.2
"#;

/// One stream of whole rows.
pub(crate) const ROWS: &str = r#"
[[stream]]
name = "events"
path = "events"
"#;

/// A stream of impressions, a stream of clicks, and their join.
pub(crate) const JOINED: &str = r#"
[join]
key = ["request"]
wait_seconds = 0.6
[[stream]]
name = "impressions"
path = "impressions"
role = "impressions"
[[stream]]
name = "clicks"
path = "clicks"
role = "feedback"
label = "click"
"#;

/// Windows and a gate for streams with few rows. The gate fails for nothing that happens in a test
/// by chance.
pub(crate) const JUDGED: &str = r#"
[validation]
windows = [2, 10]
[gate]
min_rows = 40
errors = 20.0
anchor_every = 4
anchor_delay_seconds = 2
[gate.bands]
score_drift = { warn = 100.0, fail = 1000.0 }
"#;

/// The longest wait of a test for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with a job over streams.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// Creates a folder with a job that ends with `streams`.
    pub(crate) fn new(streams: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().expect("a folder") };
        std::fs::write(place.path("job.toml"), format!("{JOB}{streams}")).expect("a job");
        for folder in ["events", "impressions", "clicks"] {
            std::fs::create_dir(place.path(folder)).expect("a folder");
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command of the binary that runs in the folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = zillion(arguments);
        command.current_dir(self.folder.path());
        command
    }

    /// Runs a command that must succeed, and returns its stdout.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("the binary runs");
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// Runs a command that must fail, and returns its stderr.
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("the binary runs");
        assert!(!output.status.success(), "{arguments:?}: {}", stdout(&output));
        stderr(&output)
    }

    /// Starts `zillion online job.toml` with further arguments.
    pub(crate) fn start(&self, more: &[&str]) -> Running<'_> {
        // The status of an earlier run says nothing about this one.
        drop(std::fs::remove_file(self.path("runs/live/stream/status.json")));
        self.spawn(more, Stdio::piped())
    }

    /// Starts `zillion online job.toml` so that one of its durable operations fails
    /// (`ZILLION_FAILPOINT`).
    pub(crate) fn start_failing(&self, failpoint: &str) -> Running<'_> {
        drop(std::fs::remove_file(self.path("runs/live/stream/status.json")));
        let mut command = self.command(&["online", "job.toml", "--json"]);
        self.spawn_command(command.env("ZILLION_FAILPOINT", failpoint), Stdio::piped())
    }

    fn spawn(&self, more: &[&str], stderr: Stdio) -> Running<'_> {
        let mut arguments = vec!["online", "job.toml", "--json"];
        arguments.extend(more);
        self.spawn_command(&mut self.command(&arguments), stderr)
    }

    fn spawn_command(&self, command: &mut Command, stderr: Stdio) -> Running<'_> {
        command.stdout(Stdio::piped()).stderr(stderr);
        Running { place: self, child: Some(command.spawn().expect("the binary runs")) }
    }

    /// Starts `zillion online job.toml` with further arguments and with metrics on a free port.
    /// Returns the run and the address
    /// of the metrics.
    pub(crate) fn start_with_metrics(&self, more: &[&str]) -> (Running<'_>, String) {
        drop(std::fs::remove_file(self.path("runs/live/stream/status.json")));
        let log = self.path("online.log");
        let stderr = std::fs::File::create(&log).expect("a log");
        let mut arguments = vec!["--metrics", "127.0.0.1:0"];
        arguments.extend(more);
        let mut run = self.spawn(&arguments, stderr.into());
        let began = Instant::now();
        loop {
            let said = std::fs::read_to_string(&log).expect("a log");
            let whole = said.rfind('\n').map_or("", |end| &said[..end]);
            let url = whole.lines().find_map(|line| line.strip_prefix("metrics on http://"));
            if let Some(url) = url {
                let address = url.strip_suffix("/metrics").expect("the URL of metrics");
                return (run, address.to_owned());
            }
            let child = run.child.as_mut().expect("the run goes on");
            assert!(child.try_wait().expect("our own child").is_none(), "{said}");
            assert!(began.elapsed() < PATIENCE, "no metrics are served: {said}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the status that a run has written, if there is one.
    pub(crate) fn status(&self) -> Option<Value> {
        let text = std::fs::read(self.path("runs/live/stream/status.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes a file of lines so that it appears whole.
    pub(crate) fn put(&self, partition: &str, name: &str, lines: &[String]) {
        let folder = self.path(partition);
        std::fs::create_dir_all(&folder).expect("a folder");
        let hidden = folder.join(format!(".{name}.tmp"));
        let text = lines.iter().fold(String::new(), |mut text, line| {
            writeln!(text, "{line}").expect("a string grows");
            text
        });
        std::fs::write(&hidden, text).expect("a file");
        std::fs::rename(&hidden, folder.join(name)).expect("a rename");
    }
}

/// A run that follows the streams. It is killed when the value is dropped.
pub(crate) struct Running<'a> {
    place: &'a Place,
    child: Option<Child>,
}

impl Running<'_> {
    /// Waits until the run's status fulfils `is_reached`.
    pub(crate) fn wait_until(&mut self, what: &str, is_reached: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        while !self.place.status().is_some_and(|status| is_reached(&status)) {
            let child = self.child.as_mut().expect("the run goes on");
            if child.try_wait().expect("our own child").is_some() {
                let output = self.child.take().expect("a child").wait_with_output();
                panic!("{what}: {}", stderr(&output.expect("our own child")));
            }
            let status = self.place.status();
            assert!(began.elapsed() < PATIENCE, "{what} did not happen: {status:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the run has consumed this number of messages.
    pub(crate) fn wait_for_messages(&mut self, messages: u64) {
        self.wait_until("the messages are consumed", |status| {
            status["feed"]["messages"].as_u64() >= Some(messages)
        });
    }

    /// Kills the run without a warning.
    pub(crate) fn kill(mut self) {
        let mut child = self.child.take().expect("the run goes on");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }

    /// Stops the run as an operator does, and returns its report.
    pub(crate) fn stop(self) -> Value {
        let output = self.end_by_signal();
        assert!(output.status.success(), "{}", stderr(&output));
        crate::harness::last_json(&stdout(&output))
    }

    /// Stops the run as an operator does. It must fail, and what it has said is returned.
    pub(crate) fn stop_failing(self) -> String {
        let output = self.end_by_signal();
        assert!(!output.status.success(), "{}", stdout(&output));
        stderr(&output)
    }

    fn end_by_signal(mut self) -> Output {
        let child = self.child.take().expect("the run goes on");
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        child.wait_with_output().expect("our own child")
    }

    /// Stops the run as an operator does, whether it succeeds or not, and returns what it has said.
    pub(crate) fn interrupt(self) -> String {
        stderr(&self.end_by_signal())
    }

    /// Waits for a time at most, and returns whether the run has ended.
    pub(crate) fn ends_within(&mut self, time: Duration) -> bool {
        let began = Instant::now();
        let child = self.child.as_mut().expect("the run goes on");
        while began.elapsed() < time {
            if child.try_wait().expect("our own child").is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Waits until the run fails, and returns what it has said.
    pub(crate) fn fail(mut self) -> String {
        let child = self.child.take().expect("the run goes on");
        let output: Output = child.wait_with_output().expect("our own child");
        assert!(!output.status.success(), "{}", stdout(&output));
        stderr(&output)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The child may have ended by itself.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Returns the present time in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis() as u64
}

/// Returns the numbers `number`, `number` + 1, … as rows with labels.
pub(crate) fn rows(numbers: std::ops::Range<u64>, time: u64) -> Vec<String> {
    numbers
        .map(|number| {
            let (user, item) = (mix(number) % 500, mix(number ^ 77) % 200);
            let click = u64::from(is_click(user, item, number));
            format!("{{\"user\":{user},\"item\":{item},\"time\":{time},\"click\":{click}}}")
        })
        .collect()
}

/// Returns the impressions `number`, `number` + 1, … from `time` on, ten milliseconds apart, and
/// the clicks on them, each a tenth of a second after its impression.
pub(crate) fn impressions(numbers: std::ops::Range<u64>, time: u64) -> (Vec<String>, Vec<String>) {
    let (mut shown, mut clicked) = (Vec::new(), Vec::new());
    for (at, number) in numbers.enumerate() {
        let (user, item) = (mix(number) % 500, mix(number ^ 77) % 200);
        let time = time + 10 * at as u64;
        let request = format!("\"request\":\"r{number}\"");
        shown.push(format!("{{{request},\"user\":{user},\"item\":{item},\"time\":{time}}}"));
        if is_click(user, item, number) {
            clicked.push(format!("{{{request},\"time\":{}}}", time + 100));
        }
    }
    (shown, clicked)
}

/// Returns whether an impression is clicked, which depends on the user and the item most of all.
pub(crate) fn is_click(user: u64, item: u64, number: u64) -> bool {
    mix(user) % 10 + mix(item) % 10 + mix(number ^ 5) % 6 > 14
}

/// Mixes the bits of a number.
pub(crate) fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11
}

/// Returns all files below a folder with their names relative to the folder.
pub(crate) fn files_below(top: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(top).expect("below the top");
                found.push((name.to_string_lossy().into_owned(), path));
            }
        }
    }
    found.sort();
    found
}
