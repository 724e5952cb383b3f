//! A parameter server that serves its metrics, with a run of one table.

use std::io::{BufRead as _, BufReader};
use std::num::NonZeroUsize;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use zillion_ps::{Pace, RemoteClient, RemoteOptions, TableOptions, TrainerPlace};
use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use crate::harness::{Workplace, binary};

/// The time within which the server must answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A parameter server and its only trainer. The server is killed when the value is dropped.
pub(super) struct Holder {
    child: Child,
    /// The address of the metrics.
    pub(super) metrics: String,
    _trainer: RemoteClient,
}

impl Holder {
    /// Starts a server, and begins a run on it.
    pub(super) fn start(place: &Workplace) -> Self {
        let store = place.path("held");
        std::fs::create_dir_all(&store).expect("a folder");
        let mut child = Command::new(binary())
            .args(["ps", "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
            .arg("--store")
            .arg(&store)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let metrics = line_of(child.stderr.take(), "metrics on http://");
        let server = line_of(child.stdout.take(), "listening on ");
        let rule = OptimizerSpec::Sgd { lr: 0.1 };
        let linear = InitializerSpec::Constant { value: 0.0 };
        let table = TableSpec::new("held", vec![SegmentSpec::new("linear", 1, linear, rule)]);
        let options = RemoteOptions {
            servers: vec![server],
            directory: None,
            place: TrainerPlace::ALONE,
            run: "run".to_owned(),
            job_digest: "job".to_owned(),
            token: None,
            tls: None,
            pace: Some(Pace { staleness: Some(1), counts_pushes: true }),
            bf16_gradients: false,
            store,
            deadline: PATIENCE,
            after: 0,
            patience: PATIENCE,
            stop: Default::default(),
            clock: None,
        };
        let trainer =
            RemoteClient::open(options, TableOptions::new(vec![table], NonZeroUsize::MIN));
        let metrics = metrics.strip_suffix("/metrics").expect("the URL of metrics").to_owned();
        Self { child, metrics, _trainer: trainer.expect("the run begins") }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the rest of the first line that begins with `start`. A thread reads the rest of the
/// output, so that the process never waits for a reader.
fn line_of(output: Option<impl std::io::Read + Send + 'static>, start: &str) -> String {
    let mut lines = BufReader::new(output.expect("a pipe")).lines();
    let line = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with(start));
    std::thread::spawn(move || lines.for_each(drop));
    let line = line.unwrap_or_else(|| panic!("the server does not say `{start}`"));
    line[start.len()..].trim().to_owned()
}
