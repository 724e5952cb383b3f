//! The engine: the thread that owns the tables. It takes one frame after another from a channel,
//! and does what the frame asks for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zillion_device::Workers;

use super::ending::EndingKind;
use super::figures::{Figures, State};
use super::home::Home;
use super::options::ServerOptions;
use super::request::{Command, Request, answer, milliseconds, refuse};
use super::run::{Run, check_clock};
use crate::code::ErrorCode;
use crate::error::{Error, Result};
use crate::wire::{Entered, Hello, Op, OpenRun, WIRE_VERSION, Welcome, read_json, write_json};

/// The interval at which the engine writes its state for metrics.
const SHOWN_EVERY: Duration = Duration::from_millis(500);

/// The owner of the tables.
pub(super) struct Engine {
    options: ServerOptions,
    home: Home,
    workers: Arc<Workers>,
    figures: Arc<Figures>,
    /// The number that the server drew when it started.
    boot: u64,
    pub(super) run: Option<Run>,
    generations_ended: u64,
    shown: Instant,
}

impl Engine {
    pub(super) fn new(
        options: ServerOptions,
        home: Home,
        workers: Arc<Workers>,
        figures: Arc<Figures>,
    ) -> Self {
        let boot = crate::draw::draw();
        milliseconds(Instant::now());
        let engine = Self {
            options,
            home,
            workers,
            figures,
            boot,
            run: None,
            generations_ended: 0,
            shown: Instant::now(),
        };
        engine.show();
        engine
    }

    /// Works until the server stops.
    pub(super) fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.blocking_recv() {
            match command {
                Command::Request(request) => self.take(request),
                Command::Ask(question) => self.ask(question),
                Command::Tick => self.look(),
                Command::Stop => break,
            }
        }
        if let Some(run) = &mut self.run {
            run.end("a server was stopped");
        }
    }

    /// Returns the number that the server drew when it started.
    pub(super) fn boot(&self) -> u64 {
        self.boot
    }

    /// Returns the figures of the server.
    pub(super) fn figures(&self) -> Arc<Figures> {
        self.figures.clone()
    }

    fn take(&mut self, request: Box<Request>) {
        let (op, began) = (request.header.op, Instant::now());
        match op {
            Op::Hello => self.welcome(&request),
            Op::Open => self.open(&request),
            _ => match &mut self.run {
                Some(run) => run.take(request, &self.figures),
                None => {
                    let text = "the server has no run; open a generation first";
                    refuse(&request, ErrorCode::NoRun, text, 0);
                }
            },
        }
        self.figures.count(op, began.elapsed().as_nanos() as u64);
        if matches!(op, Op::Committed | Op::Close) {
            self.figures.serve_requests(self.run.as_ref().map_or(0, |run| run.served));
            self.show();
        }
        if self.shown.elapsed() >= SHOWN_EVERY {
            self.show();
        }
    }

    /// Looks for trainers that have been silent for too long.
    fn look(&mut self) {
        if let Some(run) = &mut self.run {
            run.end_if_silent(self.options.lease);
        }
        if self.shown.elapsed() >= SHOWN_EVERY {
            self.show();
        }
    }

    /// Answers the first frame of a connection.
    fn welcome(&mut self, request: &Request) {
        let hello: Hello = match read_json(&request.body) {
            Ok(hello) => hello,
            Err(e) => return refuse(request, ErrorCode::Frame, &e.to_string(), 0),
        };
        if hello.wire != WIRE_VERSION {
            let text = format!(
                "the client speaks version {} of the wire (program {}), but the server speaks \
                 version {WIRE_VERSION} (program {}); use the same version of the program on all \
                 hosts",
                hello.wire,
                hello.program,
                env!("CARGO_PKG_VERSION")
            );
            return refuse(request, ErrorCode::Mismatched, &text, 0);
        }
        let session = request.header.session;
        let accepted = match &mut self.run {
            Some(run) if hello.run.as_ref() == Some(&run.settings.run) => {
                run.session(session).map(|known| {
                    known.add(&request.outlet);
                    known.accepted
                })
            }
            _ => None,
        };
        let run = self.run.as_ref();
        let welcome = Welcome {
            boot: self.boot,
            generation: run.map_or(0, |run| run.settings.generation),
            is_open: run.is_some_and(Run::is_open),
            run: run.map(|run| run.settings.run.clone()),
            accepted,
            restore: run.and_then(|run| run.ended.as_ref()?.restores_to()),
            missing: run.filter(|run| run.is_open()).map(Run::missing).unwrap_or_default(),
            continues: run.and_then(|run| Some(run.settings.continues?.generation)),
        };
        let answer = answer(&request.header, |body| write_json(body, &welcome));
        request.outlet.send(Arc::new(answer));
    }

    /// Opens a generation: replaces the run by one with empty tables, or continues with its tables.
    fn open(&mut self, request: &Request) {
        match self.try_open(request) {
            Ok(entered) => {
                let answer = answer(&request.header, |body| write_json(body, &entered));
                request.outlet.send(Arc::new(answer));
            }
            Err(error) => {
                let generation = self.run.as_ref().map_or(0, |run| run.settings.generation);
                refuse(request, error.code(), &error.to_string(), generation);
            }
        }
        self.show();
    }

    fn try_open(&mut self, request: &Request) -> Result<Entered> {
        let settings: OpenRun = read_json(&request.body)
            .map_err(|e| Error::Argument { call: "open", reason: e.to_string() })?;
        let refuse = |reason: String| Err(Error::Argument { call: "open", reason });
        if let Some(run) = &mut self.run {
            let (name, generation) = (&run.settings.run, run.settings.generation);
            let is_other = *name != settings.run;
            if is_other && run.is_open() && run.is_heard(self.options.lease) {
                return refuse(format!(
                    "the server serves the run `{name}`; end it, or use other servers for the run \
                     `{}`",
                    settings.run
                ));
            }
            // Another run has numbers of its own. The frames of the present run name sessions that
            // the server forgets here, so they stay without effect.
            if !is_other && settings.generation <= generation {
                return refuse(format!(
                    "generation {} is not after generation {generation}, which the server has \
                     served; open a later one",
                    settings.generation
                ));
            }
            if !is_other && run.is_open() && run.has_other_first_trainer(settings.client) {
                return refuse(format!(
                    "another process is trainer 0 of the run `{name}`; stop one of the two"
                ));
            }
            self.generations_ended += u64::from(run.is_open());
            run.end("the first trainer has opened a later generation");
            if is_other {
                // The requests of operators were for the other run.
                self.figures.serve_requests(self.figures.requested());
            }
        }
        check_clock(settings.continues)?;
        let clock = settings.continues.map(|continues| continues.clock);
        let first = (request.header.session, &request.outlet);
        let mut run = match self.run.take() {
            Some(mut run) if can_continue(&run, &settings) => {
                run.continue_as(settings, first);
                run
            }
            earlier => {
                let before = earlier.filter(|run| run.settings.run == settings.run);
                let before = before.and_then(|run| Some((run.settings.generation, run.ended?)));
                // The old tables are freed before the new ones grow.
                let place = (&self.options, &self.home, self.boot);
                let mut run = Run::open(settings, place, self.workers.clone(), first)?;
                run.before = before;
                run
            }
        };
        tracing::info!(
            generation = run.settings.generation,
            run = run.settings.run,
            trainers = run.settings.trainers,
            slots = ?run.settings.slots,
            is_kept = run.is_kept,
            "generation begins"
        );
        let entered = run.enter(0, clock);
        self.run = Some(run);
        Ok(entered)
    }

    /// Writes the state for metrics and for the question for the state.
    pub(super) fn show(&self) {
        let run = self.run.as_ref();
        self.figures.set_state(State {
            boot: self.boot,
            generation: run.map_or(0, |run| run.settings.generation),
            generations_ended: self.generations_ended,
            is_open: run.is_some_and(Run::is_open),
            run: run.map(|run| run.settings.run.clone()),
            ended: run.and_then(|run| Some(run.ended.as_ref()?.cause.clone())),
            slots: run.map_or([0, 0], |run| run.settings.slots),
            step: run.map_or(0, |run| run.step),
            trainers: run.map_or_else(Vec::new, Run::trainers),
            pace: run.and_then(Run::pace),
            tables: run.map_or_else(Vec::new, Run::statistics),
            checkpoints: run.map_or_else(Vec::new, |run| run.checkpoints.clone()),
        });
    }
}

/// Returns whether a generation can continue with the tables of an earlier one, which has ended
/// because another server or a connection was lost.
fn can_continue(run: &Run, settings: &OpenRun) -> bool {
    let earlier = &run.settings;
    let OpenRun { generation, client, continues, .. } = *settings;
    let is_same = *settings == OpenRun { generation, client, continues, ..earlier.clone() };
    let is_lost = run.ended.as_ref().is_some_and(|ending| ending.kind == EndingKind::Lost);
    let is_named = continues.is_some_and(|continues| continues.generation == earlier.generation);
    is_same && is_lost && is_named && run.tables.can_continue()
}
