//! The work of the frames of a step.

use std::borrow::Cow;
use std::sync::Arc;

use zillion_embedding::Rates;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId};
use zillion_rows::layer::WholeRow;
use zillion_rows::{RowType, SegmentLayout, TableLayout};

use super::{Tables, bad, message, put, read_decision};
use crate::client::{PullOptions, PushMode, StepClient, StepReport, TableAccess};
use crate::error::{Error, Result};
use crate::server::joint::{Decision, Part, Whole};
use crate::server::session::Session;
use crate::wire::{
    AdoptRows, AdoptedRows, Header, Op, Prefill, Reader, Writer, take_gradients, write_rows,
};

impl Tables {
    /// Does the work of a frame of a step that needs no other trainer.
    pub(super) fn step(
        &mut self,
        session: &mut Session,
        header: &Header,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        let call = header.op.name();
        let mut body = Reader::new(body);
        match header.op {
            Op::Announce => {
                let number = body.u64().map_err(bad(call))?;
                let plan = Arc::new(self.plan_in(call, &mut body)?);
                session.announce(number, plan);
            }
            Op::Pull => {
                let counts = body.bool().map_err(bad(call))?;
                let plan = self.plan(session, call, &mut body)?;
                self.client.begin_step(Step(header.step), Rates::default())?;
                let rows = std::mem::take(&mut self.rows);
                let rows = self.client.pull(&plan, PullOptions { counts }, rows)?;
                write_rows(answer, &plan, &rows, &self.layouts, &self.are_bf16);
                self.rows = rows;
            }
            Op::Push => self.push(session, header, &mut body)?,
            Op::Norm => self.write_norm(answer)?,
            Op::Apply => {
                let rate = body.f32().map_err(bad(call))?;
                let scale = body.f32().map_err(bad(call))?;
                body.clone().end().map_err(bad(call))?;
                self.check_rate(rate)?;
                let report = self.client.apply(scale)?;
                write_report(answer, &report);
            }
            Op::Skip => {
                body.clone().end().map_err(bad(call))?;
                let report = self.client.skip()?;
                write_report(answer, &report);
            }
            Op::Sweep => {
                body.clone().end().map_err(bad(call))?;
                let report = self.client.sweep()?;
                write_report(answer, &report);
            }
            Op::Discard => {
                body.clone().end().map_err(bad(call))?;
                self.client.discard()?;
                write_report(answer, &StepReport::default());
            }
            _ => {
                let plan = self.plan(session, call, &mut body)?;
                let partials = self.client.regulariser_partials(&plan)?;
                write_sums(answer, &partials);
            }
        }
        body.end().map_err(bad(call))
    }

    /// Takes the gradients of a trainer. With several trainers, they are staged until all trainers
    /// have pushed.
    fn push(
        &mut self,
        session: &mut Session,
        header: &Header,
        body: &mut Reader<'_>,
    ) -> Result<()> {
        let call = "push";
        let rate = body.f32().map_err(bad(call))?;
        let mode = if body.bool().map_err(bad(call))? { PushMode::Stage } else { PushMode::Apply };
        let plan = self.plan(session, call, body)?;
        let mut gradients = std::mem::take(&mut self.gradients);
        take_gradients(body, &plan, &self.layouts, &mut gradients)
            .and_then(|()| body.clone().end())
            .map_err(bad(call))?;
        let rates = Rates { scale: rate };
        if self.trainers == 1 {
            self.client.begin_step(Step(header.step), rates)?;
            self.gradients = self.client.push(&plan, gradients, mode)?;
            return Ok(());
        }
        if mode == PushMode::Apply {
            let reason = "with several trainers, gradients must be staged".to_owned();
            return Err(Error::Argument { call, reason });
        }
        let is_counted = |table: &zillion_feature::TablePlan| {
            table.occurrences.offsets.len() == table.keys.len() + 1
        };
        if !plan.tables.iter().all(is_counted) {
            let reason = "the plan has no numbers of occurrences, which several trainers need";
            return Err(Error::Argument { call, reason: reason.to_owned() });
        }
        let Some((plan, gradients)) = self.joint.stage(session.trainer, plan, gradients) else {
            return Ok(());
        };
        self.staged = Some(self.stage(Step(header.step), rates, &plan, gradients));
        Ok(())
    }

    /// Stages the merged gradients of all trainers.
    fn stage(
        &mut self,
        step: Step,
        rates: Rates,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
    ) -> Result<(), String> {
        let staged = || {
            self.client.begin_step(step, rates)?;
            self.client.push(plan, gradients, PushMode::Stage)
        };
        let buffer = staged().map_err(|e: Error| e.to_string())?;
        self.joint.reuse(buffer);
        Ok(())
    }

    /// Records a trainer's part of a step that needs all trainers.
    pub(super) fn take_part(&mut self, trainer: usize, header: &Header, body: &[u8]) -> Result<()> {
        match header.op {
            Op::Exchange => {
                let part = read_part(body)?;
                if let Some(whole) = self.joint.exchange(trainer, part)? {
                    self.exchanged = Some((header.step, Ok(whole)));
                }
            }
            Op::Apply | Op::Skip | Op::Discard => {
                let decision = read_decision(header, body)?;
                let step = Step(header.step);
                if let Some(decision) = self.joint.decide(trainer, decision, step)? {
                    let ended = self.end_step(step, decision);
                    self.ended = Some((header.step, ended));
                    self.staged = None;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that a step is ended with the factor of the learning rates with which its gradients
    /// were pushed.
    fn check_rate(&self, rate: f32) -> Result<()> {
        let pushed = self.client.rates().scale;
        if rate.to_bits() == pushed.to_bits() {
            return Ok(());
        }
        let reason = format!(
            "the step ends with the factor {rate} of the learning rates, but its gradients were \
             pushed with {pushed}; give the same factor in both frames"
        );
        Err(Error::Argument { call: "apply", reason })
    }

    /// Ends a step as all trainers have decided.
    fn end_step(&mut self, step: Step, decision: Decision) -> Result<StepReport, String> {
        let mut end = || match decision {
            Decision::Apply { rate, scale } => {
                self.check_rate(rate)?;
                self.client.apply(scale)
            }
            Decision::Skip => self.client.skip(),
            Decision::Discard => {
                if self.staged.is_none() {
                    self.client.begin_step(step, Rates::default())?;
                }
                self.client.discard().map(|()| StepReport::default())
            }
        };
        end().map_err(|e: Error| e.to_string())
    }

    /// Appends the partial sums of the norm of the staged gradients.
    pub(super) fn write_norm(&mut self, answer: &mut Vec<u8>) -> Result<()> {
        let partials = self.client.norm_partials()?;
        write_sums(answer, &partials);
        Ok(())
    }

    /// Does the work of a frame that reads or fills tables outside of a step.
    pub(super) fn access(
        &mut self,
        header: &Header,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        match header.op {
            Op::Lookup => {
                let call = header.op.name();
                let mut body = Reader::new(body);
                let plan = self.plan_in(call, &mut body)?;
                body.end().map_err(bad(call))?;
                let rows = std::mem::take(&mut self.rows);
                let (rows, report) = self.client.lookup(&plan, rows)?;
                report.missing.iter().for_each(|&missing| Writer(answer).u64(missing));
                write_rows(answer, &plan, &rows, &self.layouts, &self.are_bf16);
                self.rows = rows;
            }
            Op::Prefill => {
                let prefill: Prefill = message(header, body)?;
                let (table, keys) = (TableId(prefill.table), prefill.keys());
                let added = match prefill.only_count {
                    true => self.client.count_new(table, &keys)?,
                    false => self.client.prefill(table, &keys)?,
                };
                Writer(answer).u64(added);
            }
            Op::Adopt => {
                let rows: AdoptRows = message(header, body)?;
                put(answer, &self.adopt(&rows)?);
            }
            _ => put(answer, &self.client.stats()?),
        }
        Ok(())
    }

    fn adopt(&mut self, rows: &AdoptRows) -> Result<AdoptedRows> {
        let mut width = 0;
        let segments = rows.segments.iter().map(|(name, dim)| {
            let segment = SegmentLayout { name: name.clone(), offset: width, dim: *dim };
            width = width.saturating_add(*dim);
            segment
        });
        let segments: Vec<SegmentLayout> = segments.collect();
        if rows.keys.len().checked_mul(width) != Some(rows.weights.len())
            || rows.counts.len() != rows.keys.len()
        {
            let reason = "the numbers of keys, counts and weights do not fit together".to_owned();
            return Err(Error::Argument { call: "adopt", reason });
        }
        let layout = TableLayout {
            name: String::new(),
            stride: width,
            segments,
            narrow: None,
            published: RowType::F32,
            hot: None,
        };
        let weights: Vec<f32> = rows.weights.iter().map(|&bits| f32::from_bits(bits)).collect();
        let row = |(at, (&key, &count)): (usize, (&u64, &u32))| {
            let weights = Cow::Borrowed(&weights[at * width..(at + 1) * width]);
            (FeatureKey(key), WholeRow { weights, count })
        };
        let mut all = rows.keys.iter().zip(&rows.counts).enumerate().map(row);
        let adopted = self.client.adopt(TableId(rows.table), &layout, &mut all)?;
        Ok(AdoptedRows { rows: adopted.rows, unknown: adopted.unknown })
    }
}

fn read_part(body: &[u8]) -> Result<Part> {
    let mut body = Reader::new(body);
    let mut read = || {
        let rows = body.u64()?;
        let floats = body.u32()? as usize;
        let mut dense = Vec::new();
        body.f32s(floats, &mut dense)?;
        let note = body.blob()?.to_vec();
        Ok(Part { rows, dense, note })
    };
    read().map_err(bad("exchange"))
}

/// Appends the parts of all trainers together.
pub(super) fn write_whole(answer: &mut Vec<u8>, whole: &Whole) {
    let mut out = Writer(answer);
    out.u64(whole.rows);
    out.u32(whole.dense.len() as u32);
    out.all(&whole.dense);
    out.u32(whole.notes.len() as u32);
    whole.notes.iter().for_each(|note| out.blob(note));
}

/// Appends the report of a step.
pub(super) fn write_report(answer: &mut Vec<u8>, report: &StepReport) {
    let StepReport { pushed, created, waiting, evicted, refused, refused_full, nonfinite } =
        *report;
    let counts = [pushed, created, waiting, evicted, refused, refused_full, nonfinite];
    counts.into_iter().for_each(|count| Writer(answer).u64(count));
}

fn write_sums(answer: &mut Vec<u8>, sums: &[f64]) {
    let mut out = Writer(answer);
    out.u32(sums.len() as u32);
    sums.iter().for_each(|&sum| out.f64(sum));
}
