//! The MLP, which all deep models use, and its keys in a job.

use super::*;

use crate::checks::below_one;

/// The default units of the hidden layers of an MLP, for models that have no default of their own.
pub(super) const DEFAULT_HIDDEN: [usize; 3] = [64; 3];

/// The keys that apply to all MLPs of a model. The widths of the layers have separate keys in each
/// model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MlpKeys {
    /// The function after each hidden layer. Default: relu.
    pub activation: Activation,
    /// Whether batch norm comes between the linear layer and the activation. Default: false.
    pub batch_norm: bool,
    /// The share of hidden units that are dropped in training. Default: 0.
    #[serde(deserialize_with = "below_one")]
    pub dropout: f32,
}

impl MlpKeys {
    /// Builds hidden layers. Each consists of a linear layer, batch norm, activation and dropout,
    /// in this order (FuxiCTR's `MLP_Block`). Returns the last layer, or `x` if there are no
    /// layers.
    pub(super) fn build(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        hidden: &[usize],
        mut x: NodeId,
    ) -> Result<NodeId> {
        for (index, &width) in hidden.iter().enumerate() {
            let layer = format!("{name}.{index}");
            x = b.linear(&layer, x, width)?;
            if self.batch_norm {
                x = b.batch_norm(&format!("{layer}.norm"), x)?;
            }
            x = self.activation.apply(b, &layer, x)?;
            x = b.dropout(&format!("{layer}.dropout"), x, self.dropout)?;
        }
        Ok(x)
    }

    /// Builds the MLP of a model with one label. Its result is the label's log odds, or the
    /// `scores` of its classes.
    pub(super) fn build_logit(
        &self,
        b: &mut GraphBuilder,
        hidden: &[usize],
        x: NodeId,
        scores: usize,
    ) -> Result<NodeId> {
        let x = self.build(b, "mlp", hidden, x)?;
        b.linear("output", x, scores)
    }

    /// Builds the MLP of one label in a model with several labels. Its result is the label's log
    /// odds.
    pub(super) fn build_tower(
        &self,
        b: &mut GraphBuilder,
        label: &str,
        hidden: &[usize],
        x: NodeId,
    ) -> Result<NodeId> {
        let name = format!("tower.{label}");
        let x = self.build(b, &name, hidden, x)?;
        b.linear(&format!("{name}.output"), x, 1)
    }
}
