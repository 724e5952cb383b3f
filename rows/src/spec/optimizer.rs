//! The settings of a segment's optimizer in a job.

use serde::{Deserialize, Serialize};

use super::Scope;

/// The optimizer of a segment and its settings. In a job file: `optimizer = { kind = "adam", lr =
/// 0.001 }`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerSpec {
    /// Stochastic gradient descent: `w -= lr * g`. It has no optimizer state.
    Sgd {
        /// The learning rate of the rule.
        lr: f32,
    },
    /// The heavy-ball method (Polyak 1964) by PyTorch's formulas: `v = momentum * v + g; w -= lr *
    /// v`, or with `nesterov`, `w -= lr * (g + momentum * v)`.
    ///
    /// In a dynamic table the rule is lazy: a row moves by its velocity only in steps that touch
    /// the row. In a `dense` table every step updates every row, unless the job sets `scope =
    /// "touched"`.
    Momentum {
        /// The learning rate of the rule.
        lr: f32,
        /// The factor by which the velocity is multiplied in each step.
        #[serde(default = "default_momentum")]
        momentum: f32,
        /// Whether the rule uses Nesterov's form, which looks ahead along the velocity.
        #[serde(default, skip_serializing_if = "is_false")]
        nesterov: bool,
        /// The rows that the rule updates. If the scope is absent, the rule updates all rows in a
        /// dense table, and the touched rows in a dynamic table.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<Scope>,
    },
    /// AdaGrad (Duchi, Hazan, Singer 2011) with one accumulator per weight:
    /// `a += g^2; w -= lr * g / (sqrt(a) + eps)`.
    Adagrad {
        /// The learning rate of the rule.
        lr: f32,
        /// The initial value of all accumulators.
        #[serde(default)]
        initial_accumulator: f32,
        /// The small number that keeps the denominator away from zero.
        #[serde(default = "default_adagrad_eps")]
        eps: f32,
    },
    /// AdaGrad with one accumulator for each segment of a row (as in FBGEMM and TorchRec). The
    /// accumulator sums the *mean* of the squared gradients of the segment. With sixteen
    /// dimensions, the rule needs a sixteenth of AdaGrad's optimizer state.
    RowwiseAdagrad {
        /// The learning rate of the rule.
        lr: f32,
        /// The initial value of the accumulator.
        #[serde(default)]
        initial_accumulator: f32,
        /// The small number that keeps the denominator away from zero.
        #[serde(default = "default_adagrad_eps")]
        eps: f32,
    },
    /// Adam (Kingma, Ba 2015) by PyTorch's formulas. The bias correction uses the number of the
    /// job's step, and not the number of pushes of a row.
    ///
    /// In a dynamic table the rule is lazy: the moments of a row decay only in steps that touch the
    /// row (as in TensorFlow's `LazyAdam` and PyTorch's `SparseAdam`). In a `dense` table the rule
    /// is exact: every step updates every row, unless the job sets `scope = "touched"`.
    Adam {
        /// The learning rate of the rule.
        lr: f32,
        /// The decay of the first moment.
        #[serde(default = "default_beta1")]
        beta1: f32,
        /// The decay of the second moment.
        #[serde(default = "default_beta2")]
        beta2: f32,
        /// The small number that keeps the denominator away from zero.
        #[serde(default = "default_adam_eps")]
        eps: f32,
        /// The rows that the rule updates. If the scope is absent, the rule updates all rows in a
        /// dense table, and the touched rows in a dynamic table.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<Scope>,
    },
    /// FTRL-Proximal (McMahan et al. 2013, "Ad click prediction: a view from the trenches"). The
    /// settings `l1` and `l2` of this rule are part of its proximal step, and are not the
    /// regulariser of the segment.
    Ftrl {
        /// The learning rate. The paper calls it alpha.
        lr: f32,
        /// The constant that makes the first steps smaller. The paper calls it beta.
        #[serde(default = "default_ftrl_beta")]
        beta: f32,
        /// The strength of the L1 term. A weight is exactly zero if the absolute value of its sum
        /// `z` is at most this strength.
        #[serde(default)]
        l1: f32,
        /// The strength of the L2 term.
        #[serde(default)]
        l2: f32,
        /// The strength of the group lasso (Yue et al. 2021). A whole segment is exactly zero if
        /// the length of its sums `z` after the L1 term is at most `l21 * sqrt(dim)`.
        #[serde(default, skip_serializing_if = "is_zero")]
        l21: f32,
    },
}

fn is_false(flag: &bool) -> bool {
    !*flag
}
fn is_zero(x: &f32) -> bool {
    *x == 0.0
}
fn default_momentum() -> f32 {
    0.9
}

fn default_adagrad_eps() -> f32 {
    1e-10
}
fn default_beta1() -> f32 {
    0.9
}
fn default_beta2() -> f32 {
    0.999
}
fn default_adam_eps() -> f32 {
    1e-8
}
fn default_ftrl_beta() -> f32 {
    1.0
}

impl OptimizerSpec {
    /// Returns row-wise AdaGrad with its default constants.
    pub fn rowwise_adagrad(lr: f32) -> Self {
        Self::RowwiseAdagrad { lr, initial_accumulator: 0.0, eps: default_adagrad_eps() }
    }

    /// Returns Adam with its default decays.
    pub fn adam(lr: f32) -> Self {
        Self::Adam {
            lr,
            beta1: default_beta1(),
            beta2: default_beta2(),
            eps: default_adam_eps(),
            scope: None,
        }
    }

    /// Returns the name of the rule in job files and in the parts of checkpoints.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::Momentum { .. } => "momentum",
            Self::Adagrad { .. } => "adagrad",
            Self::RowwiseAdagrad { .. } => "rowwise_adagrad",
            Self::Adam { .. } => "adam",
            Self::Ftrl { .. } => "ftrl",
        }
    }

    /// Returns the learning rate.
    pub fn lr(&self) -> f32 {
        match *self {
            Self::Sgd { lr }
            | Self::Momentum { lr, .. }
            | Self::Adagrad { lr, .. }
            | Self::RowwiseAdagrad { lr, .. }
            | Self::Adam { lr, .. }
            | Self::Ftrl { lr, .. } => lr,
        }
    }

    /// Returns the number of floats of optimizer state of a segment with `dim` weights.
    pub fn state_len(&self, dim: usize) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Adagrad { .. } | Self::Momentum { .. } => dim,
            Self::RowwiseAdagrad { .. } => 1,
            Self::Adam { .. } | Self::Ftrl { .. } => 2 * dim,
        }
    }

    /// Returns the scope that the job sets for the rule. The outer `Option` is `None` for a rule
    /// that never updates rows without a gradient. The inner `Option` is `None` if the job sets no
    /// scope.
    pub fn scope(&self) -> Option<Option<Scope>> {
        match *self {
            Self::Momentum { scope, .. } | Self::Adam { scope, .. } => Some(scope),
            _ => None,
        }
    }

    /// Returns the initial value of every float of optimizer state in a new row.
    pub fn initial_state(&self) -> f32 {
        match *self {
            Self::Adagrad { initial_accumulator, .. }
            | Self::RowwiseAdagrad { initial_accumulator, .. } => initial_accumulator,
            Self::Sgd { .. } | Self::Momentum { .. } | Self::Adam { .. } | Self::Ftrl { .. } => 0.0,
        }
    }

    /// Returns the key and the allowed values of the first setting that is out of range, or `None`
    /// if all settings are valid.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let positive = |key, x: f32| (key, x.is_finite() && x > 0.0, "must be a positive number");
        let not_negative =
            |key, x: f32| (key, x.is_finite() && x >= 0.0, "must be zero or a positive number");
        let decay = |key, x| (key, (0.0..1.0).contains(&x), "must be at least 0 and below 1");
        let checks = match *self {
            Self::Sgd { .. } => vec![],
            Self::Momentum { momentum, .. } => vec![decay("momentum", momentum)],
            // With an `eps` of zero, a weight without any gradient would divide zero by zero.
            Self::Adagrad { initial_accumulator, eps, .. }
            | Self::RowwiseAdagrad { initial_accumulator, eps, .. } => {
                vec![not_negative("initial_accumulator", initial_accumulator), positive("eps", eps)]
            }
            Self::Adam { beta1, beta2, eps, .. } => {
                vec![decay("beta1", beta1), decay("beta2", beta2), positive("eps", eps)]
            }
            Self::Ftrl { beta, l1, l2, l21, .. } => vec![
                positive("beta", beta),
                not_negative("l1", l1),
                not_negative("l2", l2),
                not_negative("l21", l21),
            ],
        };
        let mut checks = [positive("lr", self.lr())].into_iter().chain(checks);
        checks.find(|&(_, is_valid, _)| !is_valid).map(|(key, _, allowed)| (key, allowed))
    }
}
