//! Deep & cross network with vector crosses (Wang et al. 2017).

use super::*;

use crate::checks::at_least_one;

/// The default number of cross layers.
pub(super) const DEFAULT_CROSS_LAYERS: usize = 3;

/// The place of the MLP in a deep & cross network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// The MLP is beside the cross layers. Both read the vectors, and the output layer reads both.
    #[default]
    Parallel,
    /// The MLP is after the cross layers and reads their result.
    Stacked,
}

/// The keys of `dcn`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DcnSpec {
    /// The number of cross layers, at least 1. Default: 3.
    #[serde(deserialize_with = "at_least_one")]
    pub cross_layers: usize,
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

impl Default for DcnSpec {
    fn default() -> Self {
        let (hidden, mlp) = (DEFAULT_HIDDEN.into(), MlpKeys::default());
        let (cross_layers, structure) = (DEFAULT_CROSS_LAYERS, Structure::default());
        Self { cross_layers, structure, hidden, mlp, l2: 0.0 }
    }
}

impl ZooModel for DcnSpec {
    fn learns_classes(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let x0 = inputs.deep(b)?;
        let mut crossed = x0;
        for index in 0..self.cross_layers {
            crossed = b.cross(&format!("cross.{index}"), x0, crossed)?;
        }
        let parts = (x0, crossed);
        Ok(vec![self.structure.build_output(b, &self.mlp, &self.hidden, parts, inputs.scores())?])
    }
}

impl Structure {
    /// Builds the MLP, beside the cross layers or after them, and a linear layer that computes the
    /// logit, or the `scores` of classes. If there are no hidden layers, the MLP is left out.
    pub(super) fn build_output(
        self,
        b: &mut GraphBuilder,
        mlp: &MlpKeys,
        hidden: &[usize],
        (x0, crossed): (NodeId, NodeId),
        scores: usize,
    ) -> Result<NodeId> {
        let x = match self {
            Self::Stacked => mlp.build(b, "mlp", hidden, crossed)?,
            Self::Parallel if hidden.is_empty() => crossed,
            Self::Parallel => {
                let deep = mlp.build(b, "mlp", hidden, x0)?;
                b.concat("joined", &[crossed, deep])?
            }
        };
        b.linear("output", x, scores)
    }
}
