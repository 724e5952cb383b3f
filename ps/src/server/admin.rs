//! The administration of the server over gRPC, on the address that also serves trainers.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};
use zillion_feature::FeatureKey;
use zillion_rows::{Admission, TableSpec};

use super::connection::Shared;
use super::questions::{Answer, Explained, Found, Question, Refused};
use super::request::Command;
use crate::admin::proto;
use crate::admin::proto::admin_server::{Admin, AdminServer};
use crate::code::ErrorCode;

/// The largest size of a question, which has only a few fields.
const QUESTION_BYTES: usize = 16 << 10;

/// The largest number of calls of a connection that are open at once.
const CALLS: u32 = 16;

/// The largest size of the head of a call.
const HEAD_BYTES: u32 = 16 << 10;

/// The time after which a silent connection is asked whether it still exists.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The time for which the question for the state waits for the engine.
const SHOW_TIME: Duration = Duration::from_secs(1);

/// The beginning of a connection of HTTP/2.
pub(super) const FIRST_BYTES: [u8; 4] = *b"PRI ";

/// Serves a connection to its end.
pub(super) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    shared: &Arc<Shared>,
) {
    let service = AdminServer::new(Calls(shared.clone())).max_decoding_message_size(QUESTION_BYTES);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS)
        .max_header_list_size(HEAD_BYTES)
        .keep_alive_interval(KEEP_ALIVE);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    if let Err(error) = served.await {
        tracing::debug!("a connection of administration has ended: {error}");
    }
}

/// The calls of a connection.
#[derive(Clone)]
struct Calls(Arc<Shared>);

impl Calls {
    /// Checks the token in the head of a call, as it is checked in the first frame of a trainer.
    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let Some(token) = &self.0.options.token else { return Ok(()) };
        let shown = request.metadata().get("authorization").and_then(|text| text.to_str().ok());
        let shown = shown.and_then(|text| text.strip_prefix("Bearer "));
        if token.is(shown) {
            return Ok(());
        }
        let problem = if shown.is_some() { "shows another token" } else { "shows no token" };
        Err(Status::unauthenticated(format!(
            "the caller {problem}; give the token file of the servers"
        )))
    }

    /// Asks the engine, and waits for its answer.
    async fn ask<T>(&self, question: impl FnOnce(Answer<T>) -> Question) -> Result<T, Status> {
        let ends = || Status::unavailable("the server is ending; ask again when it has started");
        let (answer, answered) = oneshot::channel();
        let command = Command::Ask(question(answer));
        self.0.commands.send(command).await.map_err(|_| ends())?;
        answered.await.map_err(|_| ends())?.map_err(|Refused { code, text }| match code {
            ErrorCode::NoRun => Status::failed_precondition(text),
            ErrorCode::Argument => Status::not_found(text),
            _ => Status::internal(text),
        })
    }
}

#[tonic::async_trait]
impl Admin for Calls {
    async fn status(
        &self,
        request: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusResponse>, Status> {
        self.check(&request)?;
        // An engine that is at work for long must not hide the state from before.
        let shown = self.ask(|answer| Question::Show { answer });
        let _ = tokio::time::timeout(SHOW_TIME, shown).await;
        Ok(Response::new(status_of(&self.0)))
    }

    async fn explain(
        &self,
        request: Request<proto::ExplainRequest>,
    ) -> Result<Response<proto::ExplainResponse>, Status> {
        self.check(&request)?;
        let proto::ExplainRequest { table, key } = request.into_inner();
        let key = FeatureKey(key);
        let explained = self.ask(|answer| Question::Explain { table, key, answer }).await?;
        Ok(Response::new(explanation(self.0.options.id, explained)))
    }

    async fn checkpoint(
        &self,
        request: Request<proto::CheckpointRequest>,
    ) -> Result<Response<proto::CheckpointResponse>, Status> {
        self.check(&request)?;
        let requested = self.ask(|answer| Question::Checkpoint { answer }).await?;
        Ok(Response::new(proto::CheckpointResponse {
            run: requested.run,
            generation: requested.generation,
            boot: requested.boot,
            request: requested.number,
        }))
    }

    async fn restore(
        &self,
        request: Request<proto::RestoreRequest>,
    ) -> Result<Response<proto::RestoreResponse>, Status> {
        self.check(&request)?;
        let step = request.into_inner().step;
        let reached = self.ask(|answer| Question::Restore { step, answer }).await?;
        Ok(Response::new(proto::RestoreResponse {
            run: reached.run,
            generation: reached.generation,
            step: reached.step,
        }))
    }
}

/// Returns the state of the server.
fn status_of(shared: &Shared) -> proto::StatusResponse {
    let status = shared.figures.status();
    let trainers = status.trainers.iter().map(|trainer| proto::Trainer {
        trainer: trainer.trainer as u32,
        is_connected: trainer.is_connected,
        silent_seconds: trainer.silent_seconds,
        frames: trainer.frames,
    });
    let tables = status.tables.iter().map(|table| proto::Table {
        table: table.table.clone(),
        rows: table.rows,
        bytes: table.total_bytes(),
    });
    let operations = status.operations.into_iter().map(|operation| proto::Operation {
        operation: operation.operation,
        frames: operation.frames,
        seconds: operation.seconds,
    });
    proto::StatusResponse {
        id: status.id,
        boot: status.boot,
        program: status.program,
        generation: status.generation,
        is_open: status.is_open,
        run: status.run.unwrap_or_default(),
        ended: status.ended.unwrap_or_default(),
        first_slot: status.slots[0] as u32,
        end_slot: status.slots[1] as u32,
        step: status.step,
        trainers: trainers.collect(),
        tables: tables.collect(),
        connections: status.connections,
        bytes_in_flight: status.bytes_in_flight,
        frames: status.frames,
        repeated_frames: status.repeated_frames,
        refused_frames: status.refused_frames,
        operations: operations.collect(),
        checkpoints: status.checkpoints,
        checkpoint_requested: shared.figures.requested(),
        checkpoint_served: shared.figures.served(),
    }
}

/// Returns the answer to the question about a key.
fn explanation(server: u32, explained: Explained) -> proto::ExplainResponse {
    let Explained { run, generation, step, found } = explained;
    let mut answer = proto::ExplainResponse { server, run, generation, step, ..Default::default() };
    let Some(Found { spec, rows, key }) = found else { return answer };
    answer.is_owner = true;
    answer.rows = rows;
    (answer.admission, answer.at_least) = admission(&spec);
    answer.waiting = key
        .waiting
        .map(|waiting| proto::Waiting { count: waiting.count, last_step: waiting.last_step });
    answer.row = key.row.map(|row| {
        let (mut weights, mut state) = (row.weights.as_slice(), row.state.as_slice());
        // A narrow row ends within the segments.
        let take = |values: &mut &[f32], count: usize| {
            let (taken, rest) = values.split_at(count.min(values.len()));
            *values = rest;
            taken.to_vec()
        };
        let segments = spec.segments.iter().map(|segment| proto::Segment {
            name: segment.name.clone(),
            weights: take(&mut weights, segment.dim),
            state: take(&mut state, segment.optimizer.state_len(segment.dim)),
        });
        let used = proto::Use { shows: row.used.shows, clicks: row.used.clicks };
        proto::Row {
            segments: segments.collect(),
            count: row.count,
            last_step: row.last_step,
            dirty_epoch: row.dirty_epoch,
            used: spec.statistics.as_ref().map(|_| used),
            is_narrow: row.is_narrow,
        }
    });
    answer
}

/// Returns the kind of a table's admission, and the number of occurrences that it needs.
fn admission(spec: &TableSpec) -> (String, u32) {
    let (kind, at_least) = match spec.admission {
        _ if spec.dense => ("dense", 0),
        Admission::All => ("all", 0),
        Admission::Count { at_least } => ("count", at_least),
        Admission::Bloom { at_least, .. } => ("bloom", at_least),
        Admission::Probability { .. } => ("probability", 0),
    };
    (kind.to_owned(), at_least)
}
