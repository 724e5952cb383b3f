//! The server: a process that holds the rows of a range of slots for the trainers of a run.
//!
//! One thread does all input and output: it accepts connections, reads frames and writes answers
//! ([`listener`], [`door`], [`connection`]), and it serves the calls of operators ([`admin`]). One
//! thread, the engine, owns the tables and does all work on them, on the thread pool of the
//! process. A bounded channel leads from the first to the second. So no lock is on the way of a
//! key.
//!
//! # Invariants
//! * A numbered frame of a session has its effect once. If a client sends the frame again over
//!   another connection, the server sends the kept answer again.
//! * A frame of an earlier generation has no effect.
//! * The memory of frames that wait is bounded for each session and for the server, whatever
//!   clients send.

mod admin;
mod answering;
mod arrival;
mod clocks;
mod connection;
mod door;
mod ending;
mod engine;
mod figures;
mod home;
mod joint;
mod listener;
mod options;
mod pool;
mod questions;
mod request;
mod run;
mod scratch;
mod session;
mod tables;
mod tls;
mod uploads;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use zillion_device::Workers;

pub use figures::{FiguresHandle, ServerFigures};
pub use options::ServerOptions;

use crate::error::Result;
use engine::Engine;
use figures::Figures;
use home::{Home, Place};
use questions::Question;
use request::Command;
use scratch::Scratch;
use tls::ServerTls;

/// A server that is running in this process.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    commands: mpsc::Sender<Command>,
    figures: Arc<Figures>,
    threads: Vec<JoinHandle<()>>,
}

/// The outcome of the wait for a last checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No run is open, so nothing can be lost.
    Idle,
    /// The run has written a checkpoint.
    Saved,
    /// The run has not written a checkpoint in time, or has ended.
    Unsaved,
}

/// The time between two looks for a last checkpoint.
const LOOK: Duration = Duration::from_millis(10);

/// The number of commands that wait for the engine before the thread for input stops reading.
const COMMANDS: usize = 1024;

impl Server {
    /// Starts a server: binds its address, and starts its threads.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound, if the folder of the store does not exist,
    /// or if the system refuses a thread.
    pub fn start(options: ServerOptions) -> Result<Self> {
        options.check()?;
        let place = Place::open(&options.store, &options.files)?;
        // Files of checkpoints are written by a thread of their own, beside the tables' threads.
        let workers = Workers::with_background(options.threads);
        let workers = Arc::new(workers.map_err(zillion_rows::Error::Device)?);
        let fails = |problem: &'static str| {
            move |e: io::Error| crate::error::start_error(format!("{problem}: {e}"))
        };
        let listener = std::net::TcpListener::bind(&options.listen).map_err(|e| {
            crate::error::start_error(format!(
                "cannot listen on `{}`: {e}; give a free address of this host",
                options.listen
            ))
        })?;
        listener.set_nonblocking(true).map_err(fails("cannot prepare the listener"))?;
        let address = listener.local_addr().map_err(fails("cannot read the listener's address"))?;
        if !address.ip().is_loopback() && !options.proves_clients() {
            return Err(crate::error::start_error(format!(
                "the server would listen on `{address}`, which other hosts can reach, but it has no \
                 token and no authority of client certificates; give a token file or a client \
                 authority, or listen on a loopback address such as 127.0.0.1"
            )));
        }
        let tls = options.tls.clone().map(ServerTls::open).transpose()?;
        let figures = Arc::new(Figures::new(options.id, options.total_in_flight_bytes));
        let (commands, incoming) = mpsc::channel(COMMANDS);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(fails("cannot start the thread for connections"))?;
        let scratch = Scratch::new(options.scratch.as_deref(), &address.to_string());
        let home = Home::new(place, options.files.clone(), scratch);
        let engine = Engine::new(options.clone(), home, workers, figures.clone());
        let (sender, shown) = (commands.clone(), figures.clone());
        let io = std::thread::Builder::new().name("ps-io".to_owned());
        let io = io.spawn(move || {
            runtime.block_on(listener::serve(listener, (options, tls), sender, shown));
        });
        let engine_thread = std::thread::Builder::new().name("ps-engine".to_owned());
        let engine = engine_thread.spawn(move || engine.run(incoming));
        let threads = [io, engine].into_iter().collect::<io::Result<_>>();
        let threads = threads.map_err(fails("cannot start a thread"))?;
        Ok(Self { address, commands, figures, threads })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the present figures of the server.
    pub fn figures(&self) -> ServerFigures {
        self.figures.show()
    }

    /// Returns a handle on the figures, for a thread that shows them.
    pub fn figures_handle(&self) -> FiguresHandle {
        FiguresHandle(self.figures.clone())
    }

    /// Asks the run for a checkpoint, and waits until it is complete. Ends the wait after `limit`,
    /// or when `is_over` says so. The run goes on meanwhile.
    pub fn drain(&self, limit: Duration, mut is_over: impl FnMut() -> bool) -> Drained {
        let until = Instant::now() + limit;
        let (answer, mut answered) = oneshot::channel();
        let mut question = Some(Command::Ask(Question::Checkpoint { answer }));
        let mut number = None;
        while Instant::now() < until && !is_over() {
            if let Some(command) = question.take()
                && let Err(mpsc::error::TrySendError::Full(command)) =
                    self.commands.try_send(command)
            {
                question = Some(command);
            }
            match answered.try_recv() {
                Ok(Ok(requested)) => number = Some(requested.number),
                Ok(Err(_)) => return Drained::Idle,
                Err(_) => {}
            }
            if number.is_some_and(|number| self.figures.served() >= number) {
                return Drained::Saved;
            }
            if number.is_some() && !self.figures.can_save() {
                return Drained::Unsaved;
            }
            std::thread::sleep(LOOK);
        }
        Drained::Unsaved
    }

    /// Stops the server: ends the generation, so that trainers learn of it, answers what has begun,
    /// and closes all connections.
    pub fn stop(self) {
        let _ = self.commands.blocking_send(Command::Stop);
        self.figures.stop();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}
