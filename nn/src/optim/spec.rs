//! The optimizer of the dense parameters in the vocabulary of a job.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// How the dense parameters learn: `{ kind = "adam", lr = 1e-3 }`. Formulas and defaults are
/// PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DenseOptimizerSpec {
    /// `b = momentum * b + g; w -= lr * b`, or `w -= lr * g` without momentum (and without state).
    Sgd {
        /// Learning rate.
        #[serde(default = "default_sgd_lr", deserialize_with = "positive")]
        lr: f64,
        /// How much of the last step's direction stays, in `[0, 1)`.
        #[serde(default, deserialize_with = "decay")]
        momentum: f64,
    },
    /// AdaGrad (Duchi, Hazan, Singer 2011): `a += g^2; w -= lr * g / (sqrt(a) + eps)`.
    Adagrad {
        /// Learning rate.
        #[serde(default = "default_adagrad_lr", deserialize_with = "positive")]
        lr: f64,
        /// What accumulators start at.
        #[serde(default, deserialize_with = "not_negative")]
        initial_accumulator: f64,
        /// Keeps the denominator away from zero.
        #[serde(default = "default_adagrad_eps", deserialize_with = "not_negative")]
        eps: f64,
    },
    /// Adam (Kingma, Ba 2015): moments corrected for their start at zero, `eps` outside the root.
    Adam {
        /// Learning rate.
        #[serde(default = "default_adam_lr", deserialize_with = "positive")]
        lr: f64,
        /// Decay of the first moment, in `[0, 1)`.
        #[serde(default = "default_beta1", deserialize_with = "decay")]
        beta1: f64,
        /// Decay of the second moment, in `[0, 1)`.
        #[serde(default = "default_beta2", deserialize_with = "decay")]
        beta2: f64,
        /// Keeps the denominator away from zero.
        #[serde(default = "default_adam_eps", deserialize_with = "not_negative")]
        eps: f64,
    },
}

impl DenseOptimizerSpec {
    /// The learning rate before any schedule.
    #[must_use]
    pub fn lr(&self) -> f64 {
        match *self {
            Self::Sgd { lr, .. } | Self::Adagrad { lr, .. } | Self::Adam { lr, .. } => lr,
        }
    }
}

/// Adam at 1e-3, what the published click-through benchmarks train with.
impl Default for DenseOptimizerSpec {
    fn default() -> Self {
        Self::Adam {
            lr: default_adam_lr(),
            beta1: default_beta1(),
            beta2: default_beta2(),
            eps: default_adam_eps(),
        }
    }
}

fn default_sgd_lr() -> f64 {
    1e-3
}
fn default_adagrad_lr() -> f64 {
    1e-2
}
fn default_adagrad_eps() -> f64 {
    1e-10
}
fn default_adam_lr() -> f64 {
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

/// A finite number above zero.
pub(super) fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(D::Error::custom(format!("must be a number above 0, found {value}")))
}

/// A finite number, zero or above.
pub(crate) fn not_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(D::Error::custom(format!("must be 0 or above, found {value}")))
}

/// A number in `[0, 1)`.
pub(super) fn decay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if (0.0..1.0).contains(&value) {
        return Ok(value);
    }
    Err(D::Error::custom(format!("must be at least 0 and below 1, found {value}")))
}
