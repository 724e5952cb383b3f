//! The factorisation machine: a linear part and the dot products of all pairs of vectors (Rendle
//! 2010).

use serde::{Deserialize, Serialize};

use super::inputs::ModelInputs;
use super::model::{Needs, ZooModel};
use crate::error::Result;
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;
use crate::optim::not_negative;

/// The keys of `fm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FmSpec {
    /// Whether the model has a global bias. Default: true.
    pub bias: bool,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for FmSpec {
    fn default() -> Self {
        Self { bias: true, l2: 0.0 }
    }
}

impl ZooModel for FmSpec {
    fn kind(&self) -> &'static str {
        "fm"
    }

    fn needs(&self) -> Needs {
        Needs { vector: true, linear: true }
    }

    fn l2(&self) -> f64 {
        self.l2
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let dim = inputs.common_dim("fm")?;
        let numeric = inputs.numerics(b)?;
        let wide = inputs.linear_part(b, numeric, self.bias)?;
        let vectors = inputs.vectors(b)?;
        let fields = b.concat("fields", &vectors)?;
        let pairs = b.fm("fm", fields, dim)?;
        Ok(vec![b.add("logit", wide, pairs)?])
    }
}
