//! A proxy that injects faults into requests. Each connection carries one request. A closure reads
//! the head of the request and chooses the fault.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use zillion_feature::random::{combine, mix64};

/// The fault that the proxy injects into a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The client gets this status, and the server never gets the request.
    Status(u16),
    /// The server carries out the request, but the client gets this status.
    StatusAfter(u16),
    /// The server receives only a part of the body. The number is the part in thousandths.
    CutRequest(u64),
    /// The server carries out the request, but the client receives no byte of the response.
    LoseAnswer,
    /// The client receives only a part of the response. The number is the part in thousandths.
    CutAnswer(u64),
    /// The client receives the response in pieces of a few bytes.
    Slow,
    /// The client receives no response, and the connection stays open.
    Hang,
}

type Decide = dyn FnMut(&str) -> Fault + Send;

/// A running proxy. It stops when the value is dropped.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: SocketAddr,
    decide: Mutex<Box<Decide>>,
    ends: AtomicBool,
    broken: AtomicU64,
}

impl Proxy {
    pub(crate) fn start(
        upstream: SocketAddr,
        decide: impl FnMut(&str) -> Fault + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            upstream,
            decide: Mutex::new(Box::new(decide)),
            ends: AtomicBool::new(false),
            broken: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.ends.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let shared = accepting.clone();
                // Any error here counts as one more fault.
                std::thread::spawn(move || drop(pass(&shared, stream)));
            }
        });
        Self { address, shared }
    }

    /// Returns the number of requests that have had a fault.
    pub(crate) fn broken(&self) -> u64 {
        self.shared.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        // The connection wakes the thread that accepts connections.
        let _ = TcpStream::connect(self.address);
    }
}

/// Returns a closure that injects faults of all kinds into `share` of a thousand requests. The same
/// seed gives the same faults.
pub(crate) fn storm(seed: u64, share: u64) -> impl FnMut(&str) -> Fault + Send + 'static {
    let mut requests = 0;
    move |_| {
        requests += 1;
        let draw = |salt: u64| mix64(combine(combine(seed, salt), requests));
        if draw(0) % 1000 >= share {
            return Fault::None;
        }
        let part = draw(1) % 1000;
        match draw(2) % 9 {
            0 => Fault::Status(500),
            1 => Fault::Status(503),
            2 => Fault::StatusAfter(500),
            3 => Fault::StatusAfter(503),
            4 => Fault::CutRequest(part),
            5 => Fault::LoseAnswer,
            6 => Fault::CutAnswer(part),
            7 => Fault::Slow,
            _ => Fault::Hang,
        }
    }
}

/// Forwards one request and its response, with the fault that was chosen.
fn pass(shared: &Shared, mut client: TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let (head, mut body) = head_of(&mut client)?;
    let length = length_of(&head);
    let fault = (shared.decide.lock().expect("nobody panics in it"))(&head);
    if fault != Fault::None {
        shared.broken.fetch_add(1, Ordering::Relaxed);
    }
    let mut rest = vec![0; length.saturating_sub(body.len())];
    client.read_exact(&mut rest)?;
    body.extend(rest);
    if let Fault::Status(status) = fault {
        return answer(&mut client, status);
    }
    let mut server = TcpStream::connect(shared.upstream)?;
    server.set_read_timeout(Some(PATIENCE))?;
    let (first, headers) = head.split_once("\r\n").unwrap_or((&head, ""));
    server.write_all(format!("{first}\r\nconnection: close\r\n{headers}").as_bytes())?;
    if let Fault::CutRequest(part) = fault {
        server.write_all(&body[..share(body.len(), part)])?;
        server.shutdown(Shutdown::Both)?;
        return client.shutdown(Shutdown::Both);
    }
    server.write_all(&body)?;
    if fault == Fault::None {
        std::io::copy(&mut server, &mut client)?;
        return client.shutdown(Shutdown::Both);
    }
    let mut whole = Vec::new();
    server.read_to_end(&mut whole)?;
    match fault {
        Fault::StatusAfter(status) => answer(&mut client, status),
        Fault::CutAnswer(part) => {
            client.write_all(&whole[..share(whole.len(), part)])?;
            client.shutdown(Shutdown::Both)
        }
        Fault::Slow => {
            for piece in whole.chunks(whole.len() / 5 + 1) {
                client.write_all(piece)?;
                std::thread::sleep(Duration::from_millis(10));
            }
            client.shutdown(Shutdown::Both)
        }
        Fault::Hang => {
            // The proxy waits until the client gives up and closes the connection.
            let _ = client.read(&mut [0; 1]);
            Ok(())
        }
        _ => client.shutdown(Shutdown::Both),
    }
}

/// The maximum time that a thread of the proxy waits for bytes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads the head of a request up to the empty line. Returns the head and the bytes of the body
/// that arrived with it.
fn head_of(client: &mut TcpStream) -> std::io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), body));
        }
        match client.read(&mut buffer)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

fn length_of(head: &str) -> usize {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    length.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

fn share(length: usize, part: u64) -> usize {
    length * usize::try_from(part).expect("thousandths") / 1000
}

fn answer(client: &mut TcpStream, status: u16) -> std::io::Result<()> {
    let code = if status == 503 { "SlowDown" } else { "InternalError" };
    let body = format!("<Error><Code>{code}</Code><Message>on purpose</Message></Error>");
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    client.shutdown(Shutdown::Both)
}
