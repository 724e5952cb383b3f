//! MMoE (Ma et al., KDD 2018). All labels share several MLPs, which are called experts. Each label
//! has a gate, which computes the weights of the experts for each row.

use super::*;

use super::model::check_some_label;
use super::shared_bottom::{DEFAULT_BOTTOM, DEFAULT_TOWER};
use crate::checks::at_least_one;

/// The default number of experts.
const DEFAULT_EXPERTS: usize = 4;

/// The keys of `mmoe`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MmoeSpec {
    /// The number of experts, at least 1. Default: 4.
    #[serde(deserialize_with = "at_least_one")]
    pub experts: usize,
    /// The units of the hidden layers of each expert. Default: 128, 64.
    #[serde(deserialize_with = "widths")]
    pub expert: Vec<usize>,
    /// The units of the hidden layers of each label's tower. Default: 32.
    #[serde(deserialize_with = "widths")]
    pub tower: Vec<usize>,
    /// The keys of all MLPs.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for MmoeSpec {
    fn default() -> Self {
        let (expert, tower) = (DEFAULT_BOTTOM.into(), DEFAULT_TOWER.into());
        Self { experts: DEFAULT_EXPERTS, expert, tower, mlp: MlpKeys::default(), l2: 0.0 }
    }
}

impl ZooModel for MmoeSpec {
    fn check_labels(&self, kind: &str, labels: usize) -> Result<()> {
        check_some_label(kind, labels)
    }

    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        let x = inputs.deep(b)?;
        let mut experts = Vec::with_capacity(self.experts);
        for index in 0..self.experts {
            experts.push(self.mlp.build(b, &format!("expert.{index}"), &self.expert, x)?);
        }
        let mut logits = Vec::with_capacity(inputs.labels.len());
        for label in &inputs.labels {
            let gate = format!("gate.{}", label.name);
            let scores = b.linear(&format!("{gate}.scores"), x, self.experts)?;
            let shares = b.softmax_columns(&gate, scores)?;
            let mut mixed = None;
            for (index, &expert) in experts.iter().enumerate() {
                let share = b.slice(&format!("{gate}.{index}"), shares, index, 1)?;
                let name = format!("mixed.{}.{index}", label.name);
                mixed = Some(match mixed {
                    None => b.mul(&name, expert, share)?,
                    Some(sum) => b.mul_add(&name, expert, share, sum)?,
                });
            }
            // There is at least one expert, because the keys have been checked.
            let mixed = mixed.unwrap_or(x);
            logits.push(self.mlp.build_tower(b, &label.name, &self.tower, mixed)?);
        }
        Ok(logits)
    }
}
