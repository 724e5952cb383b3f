//! The model that consists of an MLP over the vectors.

use super::*;

/// The keys of `dnn`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DnnSpec {
    /// The units of the hidden layers. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// The keys of the MLP.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for DnnSpec {
    fn default() -> Self {
        let (hidden, mlp) = (DEFAULT_HIDDEN.into(), MlpKeys::default());
        Self { hidden, mlp, l2: 0.0 }
    }
}

impl ZooModel for DnnSpec {
    fn learns_classes(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let x = inputs.deep(b)?;
        Ok(vec![self.mlp.build_logit(b, &self.hidden, x, inputs.scores())?])
    }
}
