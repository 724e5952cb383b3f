//! A run whose wall clock is set forward and back. The times of the run come from the monotonic
//! clock, so that nothing changes.
//!
//! The library `libfaketime` of Debian stands between the processes and the wall clock of the
//! system. It adds the seconds that a file holds, and reads the file at each look at the clock.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::debian::Packaged;
use super::proxy::PATIENCE;
use super::runs::{TrainerProcess, addresses, outcome, replaced, train_alone};
use super::servers::ServerProcess;
use crate::harness::{JOB, Workplace, skip, stderr, zillion};
use crate::server::Server;

/// The library in Debian's package. It is loaded into processes, so that the package is pinned.
const PACKAGED: Packaged = Packaged {
    folder: "faketime",
    package: "libfaketime=0.9.10-2.1",
    sha256: "b09481e7690680966005330c3f907bba4b5eefc35e1faaea4783cc55655d1150",
    file: "usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
};

/// The number of seconds of an hour.
const HOUR: i64 = 3600;

/// The largest error in seconds of a time that a process has written. It is far below an hour, and
/// far above the length of the test.
const ERROR: i64 = HOUR / 2;

/// The wall clock of the processes of a test.
struct WallClock {
    library: PathBuf,
    /// The file with the seconds by which the clock is wrong.
    file: PathBuf,
}

impl WallClock {
    /// Makes a clock that is right. If Debian's package cannot be had, prints a message and returns
    /// `None`.
    fn new(place: &Workplace) -> Option<Self> {
        let Some(library) = PACKAGED.unpack() else {
            skip("faketime", "Debian's servers cannot be reached, or have another package");
            return None;
        };
        let clock = Self { library, file: place.path("clock") };
        clock.set(0);
        Some(clock)
    }

    /// Sets the clock of all processes to the right time and some seconds.
    fn set(&self, seconds: i64) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n")).expect("our own folder");
        // A process that looks at the clock finds the old file or the new one.
        std::fs::rename(new, &self.file).expect("our own folder");
    }

    /// Makes a process use this clock.
    fn rule(&self, mut command: Command) -> Command {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command
    }
}

/// Returns the right time in seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    i64::try_from(since.as_secs()).expect("a time before the end of 64 bits")
}

/// Starts a server that writes its messages with their times to a file.
fn start_server(clock: &WallClock, place: &Workplace, id: usize) -> ServerProcess {
    let (store, id) = (place.path(""), id.to_string());
    let mut command = zillion(&["--log-filter", "info", "ps", "serve", "--id", &id]);
    command.args(["--listen", "127.0.0.1:0", "--lease-seconds", "3", "--store"]).arg(&store);
    let log = std::fs::File::create(log_of(place, &id)).expect("a file for the log");
    command.stderr(log);
    ServerProcess::spawn(clock.rule(command), &store)
}

fn log_of(place: &Workplace, id: &str) -> PathBuf {
    place.path(&format!("server-{id}.log"))
}

/// Returns the time of the last line of a server's log that has a text, in seconds since 1970.
fn time_of(log: &Path, text: &str) -> i64 {
    let said = std::fs::read_to_string(log).expect("the log can be read");
    let line = said.lines().rfind(|line| line.contains(text));
    let line = line.unwrap_or_else(|| panic!("no {text:?}:\n{said}"));
    let time = line.split(' ').next().unwrap_or_default();
    let parsed = Command::new("date").args(["+%s", "--date", time]).output().expect("`date` runs");
    let seconds = String::from_utf8_lossy(&parsed.stdout).trim().parse();
    seconds.unwrap_or_else(|_| panic!("{time:?} is no time: {}", stderr(&parsed)))
}

/// Returns the address of a trainer's metrics.
fn metrics_of(trainer: &mut TrainerProcess) -> String {
    trainer.wait_for("/metrics\n");
    let said = trainer.said();
    let url = said.lines().find_map(|line| line.strip_prefix("metrics on http://"));
    url.and_then(|url| url.strip_suffix("/metrics")).expect("the URL of metrics").to_owned()
}

/// Returns a number of a trainer's metrics, or `None` if the trainer does not answer.
fn metric(address: &str, name: &str) -> Option<i64> {
    let head = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answer = Server::over(TcpStream::connect(address).ok()?, head, b"").ok()?;
    let value = answer.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value?.parse::<f64>().ok().map(|value| value as i64)
}

/// Waits until a trainer has trained and validated an epoch while its wall clock was wrong by some
/// seconds.
fn wait_for_epoch(trainer: &mut TrainerProcess, metrics: &str, wrong_by: i64) {
    let began = Instant::now();
    for _ in 0..2 {
        let steps = metric(metrics, "zillion_trainer_step");
        loop {
            let at = metric(metrics, "zillion_trainer_validation_timestamp_seconds");
            let is_shown = at.is_some_and(|at| (at - now() - wrong_by).abs() < ERROR);
            if is_shown && metric(metrics, "zillion_trainer_step") > steps {
                break;
            }
            let can_come = trainer.is_running() && began.elapsed() < PATIENCE;
            assert!(can_come, "not wrong by {wrong_by} s: {at:?}\n{}", trainer.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_wall_clock_that_jumps_changes_nothing() {
    let place = Workplace::new();
    let Some(clock) = WallClock::new(&place) else { return };
    let long = [("epochs = 3\n", "epochs = 120\n"), ("patience = 3 }", "patience = 1000 }")];
    place.write("job.toml", &replaced(JOB, &long));
    train_alone(&place, "alone", &["--set", "train.accumulate=2"]);

    let servers = [0, 1].map(|id| start_server(&clock, &place, id));
    let (at, store) = (addresses(&servers).join(","), place.text(""));
    let mut trainers = ["0/2", "1/2"].map(|number| {
        let usual = ["--ps", &at, "--ps-store", &store, "--trainer", number, "--json"];
        let short = ["--set", "ps.deadline_seconds=3", "--metrics", "127.0.0.1:0"];
        let command = place.train("over", &[usual.as_slice(), &short].concat());
        TrainerProcess::spawn(&place, clock.rule(command))
    });
    let metrics = trainers.each_mut().map(metrics_of);
    // An hour forward, then two hours back.
    for wrong_by in [0, HOUR, -HOUR] {
        clock.set(wrong_by);
        for (trainer, metrics) in trainers.iter_mut().zip(&metrics) {
            wait_for_epoch(trainer, metrics, wrong_by);
        }
        for (id, server) in servers.iter().enumerate() {
            // The run writes a checkpoint at the wrong time.
            let asked = zillion(&["ps", "checkpoint", &server.address]).output();
            let asked = asked.expect("the binary runs");
            assert!(asked.status.success(), "{}", stderr(&asked));
            let at = time_of(&log_of(&place, &id.to_string()), "a checkpoint is requested");
            let error = at - now() - wrong_by;
            assert!(error.abs() < ERROR, "server {id} is wrong by {error} s more than {wrong_by}");
        }
    }
    for trainer in trainers {
        let ended = trainer.end();
        let report = ended.succeeded();
        assert_eq!(report["rewinds"].as_u64().unwrap_or(0), 0, "{report}\n{}", ended.said);
    }
    for (id, server) in servers.iter().enumerate() {
        assert_eq!(server.count("generation"), 1, "server {id} has seen a rewind");
        let said = std::fs::read_to_string(log_of(&place, &id.to_string())).expect("a log");
        let is_normal = |line: &&str| !line.contains("WARN") && !line.contains("ERROR");
        assert!(said.lines().all(|line| is_normal(&line)), "{said}");
    }
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}
