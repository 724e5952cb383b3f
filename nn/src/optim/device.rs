//! The state and the rules of the optimizer for updates on a GPU.

use zillion_device::gpu::kernels::DenseRule;

use super::dense::{BLOCK, DenseOptimizer};
use super::rule::Rule;
use super::spec::DenseOptimizerSpec;
use crate::error::{Error, Result};

/// The number of floats of a parameter whose squares are one sum. It is the same on the host and on
/// a GPU, because the result depends on it.
pub(crate) const DEVICE_BLOCK: usize = BLOCK;

impl DenseOptimizer {
    /// Returns the factor of the regulariser.
    pub(crate) fn l2(&self) -> f32 {
        self.l2
    }

    /// Returns whether the weights are updated after the lengths of whole parameters are known.
    pub(crate) fn is_lamb(&self) -> bool {
        matches!(self.spec(), DenseOptimizerSpec::Lamb { .. })
    }

    /// Returns whether each parameter is trained, and both of its states, in the order of
    /// parameters.
    pub(crate) fn states(&self) -> impl Iterator<Item = (bool, &[f32], &[f32])> {
        let slots = self.slots().iter();
        slots.map(|slot| (slot.trainable, slot.first.as_slice(), slot.second.as_slice()))
    }

    /// Returns both states of each parameter, to write them.
    pub(crate) fn states_mut(&mut self) -> impl Iterator<Item = (&mut [f32], &mut [f32])> {
        let slots = self.slots_mut().iter_mut();
        slots.map(|slot| (slot.first.as_mut_slice(), slot.second.as_mut_slice()))
    }

    /// Counts a step that a GPU makes, and returns the rule of each parameter in it.
    ///
    /// # Errors
    /// Returns an error, and counts nothing, if a factor is not finite.
    pub(crate) fn begin_device_step(
        &mut self,
        rate_scale: f32,
        grad_scale: f32,
    ) -> Result<Vec<DenseRule>> {
        check_factors(rate_scale, grad_scale)?;
        let step = self.count_steps(1);
        let mut rules = Vec::with_capacity(self.slots().len());
        self.add_device_rules(step, rate_scale, &mut rules);
        Ok(rules)
    }

    /// Returns whether the rule of a step depends on the step's number.
    pub(crate) fn uses_step_numbers(&self) -> bool {
        use DenseOptimizerSpec::{Adam, Adamw, Lamb};
        matches!(self.spec(), Adam { .. } | Adamw { .. } | Lamb { .. })
    }

    /// Appends the rule of each parameter in the step with the number `step`, counted from 1.
    pub(crate) fn add_device_rules(&self, step: u64, rate_scale: f32, rules: &mut Vec<DenseRule>) {
        // Most parameters share a rate, and a rule costs some powers.
        let mut last: Option<(u32, DenseRule)> = None;
        for slot in self.slots() {
            let rate = rate_scale * slot.rate;
            let rule = match last {
                Some((bits, rule)) if bits == rate.to_bits() => rule,
                _ => Rule::at(self.spec(), step, rate).to_device(),
            };
            last = Some((rate.to_bits(), rule));
            rules.push(rule);
        }
    }

    /// Counts steps that a GPU has made.
    pub(crate) fn count_device_steps(&mut self, steps: u64) {
        self.count_steps(steps);
    }
}

/// Checks that the factors of a step are finite.
pub(crate) fn check_factors(rate_scale: f32, grad_scale: f32) -> Result<()> {
    for (name, scale) in [("rate_scale", rate_scale), ("grad_scale", grad_scale)] {
        if !scale.is_finite() {
            return Err(Error::Setting { name, reason: format!("must be finite, found {scale}") });
        }
    }
    Ok(())
}
