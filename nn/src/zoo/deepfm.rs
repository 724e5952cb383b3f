//! A factorisation machine beside an MLP, on the same vectors (Guo et al. 2017).

use serde::{Deserialize, Serialize};

use super::inputs::ModelInputs;
use super::keys::widths;
use super::mlp::{DEFAULT_HIDDEN, MlpKeys};
use super::model::{Needs, ZooModel};
use crate::error::Result;
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;
use crate::optim::not_negative;

/// The keys of `deepfm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeepFmSpec {
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

impl Default for DeepFmSpec {
    fn default() -> Self {
        let (hidden, mlp) = (DEFAULT_HIDDEN.into(), MlpKeys::default());
        Self { hidden, mlp, bias: false, l2: 0.0 }
    }
}

impl ZooModel for DeepFmSpec {
    fn kind(&self) -> &'static str {
        "deepfm"
    }

    fn needs(&self) -> Needs {
        Needs { vector: true, linear: true }
    }

    fn l2(&self) -> f64 {
        self.l2
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let dim = inputs.common_dim("deepfm")?;
        let numeric = inputs.numerics(b)?;
        let wide = inputs.linear_part(b, numeric, self.bias)?;
        let vectors = inputs.vectors(b)?;
        let fields = b.concat("fields", &vectors)?;
        let pairs = b.fm("fm", fields, dim)?;
        let x = match numeric {
            Some(numeric) => b.concat("deep", &[fields, numeric])?,
            None => fields,
        };
        let deep = self.mlp.build_logit(b, &self.hidden, x)?;
        let shallow = b.add("shallow", wide, pairs)?;
        Ok(vec![b.add("logit", shallow, deep)?])
    }
}
