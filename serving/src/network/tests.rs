//! Listeners with real sockets, before a server without models.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;
use zillion_device::{Files, SystemClock};
use zillion_registry::Registry;

use super::*;
use crate::config::{Limits, ServeConfig};

/// A running server with two listeners.
struct Running {
    addresses: [SocketAddr; 2],
    beats: Arc<Beats>,
    /// The domain, which must not be dropped inside of a runtime.
    domain: Arc<Domain>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<usize>>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn start(limits: Limits) -> Self {
        Self::start_threads(limits, 1)
    }

    /// Starts a server whose listeners have this number of threads.
    fn start_threads(limits: Limits, threads: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = folder.path().join("registry").display().to_string();
        let registry = Registry::create(&url, Files::new(), Arc::new(SystemClock::new())).unwrap();
        let (config, metrics) =
            (ServeConfig { limits, ..ServeConfig::default() }, prometheus::Registry::new());
        let domain = Domain::start(&config, &registry, &Files::new(), &metrics).unwrap();
        let domain = Arc::new(domain);
        let sockets = [0, 1].map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = [0, 1].map(|at: usize| sockets[at].local_addr().unwrap());
        let threads = NonZeroUsize::new(threads).unwrap();
        let listeners = sockets.map(|socket| Listener { threads, ..Listener::open(socket) }).into();
        let (stop, stopped) = oneshot::channel();
        let beats = Arc::new(Beats::default());
        let (own, of_thread) = (beats.clone(), domain.clone());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let stopped = async { stopped.await.unwrap() };
                serve(of_thread, listeners, &own, stopped).await
            })
        });
        Self { addresses, beats, domain, stop, thread, _folder: folder }
    }

    fn connect(&self, listener: usize) -> TcpStream {
        let stream = TcpStream::connect(self.addresses[listener]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Asks for a path over a new connection, and returns the head and the body of the answer.
    fn get(&self, listener: usize, path: &str) -> (String, Vec<u8>) {
        let mut stream = self.connect(listener);
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let body = answer.split_off(end);
        (String::from_utf8(answer).unwrap().to_ascii_lowercase(), body)
    }

    /// Asks over an open connection whether the server is alive, and returns the answer.
    fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // The body ends with a brace, and has no other.
        while answer.last() != Some(&b'}') {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        String::from_utf8(answer).unwrap().to_ascii_lowercase()
    }

    /// Watches the health of the server over a new connection, once its first status has come.
    fn watch(&self, listener: usize) -> TcpStream {
        let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
            let head = [0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
            [&head, payload].concat()
        };
        let path = b"/grpc.health.v1.Health/Watch";
        // POST, http, the path, the authority, the content type, and `te: trailers` (RFC 7541).
        let block = [
            &[0x83, 0x86, 0x04, path.len() as u8][..],
            path,
            &[0x01, 1, b'x', 0x0f, 0x10, 16],
            b"application/grpc",
            &[0x00, 2, b't', b'e', 8],
            b"trailers",
        ]
        .concat();
        let mut stream = self.connect(listener);
        let opening = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &[]),
            frame(1, 4, 1, &block),
            frame(0, 1, 1, &[0; 5]),
        ];
        stream.write_all(&opening.concat()).unwrap();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            stream.read_exact(&mut payload).unwrap();
            // A message of two bytes: the status.
            if head[3] == 0 && length > 0 {
                assert_eq!(&payload[..5], [0, 0, 0, 0, 2], "{payload:?}");
                return stream;
            }
        }
    }

    /// Stops the server, and returns the number of connections that were cut off.
    fn stop(self) -> usize {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap().unwrap()
    }
}

#[test]
fn an_answer_of_many_slices_is_whole() {
    let server = Running::start(Limits::default());
    let (head, body) = server.get(0, "/openapi.json");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    assert_eq!(length.parse::<usize>().unwrap(), body.len());
    assert!(body.len() > 16 << 10, "{} bytes are one slice", body.len());
    assert!(serde_json::from_slice::<serde_json::Value>(&body).unwrap().is_object());
    assert!(server.beats.oldest() < Duration::from_secs(60));
    assert_eq!(server.stop(), 0);
}

#[test]
fn watches_are_idle_and_fill_one_listener_only() {
    let server = Running::start(Limits { connections: 3, ..Limits::default() });
    let mut watches: Vec<TcpStream> = (0..6).map(|_| server.watch(0)).collect();
    for listener in [0, 1] {
        let (head, _) = server.get(listener, "/healthz");
        assert!(head.starts_with("http/1.1 200"), "{head}");
    }
    // The oldest watch has made room; a reset closes a connection too.
    let mut rest = Vec::new();
    match watches[0].read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "still open"),
    }
    drop(watches);
    assert_eq!(server.stop(), 0);
}

#[test]
fn several_threads_serve_and_stop_as_one() {
    let server = Running::start_threads(Limits::default(), 3);
    let mut streams: Vec<TcpStream> = (0..7).map(|_| server.connect(0)).collect();
    for stream in &mut streams {
        let head = Running::ask(stream);
        assert!(head.starts_with("http/1.1 200") && !head.contains("connection: close"), "{head}");
    }
    assert!(server.beats.oldest() < Duration::from_secs(60));
    // A lame duck still answers, and every thread tells its clients to leave.
    let (told, kept) = streams.split_at_mut(4);
    server.domain.drain();
    for stream in told {
        let head = Running::ask(stream);
        assert!(head.starts_with("http/1.1 200") && head.contains("connection: close"), "{head}");
    }
    let (head, _) = server.get(0, "/healthz");
    assert!(head.starts_with("http/1.1 200"), "new connections are accepted: {head}");
    let mut kept: Vec<TcpStream> = kept.iter().map(|s| s.try_clone().unwrap()).collect();
    assert_eq!(server.stop(), 0, "no idle connection is waited for");
    for stream in kept.iter_mut().chain(&mut streams) {
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "the connection is closed");
    }
}

#[test]
fn limits_of_connections_count_those_of_all_threads() {
    let limits = Limits { connections: 100, connections_per_address: 4, ..Limits::default() };
    let server = Running::start_threads(limits, 3);
    let mut streams: Vec<TcpStream> = (0..4).map(|_| server.connect(0)).collect();
    streams.iter_mut().for_each(|stream| drop(Running::ask(stream)));
    // A fifth connection takes the place of the one that was idle for the longest time.
    let mut fifth = server.connect(0);
    assert!(Running::ask(&mut fifth).starts_with("http/1.1 200"));
    let mut ended = [false; 4];
    while ended == [false; 4] {
        thread::sleep(Duration::from_millis(5));
        for (ended, stream) in ended.iter_mut().zip(&mut streams) {
            stream.set_nonblocking(true).unwrap();
            *ended |= matches!(stream.read(&mut [0; 16]), Ok(0));
        }
    }
    assert_eq!(ended.iter().filter(|ended| **ended).count(), 1);
    assert_eq!(server.stop(), 0);
}
