//! The choice of the rule for a step, and the blocks of floats that rules update.
//!
//! A rule is a small value with the numbers of a step that are the same for all elements (the
//! learning rate, the bias corrections). These numbers are computed in f64 and rounded once. The
//! loops of the rules are plain, so the compiler vectorises them, and every instruction set gives
//! the same bits.
//!
//! To add a rule, add a variant in [`DenseOptimizerSpec`], a file with the rule, and an arm in each
//! of the three functions of [`Rule`].

use zillion_device::gpu::kernels::DenseRule;
use zillion_device::simd::vectorised;

use super::adagrad::Adagrad;
use super::adam::Adam;
use super::ftrl::Ftrl;
use super::lamb::Lamb;
use super::momentum::Momentum;
use super::sgd::Sgd;
use super::shaping::{Block, Shaping};
use super::spec::DenseOptimizerSpec;

/// A rule, with the numbers of a step that are the same for all elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Sgd(Sgd),
    Momentum(Momentum),
    Adagrad(Adagrad),
    Adam(Adam),
    Lamb(Lamb),
    Ftrl(Ftrl),
}

impl Rule {
    /// Returns the rule for step `step`, counted from 1.
    pub(super) fn at(spec: &DenseOptimizerSpec, step: u64, rate_scale: f32) -> Self {
        let rate = spec.lr() * f64::from(rate_scale);
        match *spec {
            DenseOptimizerSpec::Sgd { momentum, .. } if momentum > 0.0 => {
                Self::Momentum(Momentum::at(rate, momentum, false))
            }
            DenseOptimizerSpec::Sgd { .. } => Self::Sgd(Sgd::at(rate)),
            DenseOptimizerSpec::Momentum { momentum, nesterov, .. } => {
                Self::Momentum(Momentum::at(rate, momentum, nesterov))
            }
            DenseOptimizerSpec::Adagrad { eps, .. } => Self::Adagrad(Adagrad::at(rate, eps)),
            DenseOptimizerSpec::Adam { beta1, beta2, eps, .. } => {
                Self::Adam(Adam::at(rate, (beta1, beta2), eps, 0.0, step))
            }
            DenseOptimizerSpec::Adamw { beta1, beta2, eps, weight_decay, .. } => {
                Self::Adam(Adam::at(rate, (beta1, beta2), eps, weight_decay, step))
            }
            DenseOptimizerSpec::Lamb { beta1, beta2, eps, weight_decay, .. } => {
                Self::Lamb(Lamb::at(rate, (beta1, beta2), eps, weight_decay, step))
            }
            DenseOptimizerSpec::Ftrl { beta, l1, l2, .. } => {
                Self::Ftrl(Ftrl::at(rate, beta, l1, l2))
            }
        }
    }

    /// Returns the rule as the kernels of a GPU read it.
    pub(super) fn to_device(self) -> DenseRule {
        match self {
            Self::Sgd(rule) => rule.to_device(),
            Self::Momentum(rule) => rule.to_device(),
            Self::Adagrad(rule) => rule.to_device(),
            Self::Adam(rule) => rule.to_device(),
            Self::Lamb(rule) => rule.to_device(),
            Self::Ftrl(rule) => rule.to_device(),
        }
    }

    /// Returns the names of the state that a rule keeps. In a checkpoint, the name of the state
    /// comes before the name of the parameter.
    pub(super) fn state_names(spec: &DenseOptimizerSpec) -> [Option<&'static str>; 2] {
        match spec {
            DenseOptimizerSpec::Sgd { momentum, .. } if *momentum > 0.0 => {
                [Some("sgd.momentum"), None]
            }
            DenseOptimizerSpec::Sgd { .. } => [None, None],
            DenseOptimizerSpec::Momentum { .. } => [Some("momentum.direction"), None],
            DenseOptimizerSpec::Adagrad { .. } => [Some("adagrad.sum"), None],
            DenseOptimizerSpec::Adam { .. } => [Some("adam.m"), Some("adam.v")],
            DenseOptimizerSpec::Adamw { .. } => [Some("adamw.m"), Some("adamw.v")],
            DenseOptimizerSpec::Lamb { .. } => [Some("lamb.m"), Some("lamb.v")],
            DenseOptimizerSpec::Ftrl { .. } => [Some("ftrl.z"), Some("ftrl.n")],
        }
    }

    /// Updates a block. For LAMB, only the moments are updated here. The weights are updated later,
    /// when the lengths of the whole parameter are known.
    pub(super) fn apply(self, block: &mut Block<'_>, shaping: Shaping) {
        let Block { weights, first, second, raw } = block;
        vectorised(
            #[inline(always)]
            || match self {
                Self::Sgd(rule) => rule.update(weights, raw, shaping),
                Self::Momentum(rule) => rule.update(weights, first, raw, shaping),
                Self::Adagrad(rule) => rule.update(weights, first, raw, shaping),
                Self::Adam(rule) => rule.update(weights, first, second, raw, shaping),
                Self::Lamb(rule) => rule.update_moments(weights, first, second, raw, shaping),
                Self::Ftrl(rule) => rule.update(weights, first, second, raw, shaping),
            },
        );
    }
}
