//! The server under attack, which is a separate process with an address for administration, and the
//! figures of this process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use zillion_device::machine::process::cpu_seconds;

use super::wire;
use crate::harness::{JOB, ROWS, Workplace, csv, zillion};
use crate::server::{MODEL, PATIENCE, REGISTRY};

/// The memory in bytes that a request may need in addition to a multiple of its body.
pub(super) const SLACK_BYTES: u64 = 64 << 20;

/// Trains a model for one epoch and publishes it. The tags of its rows are whole numbers, so a
/// client can choose the keys of a list.
pub(super) fn publish(more: &[&str]) -> Workplace {
    let place = Workplace::new();
    let numbers = "kind = \"ids\"";
    place.write("job.toml", &JOB.replace("kind = \"ids\"\ntype = \"string\"", numbers));
    for (part, (name, rows)) in
        [("train.csv", ROWS), ("valid.csv", 400), ("test.csv", 400)].into_iter().enumerate()
    {
        let text = csv(part as u64, rows);
        let (head, rows) = text.split_once('\n').expect("a head");
        place.write(name, &format!("{head}\n{}", rows.replace('t', "")));
    }
    let registry = format!("publish.registry={}", place.text(REGISTRY));
    let usual = ["--set", &registry, "--set", "train.epochs=1"];
    place.train_ok("run", &[&usual[..], more].concat());
    place
}

/// Returns the body of a predict request with one row for each of these lists of tags.
pub(super) fn predict_body(tags: &[&[u64]]) -> Vec<u8> {
    let row =
        |tags: &&[u64]| json!({ "user": "u1", "item": 1, "tags": tags, "price": 1.0, "age": 30.0 });
    let rows: Vec<_> = tags.iter().map(row).collect();
    json!({ "instances": rows }).to_string().into_bytes()
}

/// Returns the path of predict requests.
pub(super) fn predict_path() -> String {
    format!("/v1/models/{MODEL}:predict")
}

/// The lock of the tests that measure. Two such tests at the same time would disturb each other's
/// figures.
static TURN: Mutex<()> = Mutex::new(());

/// A running server. It is stopped when the value is dropped. Only one such server exists at a
/// time.
pub(super) struct Victim {
    child: Child,
    _turn: MutexGuard<'static, ()>,
    /// The address for all calls except metrics and control.
    pub(super) public: String,
    /// The address for health, metadata, metrics and control.
    pub(super) admin: String,
}

impl Victim {
    /// Starts a server of the workplace's model, and waits until it is ready.
    pub(super) fn start(place: &Workplace, more: &[&str]) -> Self {
        // If another test failed while it held the lock, that test reports the failure itself.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (registry, cache) = (place.text(REGISTRY), place.text("cache"));
        let usual = [
            ["serve", "--registry", &registry, "--cache", &cache, "--model", MODEL],
            [
                "--http",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--threads",
                "2",
                "--model-control",
            ],
        ];
        let log = std::fs::File::create(place.path("server.log")).expect("a log file");
        let mut command = zillion(&[&usual.concat(), more].concat());
        let mut child =
            command.stdout(Stdio::piped()).stderr(log).spawn().expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut address = |before: &str| {
            let line = lines.next().and_then(Result::ok).unwrap_or_default();
            let address = line.strip_prefix(before).map(str::to_owned);
            address.unwrap_or_else(|| panic!("`{before}` expected: {line:?}"))
        };
        let public = address("listening on http://");
        let admin = address("administration on http://");
        let victim = Self { child, _turn: turn, public, admin };
        wait_until("the server is ready", || {
            wire::get(&victim.admin, "/v2/health/ready").is_ok_and(|reply| reply.status == 200)
        });
        victim
    }

    /// Returns the id of the process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the processor time that the process has used, in seconds.
    pub(super) fn cpu(&self) -> f64 {
        cpu_seconds(self.pid()).expect("the process is there")
    }

    /// Returns the resident memory of the process in bytes.
    pub(super) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns the maximum resident memory of the process so far, in bytes.
    pub(super) fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let text = text.expect("the process is there");
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the line");
        let kib = line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
        kib.expect("a number") << 10
    }

    /// Returns the value of a series, or 0 if the server has not written the series yet.
    pub(super) fn metric(&self, series: &str) -> f64 {
        let metrics = wire::get(&self.admin, "/metrics").expect("the server answers").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Returns the number of connections that the server closed for this reason.
    pub(super) fn closed(&self, reason: &str) -> f64 {
        self.metric(&format!("zillion_serving_closed_connections_total{{reason=\"{reason}\"}}"))
    }

    /// Sends SIGTERM to the process.
    pub(super) fn stop(&self) {
        let pid = self.pid().to_string();
        let sent = std::process::Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.expect("`kill` runs").success());
    }

    /// Waits for the end of the process after [`Victim::stop`], and returns whether its exit code
    /// was 0.
    pub(super) fn has_ended_well(&mut self) -> bool {
        let mut status = None;
        wait_until("the server has ended", || {
            status = self.child.try_wait().expect("our own child can be asked");
            status.is_some()
        });
        status.is_some_and(|status| status.success())
    }

    /// Asserts that the server still answers with scores, and that it then stops without an error.
    pub(super) fn survives(mut self) {
        let reply = wire::post(&self.public, &predict_path(), "", &predict_body(&[&[1]]));
        let reply = reply.expect("the server answers");
        assert_eq!(reply.status, 200, "{reply:?}");
        self.stop();
        assert!(self.has_ended_well());
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a condition holds. Panics if the condition does not hold within the time limit of
/// the tests.
pub(super) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client that requests the health of a server repeatedly, each time over a new connection.
pub(super) struct Pulse {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

/// The response times of the health requests.
#[derive(Debug)]
pub(super) struct Latencies {
    pub(super) count: usize,
    pub(super) p99: Duration,
    pub(super) max: Duration,
}

impl Pulse {
    /// Starts a thread that requests the health of a server repeatedly.
    pub(super) fn start(address: &str) -> Self {
        let (address, stops) = (address.to_owned(), Arc::new(AtomicBool::new(false)));
        let stop = stops.clone();
        let thread = std::thread::spawn(move || {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                let reply = wire::get(&address, "/healthz").expect("the server answers");
                assert_eq!(reply.status, 200, "{reply:?}");
                times.push(began.elapsed());
                std::thread::sleep(Duration::from_millis(2));
            }
            times
        });
        Self { stops, thread }
    }

    /// Stops the requests, and returns the response times.
    pub(super) fn finish(self) -> Latencies {
        self.stops.store(true, Ordering::Relaxed);
        let mut times = self.thread.join().expect("every question has an answer");
        times.sort_unstable();
        let count = times.len();
        assert!(count > 0, "no question was asked");
        Latencies { count, p99: times[(count * 99 / 100).min(count - 1)], max: times[count - 1] }
    }
}

impl Latencies {
    /// Writes the response times to stderr, and asserts that the server was never silent. The
    /// limits are far above the times on an idle machine, because the machine of a test has other
    /// work.
    pub(super) fn assert_alive(&self, attack: &str) {
        let Self { count, p99, max } = self;
        eprintln!("{attack}: /healthz {count} times, p99 {p99:?}, at most {max:?}");
        assert!(self.p99 < Duration::from_millis(250), "{attack}: {self:?}");
        assert!(self.max < Duration::from_secs(3), "{attack}: {self:?}");
    }
}
