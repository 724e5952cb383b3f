//! A server in the process of a test, and a client that writes the bytes of its requests by hand.
//! The client allocates nothing while it waits for an answer.

#![allow(dead_code, reason = "each test uses a part of this module")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use zillion_bench::example::{Example, MODEL, publish};
use zillion_device::Files;
use zillion_serving::{Beats, Domain, Follow, Limits, Listener, ServeConfig, serve};

/// A server of one model, with one network thread.
pub(crate) struct Server {
    pub(crate) domain: Arc<Domain>,
    pub(crate) metrics: prometheus::Registry,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Publishes a table of `rows` rows in `folder`, and serves it.
    pub(crate) fn start(folder: &Path, rows: u64) -> Self {
        let registry = publish(folder, rows).expect("a version is published");
        // No time of a busy machine reaches these limits.
        let long = Duration::from_secs(60);
        let limits =
            Limits { inline_time: long, request_time: long, queue_time: long, ..Limits::default() };
        let config = ServeConfig {
            models: vec![(MODEL.to_owned(), Follow::Latest)],
            cache: folder.join("cache"),
            // The thread that looks for new versions must not allocate during a count.
            poll: Duration::from_secs(3600),
            limits,
            ..ServeConfig::default()
        };
        let metrics = prometheus::Registry::new();
        let domain = Domain::start(&config, &registry, &Files::new(), &metrics).expect("a domain");
        let domain = Arc::new(domain);
        let began = Instant::now();
        while !domain.is_ready() {
            assert!(began.elapsed() < Duration::from_secs(120), "the version is not loaded");
            std::thread::sleep(Duration::from_millis(5));
        }
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let served = domain.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let beats = Beats::default();
            let shutdown = async { drop(stopped.await) };
            let serving = serve(served, vec![Listener::open(socket)], &beats, shutdown);
            let _ = runtime.expect("a runtime").block_on(serving);
        });
        Self { domain, metrics, address, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the value of a counter of the model.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let families = self.metrics.gather();
        let family = families.iter().find(|family| family.name() == name).expect("a series");
        family.get_metric()[0].get_counter().get_value() as u64
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection of HTTP/2 on which calls of `ModelInfer` are made.
pub(crate) struct Http2 {
    stream: TcpStream,
    next: u32,
    head: Vec<u8>,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Http2 {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("an option of the socket");
        // The preface, empty settings, and a wide window for the answers of the connection.
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        bytes.extend_from_slice(b"\0\0\x04\x08\0\0\0\0\0\x3f\0\0\0");
        stream.write_all(&bytes).expect("the preface is sent");
        // The windows of the server count once it has sent them, and that of a stream once its
        // settings are acknowledged.
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).expect("the head of a frame");
            let mut content = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
            stream.read_exact(&mut content).expect("a frame");
            match head[3..5] {
                [4, 0] => {
                    let acknowledged = stream.write_all(b"\0\0\0\x04\x01\0\0\0\0");
                    acknowledged.expect("the acknowledgement is sent");
                }
                [8, _] => break,
                _ => {}
            }
        }
        // Names and values without Huffman's code: the method, the scheme, and literals.
        let mut head = vec![0x83, 0x86];
        for (name, value) in [
            (&[0x04][..], "/inference.GRPCInferenceService/ModelInfer"),
            (&[0x01], "localhost"),
            (&b"\0\x0ccontent-type"[..], "application/grpc"),
            (b"\0\x02te", "trailers"),
        ] {
            head.extend_from_slice(name);
            head.push(value.len() as u8);
            head.extend_from_slice(value.as_bytes());
        }
        let (sent, received) = (Vec::with_capacity(8 << 20), vec![0; 1 << 20]);
        Self { stream, next: 1, head, sent, received }
    }

    /// Sends calls with these messages in one piece. Calls `answered` with the index of each call
    /// and the content of each piece of its answer.
    pub(crate) fn call<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a [u8]>,
        mut answered: impl FnMut(usize, &[u8]),
    ) {
        let Self { stream, next, head, sent, received } = self;
        let first = *next;
        sent.clear();
        for message in messages {
            // The kind of a frame of headers is 1 and of data 0. The flags end the headers, or the
            // stream. A frame has at most 16 KiB.
            frame(sent, (1, 4), *next, head);
            let pieces = message.len().div_ceil(FRAME);
            for (at, piece) in message.chunks(FRAME).enumerate() {
                frame(sent, (0, u8::from(at + 1 == pieces)), *next, piece);
            }
            *next += 2;
        }
        stream.write_all(sent).expect("the calls are sent");
        let mut open = (*next - first) / 2;
        let mut filled = 0;
        while open > 0 {
            let read = stream.read(&mut received[filled..]).expect("an answer");
            assert!(read > 0, "the server closed the connection");
            filled += read;
            let mut at = 0;
            while let Some(&[a, b, c, kind, flags, s, t, u, v]) = received[at..filled].first_chunk()
            {
                let end = at + 9 + u32::from_be_bytes([0, a, b, c]) as usize;
                if end > filled {
                    break;
                }
                let number = u32::from_be_bytes([s & 0x7f, t, u, v]);
                if kind == 0 && number >= first {
                    answered(((number - first) / 2) as usize, &received[at + 9..end]);
                }
                let content = &received[at + 9..end];
                let is_end = kind == 3 || kind == 7;
                assert!(!is_end, "frame {kind} of call {number} ended it: {content:?}");
                open -= u32::from(kind <= 1 && flags & 1 == 1 && number >= first);
                at = end;
            }
            received.copy_within(at..filled, 0);
            filled -= at;
        }
    }
}

/// The largest content of a frame of HTTP/2.
const FRAME: usize = 16 << 10;

fn frame(to: &mut Vec<u8>, (kind, flags): (u8, u8), stream: u32, content: &[u8]) {
    to.extend_from_slice(&(content.len() as u32).to_be_bytes()[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(content);
}

/// Returns the bytes of a v2 request of HTTP/1.
pub(crate) fn http_request(example: &Example) -> Vec<u8> {
    let length = example.json.len();
    let head = format!(
        "POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), &example.json].concat()
}

/// Sends a request of HTTP/1 over a connection, and waits for its whole answer, which has the
/// status 200. `buffer` has room for the answer.
pub(crate) fn http_ask(stream: &mut TcpStream, request: &[u8], buffer: &mut [u8]) {
    stream.write_all(request).expect("the request is sent");
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).expect("an answer");
        assert!(read > 0, "the server closed the connection");
        filled += read;
        let got = &buffer[..filled];
        let Some(end) = got.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&got[..end]).expect("a head");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("a length").parse().expect("a number");
        if filled == end + 4 + length {
            return;
        }
    }
}
