//! The implementation of [`StepClient`] for local tables.

use std::sync::Arc;

use zillion_embedding::{Counters, EventClock, Rates};
use zillion_feature::{LookupPlan, RowBuffer, Step};

use super::{LocalClient, Staged};
use crate::client::{Exchanging, Pacing, PullOptions, PushMode, StepClient, StepReport};
use crate::error::{Error, Result};

impl Exchanging for LocalClient {}

impl Pacing for LocalClient {}

#[cfg(feature = "server")]
impl LocalClient {
    /// Returns the partial sums of [`StepClient::grad_sq_norm`], which a trainer adds over the
    /// servers.
    pub(crate) fn norm_partials(&mut self) -> Result<Vec<f64>> {
        self.check_whole()?;
        self.order.allow_staged("grad_sq_norm")?;
        let Some(Staged { plan, gradients }) = &self.staged else { return Ok(Vec::new()) };
        let step = self.order.step();
        let partials = self.tables.grad_sq_norm_partials(&self.workers, plan, gradients, step)?;
        Ok(flatten(&partials))
    }

    /// Returns the partial sums of [`StepClient::regulariser_loss`], which a trainer adds over the
    /// servers.
    pub(crate) fn regulariser_partials(&mut self, plan: &LookupPlan) -> Result<Vec<f64>> {
        self.check_whole()?;
        Ok(flatten(&self.tables.regulariser_partials(&self.workers, plan)?))
    }
}

/// Returns partial sums in the order in which they are added.
#[cfg(feature = "server")]
fn flatten(partials: &zillion_embedding::Partials) -> Vec<f64> {
    partials.wholes.iter().chain(&partials.runs).flatten().copied().collect()
}

impl StepClient for LocalClient {
    fn begin_step(&mut self, step: Step, rates: Rates) -> Result<()> {
        self.check_whole()?;
        if !(rates.scale.is_finite() && rates.scale > 0.0) {
            let reason = format!("`scale` is {}; give a finite number above 0", rates.scale);
            return Err(Error::Argument { call: "begin_step", reason });
        }
        self.order.begin(step)?;
        self.rates = rates;
        self.counted = Counters::default();
        Ok(())
    }

    fn set_clock(&mut self, clock: EventClock) -> Result<()> {
        self.check_whole()?;
        self.order.allow_in_step("set_clock")?;
        Ok(self.tables.set_clock(clock)?)
    }

    fn looks_ahead(&self) -> bool {
        self.tables.spills()
    }

    fn look_ahead(&mut self, plans: &[&Arc<LookupPlan>]) -> Result<()> {
        self.check_whole()?;
        let plans: Vec<&LookupPlan> = plans.iter().map(|plan| plan.as_ref()).collect();
        Ok(self.tables.look_ahead(&self.workers, &plans)?)
    }

    fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        options: PullOptions,
        mut buffer: RowBuffer,
    ) -> Result<RowBuffer> {
        self.check_whole()?;
        self.order.allow_in_step("pull")?;
        self.settle()?;
        self.tables.pull(&self.workers, plan, options.counts, &mut buffer)?;
        Ok(buffer)
    }

    fn push(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
        mode: PushMode,
    ) -> Result<RowBuffer> {
        self.check_whole()?;
        self.order.allow_in_step("push")?;
        self.take_back()?;
        let outcome = match mode {
            PushMode::Apply => {
                let update = self.update(1.0);
                self.tables.push(&self.workers, plan, &gradients, update)
            }
            PushMode::Stage => self.tables.stage(&self.workers, plan, &gradients),
        };
        self.counted = self.note_failure(outcome)?;
        self.order.record_push(mode, self.tables.needs_sweep());
        Ok(match mode {
            PushMode::Apply => gradients,
            PushMode::Stage => {
                self.staged = Some(Staged { plan: plan.clone(), gradients });
                std::mem::take(&mut self.spare)
            }
        })
    }

    fn grad_sq_norm(&mut self) -> Result<f64> {
        self.check_whole()?;
        self.order.allow_staged("grad_sq_norm")?;
        let Some(Staged { plan, gradients }) = &self.staged else { return Ok(0.0) };
        Ok(self.tables.grad_sq_norm(&self.workers, plan, gradients, self.order.step())?)
    }

    fn regulariser_loss(&mut self, plan: &LookupPlan) -> Result<f64> {
        self.check_whole()?;
        self.settle()?;
        Ok(self.tables.regulariser_loss(&self.workers, plan)?)
    }

    fn apply(&mut self, scale: f32) -> Result<StepReport> {
        self.check_whole()?;
        self.order.allow_apply(scale)?;
        let update = self.update(scale);
        if let Some(Staged { plan, gradients }) = self.staged.take() {
            let applied = self.tables.apply(&self.workers, &plan, &gradients, update);
            self.spare = gradients;
            let counted = self.note_failure(applied)?;
            self.counted.add(counted);
        }
        let swept = self.tables.sweep(&self.workers, update);
        let counted = self.note_failure(swept)?;
        self.counted.add(counted);
        self.end_step();
        Ok(self.counted.into())
    }

    fn skip(&mut self) -> Result<StepReport> {
        self.check_whole()?;
        self.order.allow_staged("skip")?;
        let update = self.update(1.0);
        if let Some(Staged { plan, gradients }) = self.staged.take() {
            let skipped = self.tables.skip(&self.workers, &plan, &gradients, update);
            self.spare = gradients;
            let counted = self.note_failure(skipped)?;
            self.counted.add(counted);
        }
        self.end_step();
        Ok(self.counted.into())
    }

    fn sweep(&mut self) -> Result<StepReport> {
        self.check_whole()?;
        if self.order.allow_sweep()? {
            let update = self.update(1.0);
            let swept = self.tables.sweep(&self.workers, update);
            let counted = self.note_failure(swept)?;
            self.counted.add(counted);
        }
        self.end_step();
        Ok(self.counted.into())
    }

    fn discard(&mut self) -> Result<()> {
        self.check_whole()?;
        if self.order.allow_discard()? {
            self.tables.discard();
            if let Some(staged) = self.staged.take() {
                self.spare = staged.gradients;
            }
        }
        self.order.skip();
        Ok(())
    }
}
