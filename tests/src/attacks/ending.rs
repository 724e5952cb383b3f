//! Tests of the end of connections and of the server: idle connections, the announcement of a stop,
//! and a stop in every state of the clients and of the registry.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::victim::{Victim, predict_body, predict_path, publish, wait_until};
use super::wire::{self, Kept};
use crate::server::{PATIENCE, Server};
use crate::stores::{Create, Fault, Proxy, S3Place, S3Server, URL};

/// The type of an HTTP/2 frame that announces the end of the connection.
const GOAWAY: u8 = 7;

#[test]
fn a_kept_connection_outlives_the_time_of_a_head() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &["--receive-ms", "400", "--idle-ms", "60000"]);
    let mut kept = Kept::open(&victim.public);
    let line = format!("POST {}", predict_path());
    let body = predict_body(&[&[1]]);
    for pause in [0, 1200, 0] {
        std::thread::sleep(Duration::from_millis(pause));
        let reply = kept.ask(&line, &body).expect("the connection is kept");
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    // The time limit also applies to an incomplete head on a connection that was used before.
    kept.send(b"GET /healthz HTTP/1.1\r\nHo").expect("the server reads");
    kept.read_to_close();
    victim.survives();
}

#[test]
fn idle_connections_are_closed() {
    let place = publish(&[]);
    let victim = Victim::start(&place, &["--idle-ms", "700"]);
    let mut http = Kept::open(&victim.public);
    assert_eq!(http.ask("GET /healthz", b"").expect("an answer").status, 200);
    let mut http2 = Kept::open(&victim.public);
    let request = [wire::http2_preface(65_535), wire::http2_get(1, "/healthz")].concat();
    http2.send(&request).expect("the server reads");
    http.read_to_close();
    assert!(http2.read_to_close() > 0, "the request has an answer");
    assert!(victim.closed("idle") >= 2.0);
    victim.survives();
}

#[test]
fn a_stop_is_announced_on_open_connections() {
    let place = publish(&[]);
    let mut victim = Victim::start(&place, &["--lame-duck-ms", "60000"]);
    // One connection has an incomplete request, and one connection uses HTTP/2.
    let mut begun = Kept::open(&victim.public);
    let body = predict_body(&[&[1]]);
    begun.begin_post(&predict_path(), body.len());
    let mut idle = Kept::open(&victim.public);
    assert_eq!(idle.ask("GET /healthz", b"").expect("an answer").status, 200);
    let mut http2 = TcpStream::connect(&victim.public).expect("a connection");
    http2.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let request = [wire::http2_preface(65_535), wire::http2_get(1, "/healthz")].concat();
    http2.write_all(&request).expect("the server reads");
    // This is the frame with the head of the answer.
    wire::http2_read(&mut http2, 1).expect("an answer");
    victim.stop();
    wire::http2_read(&mut http2, GOAWAY).expect("the end is announced");
    begun.send(&body).expect("the server reads");
    let reply = begun.read_reply().expect("the request is answered");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
    wait_until("the idle connection is closed", || idle.is_closed());
    // A load balancer that has not noticed the stop yet still gets answers. The server closes the
    // connection after each answer.
    for _ in 0..20 {
        let mut late = Kept::open(&victim.public);
        let reply = late.ask(&format!("POST {}", predict_path()), &body).expect("an answer");
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.head.contains("connection: close"), "{}", reply.head);
        let ready = wire::get(&victim.public, "/v2/health/ready").expect("an answer");
        assert_eq!(ready.status, 503, "{ready:?}");
    }
    let mut late = TcpStream::connect(&victim.public).expect("a connection");
    late.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    late.write_all(&request).expect("the server reads");
    wire::http2_read(&mut late, GOAWAY).expect("the end is announced with the first answer");
    victim.stop();
    assert!(victim.has_ended_well());
}

/// Keeps a server busy until the returned value is dropped.
struct Clients {
    stops: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Clients {
    fn start(victim: &Victim, count: usize) -> Self {
        let stops = Arc::new(AtomicBool::new(false));
        let body = predict_body(&vec![&[1u64, 2, 3][..]; 50]);
        let threads = (0..count).map(|_| {
            let (address, stop, body) = (victim.public.clone(), stops.clone(), body.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // The server may be stopping.
                    let _ = wire::post(&address, &predict_path(), "", &body);
                }
            })
        });
        Self { threads: threads.collect(), stops }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[test]
fn a_stop_under_load_ends_within_the_drain_time() {
    let place = publish(&[]);
    let mut victim = Victim::start(&place, &["--drain-ms", "1000"]);
    let clients = Clients::start(&victim, 4);
    // The clients hold a connection in every state: no bytes, half a head, half a body, unread
    // answers, and an HTTP/2 stream that does not end.
    let watch = {
        let mut bytes = wire::http2_preface(0);
        bytes.extend(wire::http2_get(1, "/openapi.json"));
        bytes
    };
    let half =
        format!("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{", predict_path());
    let unread = "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(500);
    let opening: [&[u8]; 5] = [b"", b"GET / HT", half.as_bytes(), unread.as_bytes(), &watch];
    let held: Vec<Kept> = opening
        .iter()
        .map(|bytes| {
            let mut kept = Kept::open(&victim.public);
            kept.send(bytes).expect("the server reads");
            kept
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    victim.stop();
    assert!(victim.has_ended_well());
    eprintln!("a stop under load: {:?} with 1 s to drain", began.elapsed());
    drop((held, clients));
}

#[test]
fn a_stop_does_not_wait_for_a_control_call() {
    let store = S3Server::start(Create::Honoured);
    let hangs = Arc::new(AtomicBool::new(false));
    let switch = hangs.clone();
    let proxy = Proxy::start(store.address, move |_| {
        if switch.load(Ordering::Relaxed) { Fault::Hang } else { Fault::None }
    });
    let s3 = S3Place::new(proxy.address);
    s3.train_ok("run", &["--set", "train.epochs=1", "--set", "publish.every=1000"]);
    let mut server = Server::launch(&s3.place, URL, &["--model-control"], |command| {
        let mut command = s3.command(command);
        command.env("ZILLION_STORE_REQUEST_MS", "3600000");
        command.env("ZILLION_STORE_OPERATION_MS", "3600000");
        command
    })
    .expect("the server listens");
    assert!(server.becomes_ready());
    hangs.store(true, Ordering::Relaxed);
    // Several calls wait for each other and for the store.
    let mut calls: Vec<Kept> = (0..4).map(|_| Kept::open(&server.address)).collect();
    for call in &mut calls {
        let head = "POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
        call.send(head.as_bytes()).expect("the server reads");
    }
    let before = proxy.broken();
    wait_until("a call waits for the store", || proxy.broken() > before);
    let began = Instant::now();
    server.signal("TERM");
    wait_until("the server has ended", || !server.is_running());
    eprintln!("a stop while the registry hangs: {:?}", began.elapsed());
    assert!(server.terminate().success());
}
