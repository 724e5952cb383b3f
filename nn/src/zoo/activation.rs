//! The activation functions that a job can name.

use super::*;

use crate::graph::op::Unary;

/// The activation function between two linear layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The function `max(x, 0)`.
    #[default]
    Relu,
    /// The function `x`, and `0.01 x` for negative x.
    LeakyRelu,
    /// The function `x`, and `a x` for negative x, with one learned `a` for each unit.
    Prelu,
    /// The logistic function `1 / (1 + e^-x)`.
    Sigmoid,
    /// The hyperbolic tangent of x.
    Tanh,
    /// The Gaussian error linear unit in its tanh form.
    Gelu,
    /// The function `x · sigmoid(x)`.
    Silu,
    /// A mixture of `x` and `a x`, weighted by the sigmoid of the normalised `x`, with one learned
    /// `a` for each unit. It is similar to a PReLU, but its kink adapts to the data (Zhou et al.
    /// 2018). Between the layers of an MLP, it costs one additional pass over the batch, like batch
    /// norm.
    Dice,
}

impl Activation {
    pub(super) fn apply(self, b: &mut GraphBuilder, layer: &str, x: NodeId) -> Result<NodeId> {
        let function = match self {
            Self::Relu => Unary::Relu,
            Self::LeakyRelu => Unary::LeakyRelu { slope: 0.01 },
            Self::Dice => return b.dice(&format!("{layer}.dice"), x),
            Self::Prelu => return b.prelu(&format!("{layer}.prelu"), x),
            Self::Sigmoid => Unary::Sigmoid,
            Self::Tanh => Unary::Tanh,
            Self::Gelu => Unary::Gelu,
            Self::Silu => Unary::Silu,
        };
        b.unary(&format!("{layer}.activation"), function, x)
    }
}
