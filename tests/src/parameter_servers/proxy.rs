//! A proxy before a server, which understands frames and disturbs some of them.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of bytes of a frame's header.
pub(crate) const HEADER: usize = 64;

/// The number of bytes after the body of a frame.
pub(crate) const TRAILER: usize = 8;

/// The numbers of operations on the wire.
pub(crate) mod op {
    pub(crate) const ANSWER: u16 = 1;
    pub(crate) const FAILURE: u16 = 2;
    pub(crate) const HELLO: u16 = 3;
    pub(crate) const STATUS: u16 = 5;
    pub(crate) const OPEN: u16 = 6;
    pub(crate) const JOIN: u16 = 7;
    pub(crate) const PULL: u16 = 21;
    pub(crate) const PUSH: u16 = 22;
    pub(crate) const NORM: u16 = 23;
    pub(crate) const APPLY: u16 = 24;
    pub(crate) const SWEEP: u16 = 25;
    pub(crate) const UPDATE: u16 = 30;
    pub(crate) const TAKE: u16 = 33;
    pub(crate) const GIVE_BACK: u16 = 34;
    pub(crate) const LOOKUP: u16 = 40;
    pub(crate) const RESTORE: u16 = 66;
}

/// The longest time for which a test waits for something.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The way of a frame through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Question,
    Answer,
}

/// A frame that goes through the proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) way: Way,
    /// The operation of the question, also for an answer.
    pub(crate) op: u16,
    pub(crate) generation: u64,
    pub(crate) step: u64,
    /// The number of bytes of the frame.
    pub(crate) bytes: usize,
}

/// The thing that the proxy does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Pass,
    /// The frame is lost, and the connection ends.
    Lose,
    /// The frame arrives, and the connection ends behind it.
    CutBehind,
    /// The frame arrives twice.
    Twice,
    /// The frame and everything behind it wait until the test lets them go.
    Hold,
    /// The frame waits until the test lets it go. It is then lost, and the connection ends.
    HoldAndLose,
    /// The frame is lost, and the connection ends. The frame arrives over another connection when
    /// the test lets it go.
    Keep,
    /// The frame arrives in small pieces.
    Slow,
}

type Decide = dyn FnMut(&Seen) -> Act + Send;

struct State {
    decide: Box<Decide>,
    /// The number of frames that were disturbed.
    disturbed: u64,
    /// The greatest generation of a push.
    generation: u64,
    is_released: bool,
    /// The body of the answer to a frame that the proxy has kept.
    kept_answer: Option<String>,
}

struct Shared {
    upstream: String,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the test lets held frames go.
    fn wait_for_release(&self) {
        let mut state = self.state();
        while !state.is_released {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn decide(&self, seen: &Seen) -> Act {
        let mut state = self.state();
        if seen.op == op::PUSH {
            state.generation = state.generation.max(seen.generation);
        }
        let act = (state.decide)(seen);
        state.disturbed += u64::from(act != Act::Pass);
        self.changed.notify_all();
        act
    }
}

/// A running proxy. Held frames go on when the value is dropped.
pub(crate) struct FrameProxy {
    pub(crate) address: String,
    shared: Arc<Shared>,
}

impl FrameProxy {
    /// Starts a proxy before the server at an address.
    pub(crate) fn start(upstream: &str, decide: impl FnMut(&Seen) -> Act + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            state: Mutex::new(State {
                decide: Box::new(decide),
                disturbed: 0,
                generation: 0,
                is_released: false,
                kept_answer: None,
            }),
            changed: Condvar::new(),
        });
        let accepting = shared.clone();
        // The thread ends with the process of the tests.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = accepting.clone();
                // A connection that cannot be opened counts as a broken one.
                std::thread::spawn(move || drop(connect(&shared, stream)));
            }
        });
        Self { address, shared }
    }

    /// Returns the number of frames that were disturbed.
    pub(crate) fn disturbed(&self) -> u64 {
        self.shared.state().disturbed
    }

    /// Waits until a frame was disturbed.
    pub(crate) fn wait_for_disturbance(&self) {
        self.wait_until("no frame was disturbed", |state| state.disturbed > 0);
    }

    /// Waits until a trainer pushes in a generation.
    pub(crate) fn wait_for_generation(&self, generation: u64) {
        self.wait_until("the generation has not begun", |state| state.generation >= generation);
    }

    /// Lets the frames go that wait in the proxy.
    pub(crate) fn release(&self) {
        self.shared.state().is_released = true;
        self.shared.changed.notify_all();
    }

    /// Lets a kept frame go, and returns the text of the server's answer to it.
    pub(crate) fn answer_to_kept_frame(&self) -> String {
        self.release();
        self.wait_until("the server does not answer", |state| state.kept_answer.is_some());
        self.shared.state().kept_answer.clone().unwrap_or_default()
    }

    fn wait_until(&self, problem: &str, is_reached: impl Fn(&State) -> bool) {
        let began = Instant::now();
        let mut state = self.shared.state();
        while !is_reached(&state) {
            assert!(began.elapsed() < PATIENCE, "{problem}");
            let waited = self.shared.changed.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for FrameProxy {
    fn drop(&mut self) {
        self.release();
    }
}

/// Returns a decision that disturbs the first frame of an operation in or after a step.
pub(crate) fn once(way: Way, op: u16, step: u64, act: Act) -> impl FnMut(&Seen) -> Act + Send {
    let mut is_done = false;
    move |seen| {
        let is_it = !is_done && seen.way == way && seen.op == op && seen.step >= step;
        is_done |= is_it;
        if is_it { act } else { Act::Pass }
    }
}

/// The operations of the questions of one connection, by the numbers of the frames.
type Questions = Arc<Mutex<HashMap<u64, u16>>>;

fn connect(shared: &Arc<Shared>, client: TcpStream) -> io::Result<()> {
    // If the server is not there, the client's connection ends with this function.
    let server = TcpStream::connect(&shared.upstream)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let questions = Questions::default();
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    let (asked, up) = (questions.clone(), shared.clone());
    std::thread::spawn(move || pump(&up, Way::Question, from, to, &asked));
    pump(shared, Way::Answer, server, client, &questions);
    Ok(())
}

/// Passes frames on until the connection ends.
fn pump(
    shared: &Shared,
    way: Way,
    mut from: TcpStream,
    mut to: TcpStream,
    questions: &Mutex<HashMap<u64, u16>>,
) {
    let mut first: Option<Vec<u8>> = None;
    while let Ok(frame) = read_frame(&mut from) {
        let seen = describe(way, &frame, questions);
        let passed = match shared.decide(&seen) {
            Act::Pass => to.write_all(&frame),
            Act::Lose => break,
            Act::CutBehind => {
                // The connection of the client ends first, or the answer could be faster.
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.write_all(&frame);
                break;
            }
            Act::Twice => to.write_all(&frame).and_then(|()| to.write_all(&frame)),
            Act::Hold => {
                shared.wait_for_release();
                to.write_all(&frame)
            }
            Act::HoldAndLose => {
                shared.wait_for_release();
                break;
            }
            Act::Keep => {
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                shared.wait_for_release();
                let answer = ask_late(&shared.upstream, first.as_deref().unwrap_or(&frame), &frame);
                shared.state().kept_answer = Some(answer.unwrap_or_else(|e| e.to_string()));
                shared.changed.notify_all();
                break;
            }
            Act::Slow => frame.chunks(100).try_for_each(|piece| {
                std::thread::sleep(Duration::from_millis(1));
                to.write_all(piece)
            }),
        };
        if passed.is_err() {
            break;
        }
        first.get_or_insert(frame);
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Sends the first frame of a connection and another one over a new connection. Returns the text
/// of the answer to the last one.
fn ask_late(upstream: &str, hello: &[u8], frame: &[u8]) -> io::Result<String> {
    let mut server = TcpStream::connect(upstream)?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.write_all(hello)?;
    read_frame(&mut server)?;
    server.write_all(frame)?;
    let answer = read_frame(&mut server)?;
    Ok(String::from_utf8_lossy(&answer[HEADER..answer.len() - TRAILER]).into_owned())
}

/// Reads a whole frame.
pub(crate) fn read_frame(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEADER];
    from.read_exact(&mut frame)?;
    let body = number(&frame, 48) as usize;
    frame.resize(HEADER + body + TRAILER, 0);
    from.read_exact(&mut frame[HEADER..])?;
    Ok(frame)
}

/// Returns a number of a header.
fn number(frame: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&frame[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn describe(way: Way, frame: &[u8], questions: &Mutex<HashMap<u64, u16>>) -> Seen {
    let frame_op = u16::from_le_bytes([frame[4], frame[5]]);
    let mut questions = questions.lock().unwrap_or_else(PoisonError::into_inner);
    let frame_number = number(frame, 24);
    let op = match way {
        Way::Question => {
            questions.insert(frame_number, frame_op);
            frame_op
        }
        Way::Answer => questions.get(&frame_number).copied().unwrap_or(frame_op),
    };
    let (generation, step) = (number(frame, 8), number(frame, 40));
    Seen { way, op, generation, step, bytes: frame.len() }
}
