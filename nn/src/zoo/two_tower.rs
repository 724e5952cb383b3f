//! Two towers: one computes a vector for the user, and the other computes a vector for the item.
//! The score is the similarity of both vectors.
//!
//! The model learns to distinguish the item of a row from the items of the other rows of its batch
//! (Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations",
//! RecSys 2019). Popular items are in a batch more often. So the logarithm of an item's frequency
//! is subtracted from its score. Without this correction, the model would learn to avoid popular
//! items.

use super::inputs::is_column_of;
use super::*;

use crate::checks::{at_least_one, positive};
use crate::graph::op::{Binary, InBatch, Op, Unary};

/// The name of the input of a training graph with the logarithm of the frequency of each row's
/// item. The frequency is the item's share of all rows.
pub const LOG_FREQUENCY: &str = "log_frequency";
/// The name of the output of a graph for inference with the user's vector, `[B, dim]`.
pub const USER: &str = "user";
/// The name of the output of a graph for inference with the item's vector, `[B, dim]`.
pub const ITEM: &str = "item";

/// The keys of `two_tower`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TwoTowerSpec {
    /// The features of the user's tower. Every feature must be in exactly one tower.
    pub user: Vec<String>,
    /// The features of the item's tower.
    pub item: Vec<String>,
    /// The feature of the item's tower whose ids identify items. It must be of kind id. Default:
    /// the first feature of the item's tower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// The units of the hidden layers of each tower. With an empty list, which is the default, a
    /// tower has one linear layer.
    #[serde(deserialize_with = "widths")]
    pub hidden: Vec<usize>,
    /// The number of floats of the vectors that are compared, at least 1. Default: 64.
    #[serde(deserialize_with = "at_least_one")]
    pub dim: usize,
    /// The divisor of the scores, which must be above 0. Default: 0.1.
    #[serde(deserialize_with = "positive")]
    pub temperature: f32,
    /// Whether vectors are scaled to length 1, so that scores are cosines. Default: true.
    pub normalise: bool,
    /// Whether the scores in training are corrected for the frequency of items in batches. Default:
    /// true.
    pub sampling_correction: bool,
    /// The keys of both MLPs.
    #[serde(flatten)]
    pub mlp: MlpKeys,
    /// The λ of the loss term `(λ/2)·|w|²` over the dense parameters. Default: 0.
    #[serde(deserialize_with = "not_negative")]
    pub l2: f64,
}

impl Default for TwoTowerSpec {
    fn default() -> Self {
        Self {
            user: Vec::new(),
            item: Vec::new(),
            item_id: None,
            hidden: Vec::new(),
            dim: 64,
            temperature: 0.1,
            normalise: true,
            sampling_correction: true,
            mlp: MlpKeys::default(),
            l2: 0.0,
        }
    }
}

impl ZooModel for TwoTowerSpec {
    fn optional_keys(&self) -> &'static [&'static str] {
        &["item_id"]
    }

    /// Builds the score `user · item / temperature`, `[B, 1]`, and the vectors of both towers.
    /// Returns the score, the user's vector and the item's vector.
    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>> {
        self.check_features(inputs)?;
        let user = build_tower(b, self, inputs, USER, &self.user)?;
        let item = build_tower(b, self, inputs, ITEM, &self.item)?;
        let dot = b.row_dot("dot", user, item)?;
        let score = b.scale("score", dot, 1.0 / self.temperature)?;
        Ok(vec![score, user, item])
    }

    /// Builds the mean of `ln Σ_j e^(s_ij − c_j) − (s_ii − c_i)` over the rows with label 1. A row
    /// with label 0 or without a label is not part of the mean. But the other rows are still
    /// compared with the item of such a row.
    fn build_loss(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        inputs: &ModelInputs,
        built: &[NodeId],
    ) -> Result<Option<NodeId>> {
        let column = self.item_column(inputs)?;
        let mut own = built[0];
        let mut operands = vec![built[1], b.push("item.whole", Op::Collect, &[built[2]])?];
        if self.sampling_correction {
            let correction = b.numeric(LOG_FREQUENCY, &[inputs.numeric.len()])?;
            own = b.sub("score.corrected", own, correction)?;
            operands.push(b.push("log_frequency.whole", Op::Collect, &[correction])?);
        }
        let op = Op::InBatchLse(InBatch { column, by: 1.0 / self.temperature });
        let all = b.push("in_batch", op, &operands)?;
        let row = b.sub(&format!("{name}.row"), all, own)?;
        let weight = if inputs.labels.is_empty() {
            b.weight(&format!("{name}.weight"), None)?
        } else {
            let known = b.weight(&format!("{name}.known"), Some(0))?;
            let label = b.label(&format!("{name}.label"), 0)?;
            b.mul(&format!("{name}.weight"), known, label)?
        };
        let weighted = b.mul(&format!("{name}.weighted"), row, weight)?;
        let sum = b.sum_rows(&format!("{name}.sum"), weighted)?;
        let total = b.sum_rows(&format!("{name}.weight.sum"), weight)?;
        b.binary(name, Binary::SafeDiv, sum, total).map(Some)
    }

    /// Names the vectors of both towers as outputs, for retrieval.
    fn name_outputs(&self, b: &mut GraphBuilder, built: &[NodeId]) -> Result<()> {
        b.output(USER, built[1])?;
        b.output(ITEM, built[2])
    }
}

/// Builds a tower: an MLP from the named features to a vector of `dim` floats.
fn build_tower(
    b: &mut GraphBuilder,
    spec: &TwoTowerSpec,
    inputs: &ModelInputs,
    name: &str,
    features: &[String],
) -> Result<NodeId> {
    let mut parts = Vec::with_capacity(features.len());
    for feature in features {
        let sparse = inputs.columns.iter().position(|c| c.name == *feature);
        let numeric = inputs.numbers_of(feature);
        parts.push(match sparse {
            Some(column) => inputs.vector(b, column)?,
            None if numeric.is_empty() => return Err(unknown_feature(name, feature)),
            None => b.numeric(&format!("numeric.{feature}"), &numeric)?,
        });
    }
    let x = b.concat(&format!("{name}.input"), &parts)?;
    let x = spec.mlp.build(b, &format!("{name}.mlp"), &spec.hidden, x)?;
    let x = b.linear(&format!("{name}.output"), x, spec.dim)?;
    if !spec.normalise {
        return Ok(x);
    }
    let square = b.row_dot(&format!("{name}.square"), x, x)?;
    // Because of the summand, a vector of zeros stays at zero.
    let square = b.unary(&format!("{name}.square.far"), Unary::Offset { by: 1e-12 }, square)?;
    let length = b.unary(&format!("{name}.length"), Unary::Sqrt, square)?;
    b.binary(&format!("{name}.direction"), Binary::Div, x, length)
}

impl TwoTowerSpec {
    /// Returns the name of the feature that identifies items, or an empty text if the item's tower
    /// has no features.
    #[must_use]
    pub fn item_feature(&self) -> &str {
        let first = self.item.first().map_or("", String::as_str);
        self.item_id.as_deref().unwrap_or(first)
    }

    /// Checks that every feature is in exactly one tower, and that one feature identifies items.
    fn check_features(&self, inputs: &ModelInputs) -> Result<()> {
        for (name, features) in [("model.user", &self.user), ("model.item", &self.item)] {
            if features.is_empty() {
                let reason = "names no feature; name at least one, because a tower needs features"
                    .to_owned();
                return Err(Error::Setting { name, reason });
            }
        }
        let all = inputs.columns.iter().map(|c| &c.name).chain(&inputs.numeric);
        for feature in all {
            let named = self.user.iter().chain(&self.item);
            let uses = named.filter(|named| is_column_of(feature, named)).count();
            let reason = match uses {
                1 => continue,
                0 => format!(
                    "feature {feature:?} is in neither tower; name it in `user` or in `item`"
                ),
                _ => format!(
                    "feature {feature:?} is named {uses} times in `user` and `item`; name it once"
                ),
            };
            return Err(Error::Setting { name: "model", reason });
        }
        self.item_column(inputs).map(|_| ())
    }

    /// Returns the index of the column whose ids identify items.
    pub(super) fn item_column(&self, inputs: &ModelInputs) -> Result<usize> {
        let refuse = |reason| Err(Error::Setting { name: "model.item_id", reason });
        let name = self.item_feature();
        match inputs.columns.iter().position(|c| c.name == name) {
            _ if !self.item.iter().any(|f| f == name) => {
                refuse(format!("{name:?} is not in the item's tower; name a feature of `item`"))
            }
            Some(column) if !inputs.columns[column].list => Ok(column),
            _ => refuse(format!(
                "{name:?} has no single id in each row; name a feature of `item` that has the \
                 kind id"
            )),
        }
    }
}

fn unknown_feature(tower: &str, feature: &str) -> Error {
    let name = if tower == USER { "model.user" } else { "model.item" };
    Error::Setting {
        name,
        reason: format!("unknown feature {feature:?}; name features of the job"),
    }
}
