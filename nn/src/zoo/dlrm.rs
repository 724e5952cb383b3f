//! DLRM (Naumov et al. 2019). A bottom MLP turns the numeric features into one more vector, all
//! vectors interact, and a top MLP computes the logit.

use super::*;

use super::keys::some_widths;
use crate::checks::below_one;

/// The default units of the hidden layers of the bottom MLP. Its last layer has the length of the
/// vectors.
const DEFAULT_BOTTOM: [usize; 3] = [64; 3];

/// The operation that combines the vectors of DLRM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interaction {
    /// The dot product of each pair of vectors, together with the bottom MLP's vector.
    #[default]
    Dot,
    /// The concatenation of the vectors.
    Cat,
}

/// The keys of `dlrm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DlrmSpec {
    /// The operation that combines the vectors. Default: dot.
    pub interaction: Interaction,
    /// The units of the layers of the bottom MLP, which reads the numeric features. The last number
    /// must be the length of the vectors. A job without numeric features must not have this key.
    /// Default: 64, 64, 64 and the length of the vectors.
    #[serde(deserialize_with = "some_widths", skip_serializing_if = "Option::is_none")]
    pub bottom: Option<Vec<usize>>,
    /// The share of hidden units of the bottom MLP that are dropped in training. Default: 0.
    #[serde(deserialize_with = "below_one")]
    pub bottom_dropout: f32,
    /// The units of the top MLP's hidden layers. Default: 64, 64, 64.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// The keys of both MLPs. The dropout applies only to the top MLP.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for DlrmSpec {
    fn default() -> Self {
        let (hidden, mlp) = (DEFAULT_HIDDEN.into(), MlpKeys::default());
        let interaction = Interaction::default();
        Self { interaction, bottom: None, bottom_dropout: 0.0, hidden, mlp, l2: 0.0 }
    }
}

impl ZooModel for DlrmSpec {
    fn optional_keys(&self) -> &'static [&'static str] {
        &["bottom"]
    }

    fn learns_classes(&self) -> bool {
        true
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let dim = inputs.common_dim("dlrm")?;
        let bottom = match inputs.numerics(b)? {
            Some(numeric) => Some(self.build_bottom(b, numeric, dim)?),
            None if self.bottom.is_some() => {
                let reason =
                    "the bottom MLP reads numeric features, but the job has none; remove the key";
                return Err(Error::Setting { name: "model.bottom", reason: reason.to_owned() });
            }
            None => None,
        };
        let mut fields: Vec<NodeId> = bottom.into_iter().collect();
        fields.extend(inputs.vectors(b)?);
        let x = b.concat("fields", &fields)?;
        let x = match self.interaction {
            Interaction::Cat => x,
            Interaction::Dot if fields.len() < 2 => {
                let reason =
                    "a dot interaction needs two vectors, but the job has only one; use \"cat\"";
                let reason = reason.to_owned();
                return Err(Error::Setting { name: "model.interaction", reason });
            }
            Interaction::Dot => {
                let pairs = b.dot_interaction("interaction", x, dim)?;
                match bottom {
                    Some(bottom) => b.concat("joined", &[bottom, pairs])?,
                    None => pairs,
                }
            }
        };
        Ok(vec![self.mlp.build_logit(b, &self.hidden, x, inputs.scores())?])
    }
}

impl DlrmSpec {
    /// Builds the bottom MLP over the numeric features. As in FuxiCTR, its last layer has the
    /// activation, but no batch norm and no dropout, because its result is one of the vectors that
    /// interact.
    fn build_bottom(&self, b: &mut GraphBuilder, numeric: NodeId, dim: usize) -> Result<NodeId> {
        let hidden = match self.bottom.as_deref() {
            None => &DEFAULT_BOTTOM[..],
            Some([hidden @ .., last]) if *last == dim => hidden,
            Some(layers) => {
                let reason =
                    format!("must end with {dim}, the length of the vectors, found {layers:?}");
                return Err(Error::Setting { name: "model.bottom", reason });
            }
        };
        let mlp = MlpKeys { dropout: self.bottom_dropout, ..self.mlp };
        let x = mlp.build(b, "bottom", hidden, numeric)?;
        let layer = format!("bottom.{}", hidden.len());
        let x = b.linear(&layer, x, dim)?;
        self.mlp.activation.apply(b, &layer, x)
    }
}
