//! The settings of the optimizer of dense parameters, as a job writes them.

use serde::{Deserialize, Serialize};

use crate::checks::{below_one, not_negative, positive};

/// The settings of the optimizer of dense parameters, for example `{ kind = "adam", lr = 1e-3 }`.
/// The formulas and defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DenseOptimizerSpec {
    /// Stochastic gradient descent: `b = momentum * b + g; w -= lr * b`, or `w -= lr * g` without
    /// momentum (and without state).
    Sgd {
        /// The learning rate before any schedule.
        #[serde(default = "default_lr", deserialize_with = "positive")]
        lr: f64,
        /// The factor by which a step multiplies the previous direction, in `[0, 1)`.
        #[serde(default, deserialize_with = "below_one")]
        momentum: f64,
    },
    /// AdaGrad (Duchi, Hazan, Singer 2011): `a += g^2; w -= lr * g / (sqrt(a) + eps)`.
    Adagrad {
        /// The learning rate before any schedule.
        #[serde(default = "default_adagrad_lr", deserialize_with = "positive")]
        lr: f64,
        /// The initial value of the accumulators.
        #[serde(default, deserialize_with = "not_negative")]
        initial_accumulator: f64,
        /// The summand that keeps the denominator away from zero.
        #[serde(default = "default_adagrad_eps", deserialize_with = "not_negative")]
        eps: f64,
    },
    /// Adam (Kingma, Ba 2015). The moments are corrected for their start at zero, and `eps` is
    /// added outside of the root.
    Adam {
        /// The learning rate before any schedule.
        #[serde(default = "default_lr", deserialize_with = "positive")]
        lr: f64,
        /// The decay of the first moment, in `[0, 1)`.
        #[serde(default = "default_beta1", deserialize_with = "below_one")]
        beta1: f64,
        /// The decay of the second moment, in `[0, 1)`.
        #[serde(default = "default_beta2", deserialize_with = "below_one")]
        beta2: f64,
        /// The summand that keeps the denominator away from zero.
        #[serde(default = "default_adam_eps", deserialize_with = "not_negative")]
        eps: f64,
    },
    /// SGD with momentum as in PyTorch, under the name that tables use. First `b = momentum * b +
    /// g`, and then `w -= lr * b`. In Nesterov's form, the second part is `w -= lr * (g + momentum
    /// * b)`.
    Momentum {
        /// The learning rate before any schedule.
        #[serde(default = "default_lr", deserialize_with = "positive")]
        lr: f64,
        /// The factor by which a step multiplies the previous direction, in `[0, 1)`.
        #[serde(default = "default_beta1", deserialize_with = "below_one")]
        momentum: f64,
        /// Whether the step uses Nesterov's form (Sutskever et al. 2013).
        #[serde(default)]
        nesterov: bool,
    },
    /// Adam with decoupled weight decay (Loshchilov, Hutter 2019): `w -= lr * weight_decay * w`,
    /// then Adam's step.
    Adamw {
        /// The learning rate before any schedule.
        #[serde(default = "default_lr", deserialize_with = "positive")]
        lr: f64,
        /// The decay of the first moment, in `[0, 1)`.
        #[serde(default = "default_beta1", deserialize_with = "below_one")]
        beta1: f64,
        /// The decay of the second moment, in `[0, 1)`.
        #[serde(default = "default_beta2", deserialize_with = "below_one")]
        beta2: f64,
        /// The summand that keeps the denominator away from zero.
        #[serde(default = "default_adam_eps", deserialize_with = "not_negative")]
        eps: f64,
        /// The factor of the weight decay. A step removes the share `lr * weight_decay` of a
        /// weight.
        #[serde(default = "default_weight_decay", deserialize_with = "not_negative")]
        weight_decay: f64,
    },
    /// LAMB (You et al. 2019, "Large Batch Optimization for Deep Learning", Algorithm 2). The
    /// direction of a step is the sum of Adam's direction and `weight_decay * w`. For each
    /// parameter, this direction is scaled to the length of the weights.
    Lamb {
        /// The learning rate before any schedule.
        #[serde(default = "default_lr", deserialize_with = "positive")]
        lr: f64,
        /// The decay of the first moment, in `[0, 1)`.
        #[serde(default = "default_beta1", deserialize_with = "below_one")]
        beta1: f64,
        /// The decay of the second moment, in `[0, 1)`.
        #[serde(default = "default_beta2", deserialize_with = "below_one")]
        beta2: f64,
        /// The summand that keeps the denominator away from zero.
        #[serde(default = "default_lamb_eps", deserialize_with = "not_negative")]
        eps: f64,
        /// The factor of the weight in the direction of a step.
        #[serde(default, deserialize_with = "not_negative")]
        weight_decay: f64,
    },
    /// FTRL-Proximal (McMahan et al. 2013, Algorithm 1), in the form that tables use. In this form,
    /// a step computes the `z` of a weight from the weight itself, unless the weight is zero. So a
    /// parameter keeps its initial value at the start, and a schedule can lower the rate.
    Ftrl {
        /// The learning rate, alpha in the paper. It has no default, because a good value depends
        /// on the data.
        #[serde(deserialize_with = "positive")]
        lr: f64,
        /// The smoothing of the learning rate, which is beta in the paper.
        #[serde(default = "default_ftrl_beta", deserialize_with = "positive")]
        beta: f64,
        /// The L1 penalty. A weight stays at zero while the magnitude of its `z` is at most this
        /// number.
        #[serde(default, deserialize_with = "not_negative")]
        l1: f64,
        /// The factor of the quadratic penalty, which shrinks weights.
        #[serde(default, deserialize_with = "not_negative")]
        l2: f64,
    },
}

impl DenseOptimizerSpec {
    /// Returns the learning rate before any schedule.
    #[must_use]
    pub fn lr(&self) -> f64 {
        match *self {
            Self::Sgd { lr, .. }
            | Self::Adagrad { lr, .. }
            | Self::Adam { lr, .. }
            | Self::Momentum { lr, .. }
            | Self::Adamw { lr, .. }
            | Self::Lamb { lr, .. }
            | Self::Ftrl { lr, .. } => lr,
        }
    }

    /// Returns the rule's name in a job and in a checkpoint.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Adagrad { .. } => "adagrad",
            Self::Adam { .. } => "adam",
            Self::Momentum { .. } => "momentum",
            Self::Adamw { .. } => "adamw",
            Self::Lamb { .. } => "lamb",
            Self::Ftrl { .. } => "ftrl",
        }
    }
}

/// Returns the default rule: Adam at a learning rate of 1e-3, as in the published click-through
/// benchmarks.
impl Default for DenseOptimizerSpec {
    fn default() -> Self {
        Self::Adam {
            lr: default_lr(),
            beta1: default_beta1(),
            beta2: default_beta2(),
            eps: default_adam_eps(),
        }
    }
}

fn default_adagrad_lr() -> f64 {
    1e-2
}
fn default_adagrad_eps() -> f64 {
    1e-10
}
fn default_lr() -> f64 {
    1e-3
}
fn default_beta1() -> f64 {
    0.9
}
fn default_beta2() -> f64 {
    0.999
}
fn default_adam_eps() -> f64 {
    1e-8
}
fn default_weight_decay() -> f64 {
    1e-2
}
fn default_lamb_eps() -> f64 {
    1e-6
}
fn default_ftrl_beta() -> f64 {
    1.0
}
