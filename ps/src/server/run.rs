//! A generation of a run on a server: the sessions of its trainers, and the order of their frames.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use zillion_device::Workers;
use zillion_embedding::{LiveKey, TableStatistics};
use zillion_feature::{FeatureKey, TableId};

use super::ending::{Ending, EndingKind};
use super::figures::Figures;
use super::home::Home;
use super::options::ServerOptions;
use super::request::{Outlet, Request, answer, count_stale, failure, milliseconds, refuse};
use super::session::{Arrival, Session};
use super::tables::{Outcome, Tables};
use crate::client::MOST_STALENESS;
use crate::code::ErrorCode;
use crate::error::{Error, Result};
use crate::options::TableOptions;
use crate::wire::{
    Committed, Continues, Entered, Frame, Header, JoinRun, Leave, Op, OpenRun, PaceStatus,
    TrainerStatus, read_json, write_json,
};

/// The largest number of steps of a trainer that continues.
const MOST_STEPS: u64 = 1 << 48;

/// A generation of a run.
pub(super) struct Run {
    pub(super) settings: OpenRun,
    /// The event that has ended the generation; `None` while it goes on.
    pub(super) ended: Option<Ending>,
    /// The number and the end of the generation before this one; `None` if the server has not
    /// served it.
    pub(super) before: Option<(u64, Ending)>,
    /// The steps of the checkpoints that the run keeps.
    pub(super) checkpoints: Vec<u64>,
    /// The newest request for a checkpoint that was served.
    pub(super) served: u64,
    /// The last step of a frame.
    pub(super) step: u64,
    /// Whether the generation continues with the tables of the one before it on this server.
    pub(super) is_kept: bool,
    sessions: HashMap<u64, Session>,
    /// The trainers that have ended their sessions in good order.
    left: Vec<usize>,
    pub(super) tables: Tables,
    lease: Duration,
    /// Whether a frame has its effect once. Only a test switches this off.
    deduplicates: bool,
}

impl Run {
    /// Opens a generation with empty tables. The session is that of the first trainer.
    pub(super) fn open(
        settings: OpenRun,
        (options, home, boot): (&ServerOptions, &Home, u64),
        workers: Arc<Workers>,
        (session, outlet): (u64, &Outlet),
    ) -> Result<Self> {
        let staleness = settings.pace.and_then(|pace| pace.staleness);
        if let Some(most) = staleness.filter(|&most| most > MOST_STALENESS) {
            let reason = format!("`train.staleness` is {most}; set it to 0 to {MOST_STALENESS}");
            return Err(Error::Argument { call: "open", reason });
        }
        if settings.trainers == 0 || settings.trainers > 1024 {
            let reason = format!("{} trainers are not possible; give 1 to 1024", settings.trainers);
            return Err(Error::Argument { call: "open", reason });
        }
        let tables = TableOptions {
            max_bytes: settings.max_bytes,
            frozen: settings.frozen.iter().map(|&table| TableId(table)).collect(),
            follows_checkpoints: settings.follows_checkpoints,
            slots: Some(settings.slots[0]..settings.slots[1]),
            ..TableOptions::new(settings.tables.clone(), options.shards)
        };
        let tables = Tables::open(
            tables,
            (settings.trainers, settings.pace),
            workers,
            home.clone(),
            (boot, options.max_frame_bytes),
        )?;
        let sessions = first_session(&settings, session, outlet);
        let (deduplicates, lease) = (options.deduplicates, options.lease);
        Ok(Self {
            settings,
            ended: None,
            before: None,
            checkpoints: Vec::new(),
            served: 0,
            step: 0,
            is_kept: false,
            sessions,
            left: Vec::new(),
            tables,
            lease,
            deduplicates,
        })
    }

    /// Begins a generation that continues with the tables of this one. The session is that of the
    /// first trainer.
    pub(super) fn continue_as(&mut self, settings: OpenRun, (session, outlet): (u64, &Outlet)) {
        self.tables.continue_on();
        self.sessions = first_session(&settings, session, outlet);
        self.left.clear();
        self.is_kept = true;
        let before = std::mem::replace(&mut self.settings, settings).generation;
        self.before = self.ended.take().map(|ending| (before, ending));
    }

    /// Returns whether the generation goes on.
    pub(super) fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    /// Returns whether any trainer was heard within the lease.
    pub(super) fn is_heard(&self, lease: Duration) -> bool {
        let silent = milliseconds(Instant::now()).saturating_sub(lease.as_millis() as u64);
        self.sessions.values().any(|session| session.is_connected() && session.heard() >= silent)
    }

    /// Returns whether another process than `client` is the first trainer, and is alive.
    pub(super) fn has_other_first_trainer(&self, client: u64) -> bool {
        let first = self.sessions.values().find(|session| session.trainer == 0);
        first.is_some_and(|session| session.is_alive_elsewhere(client, self.lease))
    }

    pub(super) fn session(&mut self, number: u64) -> Option<&mut Session> {
        self.sessions.get_mut(&number)
    }

    /// Does the work of a frame, or answers why it has no effect.
    pub(super) fn take(&mut self, mut request: Box<Request>, figures: &Figures) {
        let header = request.header;
        if header.generation != self.settings.generation {
            count_stale(figures);
            return self.refuse_as_rewound(&request);
        }
        if self.ended.is_some() {
            return self.refuse_as_rewound(&request);
        }
        if header.op == Op::Join {
            return self.join(&request);
        }
        let Some(session) = self.sessions.get_mut(&header.session) else {
            count_stale(figures);
            return self.refuse_as_rewound(&request);
        };
        session.answer_to(&request.outlet);
        session.forget(header.received);
        if session.is_full() {
            let text = "too many frames wait for their answers; read the answers first";
            return refuse(&request, ErrorCode::TooLarge, text, self.settings.generation);
        }
        match session.arrive(header.number) {
            Arrival::Next => {}
            Arrival::Answered(frame) => {
                figures.repeated_frames.fetch_add(1, Ordering::Relaxed);
                if self.deduplicates {
                    return session.repeat(frame);
                }
            }
            Arrival::Repeated => {
                figures.repeated_frames.fetch_add(1, Ordering::Relaxed);
                if self.deduplicates {
                    return;
                }
            }
            Arrival::Gap => {
                let text = format!(
                    "frame {} of the session has arrived, but frame {} is missing",
                    header.number,
                    session.accepted + 1
                );
                return refuse(&request, ErrorCode::Frame, &text, self.settings.generation);
            }
        }
        if session.blocked.is_some() || !session.waiting.is_empty() {
            // A frame that waits must not keep memory from the frame that it waits for. The part of
            // its connection still bounds it.
            request.held.1 = None;
            session.waiting.push_back(request);
            return;
        }
        self.work(header.session, &mut request);
        self.wake();
    }

    /// Does the work of a frame whose turn it is.
    fn work(&mut self, number: u64, request: &mut Request) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let header = request.header;
        if header.op == Op::Close && !request.body.is_empty() {
            let trainer = session.trainer;
            let leave: Leave = read_json(&request.body).unwrap_or_else(|e| Leave {
                code: ErrorCode::Aborted.number(),
                cause: format!("an error that it could not tell ({e})"),
            });
            session.answer(header.number, finish(&header, Ok(Frame::begin(Vec::new())), 0));
            self.sessions.remove(&number);
            return match ErrorCode::of_number(leave.code) {
                // The trainer has learnt of the end from another server.
                ErrorCode::Rewound => self.end(&leave.cause),
                ErrorCode::Restored => self.end_by(&leave.cause, EndingKind::Restore(None)),
                _ => {
                    let cause =
                        format!("trainer {trainer} has ended with an error: {}", leave.cause);
                    self.end_by(&cause, EndingKind::Aborted);
                }
            };
        }
        if header.op == Op::Committed {
            let noted = read_json(&request.body).map(|news: Committed| {
                self.checkpoints = news.kept;
                self.served = self.served.max(news.request);
                Frame::begin(Vec::new())
            });
            let noted =
                noted.map_err(|e| Error::Argument { call: "committed", reason: e.to_string() });
            return session.answer(header.number, finish(&header, noted, self.settings.generation));
        }
        if header.op == Op::Close {
            session.answer(header.number, finish(&header, Ok(Frame::begin(Vec::new())), 0));
            self.left.extend(self.sessions.remove(&number).map(|session| session.trainer));
            if self.sessions.is_empty() {
                self.end("all trainers have ended the run");
            }
            return;
        }
        let body = std::mem::take(&mut request.body);
        let outcome = self.tables.work(session, &header, body);
        // With clocks, a frame has the number of its trainer's step.
        self.step = self.step.max(self.tables.paced_step().unwrap_or(header.step));
        match outcome {
            Outcome::Answer(answer) => {
                let answer = finish(&header, answer, self.settings.generation);
                session.answer(header.number, answer);
            }
            Outcome::Wait => session.blocked = Some(header),
            Outcome::Lost(cause) => {
                session.blocked = Some(header);
                self.end(&cause);
            }
        }
    }

    /// Answers the frames that waited for other trainers and wait no longer, and does the work of
    /// the frames behind them.
    fn wake(&mut self) {
        // With one trainer, no frame waits.
        if self.settings.trainers == 1 {
            return;
        }
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) && self.ended.is_none() {
            let mut numbers: Vec<(usize, u64)> =
                self.sessions.iter().map(|(&number, session)| (session.trainer, number)).collect();
            numbers.sort_unstable();
            for (trainer, number) in numbers {
                let Some(session) = self.sessions.get_mut(&number) else { continue };
                if let Some(header) = session.blocked
                    && let Some(answer) = self.tables.outcome_of(trainer, &header)
                {
                    let answer = finish(&header, answer, self.settings.generation);
                    session.blocked = None;
                    session.answer(header.number, answer);
                    goes_on = true;
                }
                if self.sessions.get(&number).is_some_and(|session| session.blocked.is_some())
                    && let Some(&trainer) = self.left.first()
                {
                    self.end(&format!("trainer {trainer} has left, but others still train"));
                    return;
                }
                while let Some(session) = self.sessions.get_mut(&number)
                    && session.blocked.is_none()
                    && self.ended.is_none()
                    && let Some(mut request) = session.waiting.pop_front()
                {
                    self.work(number, &mut request);
                    goes_on = true;
                }
            }
        }
    }

    /// Lets another trainer enter the generation.
    fn join(&mut self, request: &Request) {
        let header = &request.header;
        let refused = |text: String| {
            refuse(request, ErrorCode::Mismatched, &text, self.settings.generation);
        };
        let join: JoinRun = match read_json(&request.body) {
            Ok(join) => join,
            Err(e) => return refused(e.to_string()),
        };
        // The step of this frame is the number of the trainer.
        let trainer = header.step as usize;
        if join.job != self.settings.job {
            return refused(
                "the trainer has another job than the first trainer; start all trainers with the \
                 same job file"
                    .to_owned(),
            );
        }
        if join.trainers != self.settings.trainers || trainer >= self.settings.trainers {
            return refused(format!(
                "the trainer is trainer {trainer} of {}, but the run has {} trainers; start all \
                 trainers with the same number of trainers",
                join.trainers, self.settings.trainers
            ));
        }
        if let Err(error) = check_clock(join.continues) {
            return refuse(request, error.code(), &error.to_string(), self.settings.generation);
        }
        let from = |continues: Option<Continues>| continues.map(|continues| continues.generation);
        let other = self.sessions.iter().find(|(_, session)| session.trainer == trainer);
        match other.map(|(&number, session)| (number, session)) {
            Some((number, _)) if number == header.session => {}
            Some((_, session)) if session.is_alive_elsewhere(join.client, self.lease) => {
                return refused(format!(
                    "another process is trainer {trainer} of the run; stop one of the two"
                ));
            }
            Some(_) => {
                self.end(&format!("trainer {trainer} was started again"));
                return self.refuse_as_rewound(request);
            }
            None if from(join.continues) != from(self.settings.continues) => {
                self.end(&format!("trainer {trainer} begins anew"));
                return self.refuse_as_rewound(request);
            }
            None => {
                let session = Session::new(trainer, join.client, request.outlet.clone());
                self.sessions.insert(header.session, session);
            }
        }
        let entered = self.enter(trainer, join.continues.map(|continues| continues.clock));
        let answer = answer(header, |body| write_json(body, &entered));
        request.outlet.send(Arc::new(answer));
    }

    /// Sets the clock of a trainer that enters the generation, and returns the answer to it.
    pub(super) fn enter(&mut self, trainer: usize, clock: Option<u64>) -> Entered {
        let applied = clock.map_or(0, |sent| self.tables.enter(trainer, sent));
        Entered { is_kept: self.is_kept, applied }
    }

    /// Returns the trainers that have not entered the generation yet.
    pub(super) fn missing(&self) -> Vec<usize> {
        let mut is_here = vec![false; self.settings.trainers];
        let sessions = self.sessions.values().map(|session| session.trainer);
        sessions.chain(self.left.iter().copied()).for_each(|trainer| is_here[trainer] = true);
        (0..is_here.len()).filter(|&trainer| !is_here[trainer]).collect()
    }

    /// Ends the generation. The trainers learn of it by the answers to their frames.
    pub(super) fn end(&mut self, cause: &str) {
        self.end_by(cause, EndingKind::Lost);
    }

    /// Ends the generation by an event of some kind.
    pub(super) fn end_by(&mut self, cause: &str, kind: EndingKind) {
        if self.ended.is_some() {
            return;
        }
        tracing::info!(generation = self.settings.generation, cause, "generation ends");
        let ending = Ending { cause: cause.to_owned(), kind };
        let (code, generation) = (ending.code(), self.settings.generation);
        self.ended = Some(ending);
        for session in self.sessions.values_mut() {
            let waiting = session.waiting.drain(..).map(|request| request.header);
            let headers: Vec<Header> = session.blocked.take().into_iter().chain(waiting).collect();
            for header in headers {
                let answer = failure(&header, code, cause, generation);
                session.answer(header.number, answer);
            }
        }
        self.tables.abandon();
    }

    /// Ends the generation if a trainer has been silent for longer than its lease.
    pub(super) fn end_if_silent(&mut self, lease: Duration) {
        if self.ended.is_some() {
            return;
        }
        let now = milliseconds(Instant::now());
        let silent =
            |session: &&Session| Duration::from_millis(now.saturating_sub(session.heard())) > lease;
        let lost = self.sessions.values().filter(silent).map(|session| session.trainer).min();
        if let Some(trainer) = lost {
            self.end(&format!("trainer {trainer} was silent for more than {lease:?}"));
        }
    }

    fn refuse_as_rewound(&self, request: &Request) {
        let generation = self.settings.generation;
        // A late trainer also learns the end of the generation before this one.
        let before =
            self.before.as_ref().filter(|(before, _)| *before == request.header.generation);
        let ending = self.ended.as_ref().or(before.map(|(_, ending)| ending));
        match ending {
            Some(ending) => refuse(request, ending.code(), &ending.cause, generation),
            None => {
                let cause = format!("generation {generation} has begun");
                refuse(request, ErrorCode::Rewound, &cause, generation);
            }
        }
    }

    /// Returns the state of each trainer.
    pub(super) fn trainers(&self) -> Vec<TrainerStatus> {
        let now = milliseconds(Instant::now());
        let state = |session: &Session| TrainerStatus {
            trainer: session.trainer,
            is_connected: session.is_connected(),
            silent_seconds: now.saturating_sub(session.heard()) as f64 / 1e3,
            frames: session.frames,
        };
        let mut trainers: Vec<TrainerStatus> = self.sessions.values().map(state).collect();
        trainers.sort_by_key(|state| state.trainer);
        trainers
    }

    /// Returns the data of a table about a key, or `None` if another server owns the key.
    pub(super) fn find(&self, table: TableId, key: FeatureKey) -> Result<Option<LiveKey>> {
        self.tables.find(table, key)
    }

    /// Returns the state of the trainers' clocks, if they have clocks.
    pub(super) fn pace(&self) -> Option<PaceStatus> {
        self.tables.pace_status()
    }

    /// Returns the statistics of the tables.
    pub(super) fn statistics(&self) -> Vec<TableStatistics> {
        self.tables.statistics()
    }
}

/// Checks the clock of a trainer that continues.
///
/// # Errors
/// Returns an error if the clock is not a possible number of steps.
pub(super) fn check_clock(continues: Option<Continues>) -> Result<()> {
    match continues {
        Some(Continues { clock, .. }) if clock > MOST_STEPS => {
            let reason = format!("the clock {clock} is not possible; give at most {MOST_STEPS}");
            Err(Error::Argument { call: "enter", reason })
        }
        _ => Ok(()),
    }
}

/// Returns the sessions of a generation that begins.
fn first_session(settings: &OpenRun, session: u64, outlet: &Outlet) -> HashMap<u64, Session> {
    HashMap::from([(session, Session::new(0, settings.client, outlet.clone()))])
}

/// Makes the answer of a frame from the memory with its body.
fn finish(header: &Header, answer: Result<Vec<u8>>, generation: u64) -> Frame {
    match answer {
        Ok(memory) => Frame::finish(memory, Header { op: Op::Answer, ..*header }),
        Err(error) => failure(header, error.code(), &error.to_string(), generation),
    }
}
