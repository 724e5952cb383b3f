//! A connection to a server: the blocking sending and receiving of whole frames.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use crate::tls::{ClientTls, server_name, tls_problem};
use crate::wire::{Frame, HEADER_BYTES, Header, TRAILER_BYTES, WireError, check_body};

/// The time after which a blocked read or write looks whether the server is lost.
const LOOK: Duration = Duration::from_millis(50);

/// The largest body of an answer. A server never sends a larger one, because a plan with more rows
/// is refused.
const MOST_BODY: u64 = u32::MAX as u64;

/// The number of bytes that are read from the socket at once.
const BUFFER: usize = 128 << 10;

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Dialog {
    stream: Stream,
    /// The bytes that were read and not used yet.
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
}

/// The bytes of a connection, plain or over TLS.
#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(out),
            Self::Tls(stream) => stream.read(out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// The reason for which a frame was not sent or received.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection is broken. Another one can be tried.
    Io(io::Error),
    /// The bytes are not a frame.
    Bad(WireError),
    /// The server is lost, as the caller has found.
    Lost(String),
    /// The TLS settings of the client and the server do not fit. Another attempt would end in the
    /// same way.
    Refused(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        match tls_problem(&error) {
            Some(problem) => Self::Refused(problem),
            None => Self::Io(error),
        }
    }
}

impl Dialog {
    /// Connects to a server, and makes the TLS handshake if there are TLS settings.
    pub(super) fn connect(
        server: &str,
        tls: Option<&ClientTls>,
        within: Duration,
    ) -> Result<Self, Trouble> {
        let moment = Instant::now() + within;
        let socket = Self::open(server, within)?;
        let stream = match tls {
            None => Stream::Plain(socket),
            Some(tls) => {
                let connection = ClientConnection::new(tls.config(), server_name(server)?);
                let connection = connection.map_err(io::Error::other)?;
                let mut stream = StreamOwned::new(connection, socket);
                let lost = until(moment, server);
                while stream.conn.is_handshaking() {
                    if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
                        look_again(error, &lost)?;
                    }
                }
                Stream::Tls(Box::new(stream))
            }
        };
        Ok(Self { stream, buffer: Vec::new(), used: 0, filled: 0 })
    }

    fn open(server: &str, within: Duration) -> io::Result<TcpStream> {
        let within = within.max(Duration::from_millis(1));
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in server.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, within) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(LOOK))?;
                    stream.set_write_timeout(Some(LOOK))?;
                    return Ok(stream);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Sends a frame. `lost` is asked now and then whether the server is lost.
    pub(super) fn send(
        &mut self,
        frame: &Frame,
        lost: &dyn Fn() -> Option<String>,
    ) -> Result<(), Trouble> {
        let mut rest = frame.as_bytes();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(written) => rest = &rest[written..],
                Err(error) => look_again(error, lost)?,
            }
        }
        while let Err(error) = self.stream.flush() {
            look_again(error, lost)?;
        }
        Ok(())
    }

    /// Receives a frame. `memory` is reused for the body.
    pub(super) fn receive(
        &mut self,
        memory: Vec<u8>,
        lost: &dyn Fn() -> Option<String>,
    ) -> Result<(Header, Vec<u8>), Trouble> {
        let mut head = [0; HEADER_BYTES];
        self.read(&mut head, lost)?;
        let header = Header::read(&head, MOST_BODY).map_err(Trouble::Bad)?;
        // Memory of an earlier frame is not cleared, because all of it is overwritten.
        let mut body = memory;
        body.resize(header.body as usize, 0);
        self.read(&mut body, lost)?;
        let mut trailer = [0; TRAILER_BYTES];
        self.read(&mut trailer, lost)?;
        check_body(&header, &body, trailer).map_err(Trouble::Bad)?;
        Ok((header, body))
    }

    /// Fills `out` from the buffer and the socket. Large pieces go straight to `out`.
    fn read(
        &mut self,
        mut out: &mut [u8],
        lost: &dyn Fn() -> Option<String>,
    ) -> Result<(), Trouble> {
        while !out.is_empty() {
            if self.used < self.filled {
                let taken = out.len().min(self.filled - self.used);
                out[..taken].copy_from_slice(&self.buffer[self.used..self.used + taken]);
                self.used += taken;
                out = &mut out[taken..];
                continue;
            }
            if out.len() >= BUFFER {
                match self.stream.read(out) {
                    Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    Ok(taken) => out = &mut out[taken..],
                    Err(error) => look_again(error, lost)?,
                }
                continue;
            }
            self.buffer.resize(BUFFER, 0);
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(filled) => (self.used, self.filled) = (0, filled),
                Err(error) => look_again(error, lost)?,
            }
        }
        Ok(())
    }

    /// Closes the connection, so that the server learns of it.
    pub(super) fn close(&self) {
        let _ = self.stream.socket().shutdown(std::net::Shutdown::Both);
    }
}

/// Returns an error if a failed read or write must not be tried again.
fn look_again(error: io::Error, lost: &dyn Fn() -> Option<String>) -> Result<(), Trouble> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => match lost() {
            None => Ok(()),
            Some(cause) => Err(Trouble::Lost(cause)),
        },
        _ => Err(error.into()),
    }
}

/// Returns a function that reports a server as lost after a moment.
pub(super) fn until(moment: Instant, server: &str) -> impl Fn() -> Option<String> + '_ {
    move || (Instant::now() >= moment).then(|| format!("server {server} did not answer in time"))
}
