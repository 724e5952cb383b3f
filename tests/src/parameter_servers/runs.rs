//! Training runs over servers, and the comparison of their results.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::proxy::PATIENCE;
use super::servers::{ServerProcess, send_signal};
use crate::harness::{JOB, Workplace, last_json, stdout};

/// The settings of everything that decides something, that has a state, or that reads a whole
/// table. They replace those of the usual job.
const EVERYTHING: &[(&str, &str)] = &[
    (
        "[tables.user]\n",
        "[tables.user]\nadmission = { kind = 'count', at_least = 2 }\nl2 = 0.01\nmax_rows = 36\n\
         statistics = { decay = 0.9, every_steps = 4 }\n\
         eviction = { kind = 'score', show_weight = 0.5, click_weight = 1.0 }\n",
    ),
    ("[tables.tags]\n", "[tables.tags]\neviction = { kind = 'unseen', steps = 3 }\n"),
    ("clip_norm = 1.0\n", "clip_norm = 0.05\naverage = { kind = 'ema', decay = 0.9, start = 2 }\n"),
    ("epochs = 3\n", "epochs = 2\n"),
    ("checkpoint_every = 10\n", "checkpoint_every = 5\n"),
];

/// Returns a folder with the usual job and the settings of everything.
pub(crate) fn place_with_everything() -> Workplace {
    let place = Workplace::with_rare_users();
    place.write("job.toml", &replaced(JOB, EVERYTHING));
    place
}

/// Returns a folder with a small job that writes a checkpoint after every five steps.
pub(crate) fn small_place() -> Workplace {
    let place = Workplace::new();
    place.write("job.toml", &small_job());
    place
}

/// Returns the text of a small job that writes a checkpoint after every five steps.
pub(crate) fn small_job() -> String {
    let small = [("epochs = 3\n", "epochs = 1\n"), ("every = 10\n", "every = 5\n")];
    replaced(JOB, &small)
}

/// Replaces parts of a text. Each part must be there.
pub(crate) fn replaced(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "no {from:?}");
        text.replace(from, to)
    })
}

/// Returns the addresses of servers.
pub(crate) fn addresses(servers: &[ServerProcess]) -> Vec<String> {
    servers.iter().map(|server| server.address.clone()).collect()
}

/// A trainer process over servers. It is killed when the value is dropped.
pub(crate) struct TrainerProcess {
    child: Child,
    log: PathBuf,
    results: PathBuf,
}

/// The end of a trainer process.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// The messages for people.
    pub(crate) said: String,
    results: String,
}

impl Ended {
    /// Asserts that the training succeeded, and returns its report.
    pub(crate) fn succeeded(&self) -> Value {
        assert!(self.status.success(), "{}", self.said);
        last_json(&self.results)
    }

    /// Asserts that the training failed, and returns its messages.
    pub(crate) fn failed(&self) -> &str {
        assert_eq!(self.status.code(), Some(1), "{}", self.said);
        assert!(self.said.contains("error: "), "{}", self.said);
        &self.said
    }
}

impl TrainerProcess {
    /// Starts trainer `trainer.0` of `trainer.1`. Its servers are at the addresses.
    pub(crate) fn start(
        place: &Workplace,
        output: &str,
        servers: &[String],
        trainer: (usize, usize),
        more: &[&str],
    ) -> Self {
        let number = format!("{}/{}", trainer.0, trainer.1);
        let (servers, store) = (servers.join(","), place.text(""));
        let usual = ["--ps", &servers, "--ps-store", &store, "--trainer", &number, "--json"];
        let patience = ["--set", "ps.wait_seconds=40", "--set", "ps.deadline_seconds=3"];
        let often = ["--set", "ps.rewinds=100"];
        let command = place.train(output, &[&usual[..], &patience, &often, more].concat());
        Self::spawn(place, command)
    }

    /// Starts a command that trains.
    pub(crate) fn spawn(place: &Workplace, mut command: Command) -> Self {
        let folder = tempfile::tempdir_in(place.path("")).expect("a folder for the log").keep();
        let (log, results) = (folder.join("log"), folder.join("results"));
        let file = |path: &PathBuf| File::create(path).expect("a file for output");
        let child = command.stdout(file(&results)).stderr(file(&log)).spawn();
        Self { child: child.expect("the binary runs"), log, results }
    }

    /// Returns the messages for people so far.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log can be read")
    }

    /// Returns whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child can be asked").is_some()
    }

    /// Waits until the process says something.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let began = Instant::now();
        while !self.said().contains(text) {
            let is_running = self.child.try_wait().expect("our own child can be asked").is_none();
            assert!(is_running, "the trainer has ended without {text:?}:\n{}", self.said());
            assert!(began.elapsed() < PATIENCE, "no {text:?}:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns whether the process still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our own child can be asked").is_none()
    }

    /// Returns the id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: &str) {
        send_signal(self.child.id(), signal);
    }

    /// Waits for the end of the process.
    pub(crate) fn end(mut self) -> Ended {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child can be asked") {
                let results = std::fs::read_to_string(&self.results).expect("results can be read");
                return Ended { status, said: self.said(), results };
            }
            assert!(began.elapsed() < PATIENCE, "the trainer hangs:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for TrainerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts all trainers of a run.
pub(crate) fn start_all(
    place: &Workplace,
    output: &str,
    servers: &[String],
    trainers: usize,
    more: &[&str],
) -> Vec<TrainerProcess> {
    let start = |index| TrainerProcess::start(place, output, servers, (index, trainers), more);
    (0..trainers).map(start).collect()
}

/// Trains with several trainers, and returns their reports.
pub(crate) fn train_over(
    place: &Workplace,
    output: &str,
    servers: &[String],
    trainers: usize,
    more: &[&str],
) -> Vec<Value> {
    let processes = start_all(place, output, servers, trainers, more);
    processes.into_iter().map(|process| process.end().succeeded()).collect()
}

/// Trains in one process, and returns the report.
pub(crate) fn train_alone(place: &Workplace, output: &str, more: &[&str]) -> Value {
    last_json(&stdout(&place.train_ok(output, &[&["--json"], more].concat())))
}

/// The result of a run, as the manifest of its newest checkpoint describes it. It does not depend
/// on the cut of the tables into files.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    step: Value,
    cursor: Value,
    progress: Value,
    dense: Value,
    /// The name, the number of rows and the digest of each table.
    tables: Vec<[Value; 3]>,
}

/// Returns the result of a run.
pub(crate) fn outcome(place: &Workplace, output: &str) -> Outcome {
    let mut steps = checkpoints(place, output);
    let newest = steps.pop().unwrap_or_else(|| panic!("{output} has no checkpoint"));
    let text = std::fs::read_to_string(newest.join("MANIFEST")).expect("a checkpoint is whole");
    let (_, body) = text.split_once('\n').expect("the first line has the hash");
    let manifest: Value = serde_json::from_str(body).expect("the manifest is JSON");
    let tables = manifest["tables"].as_array().expect("a list of tables");
    let table = |table: &Value| ["table", "rows", "digest"].map(|key| table[key].clone());
    let tables: Vec<[Value; 3]> = tables.iter().map(table).collect();
    assert!(tables.iter().all(|[_, rows, digest]| rows.as_u64() > Some(0) && digest.is_string()));
    let [step, cursor, progress, dense] =
        ["step", "cursor", "progress", "dense"].map(|key| manifest[key].clone());
    assert!(step.as_u64() > Some(0) && dense["blake3"].is_string());
    Outcome { step, cursor, progress, dense, tables }
}

/// Returns the folders of the checkpoints of a run, oldest first.
pub(crate) fn checkpoints(place: &Workplace, output: &str) -> Vec<PathBuf> {
    let folder = place.path(output).join("checkpoints");
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut steps: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be listed").path()).collect();
    // The name of a checkpoint that is not complete begins with a dot.
    let is_complete = |path: &PathBuf| {
        path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."))
    };
    steps.retain(is_complete);
    steps.sort();
    steps
}
