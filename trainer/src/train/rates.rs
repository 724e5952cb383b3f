//! The factors of the learning rates of a step.

use super::Run;

impl Run {
    /// Returns the factors by which the learning rates are multiplied in a step: first for the
    /// dense parameters, then for the tables.
    pub(super) fn rate_scales(&self, step: u64) -> (f32, f32) {
        let plateau = self.position.progress.plateau.rate_scale() * self.rate_factor;
        let Some(schedule) = &self.job.train.schedule else { return (plateau, plateau) };
        let factor = schedule.at(step.saturating_sub(self.position.progress.begun_at));
        // Tables refuse a rate of 0.
        let both = ((f64::from(plateau) * factor) as f32).max(f32::MIN_POSITIVE);
        (both, if schedule.tables { both } else { plateau })
    }

    /// Returns the factor of the dense parameters' learning rate in the last step, for observers.
    pub(super) fn rate_scale(&self) -> f32 {
        self.rate_scales(self.position.step).0
    }
}
