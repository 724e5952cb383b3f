//! The implementation of [`StepClient`] for tables on servers.

use std::sync::Arc;

use zillion_embedding::{EventClock, Rates};
use zillion_feature::{LookupPlan, RowBuffer, Step};

use super::pacing::Clock;
use super::{Ahead, KEPT_PLANS, RemoteClient, bad_answer};
use crate::client::{PullOptions, PushMode, Residency, StepClient, StepReport};
use crate::error::{Error, Result};
use crate::wire::{
    Op, Reader, WireResult, Writer, place_rows, take_rows, write_gradients, write_plan,
};

impl Residency for RemoteClient {}

impl StepClient for RemoteClient {
    fn begin_step(&mut self, step: Step, rates: Rates) -> Result<()> {
        if !(rates.scale.is_finite() && rates.scale > 0.0) {
            let reason = format!("`scale` is {}; give a finite number above 0", rates.scale);
            return Err(Error::Argument { call: "begin_step", reason });
        }
        self.order.begin(step)?;
        self.rates = rates;
        Ok(())
    }

    fn set_clock(&mut self, _clock: EventClock) -> Result<()> {
        let reason = "the protocol of the servers does not carry event time; keep the tables in \
                      the trainer, or let them go by steps";
        Err(Error::Argument { call: "set_clock", reason: reason.to_owned() })
    }

    fn looks_ahead(&self) -> bool {
        true
    }

    fn look_ahead(&mut self, plans: &[&Arc<LookupPlan>]) -> Result<()> {
        if let (Some(clock), [plan, ..]) = (&self.clock, plans)
            && clock.may_pull_ahead()
        {
            let step = clock.step() + 1;
            self.check_plan(plan)?;
            return self.pull_ahead(plan, step);
        }
        for &plan in plans {
            self.check_plan(plan)?;
            if self.number_of(plan).is_none() {
                let (number, ranges) = self.new_number(plan);
                let frames = self.send_each(Op::Announce, |server, body| {
                    Writer(body).u64(number);
                    write_plan(body, plan, &ranges[server]);
                })?;
                self.unread.push_back(frames);
            }
        }
        self.announced = plans.first().map(|&plan| plan.clone());
        Ok(())
    }

    fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        options: PullOptions,
        mut buffer: RowBuffer,
    ) -> Result<RowBuffer> {
        self.order.allow_in_step("pull")?;
        self.check_plan(plan)?;
        self.pull_options = options;
        if self.announced.as_ref().is_some_and(|announced| Arc::ptr_eq(announced, plan)) {
            self.announced = None;
        }
        let step = self.clock.as_ref().map_or(self.order.step().0, Clock::step);
        let sent = self.ahead.take_if(|ahead| {
            Arc::ptr_eq(&ahead.plan, plan) && ahead.step == step && ahead.options == options
        });
        let frames = match sent {
            Some(ahead) => ahead.frames,
            None => {
                self.drop_ahead()?;
                self.send_pull(plan, options, step)?
            }
        };
        self.read_announced()?;
        let bodies = self.answers(&frames)?;
        self.read_updates_before(&frames)?;
        place_rows(plan, &self.layouts, options.counts, &mut buffer).map_err(bad_answer("pull"))?;
        for (server, body) in bodies.iter().enumerate() {
            let mut reader = Reader::new(body);
            let ranges = self.owners.ranges(server, plan);
            take_rows(&mut reader, plan, &ranges, &self.layouts, &mut buffer)
                .and_then(|()| reader.end())
                .map_err(bad_answer("pull"))?;
        }
        self.links.iter_mut().zip(bodies).for_each(|(link, body)| link.reuse(body));
        Ok(buffer)
    }

    fn push(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
        mode: PushMode,
    ) -> Result<RowBuffer> {
        self.order.allow_in_step("push")?;
        self.check_plan(plan)?;
        self.check_gradients(plan, &gradients)?;
        if self.place.count > 1 && mode == PushMode::Apply {
            let reason = "a run with several trainers stages its gradients; push with `Stage`";
            return Err(Error::Argument { call: "push", reason: reason.to_owned() });
        }
        self.drop_ahead()?;
        let known = self.number_of(plan);
        let (number, ranges) = match known {
            Some(number) => (number, self.all_ranges(plan)),
            None => self.new_number(plan),
        };
        let (rate, layouts) = (self.rates.scale, std::mem::take(&mut self.layouts));
        let are_bf16 = self.bf16_gradients;
        let frames = self.send_each(Op::Push, |server, body| {
            let mut out = Writer(body);
            out.f32(rate);
            out.u8(u8::from(mode == PushMode::Stage));
            out.u64(number);
            out.u8(u8::from(known.is_none()));
            if known.is_none() {
                write_plan(body, plan, &ranges[server]);
            }
            write_gradients(body, plan, &ranges[server], &layouts, (&gradients, are_bf16));
        });
        self.layouts = layouts;
        let frames = frames?;
        self.read_announced()?;
        self.answers(&frames)?;
        self.order.record_push(mode, self.needs_sweep);
        // The gradients were copied into frames, which are kept until the servers have answered.
        Ok(gradients)
    }

    fn grad_sq_norm(&mut self) -> Result<f64> {
        self.order.allow_staged("grad_sq_norm")?;
        let bodies = self.ask_all(Op::Norm, |_| {})?;
        sum_partials(&bodies).map_err(bad_answer("grad_sq_norm"))
    }

    fn regulariser_loss(&mut self, plan: &LookupPlan) -> Result<f64> {
        self.settle_if_paced()?;
        let ranges: Vec<_> = (0..self.links.len()).map(|s| self.owners.ranges(s, plan)).collect();
        let bodies = self.ask_each(Op::Regulariser, |server, body| {
            let mut out = Writer(body);
            out.u64(0);
            out.u8(1);
            write_plan(body, plan, &ranges[server]);
        })?;
        sum_partials(&bodies).map_err(bad_answer("regulariser_loss"))
    }

    fn apply(&mut self, scale: f32) -> Result<StepReport> {
        self.order.allow_apply(scale)?;
        let rate = self.rates.scale;
        let frames = self.send_each(Op::Apply, |_, body| {
            let mut out = Writer(body);
            out.f32(rate);
            out.f32(scale);
        })?;
        self.end_step(&frames)
    }

    fn skip(&mut self) -> Result<StepReport> {
        self.order.allow_staged("skip")?;
        let frames = self.send_each(Op::Skip, |_, _| {})?;
        self.end_step(&frames)
    }

    fn sweep(&mut self) -> Result<StepReport> {
        self.order.allow_sweep()?;
        let frames = self.send_each(Op::Sweep, |_, _| {})?;
        self.end_step(&frames)
    }

    fn discard(&mut self) -> Result<()> {
        self.order.allow_discard()?;
        self.drop_ahead()?;
        self.ask_all(Op::Discard, |_| {})?;
        self.order.skip();
        Ok(())
    }
}

impl RemoteClient {
    /// Ends a step whose last frames were sent. The pull of the announced plan is sent behind them,
    /// so that its rows are on their way when the next step begins.
    fn end_step(&mut self, frames: &[u64]) -> Result<StepReport> {
        if let Some(plan) = self.announced.take() {
            self.pull_ahead(&plan, self.order.step().0 + 1)?;
        }
        let report = sum_reports(&self.answers(frames)?).map_err(bad_answer("apply"))?;
        self.order.end();
        Ok(report)
    }

    /// Sends the pull of a later step, whose rows the caller has not asked for yet.
    pub(super) fn pull_ahead(&mut self, plan: &Arc<LookupPlan>, step: u64) -> Result<()> {
        let options = self.pull_options;
        let frames = self.send_pull(plan, options, step)?;
        self.ahead = Some(Ahead { plan: plan.clone(), step, options, frames });
        Ok(())
    }

    /// Sends a pull to every server, and returns the numbers of the frames.
    fn send_pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        options: PullOptions,
        step: u64,
    ) -> Result<Vec<u64>> {
        let known = self.number_of(plan);
        let (number, ranges) = match known {
            Some(number) => (number, Vec::new()),
            None => self.new_number(plan),
        };
        let links = self.links.iter_mut().enumerate();
        let send = |(server, link): (usize, &mut super::Link)| {
            link.send(Op::Pull, step, |body| {
                let mut out = Writer(body);
                out.u8(u8::from(options.counts));
                out.u64(number);
                out.u8(u8::from(known.is_none()));
                if known.is_none() {
                    write_plan(body, plan, &ranges[server]);
                }
            })
        };
        links.map(send).collect()
    }

    /// Takes the answers to the announcements, which hold nothing.
    pub(super) fn read_announced(&mut self) -> Result<()> {
        while let Some(frames) = self.unread.pop_front() {
            self.answers(&frames)?;
        }
        Ok(())
    }

    /// Returns the number by which the servers know a plan, or `None` if they do not know it.
    pub(super) fn number_of(&self, plan: &Arc<LookupPlan>) -> Option<u64> {
        self.plans.iter().find(|(known, _)| Arc::ptr_eq(known, plan)).map(|&(_, number)| number)
    }

    /// Gives a plan a number. The next frame must send the plan with this number.
    pub(super) fn new_number(
        &mut self,
        plan: &Arc<LookupPlan>,
    ) -> (u64, Vec<Vec<std::ops::Range<usize>>>) {
        self.last_plan += 1;
        self.plans.push_back((plan.clone(), self.last_plan));
        if self.plans.len() > KEPT_PLANS {
            self.plans.pop_front();
        }
        (self.last_plan, self.all_ranges(plan))
    }

    /// Returns the ranges of a plan's keys by server and then by table.
    pub(super) fn all_ranges(&self, plan: &LookupPlan) -> Vec<Vec<std::ops::Range<usize>>> {
        (0..self.links.len()).map(|server| self.owners.ranges(server, plan)).collect()
    }

    /// Checks that a plan names tables that exist.
    pub(super) fn check_plan(&self, plan: &LookupPlan) -> Result<()> {
        let tables = self.layouts.len();
        match plan.tables.iter().find(|table| table.table.index() >= tables) {
            None => Ok(()),
            Some(table) => {
                let reason =
                    format!("unknown number; the run has {tables} tables, numbered from 0");
                let name = table.table.0.to_string();
                Err(zillion_embedding::Error::mismatch(&name, reason).into())
            }
        }
    }

    /// Checks the shapes of gradients before they are sent. The servers check the rest.
    pub(super) fn check_gradients(&self, plan: &LookupPlan, gradients: &RowBuffer) -> Result<()> {
        if plan.tables.len() != gradients.tables.len() {
            let reason = format!(
                "the plan has {} tables, but the gradients have {}; give gradients for each table \
                 of the plan",
                plan.tables.len(),
                gradients.tables.len()
            );
            return Err(zillion_embedding::Error::misuse(reason).into());
        }
        for (table, rows) in plan.tables.iter().zip(&gradients.tables) {
            let layout = &self.layouts[table.table.index()];
            let keys = table.keys.len();
            let has_uses = rows.uses.as_ref().is_none_or(|uses| uses.len() == keys);
            if rows.stride != layout.stride
                || rows.values.len() != keys * layout.stride
                || !has_uses
            {
                let reason = format!(
                    "{keys} keys with a stride of {} floats were pushed with {} floats and a stride \
                     of {}; give one row of gradients, shows and clicks for each key",
                    layout.stride,
                    rows.values.len(),
                    rows.stride
                );
                return Err(zillion_embedding::Error::mismatch(&layout.name, reason).into());
            }
        }
        Ok(())
    }
}

/// Adds the partial sums of all servers, and then adds up the sums in their order.
fn sum_partials(bodies: &[Vec<u8>]) -> WireResult<f64> {
    let mut sums: Vec<f64> = Vec::new();
    for body in bodies {
        let mut reader = Reader::new(body);
        let count = reader.u32()? as usize;
        if sums.is_empty() {
            sums.resize(count.min(body.len()), 0.0);
        }
        if sums.len() != count {
            return Err(crate::wire::WireError::new("the servers give different numbers of sums"));
        }
        for sum in &mut sums {
            *sum += reader.f64()?;
        }
        reader.end()?;
    }
    Ok(sums.into_iter().fold(0.0, |all, sum| all + sum))
}

/// Adds the reports of all servers.
fn sum_reports(bodies: &[Vec<u8>]) -> WireResult<StepReport> {
    let mut sum = StepReport::default();
    for body in bodies {
        let mut reader = Reader::new(body);
        for count in [
            &mut sum.pushed,
            &mut sum.created,
            &mut sum.waiting,
            &mut sum.evicted,
            &mut sum.refused,
            &mut sum.refused_full,
            &mut sum.nonfinite,
        ] {
            *count += reader.u64()?;
        }
        reader.end()?;
    }
    Ok(sum)
}
