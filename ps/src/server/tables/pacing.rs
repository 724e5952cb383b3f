//! The work of the frames of trainers that do not wait for each other in each step.

use std::sync::Arc;

use zillion_embedding::Rates;
use zillion_feature::{LookupPlan, Step};

use super::{Joint, Outcome, Tables, bad};
use crate::client::PullOptions;
use crate::error::{Error, Result};
use crate::server::clocks::{Clocks, Due};
use crate::server::session::Session;
use crate::wire::{Frame, Header, Op, PaceStatus, Reader, Writer, take_gradients, write_rows};

/// The clocks of the trainers, and their pulls that wait.
#[derive(Debug)]
pub(super) struct Paced {
    pub(super) clocks: Clocks,
    /// The pull of each trainer that waits for other trainers.
    waiting: Vec<Option<(PullOptions, Arc<LookupPlan>)>>,
}

impl Paced {
    pub(super) fn new(clocks: Clocks, trainers: usize) -> Self {
        Self { clocks, waiting: vec![None; trainers] }
    }
}

impl Tables {
    /// Returns the step of the tables; `None` if every step has a part of every trainer.
    pub(in crate::server) fn paced_step(&self) -> Option<u64> {
        self.paced.as_ref().map(|paced| paced.clocks.step())
    }

    /// Returns whether a later generation can continue with the tables: the trainers have clocks,
    /// the tables were filled, and no failed update has left a row in part.
    pub(in crate::server) fn can_continue(&self) -> bool {
        self.paced.is_some() && self.is_prepared && self.client.is_whole()
    }

    /// Begins a generation that continues with the tables and the clocks of the one before it.
    pub(in crate::server) fn continue_on(&mut self) {
        self.joint = Joint::new(self.trainers);
        self.is_prepared = false;
        (self.started, self.staged, self.exchanged, self.ended) = (None, None, None, None);
        if let Some(paced) = &mut self.paced {
            paced.waiting.fill(None);
            paced.clocks.continue_on();
        }
    }

    /// Sets the clock of a trainer that continues from an earlier generation. Returns the number
    /// of its steps whose updates were applied here.
    pub(in crate::server) fn enter(&mut self, trainer: usize, sent: u64) -> u64 {
        self.paced.as_mut().map_or(0, |paced| paced.clocks.enter(trainer, sent))
    }

    /// Returns the state of the clocks; `None` if every step has a part of every trainer.
    pub(in crate::server) fn pace_status(&self) -> Option<PaceStatus> {
        self.paced.as_ref().map(|paced| paced.clocks.status())
    }

    /// Does the work of a frame that has another meaning for trainers that do not wait for each
    /// other. Returns `None` for all other frames.
    pub(super) fn pace(
        &mut self,
        session: &mut Session,
        header: &Header,
        body: &[u8],
    ) -> Option<Outcome> {
        let is_own = matches!(header.op, Op::BeginPace | Op::Update | Op::Settle);
        let is_joint = matches!(
            header.op,
            Op::Push | Op::Norm | Op::Apply | Op::Skip | Op::Sweep | Op::Discard
        );
        let is_paced = self.paced.is_some();
        if !is_own && !(is_paced && (is_joint || header.op == Op::Pull)) {
            return None;
        }
        let outcome = match header.op {
            _ if !is_paced || is_joint => Err(Error::Argument {
                call: header.op.name(),
                reason: "the frame does not fit the pace of the run; start all trainers with the \
                         same job and the same version of the program"
                    .to_owned(),
            }),
            Op::BeginPace => self.begin_pace(session, body),
            Op::Update => self.update(session, header, body),
            Op::Pull => match self.keep_pull(session, body) {
                Ok(()) => return Some(self.now_or_later(session.trainer, header)),
                Err(error) => Err(error),
            },
            _ => return Some(self.now_or_later(session.trainer, header)),
        };
        Some(Outcome::Answer(outcome))
    }

    /// Returns the answer to a pull or a `settle` that may wait for other trainers, or `None` if it
    /// still waits.
    pub(super) fn paced_outcome(
        &mut self,
        trainer: usize,
        header: &Header,
    ) -> Option<Result<Vec<u8>>> {
        let paced = self.paced.as_mut()?;
        let is_allowed = match header.op {
            Op::Pull => paced.clocks.allows_pull(trainer, header.step),
            _ => paced.clocks.is_settled(trainer, header.step),
        };
        match is_allowed {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
        let mut answer = Frame::begin(Vec::new());
        if header.op == Op::Settle {
            write_shared(&mut answer, &paced.clocks);
            return Some(Ok(answer));
        }
        let (options, plan) = paced.waiting[trainer].take()?;
        paced.clocks.record_pull(header.step);
        let rows = std::mem::take(&mut self.rows);
        let read = self.client.read_rows(&plan, options, rows).map(|rows| {
            write_rows(&mut answer, &plan, &rows, &self.layouts, &self.are_bf16);
            self.rows = rows;
            answer
        });
        Some(read)
    }

    fn begin_pace(&mut self, session: &Session, body: &[u8]) -> Result<Vec<u8>> {
        let call = "begin_pace";
        if session.trainer != 0 {
            let reason = "only trainer 0 begins the clocks".to_owned();
            return Err(Error::Argument { call, reason });
        }
        let mut body = Reader::new(body);
        let step = body.u64().map_err(bad(call))?;
        let dense = read_floats(&mut body).and_then(|dense| body.end().map(|()| dense));
        let dense = dense.map_err(bad(call))?;
        if let Some(paced) = &mut self.paced {
            paced.clocks.begin(step, dense)?;
        }
        Ok(Frame::begin(Vec::new()))
    }

    /// Reads the plan of a pull, which may have to wait.
    fn keep_pull(&mut self, session: &mut Session, body: &[u8]) -> Result<()> {
        let call = "pull";
        let mut body = Reader::new(body);
        let counts = body.bool().map_err(bad(call))?;
        let plan = self.plan(session, call, &mut body)?;
        body.end().map_err(bad(call))?;
        if let Some(paced) = &mut self.paced {
            paced.waiting[session.trainer] = Some((PullOptions { counts }, plan));
        }
        Ok(())
    }

    /// Applies the gradients of a trainer, and adds its changes of dense parameters.
    fn update(&mut self, session: &mut Session, header: &Header, body: &[u8]) -> Result<Vec<u8>> {
        let call = "update";
        let mut body = Reader::new(body);
        let rate = body.f32().map_err(bad(call))?;
        let scale = body.f32().map_err(bad(call))?;
        if !(rate.is_finite() && rate > 0.0 && scale.is_finite() && scale >= 0.0) {
            let reason = format!("the factors {rate} and {scale} are not allowed");
            return Err(Error::Argument { call, reason });
        }
        let is_stopping = body.bool().map_err(bad(call))?;
        let dense = read_floats(&mut body).map_err(bad(call))?;
        let has_gradients = body.bool().map_err(bad(call))?;
        let mut plan = None;
        let mut gradients = std::mem::take(&mut self.gradients);
        if has_gradients {
            let read = self.plan(session, call, &mut body)?;
            take_gradients(&mut body, &read, &self.layouts, &mut gradients).map_err(bad(call))?;
            plan = Some(read);
        }
        body.end().map_err(bad(call))?;
        let Some(paced) = &mut self.paced else { return Ok(Frame::begin(Vec::new())) };
        let number = header.step;
        let due = paced.clocks.check_update(session.trainer, number, dense.len())?;
        if let (Some(plan), Due::Now) = (&plan, due) {
            let step = Step(paced.clocks.step_of_update(number));
            self.client.apply_now(plan, &gradients, (step, Rates { scale: rate }, scale))?;
        }
        self.gradients = gradients;
        if due == Due::Now {
            paced.clocks.record_update(session.trainer, plan.is_some(), &dense, is_stopping);
        }
        let mut answer = Frame::begin(Vec::new());
        write_shared(&mut answer, &paced.clocks);
        Ok(answer)
    }
}

fn read_floats(body: &mut Reader<'_>) -> crate::wire::WireResult<Vec<f32>> {
    let count = body.u32()? as usize;
    let mut floats = Vec::new();
    body.f32s(count, &mut floats)?;
    Ok(floats)
}

/// Appends the state that the trainers share.
fn write_shared(answer: &mut Vec<u8>, clocks: &Clocks) {
    let mut out = Writer(answer);
    out.u64(clocks.stop_at());
    out.u32(clocks.dense().len() as u32);
    out.all(clocks.dense());
}
