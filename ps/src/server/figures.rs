//! The figures of a server, which the engine and the thread for input count, and which metrics
//! show.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use zillion_embedding::TableStatistics;

use super::pool::Pool;
use crate::wire::{Op, OperationStatus, PaceStatus, ServerStatus, TrainerStatus};

/// The counters of a server. They are counted for each frame, and never for each key.
#[derive(Debug)]
pub(super) struct Figures {
    id: u32,
    bytes_in_flight_limit: u64,
    /// The bytes of the frames that wait for the tables.
    pub(super) pool: Arc<Pool>,
    pub(super) connections: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) refused_connections: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) bad_frames: AtomicU64,
    pub(super) repeated_frames: AtomicU64,
    pub(super) stale_frames: AtomicU64,
    /// The number of frames of each operation, in the order of [`Op::ALL`].
    frames: Vec<AtomicU64>,
    /// The nanoseconds that the engine has worked on each operation.
    nanoseconds: Vec<AtomicU64>,
    /// The number of checkpoints that operators have requested, and the newest request that was
    /// served.
    requested: AtomicU64,
    served: AtomicU64,
    state: Mutex<State>,
    is_stopped: AtomicBool,
    stop: Notify,
}

/// The state of the run, which the engine writes about once a second.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) boot: u64,
    pub(super) generation: u64,
    pub(super) generations_ended: u64,
    pub(super) is_open: bool,
    pub(super) run: Option<String>,
    pub(super) ended: Option<String>,
    pub(super) slots: [usize; 2],
    pub(super) step: u64,
    pub(super) trainers: Vec<TrainerStatus>,
    pub(super) pace: Option<PaceStatus>,
    pub(super) tables: Vec<TableStatistics>,
    /// The steps of the checkpoints that the run keeps.
    pub(super) checkpoints: Vec<u64>,
}

/// A handle on the figures of a server, which another thread may use.
#[derive(Clone, Debug)]
pub struct FiguresHandle(pub(super) Arc<Figures>);

impl FiguresHandle {
    /// Returns the present figures.
    pub fn read(&self) -> ServerFigures {
        self.0.show()
    }
}

/// The figures of a server at one moment.
#[derive(Clone, Debug, Default)]
pub struct ServerFigures {
    /// The number of the server in its cluster.
    pub id: u32,
    /// The number that the server drew when it started.
    pub boot: u64,
    /// The generation that the server serves or has served last.
    pub generation: u64,
    /// The number of generations that have ended since the server started.
    pub generations_ended: u64,
    /// Whether a generation goes on.
    pub is_open: bool,
    /// The name of the run.
    pub run: Option<String>,
    /// The first slot of the server, and the slot after its last one.
    pub slots: [usize; 2],
    /// The last step that was applied.
    pub step: u64,
    /// The seconds since the last frame of each trainer.
    pub silent_seconds: Vec<(usize, f64)>,
    /// The number of steps of each trainer whose updates are applied; empty if every step has a
    /// part of every trainer.
    pub applied_steps: Vec<u64>,
    /// The number of pulls by the number of steps that their rows lacked, counted from 0; empty if
    /// every step has a part of every trainer.
    pub stale_pulls: Vec<u64>,
    /// The statistics of the tables.
    pub tables: Vec<TableStatistics>,
    /// The number of open connections.
    pub connections: u64,
    /// The number of connections that were accepted.
    pub accepted: u64,
    /// The number of connections that were closed at once, because too many were open.
    pub refused_connections: u64,
    /// The bytes of the frames that wait for the tables.
    pub bytes_in_flight: u64,
    /// The largest number of bytes of the frames that may wait for the tables.
    pub bytes_in_flight_limit: u64,
    /// The bytes that were received.
    pub received_bytes: u64,
    /// The bytes that were sent.
    pub sent_bytes: u64,
    /// The number of frames that were not valid.
    pub bad_frames: u64,
    /// The number of frames that had arrived before, and were answered by the kept answer.
    pub repeated_frames: u64,
    /// The number of frames of an earlier generation, which were refused.
    pub stale_frames: u64,
    /// The name of each operation, its number of frames, and the seconds of work on it.
    pub operations: Vec<(&'static str, u64, f64)>,
}

impl Figures {
    pub(super) fn new(id: u32, bytes_in_flight_limit: u64) -> Self {
        let zeros = || Op::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            id,
            bytes_in_flight_limit,
            pool: Pool::new(bytes_in_flight_limit),
            connections: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            bad_frames: AtomicU64::new(0),
            repeated_frames: AtomicU64::new(0),
            stale_frames: AtomicU64::new(0),
            frames: zeros(),
            nanoseconds: zeros(),
            requested: AtomicU64::new(0),
            served: AtomicU64::new(0),
            state: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            stop: Notify::new(),
        }
    }

    /// Keeps a request for a checkpoint, and returns its number.
    pub(super) fn request_checkpoint(&self) -> u64 {
        self.requested.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Records that the requests up to a number were served. No number above that of the newest
    /// request is recorded.
    pub(super) fn serve_requests(&self, number: u64) {
        self.served.fetch_max(number.min(self.requested()), Ordering::AcqRel);
    }

    /// Returns whether a run is open whose first trainer, which writes checkpoints, is connected.
    pub(super) fn can_save(&self) -> bool {
        let state = self.state();
        state.is_open && state.trainers.iter().any(|t| t.trainer == 0 && t.is_connected)
    }

    /// Returns the number of the newest request for a checkpoint.
    pub(super) fn requested(&self) -> u64 {
        self.requested.load(Ordering::Acquire)
    }

    /// Returns the number of the newest request that was served.
    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Acquire)
    }

    /// Returns the number of the newest request that waits for a checkpoint, or 0 if none waits.
    pub(super) fn wanted(&self) -> u64 {
        let requested = self.requested();
        if requested > self.served() { requested } else { 0 }
    }

    /// Counts one frame and the work on it.
    pub(super) fn count(&self, op: Op, nanoseconds: u64) {
        let at = Op::ALL.iter().position(|&other| other == op).unwrap_or_default();
        self.frames[at].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds[at].fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(super) fn set_state(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the thread for connections to stop.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.stop.notify_one();
    }

    /// Waits until the server stops.
    pub(super) async fn stopped(&self) {
        while !self.is_stopped.load(Ordering::Acquire) {
            self.stop.notified().await;
        }
    }

    /// Returns the state for a client that asks for it.
    pub(super) fn status(&self) -> ServerStatus {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = self.state();
        let status = |(name, frames, seconds): (&str, u64, f64)| OperationStatus {
            operation: name.to_owned(),
            frames,
            seconds,
        };
        ServerStatus {
            id: self.id,
            boot: state.boot,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            generation: state.generation,
            is_open: state.is_open,
            run: state.run,
            ended: state.ended,
            slots: state.slots,
            step: state.step,
            trainers: state.trainers,
            pace: state.pace,
            tables: state.tables,
            checkpoints: state.checkpoints,
            connections: load(&self.connections),
            bytes_in_flight: self.pool.taken(),
            frames: self.frames.iter().map(load).sum(),
            repeated_frames: load(&self.repeated_frames),
            refused_frames: load(&self.stale_frames) + load(&self.bad_frames),
            operations: self
                .operations()
                .filter(|(_, frames, _)| *frames > 0)
                .map(status)
                .collect(),
        }
    }

    /// Returns the name of each operation, its number of frames, and the seconds of work on it.
    fn operations(&self) -> impl Iterator<Item = (&'static str, u64, f64)> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counted = self.frames.iter().zip(&self.nanoseconds);
        let is_question = |op: &Op| !matches!(op, Op::Answer | Op::Failure);
        let counted = Op::ALL.iter().zip(counted).filter(move |(op, _)| is_question(op));
        counted.map(move |(op, (frames, nanoseconds))| {
            (op.name(), load(frames), load(nanoseconds) as f64 / 1e9)
        })
    }

    pub(super) fn show(&self) -> ServerFigures {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = self.state();
        let PaceStatus { applied, stale_pulls } = state.pace.unwrap_or_default();
        ServerFigures {
            applied_steps: applied,
            stale_pulls,
            id: self.id,
            boot: state.boot,
            generation: state.generation,
            generations_ended: state.generations_ended,
            is_open: state.is_open,
            run: state.run,
            slots: state.slots,
            step: state.step,
            silent_seconds: state.trainers.iter().map(|t| (t.trainer, t.silent_seconds)).collect(),
            tables: state.tables,
            connections: load(&self.connections),
            accepted: load(&self.accepted),
            refused_connections: load(&self.refused_connections),
            bytes_in_flight: self.pool.taken(),
            bytes_in_flight_limit: self.bytes_in_flight_limit,
            received_bytes: load(&self.received_bytes),
            sent_bytes: load(&self.sent_bytes),
            bad_frames: load(&self.bad_frames),
            repeated_frames: load(&self.repeated_frames),
            stale_frames: load(&self.stale_frames),
            operations: self.operations().collect(),
        }
    }
}
