//! The work of frames on the tables.

mod checkpoints;
mod fetching;
mod lending;
mod pacing;
mod steps;
mod versions;

use std::sync::Arc;

use zillion_device::Workers;
use zillion_embedding::{LiveKey, TableStatistics};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId};
use zillion_rows::{Dtype, TableLayout};

use super::clocks::Clocks;
use super::home::Home;
use super::joint::{Decision, Joint, Whole};
use super::session::Session;
use super::uploads::Uploads;
use crate::client::{Pace, StepReport};
use crate::error::{Error, Result};
use crate::local::LocalClient;
use crate::options::TableOptions;
use crate::wire::{Frame, Header, Op, Reader, WireError, read_json, read_plan, write_json};
use pacing::Paced;

/// The result of the work of a frame.
pub(super) enum Outcome {
    /// An answer: the memory of a frame with the body, or an error.
    Answer(Result<Vec<u8>>),
    /// No answer yet, because the frame waits for other trainers.
    Wait,
    /// No answer, because the generation must end.
    Lost(String),
}

/// The tables of a generation.
pub(super) struct Tables {
    client: LocalClient,
    layouts: Vec<TableLayout>,
    /// Whether the weights of each table are of the type bf16.
    are_bf16: Vec<bool>,
    home: Home,
    /// The files of the open checkpoint on their way to the store; `None` if they stay where they
    /// are written.
    uploads: Option<Uploads>,
    boot: u64,
    max_frame_bytes: u64,
    joint: Joint,
    /// The clocks of the trainers; `None` if every step has a part of every trainer.
    paced: Option<Paced>,
    trainers: usize,
    /// The note of the first trainer, with which the preparation has ended.
    started: Option<Vec<u8>>,
    /// Whether the preparation has ended, so that the tables are filled.
    is_prepared: bool,
    /// Whether the rows are lent to the trainer.
    is_lent: bool,
    /// Whether the gradients of all trainers are staged in the tables, or the error of staging.
    staged: Option<Result<(), String>>,
    /// The exchange that has just become complete. The waiting trainers take it at once.
    exchanged: Option<(u64, Result<Whole, String>)>,
    /// The step that was just ended, and its report.
    ended: Option<(u64, Result<StepReport, String>)>,
    /// Buffers that are reused.
    rows: RowBuffer,
    gradients: RowBuffer,
}

impl Tables {
    pub(super) fn open(
        options: TableOptions,
        (trainers, pace): (usize, Option<Pace>),
        workers: Arc<Workers>,
        home: Home,
        (boot, max_frame_bytes): (u64, u64),
    ) -> Result<Self> {
        let are_bf16 = options.tables.iter().map(|table| table.dtype == Dtype::Bf16).collect();
        let client = LocalClient::open(options, workers)?;
        Ok(Self {
            are_bf16,
            layouts: crate::client::TableAccess::layouts(&client).to_vec(),
            client,
            home,
            uploads: None,
            boot,
            max_frame_bytes,
            joint: Joint::new(trainers),
            paced: pace.map(|pace| Paced::new(Clocks::new(pace, trainers), trainers)),
            trainers,
            started: None,
            is_prepared: false,
            is_lent: false,
            staged: None,
            exchanged: None,
            ended: None,
            rows: RowBuffer::default(),
            gradients: RowBuffer::default(),
        })
    }

    /// Returns the statistics of the tables.
    pub(super) fn statistics(&self) -> Vec<TableStatistics> {
        self.client.statistics()
    }

    /// Returns the data of a table about a key, or `None` if another server owns the key.
    pub(super) fn find(&self, table: TableId, key: FeatureKey) -> Result<Option<LiveKey>> {
        match self.client.owned(table).contains(&key.slot()) {
            true => self.client.find(table, key).map(Some),
            false => Ok(None),
        }
    }

    /// Abandons what the trainers of the generation have begun.
    pub(super) fn abandon(&mut self) {
        // Writers that wait for the store are released first.
        self.uploads = None;
        self.client.abandon_open_checkpoint();
        self.drop_uploads();
    }

    /// Does the work of a frame.
    pub(super) fn work(
        &mut self,
        session: &mut Session,
        header: &Header,
        body: Vec<u8>,
    ) -> Outcome {
        if let Some(outcome) = self.pace(session, header, &body) {
            return outcome;
        }
        if let Err(error) = self.check_not_lent(header) {
            return Outcome::Answer(Err(error));
        }
        let mut answer = Frame::begin(Vec::new());
        self.is_prepared |= header.op == Op::Start && session.trainer == 0;
        let result = match header.op {
            Op::Start if session.trainer != 0 || self.trainers > 1 => {
                if session.trainer == 0 {
                    self.started = Some(body);
                }
                return self.now_or_later(session.trainer, header);
            }
            Op::Norm | Op::Apply | Op::Skip | Op::Discard | Op::Exchange if self.trainers > 1 => {
                return match self.take_part(session.trainer, header, &body) {
                    Ok(()) => self.now_or_later(session.trainer, header),
                    Err(error @ Error::Argument { .. }) => Outcome::Lost(error.to_string()),
                    Err(error) => Outcome::Answer(Err(error)),
                };
            }
            Op::Start => {
                answer.extend(&body);
                Ok(())
            }
            Op::Announce
            | Op::Pull
            | Op::Push
            | Op::Norm
            | Op::Apply
            | Op::Skip
            | Op::Sweep
            | Op::Discard
            | Op::Regulariser => self.step(session, header, &body, &mut answer),
            Op::Take | Op::TakeTable | Op::GiveBack => self.loan(header, &body, &mut answer),
            Op::Lookup | Op::Prefill | Op::Adopt | Op::Statistics => {
                self.access(header, &body, &mut answer)
            }
            Op::BeginCheckpoint
            | Op::FollowCheckpoints
            | Op::CheckpointMark
            | Op::PollCheckpoint
            | Op::FinishCheckpoint
            | Op::AbandonCheckpoint
            | Op::Restore => self.checkpoint(header, &body, &mut answer),
            Op::TrackChanges
            | Op::WriteLayer
            | Op::ReadLayer
            | Op::WriteBase
            | Op::EndDirtyEpoch => self.version(header, &body, &mut answer),
            other => Err(Error::Argument {
                call: "frame",
                reason: format!("`{}` is not a question in a session", other.name()),
            }),
        };
        Outcome::Answer(result.map(|()| answer))
    }

    /// Returns the answer to a frame that needs all trainers, if they have all done their part.
    fn now_or_later(&mut self, trainer: usize, header: &Header) -> Outcome {
        match self.outcome_of(trainer, header) {
            Some(answer) => Outcome::Answer(answer),
            None => Outcome::Wait,
        }
    }

    /// Returns the answer to a frame that has waited for other trainers, or `None` if it still
    /// waits.
    pub(super) fn outcome_of(
        &mut self,
        trainer: usize,
        header: &Header,
    ) -> Option<Result<Vec<u8>>> {
        if matches!(header.op, Op::Pull | Op::Settle) {
            return self.paced_outcome(trainer, header);
        }
        let mut answer = Frame::begin(Vec::new());
        let failed = |text: &String| {
            Some(Err(Error::Argument { call: header.op.name(), reason: text.clone() }))
        };
        match header.op {
            Op::Start => answer.extend(self.started.as_ref()?),
            Op::Norm => match self.staged.as_ref()? {
                Err(text) => return failed(text),
                Ok(()) => {
                    if let Err(error) = self.write_norm(&mut answer) {
                        return Some(Err(error));
                    }
                }
            },
            Op::Exchange => {
                match self.exchanged.as_ref().filter(|(step, _)| *step == header.step) {
                    None => return None,
                    Some((_, Err(text))) => return failed(text),
                    Some((_, Ok(whole))) => steps::write_whole(&mut answer, whole),
                }
            }
            Op::Apply | Op::Skip | Op::Discard => {
                match self.ended.as_ref().filter(|(step, _)| *step == header.step) {
                    None => return None,
                    Some((_, Err(text))) => return failed(text),
                    Some((_, Ok(report))) => steps::write_report(&mut answer, report),
                }
            }
            _ => {
                debug_assert!(false, "trainer {trainer} waits for {:?}", header.op);
                return None;
            }
        }
        Some(Ok(answer))
    }

    /// Reads the plan of a frame: an announced plan, or the plan in its body. A plan in the body is
    /// kept like an announced plan if it has a number.
    fn plan(
        &self,
        session: &mut Session,
        call: &'static str,
        body: &mut Reader<'_>,
    ) -> Result<Arc<LookupPlan>> {
        let number = body.u64().map_err(bad(call))?;
        if !body.bool().map_err(bad(call))? {
            return session.plan(number).ok_or_else(|| Error::Argument {
                call,
                reason: format!("plan {number} was not announced, or too long ago; send its keys"),
            });
        }
        let plan = Arc::new(self.plan_in(call, body)?);
        if number != 0 {
            session.announce(number, plan.clone());
        }
        Ok(plan)
    }

    /// Reads a plan, and checks that its rows fit into a frame.
    fn plan_in(&self, call: &'static str, body: &mut Reader<'_>) -> Result<LookupPlan> {
        let plan = read_plan(body, self.layouts.len()).map_err(bad(call))?;
        for table in &plan.tables {
            let owned = self.client.owned(table.table);
            let ends = table.keys.first().into_iter().chain(table.keys.last());
            if let Some(key) = ends.into_iter().find(|key| !owned.contains(&key.slot())) {
                let reason = format!(
                    "key {:#018x} of table `{}` has slot {}, but the server owns the slots {}..{}; \
                     send the key to its owner",
                    key.0,
                    self.layouts[table.table.index()].name,
                    key.slot(),
                    owned.start,
                    owned.end
                );
                return Err(Error::Argument { call, reason });
            }
        }
        let row = |table: &zillion_feature::TablePlan| {
            let floats = self.layouts[table.table.index()].stride as u64 + 3;
            table.keys.len() as u64 * floats * size_of::<f32>() as u64
        };
        let bytes: u64 = plan.tables.iter().map(row).sum();
        if bytes > self.max_frame_bytes {
            let reason = format!(
                "the rows of the plan take {bytes} bytes, but a frame may have {}; make batches \
                 smaller, or raise `ps.max_frame_bytes` of the server",
                self.max_frame_bytes
            );
            return Err(Error::Argument { call, reason });
        }
        Ok(plan)
    }
}

/// Returns a function that makes the error of a bad body.
fn bad(call: &'static str) -> impl Fn(WireError) -> Error {
    move |e| Error::Argument { call, reason: e.to_string() }
}

/// Reads the message in the body of a frame.
fn message<T: serde::de::DeserializeOwned>(header: &Header, body: &[u8]) -> Result<T> {
    read_json(body).map_err(bad(header.op.name()))
}

/// Appends a message to an answer.
fn put<T: serde::Serialize>(answer: &mut Vec<u8>, message: &T) {
    write_json(answer, message);
}

/// Returns the decision that a frame holds.
fn read_decision(header: &Header, body: &[u8]) -> Result<Decision> {
    match header.op {
        Op::Discard => return Ok(Decision::Discard),
        Op::Skip => return Ok(Decision::Skip),
        _ => {}
    }
    let mut body = Reader::new(body);
    let mut number = || body.f32().map_err(bad("apply"));
    Ok(Decision::Apply { rate: number()?, scale: number()? })
}
