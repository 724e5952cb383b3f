//! The drill across hosts: etcd, servers and trainers in network namespaces with addresses of their
//! own. A host is cut off by taking its link down, so that no packet arrives and no connection
//! ends, as if a cable were pulled.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::etcd_process;
use super::runs::{TrainerProcess, checkpoints, outcome, replaced, train_alone};
use crate::harness::{JOB, Workplace, binary, skip};

/// The longest time for which the drill waits for something.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process in a namespace. It is killed when the value is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(quiet.spawn().expect("the program starts"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Namespaces that stand for hosts, and a namespace with the bridge that connects them. They are
/// removed when the value is dropped.
struct Network {
    name: String,
    hosts: usize,
}

/// Runs `ip`, and returns its error.
fn ip(arguments: &str) -> Result<(), String> {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().map_err(|e| e.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Network {
    /// Makes the bridge. If this machine does not allow it, prints a message and returns `None`.
    fn create() -> Option<Self> {
        let network = Self { name: format!("zillion-{}", std::process::id()), hosts: 0 };
        let bridge = network.bridge();
        let made = ip(&format!("netns add {bridge}"))
            .and_then(|()| ip(&format!("-n {bridge} link add br0 type bridge")))
            .and_then(|()| ip(&format!("-n {bridge} link set br0 up")));
        if let Err(problem) = made {
            skip("namespaces", &problem);
            return None;
        }
        Some(network)
    }

    fn bridge(&self) -> String {
        format!("{}-bridge", self.name)
    }

    fn host(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// Adds a host, and returns its number.
    fn add_host(&mut self) -> usize {
        self.hosts += 1;
        let (bridge, number) = (self.bridge(), self.hosts);
        let (host, address) = (self.host(number), address(number));
        for line in [
            format!("netns add {host}"),
            format!("-n {host} link set lo up"),
            format!("link add eth0 netns {host} type veth peer name port{number} netns {bridge}"),
            format!("-n {bridge} link set port{number} master br0"),
            format!("-n {bridge} link set port{number} up"),
            format!("-n {host} address add {address}/24 dev eth0"),
            format!("-n {host} link set eth0 up"),
        ] {
            ip(&line).expect("a namespace could be made before");
        }
        number
    }

    /// Takes the link of a host down or up.
    fn set_link(&self, host: usize, state: &str) {
        ip(&format!("-n {} link set port{host} {state}", self.bridge())).expect("our own link");
    }

    /// Returns a command that runs on a host.
    fn on(&self, host: usize, command: &Command) -> Command {
        let mut there = Command::new("ip");
        there.args(["netns", "exec", &self.host(host)]);
        there.arg(command.get_program()).args(command.get_args());
        there
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let hosts = (1..=self.hosts).map(|host| self.host(host));
        for name in hosts.chain([self.bridge()]) {
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

/// Returns the address of a host.
fn address(host: usize) -> String {
    format!("10.83.0.{host}")
}

/// Starts etcd on a host. Its data stay after its end.
fn start_etcd(network: &Network, host: usize, data: &Path) -> Running {
    let program = etcd_process::program().expect("it was found before");
    let clients = format!("http://{}:2379", address(host));
    let peer = format!("http://{}:2380", address(host));
    let mut etcd = Command::new(program);
    etcd.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--data-dir"])
        .arg(data);
    Running::start(&mut network.on(host, &etcd))
}

/// Returns the name of the newest checkpoint of a run.
fn newest(place: &Workplace) -> Option<String> {
    let newest = checkpoints(place, "over").pop()?;
    Some(newest.file_name()?.to_str()?.to_owned())
}

/// Waits until the run has written two more checkpoints, so that it has certainly made steps.
fn wait_for_progress(place: &Workplace, trainers: &mut [TrainerProcess]) {
    let began = Instant::now();
    for _ in 0..2 {
        let before = newest(place);
        while newest(place) <= before {
            let has_ended = trainers.iter_mut().any(TrainerProcess::has_ended);
            assert!(!has_ended, "the run ends before the drill:\n{}", trainers[0].said());
            assert!(began.elapsed() < PATIENCE, "no progress:\n{}", trainers[0].said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn hosts_are_cut_off_and_the_run_ends_with_the_same_bytes() {
    if etcd_process::program().is_none() {
        return;
    }
    let Some(mut network) = Network::create() else { return };
    let place = Workplace::new();
    let long = [
        ("epochs = 3\n", "epochs = 120\n"),
        ("patience = 3 }", "patience = 1000 }"),
        ("every = 10\n", "every = 20\n"),
    ];
    place.write("job.toml", &replaced(JOB, &long));
    train_alone(&place, "alone", &["--set", "train.accumulate=2"]);

    let token = place.text("token");
    std::fs::write(&token, "a-secret-of-the-drill").expect("our own folder");
    let store = place.text("");
    let data = place.path("etcd");
    let on_etcd = network.add_host();
    let mut etcd = start_etcd(&network, on_etcd, &data);
    let endpoint = format!("http://{}:2379", address(on_etcd));
    let on_server = [(); 3].map(|()| network.add_host());
    let _servers = on_server.map(|host| {
        let id = (host - on_server[0]).to_string();
        let mut server = Command::new(binary());
        server
            .args(["ps", "serve", "--listen", &format!("{}:7100", address(host))])
            .args(["--id", &id, "--store", &store, "--token-file", &token, "--lease-seconds", "3"])
            .args(["--etcd", &endpoint, "--etcd-lease-seconds", "2"]);
        Running::start(&mut network.on(host, &server))
    });
    let on_trainer = [(); 2].map(|()| network.add_host());
    let mut trainers = on_trainer.map(|host| {
        let number = format!("{}/2", host - on_trainer[0]);
        let usual = ["--ps-etcd", &endpoint, "--ps-count", "3", "--ps-store", &store, "--json"];
        let own = ["--ps-token-file", &token, "--trainer", &number];
        // The lease of a server expires long before its signs of life are missed.
        let times = ["--set", "ps.deadline_seconds=10", "--set", "ps.rewinds=100"];
        let changes = ["--log-filter", "info"];
        let command = place.train("over", &[&usual[..], &own, &times, &changes].concat());
        TrainerProcess::spawn(&place, network.on(host, &command))
    });
    wait_for_progress(&place, &mut trainers);

    // etcd is killed. The run makes steps without it.
    drop(etcd);
    trainers[0].wait_for("the run goes on without etcd");
    wait_for_progress(&place, &mut trainers);
    etcd = start_etcd(&network, on_etcd, &data);
    trainers[0].wait_for("etcd has returned");
    wait_for_progress(&place, &mut trainers);

    // The host of a server is cut off until its lease has expired.
    network.set_link(on_server[1], "down");
    trainers[0].wait_for("its lease has expired, and the server gave no sign of life for 1s");
    trainers[0].wait_for("the run waits for its servers: server 1 is not registered");
    network.set_link(on_server[1], "up");
    wait_for_progress(&place, &mut trainers);

    // The host of a trainer is cut off until the servers have given it up.
    network.set_link(on_trainer[1], "down");
    trainers[0].wait_for("trainer 1 was silent for more than 3s");
    trainers[1].wait_for("the run waits for its servers: etcd cannot be reached");
    network.set_link(on_trainer[1], "up");
    wait_for_progress(&place, &mut trainers);

    let rewinds = trainers.map(|trainer| {
        let ended = trainer.end();
        // The page `docs/CLUSTER.md` describes the drill by these lines.
        let is_told = |line: &&str| ["WARN", "etcd", "continues"].iter().any(|w| line.contains(w));
        let told = ended.said.lines().filter(is_told);
        told.for_each(|line| eprintln!("{line}"));
        ended.succeeded()["rewinds"].as_u64()
    });
    assert!(rewinds.iter().all(|&rewinds| rewinds >= Some(2)), "{rewinds:?}");
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
    drop(etcd);
}
