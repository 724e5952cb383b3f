//! A linear part beside an MLP (Cheng et al. 2016).

use serde::{Deserialize, Serialize};

use super::inputs::ModelInputs;
use super::keys::widths;
use super::mlp::{DEFAULT_HIDDEN, MlpKeys};
use super::model::{Needs, ZooModel};
use crate::error::Result;
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;
use crate::optim::not_negative;

/// The keys of `wide_deep`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WideDeepSpec {
    /// The units of the hidden layers. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// The keys of the MLP.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// Whether the wide part has a bias, in addition to the bias of the MLP's output. The model can
    /// express nothing more with it, but an optimizer then updates two biases. Default: false.
    pub bias: bool,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for WideDeepSpec {
    fn default() -> Self {
        let (hidden, mlp) = (DEFAULT_HIDDEN.into(), MlpKeys::default());
        Self { hidden, mlp, bias: false, l2: 0.0 }
    }
}

impl ZooModel for WideDeepSpec {
    fn kind(&self) -> &'static str {
        "wide_deep"
    }

    fn needs(&self) -> Needs {
        Needs { vector: true, linear: true }
    }

    fn l2(&self) -> f64 {
        self.l2
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let numeric = inputs.numerics(b)?;
        let wide = inputs.linear_part(b, numeric, self.bias)?;
        let mut parts = inputs.vectors(b)?;
        parts.extend(numeric);
        let x = b.concat("deep", &parts)?;
        let deep = self.mlp.build_logit(b, &self.hidden, x)?;
        Ok(vec![b.add("logit", wide, deep)?])
    }
}
