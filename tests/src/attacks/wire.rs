//! The clients of the attacks: whole requests over new connections, connections for several
//! requests, and gRPC calls.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::HeaderMap;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::Code;

use crate::server::{PATIENCE, Reply, Server};

/// Sends a GET request over a new connection, and returns the answer.
pub(super) fn get(address: &str, path: &str) -> std::io::Result<Reply> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    Server::over(TcpStream::connect(address)?, &head, b"")
}

/// Sends a POST request over a new connection, and returns the answer. `headers` contains
/// additional headers, each with a line break at its end.
pub(super) fn post(
    address: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> std::io::Result<Reply> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    Server::over(TcpStream::connect(address)?, &head, body)
}

/// An HTTP/1 connection that is used for several requests.
pub(super) struct Kept {
    stream: BufReader<TcpStream>,
}

impl Kept {
    pub(super) fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the server takes connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Self { stream: BufReader::new(stream) }
    }

    /// Sends bytes without any change.
    pub(super) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Sends a request, and reads its answer.
    pub(super) fn ask(&mut self, line: &str, body: &[u8]) -> std::io::Result<Reply> {
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        self.send(head.as_bytes())?;
        self.send(body)?;
        self.read_reply()
    }

    /// Begins a POST with a body of this length, and waits until the server asks for the body.
    pub(super) fn begin_post(&mut self, path: &str, length: usize) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        self.send(head.as_bytes()).expect("the server reads");
        let head = self.read_head().expect("the server asks for the body");
        assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
    }

    fn read_head(&mut self) -> std::io::Result<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(head)
    }

    /// Reads the next answer.
    pub(super) fn read_reply(&mut self) -> std::io::Result<Reply> {
        let head = self.read_head()?;
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.and_then(|text| text.parse().ok()).expect("a length");
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Ok(Reply { status, head: lower, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// Reads until the server closes the connection, and returns the number of bytes.
    ///
    /// # Panics
    /// Panics if the server does not close the connection within the time limit of the tests.
    pub(super) fn read_to_close(&mut self) -> usize {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("the server keeps the connection")
            }
            // A reset closes the connection too.
            _ => bytes.len(),
        }
    }

    /// Returns whether the server has already closed the connection.
    pub(super) fn is_closed(&mut self) -> bool {
        let stream = self.stream.get_mut();
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        let mut byte = [0];
        let closed = match stream.peek(&mut byte) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        };
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        closed
    }
}

/// Returns the beginning of an HTTP/2 connection: the preface, and settings with an initial window
/// of `window` bytes.
pub(super) fn http2_preface(window: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4]);
    bytes.extend(window.to_be_bytes());
    bytes
}

/// A frame of HTTP/2 that asks for a sign of life.
pub(super) const HTTP2_PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// A frame of HTTP/2 that asks for a path and ends the request.
pub(super) fn http2_get(stream: u32, path: &str) -> Vec<u8> {
    // The block has the method GET and the scheme http from the static table, and then the path and
    // the authority as texts (RFC 7541).
    let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
    block.extend(path.as_bytes());
    block.extend([0x01, 1, b'x']);
    let mut frame = vec![0, 0, block.len() as u8, 1, 5];
    frame.extend(stream.to_be_bytes());
    frame.extend(block);
    frame
}

/// Reads HTTP/2 frames until a frame of the type `kind` arrives, and returns the payload of this
/// frame.
pub(super) fn http2_read(stream: &mut impl Read, kind: u8) -> std::io::Result<Vec<u8>> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload)?;
        if head[3] == kind {
            return Ok(payload);
        }
    }
}

/// Runs a client until it has finished. Panics if the client takes longer than `limit`.
pub(super) fn run<T>(limit: Duration, client: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime for the client").block_on(async {
        tokio::time::timeout(limit, client).await.expect("the server answers in time")
    })
}

/// Returns a gRPC message with its length in front of it.
pub(super) fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("a message of less than 4 GiB"));
    framed.put(message);
    framed.freeze()
}

/// A watch over the health of a server: its connection and its stream.
pub(super) type Watch =
    (hyper::client::conn::http2::SendRequest<Full<Bytes>>, hyper::body::Incoming);

/// Watches the health of a server over a new connection, until the returned value is dropped.
pub(super) async fn watch(address: &str) -> hyper::Result<Watch> {
    let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
    tokio::spawn(connection);
    let request = hyper::Request::post("http://localhost/grpc.health.v1.Health/Watch")
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = request.body(Full::new(frame(b""))).expect("a request");
    let mut body = sender.send_request(request).await?.into_body();
    body.frame().await.expect("a status")?;
    Ok((sender, body))
}

/// Calls a method of gRPC over a new connection, and returns the code and the message of the
/// answer.
pub(super) fn call(address: &str, path: &str, message: &[u8]) -> (Code, String) {
    run(2 * PATIENCE, async {
        let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        call_over(stream, path, message, None).await.expect("an answer")
    })
}

/// Calls a gRPC method over an open connection. Returns the code and the message of the answer.
pub(super) async fn call_over(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    path: &str,
    message: &[u8],
    authorization: Option<&str>,
) -> hyper::Result<(Code, String)> {
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
    tokio::spawn(connection);
    let mut request = hyper::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    let request = request.body(Full::new(frame(message))).expect("a request");
    let response = sender.send_request(request).await?;
    if let Some(status) = status_of(response.headers()) {
        return Ok(status);
    }
    let collected = response.into_body().collect().await?;
    Ok(collected.trailers().and_then(status_of).expect("an answer ends with its code"))
}

fn status_of(headers: &HeaderMap) -> Option<(Code, String)> {
    let code = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
    let message = headers.get("grpc-message").map_or(&b""[..], |text| text.as_bytes());
    Some((code, String::from_utf8_lossy(message).replace("%20", " ")))
}
