//! Deep & cross network with matrix crosses, full or of low rank (Wang et al. 2021).

use super::*;

use super::dcn::{DEFAULT_CROSS_LAYERS, Structure};
use super::keys::rank;
use crate::checks::at_least_one;

/// The keys of `dcnv2`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dcnv2Spec {
    /// The number of cross layers, at least 1. Default: 3.
    #[serde(deserialize_with = "at_least_one")]
    pub cross_layers: usize,
    /// The rank of the matrices in the cross layers, at least 1, or `None` for full matrices, which
    /// are the default.
    #[serde(deserialize_with = "rank", skip_serializing_if = "Option::is_none")]
    pub low_rank: Option<usize>,
    /// The place of the MLP: beside the cross layers or after them. Default: parallel.
    pub structure: Structure,
    /// The units of the hidden layers. With an empty list, the model has only the cross layers.
    /// Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// The keys of the MLP.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for Dcnv2Spec {
    fn default() -> Self {
        let (hidden, mlp) = (DEFAULT_HIDDEN.into(), MlpKeys::default());
        let (cross_layers, structure) = (DEFAULT_CROSS_LAYERS, Structure::default());
        Self { cross_layers, low_rank: None, structure, hidden, mlp, l2: 0.0 }
    }
}

impl ZooModel for Dcnv2Spec {
    fn optional_keys(&self) -> &'static [&'static str] {
        &["low_rank"]
    }

    fn learns_classes(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let x0 = inputs.deep(b)?;
        let mut crossed = x0;
        for index in 0..self.cross_layers {
            let name = format!("cross.{index}");
            crossed = match self.low_rank {
                None => b.cross_v2(&name, x0, crossed)?,
                Some(rank) => b.cross_v2_low_rank(&name, x0, crossed, rank)?,
            };
        }
        let parts = (x0, crossed);
        Ok(vec![self.structure.build_output(b, &self.mlp, &self.hidden, parts, inputs.scores())?])
    }
}
