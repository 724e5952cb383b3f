//! The state of a server, for people.

use std::time::{Duration, Instant};

use zillion_embedding::TableStatistics;

use super::dialog::{Dialog, until};
use super::heart::hello;
use super::link::{describe, read_answer};
use crate::error::{Result, start_error};
use crate::tls::ClientTls;
use crate::token::Token;
use crate::wire::{Frame, Header, Op, ServerStatus, read_json, write_json};

/// The state of a server.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ServerState {
    /// The number of the server.
    pub id: u32,
    /// The number that the server drew when it started.
    pub boot: u64,
    /// The version of the server's program.
    pub program: String,
    /// The generation that the server serves or has served last.
    pub generation: u64,
    /// Whether the generation goes on.
    pub is_open: bool,
    /// The name of the run.
    pub run: Option<String>,
    /// The event that has ended the generation; absent while it goes on.
    pub ended: Option<String>,
    /// The first slot of the server, and the slot after its last one.
    pub slots: [usize; 2],
    /// The newest step of a frame.
    pub step: u64,
    /// The state of each trainer: its number, whether it is connected, the seconds since its last
    /// sign of life, and its number of frames.
    pub trainers: Vec<(usize, bool, f64, u64)>,
    /// The number of steps of each trainer whose updates are applied; absent if every step has a
    /// part of every trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_steps: Option<Vec<u64>>,
    /// The number of pulls by the number of steps that their rows lacked, counted from 0; absent if
    /// every step has a part of every trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_pulls: Option<Vec<u64>>,
    /// The statistics of the tables.
    pub tables: Vec<TableStatistics>,
    /// The number of open connections.
    pub connections: u64,
    /// The bytes of the frames that wait for the tables.
    pub bytes_in_flight: u64,
    /// The number of frames that had an effect.
    pub frames: u64,
    /// The number of frames that arrived twice.
    pub repeated_frames: u64,
    /// The number of frames that were not valid or of an earlier generation.
    pub refused_frames: u64,
    /// The steps of the checkpoints that the run keeps, as far as the server was told of them.
    pub checkpoints: Vec<u64>,
    /// The name of each operation that was asked for, its number of frames, and the seconds of work
    /// on them.
    pub operations: Vec<(String, u64, f64)>,
}

/// Asks a server for its state.
///
/// # Errors
/// Returns an error if the server cannot be reached or does not answer within `deadline`.
pub fn server_state(
    server: &str,
    token: Option<&Token>,
    tls: Option<&ClientTls>,
    deadline: Duration,
) -> Result<ServerState> {
    let fails = |problem: String| {
        start_error(format!("server {server} does not give its state: {problem}; start it first"))
    };
    let moment = Instant::now() + deadline;
    let lost = until(moment, server);
    let mut dialog =
        Dialog::connect(server, tls, deadline).map_err(|trouble| fails(describe(&trouble)))?;
    let header = Header {
        op: Op::Status,
        generation: 0,
        session: 0,
        number: 0,
        received: 0,
        step: 0,
        body: 0,
    };
    let mut memory = Frame::begin(Vec::new());
    write_json(&mut memory, &hello(None, 0, token));
    let greeting = Frame::finish(memory, Header { op: Op::Hello, ..header });
    let question = Frame::finish(Frame::begin(Vec::new()), header);
    let mut ask = |frame: &Frame| {
        let answer = dialog.send(frame, &lost).and_then(|()| dialog.receive(Vec::new(), &lost));
        let (header, body) = answer.map_err(|trouble| fails(describe(&trouble)))?;
        read_answer(server, &header, body)
    };
    ask(&greeting)?;
    let body = ask(&question)?;
    let status: ServerStatus = read_json(&body).map_err(|e| fails(e.to_string()))?;
    let trainer =
        |t: &crate::wire::TrainerStatus| (t.trainer, t.is_connected, t.silent_seconds, t.frames);
    let operation = |o: crate::wire::OperationStatus| (o.operation, o.frames, o.seconds);
    let (applied_steps, stale_pulls) =
        status.pace.map(|pace| (pace.applied, pace.stale_pulls)).unzip();
    Ok(ServerState {
        applied_steps,
        stale_pulls,
        id: status.id,
        boot: status.boot,
        program: status.program,
        generation: status.generation,
        is_open: status.is_open,
        run: status.run,
        ended: status.ended,
        slots: status.slots,
        step: status.step,
        trainers: status.trainers.iter().map(trainer).collect(),
        tables: status.tables,
        connections: status.connections,
        bytes_in_flight: status.bytes_in_flight,
        frames: status.frames,
        repeated_frames: status.repeated_frames,
        refused_frames: status.refused_frames,
        checkpoints: status.checkpoints,
        operations: status.operations.into_iter().map(operation).collect(),
    })
}
