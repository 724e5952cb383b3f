//! One connection: the reading of frames, and the writing of answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::timeout;

use super::arrival::{Trouble, read_body};
use super::figures::Figures;
use super::options::ServerOptions;
use super::pool::Pool;
use super::request::{Command, Outlet, Request, answer, milliseconds};
use super::tls::ServerTls;
use crate::code::ErrorCode;
use crate::wire::{
    Failure, Frame, HEADER_BYTES, Header, Hello, Op, TRAILER_BYTES, WireError, WireResult, Writer,
    check_body, read_json, write_json,
};

/// The largest body of a frame before the client has said hello.
const HELLO_BYTES: u64 = 64 << 10;

/// The time for which the answers of a connection are written after its client has ended it.
const FLUSH_TIME: Duration = Duration::from_millis(100);

/// The number of answers that may wait for a client to read them.
const ANSWERS: usize = 256;

/// The parts of the server that all connections use.
pub(super) struct Shared {
    pub(super) options: ServerOptions,
    /// The TLS settings; `None` if the server does not speak TLS.
    pub(super) tls: Option<ServerTls>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) figures: Arc<Figures>,
    /// The bytes of the frames that wait for the tables.
    pub(super) pool: Arc<Pool>,
}

/// Serves a connection that carries frames to its end.
pub(super) async fn serve(
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
    (peer, number): (SocketAddr, u64),
    shared: &Arc<Shared>,
) {
    let (frames, outgoing) = mpsc::channel(ANSWERS);
    let overflow = Arc::new(Notify::new());
    let heard = Arc::new(AtomicU64::new(now()));
    let is_closed = Arc::new(AtomicBool::new(false));
    let (refuses, closed) = (overflow.clone(), is_closed.clone());
    let outlet = Outlet { number, frames, overflow: refuses, heard, is_closed: closed };
    let writing = tokio::spawn(write(output, outgoing, shared.figures.clone()));
    let reading = async {
        tokio::select! {
            ended = read(input, &outlet, shared) => ended,
            () = overflow.notified() => Err(Problem::Bad(WireError::new(
                "the client does not read its answers; read each answer, or close the connection",
            ))),
        }
    };
    if let Err(problem) = reading.await {
        match problem {
            Problem::Closed => {}
            Problem::Io(e) => tracing::debug!(%peer, "a connection has ended: {e}"),
            // Without an answer, a trainer opens another connection and sends the frame again.
            Problem::Slow(error) => {
                shared.figures.bad_frames.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%peer, "a connection is closed: {error}");
            }
            Problem::Bad(error) => {
                shared.figures.bad_frames.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%peer, "a frame is refused and its connection closed: {error}");
                outlet.send(Arc::new(refusal(&error)));
            }
        }
    }
    is_closed.store(true, Ordering::Release);
    drop(outlet);
    // The answers that wait are still written, but only for a moment: a session may hold the way to
    // this connection for long.
    let stop = writing.abort_handle();
    if timeout(FLUSH_TIME, writing).await.is_err() {
        stop.abort();
    }
}

/// The reason for which the reading of a connection has ended.
enum Problem {
    Closed,
    Io(io::Error),
    Bad(WireError),
    /// A body that arrives too slowly. The client may send its frame again over a new connection.
    Slow(WireError),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl From<Trouble> for Problem {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Io(error) => error.into(),
            Trouble::Slow(error) => Self::Slow(error),
        }
    }
}

/// Returns the milliseconds since the first call in this process.
fn now() -> u64 {
    milliseconds(Instant::now())
}

async fn read(
    mut input: impl AsyncRead + Unpin,
    outlet: &Outlet,
    shared: &Arc<Shared>,
) -> Result<(), Problem> {
    let own = Arc::new(Semaphore::new(shared.options.in_flight_bytes as usize));
    let mut is_known = false;
    loop {
        let mut head = [0; HEADER_BYTES];
        input.read_exact(&mut head).await?;
        let most = if is_known { shared.options.max_frame_bytes } else { HELLO_BYTES };
        let header = Header::read(&head, most).map_err(Problem::Bad)?;
        let bytes = header.body + (HEADER_BYTES + TRAILER_BYTES) as u64;
        outlet.heard.store(now(), Ordering::Relaxed);
        // A frame that is larger than the part of its connection takes the whole part.
        let part = bytes.min(shared.options.in_flight_bytes).min(u64::from(u32::MAX)) as u32;
        let own = own.clone().acquire_many_owned(part).await.ok();
        let needs_room = is_known && !matches!(header.op, Op::Ping | Op::Status);
        let pool = needs_room.then_some(&shared.pool);
        let (mut body, share) =
            read_body(&mut input, header.body as usize + TRAILER_BYTES, pool).await?;
        let mut trailer = [0; TRAILER_BYTES];
        trailer.copy_from_slice(&body[header.body as usize..]);
        body.truncate(header.body as usize);
        check_body(&header, &body, trailer).map_err(Problem::Bad)?;
        shared.figures.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        outlet.heard.store(now(), Ordering::Relaxed);
        if matches!(header.op, Op::Ping | Op::Status) {
            shared.figures.count(header.op, 0);
        }
        let is_first = !is_known && (header.op == Op::Hello || options_need_hello(shared));
        if is_first {
            check_hello(&header, &body, shared).map_err(Problem::Bad)?;
            is_known = true;
        }
        match header.op {
            Op::Ping => {
                let wanted = shared.figures.wanted();
                outlet.send(Arc::new(answer(&header, |body| Writer(body).u64(wanted))));
            }
            Op::Status => {
                let status = shared.figures.status();
                outlet.send(Arc::new(answer(&header, |body| write_json(body, &status))));
            }
            op => {
                if !is_known {
                    let text = format!(
                        "the first frame of a connection is `{}`; send `hello` first",
                        op.name()
                    );
                    return Err(Problem::Bad(WireError::new(text)));
                }
                let held = (own, share);
                let request = Request { header, body, outlet: outlet.clone(), held };
                if shared.commands.send(Command::Request(Box::new(request))).await.is_err() {
                    return Err(Problem::Closed);
                }
            }
        }
    }
}

/// Returns whether every connection must begin with a hello, because the server has a token.
fn options_need_hello(shared: &Shared) -> bool {
    shared.options.token.is_some()
}

/// Checks that the first frame of a connection is a hello, and shows the token of the server.
fn check_hello(header: &Header, body: &[u8], shared: &Shared) -> WireResult<()> {
    if header.op != Op::Hello {
        return Err(WireError::new(format!(
            "the first frame of a connection is `{}`; send `hello` first",
            header.op.name()
        )));
    }
    let Some(token) = &shared.options.token else { return Ok(()) };
    let hello: Hello = read_json(body)?;
    if token.is(hello.token.as_deref()) {
        return Ok(());
    }
    let problem = if hello.token.is_some() { "shows another token" } else { "shows no token" };
    Err(WireError::new(format!(
        "the client {problem}; give trainers and commands the token file of the servers"
    )))
}

/// Makes the frame that tells a client why its connection is closed.
pub(super) fn refusal(error: &WireError) -> Frame {
    let mut memory = Frame::begin(Vec::new());
    let failure =
        Failure { code: ErrorCode::Frame.number(), text: error.to_string(), generation: 0 };
    write_json(&mut memory, &failure);
    let header = Header {
        op: Op::Failure,
        generation: 0,
        session: 0,
        number: 0,
        received: 0,
        step: 0,
        body: 0,
    };
    Frame::finish(memory, header)
}

/// Writes answers until the last [`Outlet`] is dropped or the client closes the connection.
async fn write(
    mut output: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<Arc<Frame>>,
    figures: Arc<Figures>,
) {
    while let Some(frame) = outgoing.recv().await {
        let bytes = frame.as_bytes();
        let written = async {
            output.write_all(bytes).await?;
            output.flush().await
        };
        if let Err(e) = written.await {
            tracing::debug!("an answer cannot be written: {e}");
            return;
        }
        figures.sent_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}
