//! Tests of a server under a service manager: messages to the manager, inherited sockets, and the
//! reload of settings.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Workplace, binary};
use crate::server::{MODEL, PATIENCE, REGISTRY, Server, infer_body, instances, operate};
use crate::serving::publishing;

/// A socket that receives the messages of a server to its service manager.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    fn new(place: &Workplace) -> Self {
        let socket = UnixDatagram::bind(place.path("notify")).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        Self { socket, heard: Vec::new() }
    }

    /// Waits for a new line that begins with `start`, and returns the line.
    fn hears(&mut self, start: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(at) = self.heard.iter().position(|line| line.starts_with(start)) {
                return self.heard.drain(..=at).next_back().expect("it was found");
            }
            let mut buffer = [0; 4096];
            if let Ok(bytes) = self.socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
                self.heard.extend(text.lines().map(str::to_owned));
            }
            assert!(began.elapsed() < PATIENCE, "`{start}` is never said: {:?}", self.heard);
        }
    }
}

#[test]
fn the_service_manager_is_notified() {
    let place = Workplace::new();
    let mut manager = Manager::new(&place);
    let socket = place.text("notify");
    // The registry exists, but the model does not exist.
    std::fs::create_dir(place.path(REGISTRY)).expect("our own folder");
    let environment = [("NOTIFY_SOCKET", socket.as_str()), ("WATCHDOG_USEC", "300000")];
    let mut server = Server::try_start(&place, &[], &environment).expect("it listens");
    let status = manager.hears("STATUS=");
    assert!(status.contains(MODEL), "{status}");
    manager.hears("WATCHDOG=1");
    assert!(!manager.heard.iter().any(|line| line == "READY=1"), "{:?}", manager.heard);
    publishing(&place, "run", 1000, &["--set", "train.epochs=1"]);
    manager.hears("READY=1");
    let status = manager.hears("STATUS=");
    assert!(status.contains("version 1"), "{status}");
    assert!(server.terminate().success());
    manager.hears("STOPPING=1");
}

#[test]
fn an_inherited_socket_is_served() {
    let place = Workplace::new();
    publishing(&place, "run", 1000, &["--set", "train.epochs=1"]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    // A client connects before any server accepts. The socket belongs to the manager, so no
    // connection is lost.
    let early = std::net::TcpStream::connect(address).expect("the socket listens");
    let command = |name: &str| {
        let script = format!(
            "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={name} exec {} serve --registry {} --model {MODEL} \
             --cache {} --threads 1 --http 127.0.0.1:1 3<&0 </dev/null",
            binary().display(),
            place.text(REGISTRY),
            place.text("cache")
        );
        let mut command = std::process::Command::new("sh");
        let socket = OwnedFd::from(listener.try_clone().expect("a socket can be shared"));
        command.args(["-c", &script]).stdin(Stdio::from(socket));
        command.env_remove("ZILLION_LOG").stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut server = Server::adopt(command("http").spawn(), false).expect("it listens");
    assert_eq!(server.address, address.to_string());
    assert!(server.becomes_ready());
    let reply = Server::over(
        early,
        "GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"",
    );
    assert_eq!(reply.expect("it is served").status, 200);
    assert!(server.terminate().success());
    // The server does not know this name.
    let refused = command("metrics").output().expect("a shell");
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("`metrics`") && said.contains("FileDescriptorName"), "{said}");
}

#[test]
fn settings_are_read_again_on_sighup() {
    let place = Workplace::new();
    publishing(&place, "run", 1000, &["--set", "train.epochs=1"]);
    let mut manager = Manager::new(&place);
    let socket = place.text("notify");
    let settings = |more: &str| {
        place.write("serve.toml", &format!("[serve]\nmodels = ['{MODEL}']\n{more}"));
    };
    settings("max_rows = 100\n");
    let config = place.text("serve.toml");
    let mut server =
        Server::configured(&place, &["--config", &config], &[("NOTIFY_SOCKET", &socket)]);
    assert!(server.becomes_ready());
    manager.hears("READY=1");
    let rows = instances(&crate::harness::csv(7, 10));
    let ask = |server: &Server| {
        let body = infer_body(&rows, &[]);
        server.post(&format!("/v2/models/{MODEL}/infer"), body.as_bytes()).status
    };
    assert_eq!(ask(&server), 200);
    let mut reload = |server: &Server, outcome: &str| {
        let before = reloads(server, outcome);
        server.signal("HUP");
        manager.hears("RELOADING=1");
        manager.hears("MONOTONIC_USEC=");
        manager.hears("READY=1");
        assert_eq!(reloads(server, outcome), before + 1.0, "{outcome}");
    };
    settings("max_rows = 9\n");
    reload(&server, "done");
    assert_eq!(ask(&server), 413);
    // A settings file that cannot be read changes nothing.
    settings("max_rows = 'many'\n");
    reload(&server, "refused");
    assert_eq!(ask(&server), 413);
    // A setting that cannot change at once waits for a restart, and a message reports this. The
    // other settings change.
    settings("max_rows = 100\nretain = 3\n");
    reload(&server, "done");
    assert_eq!(ask(&server), 200);
    // Models are added and removed.
    operate(&place, &["model", "promote", "1", "--to", "canary"]);
    place.write("serve.toml", &format!("[serve]\nmodels = ['{MODEL}@canary']\n"));
    reload(&server, "done");
    assert!(server.becomes_ready());
    assert_eq!(ask(&server), 200);
    place.write("serve.toml", "[serve]\nmodels = ['another']\n");
    reload(&server, "done");
    assert_eq!(ask(&server), 404);
    assert!(server.terminate().success());
    let log = std::fs::read_to_string(place.path("server.log")).expect("a log");
    assert!(log.contains("max_rows") && log.contains("retain"), "{log}");
    assert!(log.contains("after a restart of the server"), "{log}");
}

/// Returns the number of reloads of the settings that had this outcome.
fn reloads(server: &Server, outcome: &str) -> f64 {
    let series = format!("zillion_serving_config_reloads_total{{outcome=\"{outcome}\"}} ");
    let metrics = server.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
    let line = line.unwrap_or_else(|| panic!("{series}\n{metrics}"));
    serde_json::from_str::<Value>(line).ok().and_then(|v| v.as_f64()).expect("a number")
}
