//! Tests of `zillion cluster up`: servers and trainers on this machine, each in a process of its
//! own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::harness::{Workplace, zillion};
use crate::parameter_servers::etcd_process::EtcdProcess;

/// The time within which the cluster must write a line, or a checkpoint must appear.
const PATIENCE: Duration = Duration::from_secs(120);

/// Many short epochs, so that something can happen in the middle of the run.
const LONG: [&str; 4] = ["--set", "train.epochs=20", "--set", "train.plateau.patience=1000"];

/// A running cluster of two servers and two trainers.
struct Cluster {
    child: Child,
    lines: Receiver<String>,
}

impl Cluster {
    fn start(place: &Workplace, output: &str, more: &[&str]) -> Self {
        let root = format!("data.root={}", place.text(""));
        let run = format!("run.output={}", place.text(output));
        let mut command = zillion(&["cluster", "up", "--servers", "2", "--trainers", "2"]);
        command.arg(place.path("job.toml")).args(["--set", &root, "--set", &run]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let output = child.stdout.take().expect("stdout is a pipe");
        let (sender, lines) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.for_each(|line| drop(sender.send(line)));
        });
        Self { child, lines }
    }

    /// Waits for a line that begins with `start`, and returns its last word.
    fn last_word(&self, start: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|e| panic!("no line begins with `{start}`: {e}"));
            if line.starts_with(start) {
                return line.rsplit(' ').next().unwrap_or_default().to_owned();
            }
        }
    }

    /// Waits until the cluster ends by itself, and returns its exit code and its other lines.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("our own child can be waited for");
        (status.code(), self.lines.iter().collect::<Vec<_>>().join("\n"))
    }
}

fn signal(signal: &str, process: &str) {
    let sent = Command::new("kill").args([signal, process]).status().expect("`kill` runs");
    assert!(sent.success(), "kill {signal} {process}");
}

/// Waits until a run has a checkpoint.
fn wait_for_checkpoint(run: &Path) {
    let is_step = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|e| e.file_name().to_string_lossy().starts_with("step-"))
    };
    let waits = (0..PATIENCE.as_millis() / 5).take_while(|_| {
        let entries = std::fs::read_dir(run.join("checkpoints"));
        let is_there = entries.is_ok_and(|mut entries| entries.any(is_step));
        if !is_there {
            thread::sleep(Duration::from_millis(5));
        }
        !is_there
    });
    assert!(
        waits.count() < PATIENCE.as_millis() as usize / 5,
        "no checkpoint in {}",
        run.display()
    );
}

#[test]
fn a_cluster_that_loses_members_gives_the_bytes_of_one_process() {
    let place = Workplace::new();
    place.train_ok("reference", &[&LONG[..], &["--set", "train.accumulate=2"]].concat());
    let cluster = Cluster::start(&place, "shared/run", &LONG);
    let server = cluster.last_word("server 1: ");
    let trainer = cluster.last_word("trainer 1: ");
    wait_for_checkpoint(&place.path("shared/run"));
    signal("-KILL", &server);
    let again = cluster.last_word("server 1: process ");
    assert_ne!(again, server);
    signal("-KILL", &trainer);
    cluster.last_word("trainer 1: process ");
    let (code, rest) = cluster.end();
    assert_eq!(code, Some(0), "{rest}");
    // Each server writes parts of its own, so the files of tables have other names. Dense
    // parameters depend on all rows of all steps before them.
    let dense = |folder: &str| {
        let files = place.digest(&format!("{folder}/checkpoints")).into_iter();
        files.filter(|(name, _)| name.ends_with("dense.safetensors")).collect::<Vec<_>>()
    };
    let (shared, reference) = (dense("shared/run"), dense("reference"));
    assert!(shared.len() > 1, "{shared:?}");
    assert_eq!(shared, reference);
    let process = Path::new("/proc").join(&again);
    assert!(!process.exists(), "the cluster has left a server behind");
}

#[test]
fn a_signal_ends_a_cluster_after_a_checkpoint() {
    let place = Workplace::new();
    let more = ["--set", "train.epochs=100000", "--set", "train.plateau.patience=1000000"];
    let store = place.text("store");
    let cluster = Cluster::start(&place, "elsewhere", &[&more[..], &["--store", &store]].concat());
    let server = cluster.last_word("server 0: ");
    // The folder of the run is not below the store, so the run is below the store by its name.
    wait_for_checkpoint(&place.path("store/e2e"));
    signal("-TERM", &cluster.child.id().to_string());
    let (code, rest) = cluster.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(!Path::new("/proc").join(&server).exists(), "the cluster has left a server behind");
}

#[test]
fn the_members_of_a_cluster_meet_in_etcd() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let place = Workplace::new();
    let by_etcd = ["--etcd", &etcd.endpoint, "--etcd-prefix", "/zillion/up"];
    let log = place.path("shared/logs/server-1.log");
    std::fs::create_dir_all(place.path("shared/logs")).expect("our own folder");
    std::fs::write(&log, "of an earlier cluster\n").expect("our own folder");
    let cluster = Cluster::start(&place, "shared/run", &[&LONG[..], &by_etcd].concat());
    let server = cluster.last_word("server 1: ");
    let said = std::fs::read_to_string(&log).expect("the log can be read");
    assert!(!said.contains("earlier"), "the log begins anew: {said}");
    wait_for_checkpoint(&place.path("shared/run"));
    let directory = etcd.directory("/zillion/up");
    assert_eq!(directory.members().unwrap().into_keys().collect::<Vec<_>>(), [0, 1]);
    signal("-KILL", &server);
    cluster.last_word("server 1: process ");
    let (code, rest) = cluster.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(directory.newest("run").unwrap() >= 2, "the log of generations is in etcd");
    assert!(directory.members().unwrap().is_empty(), "servers leave in good order");
}

#[test]
fn a_wrong_job_ends_the_cluster_with_the_code_of_its_trainer() {
    let place = Workplace::new();
    // Every process reads the same job, but only a trainer opens its data.
    let cluster = Cluster::start(&place, "shared/run", &["--set", "data.train=absent.csv"]);
    let server = cluster.last_word("server 0: ");
    let (code, rest) = cluster.end();
    assert_ne!(code, Some(0), "{rest}");
    assert!(rest.contains("the cluster ends"), "{rest}");
    assert!(!Path::new("/proc").join(&server).exists(), "the cluster has left a server behind");
}
