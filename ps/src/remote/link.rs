//! The session of a trainer on one server. It outlives connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bad_answer;
use super::dialog::{Dialog, Trouble, until};
use super::heart::{Health, Heart, Pulse, hello};
use super::options::{RemoteOptions, Stop};
use crate::code::ErrorCode;
use crate::error::{Error, Result, start_error};
use crate::tls::ClientTls;
use crate::wire::{
    Entered, Failure, Frame, Header, Hello, Leave, Op, Welcome, read_json, write_json,
};

/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// A wait with less time left than this is not logged.
const LONG: Duration = Duration::from_secs(2);

/// The number of memory blocks of frames that are kept for later frames.
const SPARE: usize = 4;

/// The session of a trainer on one server.
#[derive(Debug)]
pub(super) struct Link {
    server: String,
    /// The advice for a server that cannot be reached.
    remedy: &'static str,
    hello: Hello,
    tls: Option<ClientTls>,
    /// The flag that ends a wait for the server.
    stop: Stop,
    deadline: Duration,
    /// The number that the client drew for the session.
    session: u64,
    generation: u64,
    welcome: Welcome,
    dialog: Option<Dialog>,
    /// The frames that are not answered yet, each with its number.
    sent: VecDeque<(u64, Frame)>,
    /// The answers that nobody has asked for yet, each with the number of its frame.
    arrived: VecDeque<(u64, Result<Vec<u8>>)>,
    /// The number of the last frame.
    number: u64,
    /// The greatest number whose answer was received.
    received: u64,
    /// The event that has ended the session; `None` while it goes on. Nothing is sent or awaited
    /// after it.
    ended: Option<String>,
    /// The newest request for a checkpoint that was known when a checkpoint began.
    begun_request: u64,
    health: Arc<Health>,
    heart: Option<Heart>,
    /// Memory of earlier frames.
    spare: Vec<Vec<u8>>,
}

impl Link {
    /// Connects to a server, and waits until a moment if it is not reachable yet.
    pub(super) fn connect(options: &RemoteOptions, server: &str, moment: Instant) -> Result<Self> {
        let mut link = Self {
            server: server.to_owned(),
            remedy: match options.directory {
                Some(_) => "start it, or mend the network",
                None => "start it, or mend `ps.servers`",
            },
            hello: hello(Some(options.run.clone()), options.place.index, options.token.as_ref()),
            tls: options.tls.clone(),
            stop: options.stop.clone(),
            deadline: options.deadline,
            session: crate::draw::draw(),
            generation: 0,
            welcome: Welcome {
                boot: 0,
                generation: 0,
                is_open: false,
                run: None,
                accepted: None,
                restore: None,
                missing: Vec::new(),
                continues: None,
            },
            dialog: None,
            sent: VecDeque::new(),
            arrived: VecDeque::new(),
            number: 0,
            received: 0,
            ended: None,
            begun_request: 0,
            health: Arc::default(),
            heart: None,
            spare: Vec::new(),
        };
        link.greet_again(moment)?;
        Ok(link)
    }

    /// Returns the address of the server.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Returns what the server has said about itself.
    pub(super) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Asks the server for its state, before the session has begun. Waits for a server that is not
    /// reachable until a moment.
    pub(super) fn greet_again(&mut self, moment: Instant) -> Result<()> {
        let mut is_told = false;
        loop {
            let trouble = match self.greet(moment.min(Instant::now() + self.deadline)) {
                Ok(welcome) => {
                    self.welcome = welcome;
                    return Ok(());
                }
                Err(Greeting::Refused(error)) => return Err(error),
                Err(Greeting::Trouble(Trouble::Refused(problem))) => {
                    return Err(start_error(format!("server {}: {problem}", self.server)));
                }
                Err(Greeting::Trouble(trouble)) => trouble,
            };
            self.dialog = None;
            self.stop.check(&format!("server {}", self.server))?;
            if Instant::now() >= moment {
                return Err(Error::Unreachable {
                    problem: format!(
                        "server {} cannot be reached: {}; {}",
                        self.server,
                        describe(&trouble),
                        self.remedy
                    ),
                });
            }
            // Short waits are those of a caller that tells its own waiting.
            if Instant::now() + LONG < moment && !std::mem::replace(&mut is_told, true) {
                let (server, trouble) = (&self.server, describe(&trouble));
                tracing::warn!("the run waits for server {server}: {trouble}");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Connects if there is no connection, and says hello.
    fn greet(&mut self, moment: Instant) -> Result<Welcome, Greeting> {
        let lost = until(moment, &self.server);
        let dialog = match &mut self.dialog {
            Some(dialog) => dialog,
            none => {
                let left = moment.saturating_duration_since(Instant::now());
                none.insert(Dialog::connect(&self.server, self.tls.as_ref(), left)?)
            }
        };
        let mut memory = Frame::begin(Vec::new());
        write_json(&mut memory, &self.hello);
        let header = header(Op::Hello, 0, self.session);
        dialog.send(&Frame::finish(memory, header), &lost)?;
        let (header, body) = dialog.receive(Vec::new(), &lost)?;
        let body = read_answer(&self.server, &header, body).map_err(Greeting::Refused)?;
        read_json(&body).map_err(|e| Greeting::Trouble(Trouble::Bad(e)))
    }

    /// Enters a generation with a frame that has no number. After an error, the generation has not
    /// begun on this server.
    pub(super) fn enter(
        &mut self,
        generation: u64,
        op: Op,
        step: u64,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Entered> {
        let mut memory = Frame::begin(Vec::new());
        fill(&mut memory);
        let header = Header { step, ..header(op, generation, self.session) };
        let frame = Frame::finish(memory, header);
        // Tables with a large limit take a while to be made.
        let moment = Instant::now() + 3 * self.deadline;
        let lost = until(moment, &self.server);
        let cause = |server: &str, trouble: &Trouble| Error::Rewound {
            generation,
            cause: format!("server {server} was lost at the beginning ({})", describe(trouble)),
        };
        let Some(dialog) = &mut self.dialog else {
            return Err(cause(&self.server, &Trouble::Lost("no connection".to_owned())));
        };
        let sent = dialog.send(&frame, &lost);
        let answer = sent.and_then(|()| dialog.receive(Vec::new(), &lost));
        let (header, body) = answer.map_err(|trouble| cause(&self.server, &trouble))?;
        let body = read_answer(&self.server, &header, body)?;
        self.generation = generation;
        read_json(&body).map_err(bad_answer(op.name()))
    }

    /// Returns the health of the server, for a watcher beside the signs of life.
    pub(super) fn health(&self) -> Arc<Health> {
        self.health.clone()
    }

    /// Begins the signs of life.
    pub(super) fn begin_heart(&mut self, deadline: Duration) {
        let pulse = Pulse {
            server: self.server.clone(),
            hello: self.hello.clone(),
            tls: self.tls.clone(),
            session: self.session,
            boot: self.welcome.boot,
            deadline,
        };
        self.heart = Some(Heart::begin(pulse, self.health.clone()));
    }

    /// Returns whether a request for a checkpoint waits that no checkpoint has begun for.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.health.wanted() > self.begun_request
    }

    /// Records that a checkpoint begins, which serves the requests that are known.
    pub(super) fn begin_requested(&mut self) {
        self.begun_request = self.begun_request.max(self.health.wanted());
    }

    /// Returns the newest request that was known when the last checkpoint began.
    pub(super) fn begun_request(&self) -> u64 {
        self.begun_request
    }

    /// Sends a frame, and returns its number.
    pub(super) fn send(
        &mut self,
        op: Op,
        step: u64,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u64> {
        self.check_open()?;
        self.number += 1;
        let mut memory = Frame::begin(self.spare.pop().unwrap_or_default());
        fill(&mut memory);
        let header = Header {
            number: self.number,
            received: self.received,
            step,
            ..header(op, self.generation, self.session)
        };
        let frame = Frame::finish(memory, header);
        let health = self.health.clone();
        let sent = match &mut self.dialog {
            Some(dialog) => dialog.send(&frame, &|| health.lost()),
            None => Err(Trouble::Lost("the connection is closed".to_owned())),
        };
        self.sent.push_back((self.number, frame));
        if let Err(trouble) = sent {
            self.mend(trouble)?;
        }
        Ok(self.number)
    }

    /// Waits for the answer to a frame, and returns its body.
    pub(super) fn take(&mut self, number: u64) -> Result<Vec<u8>> {
        loop {
            if let Some(at) = self.arrived.iter().position(|(arrived, _)| *arrived == number) {
                return match self.arrived.remove(at) {
                    Some((_, answer)) => answer,
                    None => continue,
                };
            }
            self.receive()?;
        }
    }

    /// Keeps the memory of a body for a later frame.
    pub(super) fn reuse(&mut self, memory: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(memory);
        }
    }

    /// Returns an error if the session has ended.
    fn check_open(&self) -> Result<()> {
        match &self.ended {
            None => Ok(()),
            Some(cause) => {
                Err(Error::Rewound { generation: self.generation, cause: cause.clone() })
            }
        }
    }

    /// Waits for the next answer.
    fn receive(&mut self) -> Result<()> {
        self.check_open()?;
        let memory = self.spare.pop().unwrap_or_default();
        let health = self.health.clone();
        let received = match &mut self.dialog {
            Some(dialog) => dialog.receive(memory, &|| health.lost()),
            None => Err(Trouble::Lost("the connection is closed".to_owned())),
        };
        let (header, body) = match received {
            Ok(received) => received,
            Err(trouble) => return self.mend(trouble),
        };
        if header.number == 0 {
            // The server has refused bytes of the connection, and closes it.
            read_answer(&self.server, &header, body)?;
            return Ok(());
        }
        let Some((number, frame)) = self.sent.pop_front_if(|(sent, _)| *sent == header.number)
        else {
            // The answer was received over an earlier connection.
            return Ok(());
        };
        self.reuse(frame.into_memory());
        self.received = number;
        self.arrived.push_back((number, read_answer(&self.server, &header, body)));
        Ok(())
    }

    /// Opens another connection, and sends again what was not answered.
    ///
    /// # Errors
    /// Returns [`Error::Rewound`] if the server was started anew or does not answer in time.
    fn mend(&mut self, trouble: Trouble) -> Result<()> {
        let mended = self.try_mend(trouble);
        if let Err(error) = &mended {
            self.ended = Some(match error {
                Error::Rewound { cause, .. } => cause.clone(),
                other => other.to_string(),
            });
            self.dialog = None;
        }
        mended
    }

    fn try_mend(&mut self, trouble: Trouble) -> Result<()> {
        let rewound =
            |link: &Self, cause: String| Err(Error::Rewound { generation: link.generation, cause });
        tracing::warn!(
            server = self.server,
            "the connection is broken ({}); another one is tried",
            describe(&trouble)
        );
        let mut trouble = trouble;
        let moment = Instant::now() + self.deadline;
        loop {
            if let Trouble::Lost(cause) = trouble {
                return rewound(self, cause);
            }
            if let Some(cause) = self.health.lost() {
                return rewound(self, cause);
            }
            if Instant::now() >= moment {
                let cause = format!("server {} is lost ({})", self.server, describe(&trouble));
                return rewound(self, cause);
            }
            self.dialog = None;
            std::thread::sleep(PAUSE);
            let welcome = match self.greet(moment) {
                Ok(welcome) => welcome,
                Err(Greeting::Refused(error)) => return Err(error),
                Err(Greeting::Trouble(Trouble::Refused(problem))) => {
                    return Err(start_error(format!("server {}: {problem}", self.server)));
                }
                Err(Greeting::Trouble(other)) => {
                    trouble = match other {
                        Trouble::Lost(_) => Trouble::Io(std::io::ErrorKind::TimedOut.into()),
                        other => other,
                    };
                    continue;
                }
            };
            if welcome.boot != self.welcome.boot {
                return rewound(self, format!("server {} was started again", self.server));
            }
            if welcome.accepted.is_none() || welcome.generation != self.generation {
                let cause = format!("server {} serves another generation", self.server);
                return rewound(self, cause);
            }
            match self.send_again(moment) {
                Ok(()) => return Ok(()),
                Err(other) => trouble = other,
            }
        }
    }

    /// Sends the frames again that were not answered.
    fn send_again(&mut self, moment: Instant) -> Result<(), Trouble> {
        let lost = until(moment, &self.server);
        let Some(dialog) = &mut self.dialog else {
            return Err(Trouble::Io(std::io::ErrorKind::NotConnected.into()));
        };
        for (_, frame) in &mut self.sent {
            frame.set_received(self.received);
            dialog.send(frame, &lost)?;
        }
        Ok(())
    }

    /// Ends the session, if the server still serves its generation. `leave` has the reason; it is
    /// `None` if the trainer ends in good order.
    pub(super) fn close(&mut self, leave: Option<&Leave>) {
        self.heart = None;
        let is_open = self.generation > 0 && self.health.lost().is_none();
        if is_open && let Some(dialog) = &mut self.dialog {
            let header = Header {
                number: self.number + 1,
                received: self.received,
                ..header(Op::Close, self.generation, self.session)
            };
            let mut memory = Frame::begin(Vec::new());
            if let Some(leave) = leave {
                write_json(&mut memory, leave);
            }
            let frame = Frame::finish(memory, header);
            let lost = until(Instant::now() + Duration::from_millis(500), &self.server);
            // The answer is awaited, so that the server has seen the end before the connection's.
            if dialog.send(&frame, &lost).is_ok() {
                while dialog
                    .receive(Vec::new(), &lost)
                    .is_ok_and(|(answer, _)| answer.number != header.number)
                {}
            }
        }
        if let Some(dialog) = self.dialog.take() {
            dialog.close();
        }
    }
}

/// The reason for which a server has not said who it is.
enum Greeting {
    Trouble(Trouble),
    Refused(Error),
}

impl From<Trouble> for Greeting {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

fn header(op: Op, generation: u64, session: u64) -> Header {
    Header { op, generation, session, number: 0, received: 0, step: 0, body: 0 }
}

pub(super) fn describe(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Io(e) => e.to_string(),
        Trouble::Bad(e) => e.to_string(),
        Trouble::Lost(cause) | Trouble::Refused(cause) => cause.clone(),
    }
}

/// Returns the body of an answer, or the error that it holds.
pub(super) fn read_answer(server: &str, header: &Header, body: Vec<u8>) -> Result<Vec<u8>> {
    if header.op == Op::Answer {
        return Ok(body);
    }
    let failure: Failure = read_json(&body).unwrap_or_else(|e| Failure {
        code: ErrorCode::Frame.number(),
        text: e.to_string(),
        generation: 0,
    });
    Err(match ErrorCode::of_number(failure.code) {
        ErrorCode::Rewound => Error::Rewound { generation: header.generation, cause: failure.text },
        ErrorCode::Restored => {
            Error::Restored { generation: header.generation, cause: failure.text }
        }
        ErrorCode::Aborted => Error::Aborted { cause: failure.text },
        code => Error::Remote { server: server.to_owned(), code, text: failure.text },
    })
}
