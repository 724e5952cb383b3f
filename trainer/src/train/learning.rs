//! What a step does with rates, and what scores with: the schedule and the averages.

use zillion_nn::Params;

use super::Run;
use crate::error::Result;

impl Run {
    /// What multiplies the learning rates of a step: those of the dense parameters, and those of tables.
    pub(super) fn rate_scales(&self, step: u64) -> (f32, f32) {
        let plateau = self.progress.plateau.rate_scale();
        let Some(schedule) = &self.job.train.schedule else { return (plateau, plateau) };
        let factor = schedule.at(step.saturating_sub(self.progress.begun_at));
        // A rate of 0 is none, and tables refuse it.
        let both = ((f64::from(plateau) * factor) as f32).max(f32::MIN_POSITIVE);
        (both, if schedule.tables { both } else { plateau })
    }

    /// The factor of the dense parameters' rate in the step that was done last, for those who watch.
    pub(super) fn rate_scale(&self) -> f32 {
        self.rate_scales(self.step).0
    }

    /// Lets the average follow the step that was just done.
    pub(super) fn average(&mut self) -> Result<()> {
        let Some(average) = &mut self.average else { return Ok(()) };
        let step = self.step + 1 - self.progress.begun_at;
        Ok(average.update(&self.params, step, &self.options.workers)?)
    }
}

/// The parameters that are scored with.
pub(super) fn scored<'a>(
    average: Option<&'a zillion_nn::optim::Average>,
    params: &'a Params,
) -> &'a Params {
    average.and_then(|average| average.params()).unwrap_or(params)
}
