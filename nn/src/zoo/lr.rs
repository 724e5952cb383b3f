//! Logistic regression: a weight for each id and each number, and a bias.

use serde::{Deserialize, Serialize};

use super::inputs::ModelInputs;
use super::model::{Needs, ZooModel};
use crate::error::Result;
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;
use crate::optim::not_negative;

/// The keys of `lr`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LrSpec {
    /// Whether the model has a global bias. Default: true.
    pub bias: bool,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for LrSpec {
    fn default() -> Self {
        Self { bias: true, l2: 0.0 }
    }
}

impl ZooModel for LrSpec {
    fn kind(&self) -> &'static str {
        "lr"
    }

    fn needs(&self) -> Needs {
        Needs { vector: false, linear: true }
    }

    fn l2(&self) -> f64 {
        self.l2
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let numeric = inputs.numerics(b)?;
        Ok(vec![inputs.linear_part(b, numeric, self.bias)?])
    }
}
