//! The implementation of [`Pacing`] for tables on servers. Updates are sent without waiting for
//! their answers. If the bound of staleness allows it, the pull of the next step is sent before the
//! update of the present step, so that its rows arrive while the trainer computes.

use std::collections::VecDeque;
use std::sync::Arc;

use zillion_feature::{LookupPlan, RowBuffer};

use super::{RemoteClient, bad_answer};
use crate::client::{Arrival, Continued, Pace, Pacing, PushMode, Shared};
use crate::error::{Error, Result};
use crate::wire::{Op, Reader, WireResult, Writer, write_gradients, write_plan};

/// The clock of a trainer that does not wait for the other trainers in each step.
#[derive(Debug)]
pub(super) struct Clock {
    pace: Pace,
    /// The number of steps whose updates were sent.
    sent: u64,
    /// The part of `sent` that belongs to earlier generations.
    sent_before: u64,
    /// The number of steps up to which the updates of all trainers are known to be applied.
    settled: u64,
    /// The number of exchanges with the other trainers.
    exchanges: u64,
    /// The frames of updates whose answers were not read yet, oldest first.
    updates: VecDeque<Vec<u64>>,
    /// The answer to the newest update whose answer was read.
    shared: Option<Shared>,
}

impl Clock {
    /// Returns the clock of a trainer that has sent the updates of `sent` steps in an earlier
    /// generation.
    pub(super) fn new(pace: Pace, sent: u64) -> Self {
        Self {
            pace,
            sent,
            sent_before: sent,
            settled: sent,
            exchanges: 0,
            updates: VecDeque::new(),
            shared: None,
        }
    }

    /// Returns the number of the present step, counted from 1.
    pub(super) fn step(&self) -> u64 {
        self.sent + 1
    }

    /// Returns whether the pull of the next step may be sent before the update of the present step.
    /// A strict pull needs the update, so it would wait for a frame behind it.
    pub(super) fn may_pull_ahead(&self) -> bool {
        self.pace.staleness != Some(0)
    }

    /// Returns the number of the next exchange.
    pub(super) fn next_exchange(&mut self) -> u64 {
        self.exchanges += 1;
        self.exchanges
    }
}

impl Pacing for RemoteClient {
    fn begin_pace(&mut self, step: u64, dense: &[f32]) -> Result<()> {
        self.clock("begin_pace")?;
        let bounds = self.dense_bounds(dense.len());
        self.ask_empty(Op::BeginPace, |server, body| {
            let mut out = Writer(body);
            out.u64(step);
            let part = &dense[bounds[server]..bounds[server + 1]];
            out.u32(part.len() as u32);
            out.all(part);
        })
    }

    fn continued(&self) -> Option<Continued> {
        let kept = self.kept.as_ref()?;
        let sent = self.clock.as_ref().map_or(0, |clock| clock.sent_before);
        // One push more may have been on its way.
        let lacks = |&applied: &u64| (applied <= sent + 1).then(|| sent.saturating_sub(applied));
        let lacking = kept.iter().flatten().map(lacks);
        Some(Continued {
            generation: self.generation,
            empty_servers: kept.iter().filter(|applied| applied.is_none()).count() as u64,
            unapplied: lacking.sum(),
        })
    }

    fn look_at_shared(&mut self) -> Result<Shared> {
        let frames = self.send_at(Op::Settle, 0, |_, _| {})?;
        let bodies = self.answers(&frames)?;
        read_shared(&bodies).map_err(bad_answer("settle"))
    }

    fn send(
        &mut self,
        plan: Option<&Arc<LookupPlan>>,
        gradients: &RowBuffer,
        arrival: Arrival,
    ) -> Result<()> {
        self.order.allow_in_step("send")?;
        let step = self.clock("send")?.step();
        if let Some(plan) = plan {
            self.check_plan(plan)?;
            self.check_gradients(plan, gradients)?;
        }
        let known = plan.and_then(|plan| self.number_of(plan));
        let (number, ranges) = match (plan, known) {
            (None, _) => (0, Vec::new()),
            (Some(plan), Some(number)) => (number, self.all_ranges(plan)),
            (Some(plan), None) => self.new_number(plan),
        };
        let Arrival { scale, dense, is_stopping } = arrival;
        let bounds = self.dense_bounds(dense.len());
        let (rate, layouts) = (self.rates.scale, std::mem::take(&mut self.layouts));
        let are_bf16 = self.bf16_gradients;
        let frames = self.send_at(Op::Update, step, |server, body| {
            let mut out = Writer(body);
            out.f32(rate);
            out.f32(scale);
            out.u8(u8::from(is_stopping));
            let part = &dense[bounds[server]..bounds[server + 1]];
            out.u32(part.len() as u32);
            out.all(part);
            out.u8(u8::from(plan.is_some()));
            let Some(plan) = plan else { return };
            out.u64(number);
            out.u8(u8::from(known.is_none()));
            if known.is_none() {
                write_plan(body, plan, &ranges[server]);
            }
            write_gradients(body, plan, &ranges[server], &layouts, (gradients, are_bf16));
        });
        self.layouts = layouts;
        let frames = frames?;
        self.order.record_push(PushMode::Apply, false);
        self.order.end();
        let clock = self.clock("send")?;
        clock.sent += 1;
        clock.updates.push_back(frames);
        let next = clock.step();
        match self.announced.take() {
            Some(plan) => self.pull_ahead(&plan, next),
            None => Ok(()),
        }
    }

    fn take_shared(&mut self) -> Result<Option<Shared>> {
        while let Some(frames) = self.clock("take_shared")?.updates.pop_front() {
            self.read_update(&frames)?;
        }
        Ok(self.clock("take_shared")?.shared.take())
    }

    fn settle(&mut self) -> Result<Shared> {
        self.take_shared()?;
        self.read_announced()?;
        let step = self.clock("settle")?.sent;
        let frames = self.send_at(Op::Settle, step, |_, _| {})?;
        let bodies = self.answers(&frames)?;
        let shared = read_shared(&bodies).map_err(bad_answer("settle"))?;
        self.clock("settle")?.settled = step;
        Ok(shared)
    }
}

impl RemoteClient {
    /// Waits until the updates of all trainers up to this trainer's last step are applied, if the
    /// trainers do not wait for each other in each step.
    pub(super) fn settle_if_paced(&mut self) -> Result<()> {
        match &self.clock {
            Some(clock) if clock.settled < clock.sent => self.settle().map(drop),
            _ => Ok(()),
        }
    }

    /// Reads the answers to the updates that were sent before a pull, after the answers to the pull
    /// have arrived.
    pub(super) fn read_updates_before(&mut self, pull: &[u64]) -> Result<()> {
        let is_before = |frames: &mut Vec<u64>| frames.first() < pull.first();
        while let Some(clock) = &mut self.clock
            && let Some(frames) = clock.updates.pop_front_if(is_before)
        {
            self.read_update(&frames)?;
        }
        Ok(())
    }

    /// Reads the answers to an update.
    fn read_update(&mut self, frames: &[u64]) -> Result<()> {
        let bodies = self.answers(frames)?;
        let shared = read_shared(&bodies).map_err(bad_answer("update"))?;
        self.clock("update")?.shared = Some(shared);
        self.links.iter_mut().zip(bodies).for_each(|(link, body)| link.reuse(body));
        Ok(())
    }

    fn clock(&mut self, call: &'static str) -> Result<&mut Clock> {
        self.clock.as_mut().ok_or_else(|| Error::Argument {
            call,
            reason: "the training is synchronous; open the tables with a pace".to_owned(),
        })
    }

    /// Returns the bounds of the servers' parts of `floats` dense parameters.
    fn dense_bounds(&self, floats: usize) -> Vec<usize> {
        let servers = self.links.len();
        (0..=servers).map(|server| floats * server / servers).collect()
    }
}

/// Puts the parts of all servers together. The first server decides when the trainers stop.
fn read_shared(bodies: &[Vec<u8>]) -> WireResult<Shared> {
    let mut shared = Shared::default();
    for (server, body) in bodies.iter().enumerate() {
        let mut reader = Reader::new(body);
        let stop_at = reader.u64()?;
        if server == 0 {
            shared.stop_at = stop_at;
        }
        let floats = reader.u32()? as usize;
        reader.f32s(floats, &mut shared.dense)?;
        reader.end()?;
    }
    Ok(shared)
}
