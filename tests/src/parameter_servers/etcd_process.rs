//! The etcd from the packages of Debian, as a process of the tests. Nothing is installed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zillion_ps::{Directory, EtcdOptions, open_etcd};

use super::debian::Packaged;
use super::proxy::PATIENCE;
use super::servers::send_signal;
use crate::harness::skip;

/// The program in Debian's package.
const PACKAGED: Packaged =
    Packaged { folder: "etcd", package: "etcd-server", sha256: "", file: "usr/bin/etcd" };

/// Returns the program etcd: the one on PATH, or Debian's in the build folder. If Debian's servers
/// cannot be reached, prints a message and returns `None`.
pub(crate) fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let version = Command::new("etcd").arg("--version").output();
        if version.is_ok_and(|output| output.status.success()) {
            return Some(PathBuf::from("etcd"));
        }
        PACKAGED.unpack()
    };
    let program = PROGRAM.get_or_init(find).as_deref();
    if program.is_none() {
        skip("etcd", "it is not on PATH, and Debian's servers cannot be reached");
    }
    program
}

/// A member of etcd. It is killed when the value is dropped.
pub(crate) struct EtcdProcess {
    child: Option<Child>,
    /// The folder of the data.
    data: TempDir,
    /// The address for clients.
    pub(crate) endpoint: String,
    more: Vec<String>,
}

impl EtcdProcess {
    /// Starts etcd. Returns `None` if there is no etcd on this machine.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with("http", &[])
    }

    /// Starts etcd with more arguments. Clients reach it by a scheme, `http` or `https`.
    pub(crate) fn start_with(scheme: &str, more: &[String]) -> Option<Self> {
        program()?;
        // Another process may take a free port before etcd does.
        for _ in 0..5 {
            let endpoint = format!("{scheme}://127.0.0.1:{}", free_port());
            let data = tempfile::tempdir().expect("a temporary folder");
            let mut etcd = Self { child: None, data, endpoint, more: more.to_vec() };
            if etcd.try_start() {
                return Some(etcd);
            }
        }
        panic!("etcd does not start")
    }

    /// Starts three members of one etcd.
    pub(crate) fn start_members() -> Option<[Self; 3]> {
        program()?;
        for _ in 0..5 {
            let address = |_| format!("http://127.0.0.1:{}", free_port());
            let (endpoints, peers) = ([0, 1, 2].map(address), [0, 1, 2].map(address));
            let all = format!("m0={},m1={},m2={}", peers[0], peers[1], peers[2]);
            let mut members = [0, 1, 2].map(|index| {
                // These settings replace those of an etcd with one member.
                let name = format!("m{index}");
                let more = ["--name", &name, "--initial-cluster", &all]
                    .into_iter()
                    .chain(["--listen-peer-urls", &peers[index]])
                    .chain(["--initial-advertise-peer-urls", &peers[index]]);
                Self {
                    child: None,
                    data: tempfile::tempdir().expect("a temporary folder"),
                    endpoint: endpoints[index].clone(),
                    more: more.map(str::to_owned).collect(),
                }
            });
            if members.iter_mut().all(Self::try_start) {
                return Some(members);
            }
        }
        panic!("the members of etcd do not start")
    }

    /// Starts a process, and waits until it listens. Returns `false` if it ends instead.
    fn try_start(&mut self) -> bool {
        let log = self.data.path().join("log");
        let peer = format!("http://127.0.0.1:{}", free_port());
        let member = format!("default={peer}");
        let mut command = Command::new(program().expect("it was found before"));
        command
            .args(["--listen-client-urls", &self.endpoint])
            .args(["--advertise-client-urls", &self.endpoint])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &member])
            // A short election makes the start and the shortest lease short.
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .arg("--data-dir")
            .arg(self.data.path().join("data"))
            .args(&self.more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a log file"));
        let mut child = command.spawn().expect("etcd starts");
        let began = Instant::now();
        loop {
            if child.try_wait().expect("our own child can be asked").is_some() {
                return false;
            }
            if TcpStream::connect(self.host()).is_ok() {
                self.child = Some(child);
                return true;
            }
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(began.elapsed() < PATIENCE, "etcd does not listen:\n{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the address without its scheme.
    fn host(&self) -> &str {
        self.endpoint.split_once("://").map_or("", |(_, host)| host)
    }

    /// Kills the process, and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("our own child can be killed");
            child.wait().expect("our own child can be waited for");
        }
    }

    /// Stops the process, which keeps its connections and answers no more.
    pub(crate) fn stop(&self) {
        let child = self.child.as_ref().expect("the process runs");
        send_signal(child.id(), "-STOP");
    }

    /// Starts another process at the same address with the same data.
    pub(crate) fn restart(&mut self) {
        self.kill();
        assert!(self.try_start(), "etcd does not start again");
    }

    /// Forgets all data, as if the disk of etcd were lost. The process must be killed.
    pub(crate) fn forget(&mut self) {
        std::fs::remove_dir_all(self.data.path().join("data")).expect("our own folder");
    }

    /// Returns the directory of a cluster.
    pub(crate) fn directory(&self, prefix: &str) -> Arc<dyn Directory> {
        open_etcd(&self.options(prefix)).expect("the settings are right")
    }

    /// Returns the settings of a client.
    pub(crate) fn options(&self, prefix: &str) -> EtcdOptions {
        let prefix = prefix.to_owned();
        EtcdOptions { prefix, ..EtcdOptions::new(vec![self.endpoint.clone()]) }
    }

    /// Sends a request to the JSON interface of etcd, and asserts that it succeeds.
    pub(crate) fn post(&self, path: &str, body: &str) {
        let mut stream = TcpStream::connect(self.host()).expect("etcd listens");
        let host = self.host();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("etcd reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("etcd answers in text");
        assert!(answer.lines().next().is_some_and(|line| line.contains(" 200 ")), "{answer}");
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}
