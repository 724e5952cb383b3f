//! Two towers: a vector for who asks and one for what is asked for; the closer they are, the better.
//!
//! What is learned is to tell a row's item from those of the other rows of its batch (Yi et al.,
//! "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019). Items
//! come into a batch as often as they are asked for, so each is scored down by the logarithm of how often
//! that is; without this the model would learn to avoid what is popular.

use super::inputs::ModelInputs;
use super::mlp::Mlp;
use super::spec::TwoTowerSpec;
use crate::error::{Error, Result};
use crate::graph::builder::GraphBuilder;
use crate::graph::op::{Binary, InBatch, Op};
use crate::graph::shape::NodeId;

/// The input of a training graph that has, for each row, the logarithm of its item's share of all rows.
pub const LOG_FREQUENCY: &str = "log_frequency";
/// The output of a graph for inference: who asks, `[B, dim]`.
pub const USER: &str = "user";
/// The output of a graph for inference: what is asked for, `[B, dim]`.
pub const ITEM: &str = "item";

/// What both towers come to.
pub(super) struct Towers {
    user: NodeId,
    item: NodeId,
    /// `user · item / temperature`, `[B, 1]`.
    pub(super) score: NodeId,
}

pub(super) fn towers(
    b: &mut GraphBuilder,
    spec: &TwoTowerSpec,
    inputs: &ModelInputs,
) -> Result<Towers> {
    spec.check_features(inputs)?;
    let user = tower(b, spec, inputs, USER, &spec.user)?;
    let item = tower(b, spec, inputs, ITEM, &spec.item)?;
    let dot = b.row_dot("dot", user, item)?;
    let score = b.scale("score", dot, 1.0 / spec.temperature)?;
    Ok(Towers { user, item, score })
}

/// The features named, through an MLP, to a vector of `dim` floats.
fn tower(
    b: &mut GraphBuilder,
    spec: &TwoTowerSpec,
    inputs: &ModelInputs,
    name: &str,
    features: &[String],
) -> Result<NodeId> {
    let mut parts = Vec::with_capacity(features.len());
    for feature in features {
        let sparse = inputs.columns.iter().position(|c| c.name == *feature);
        let numeric = inputs.numeric.iter().position(|n| n == feature);
        parts.push(match (sparse, numeric) {
            (Some(column), _) => inputs.vector(b, column)?,
            (None, Some(column)) => b.numeric(&format!("numeric.{feature}"), &[column])?,
            (None, None) => return Err(unknown(name, feature)),
        });
    }
    let x = b.concat(&format!("{name}.input"), &parts)?;
    let layers = format!("{name}.mlp");
    let mlp = Mlp {
        name: &layers,
        hidden: &spec.hidden,
        activation: spec.activation,
        batch_norm: spec.batch_norm,
        dropout: spec.dropout,
    };
    let x = mlp.build(b, x)?;
    let x = b.linear(&format!("{name}.output"), x, spec.dim)?;
    if !spec.normalise {
        return Ok(x);
    }
    let square = b.row_dot(&format!("{name}.square"), x, x)?;
    // A vector of zeros stays one.
    let square = b.unary(
        &format!("{name}.square.far"),
        crate::graph::op::Unary::Offset { by: 1e-12 },
        square,
    )?;
    let length = b.unary(&format!("{name}.length"), crate::graph::op::Unary::Sqrt, square)?;
    b.binary(&format!("{name}.direction"), Binary::Div, x, length)
}

/// The mean over the rows that count of `ln Σ_j e^(s_ij − c_j) − (s_ii − c_i)`. A row labelled 0 does not
/// count, nor one without a label; its item stands against the others all the same.
pub(super) fn loss(
    b: &mut GraphBuilder,
    name: &str,
    spec: &TwoTowerSpec,
    inputs: &ModelInputs,
    towers: &Towers,
) -> Result<NodeId> {
    let column = spec.item_column(inputs)?;
    let mut own = towers.score;
    let mut operands = vec![towers.user, b.push("item.whole", Op::Collect, &[towers.item])?];
    if spec.sampling_correction {
        let correction = b.numeric(LOG_FREQUENCY, &[inputs.numeric.len()])?;
        own = b.sub("score.corrected", own, correction)?;
        operands.push(b.push("log_frequency.whole", Op::Collect, &[correction])?);
    }
    let op = Op::InBatchLse(InBatch { column, by: 1.0 / spec.temperature });
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
    b.binary(name, Binary::SafeDiv, sum, total)
}

impl Towers {
    /// Names both vectors, for retrieval.
    pub(super) fn outputs(&self, b: &mut GraphBuilder) -> Result<()> {
        b.output(USER, self.user)?;
        b.output(ITEM, self.item)
    }
}

impl TwoTowerSpec {
    /// Every feature in one tower, and the one that says which item it is.
    fn check_features(&self, inputs: &ModelInputs) -> Result<()> {
        for (name, features) in [("model.user", &self.user), ("model.item", &self.item)] {
            if features.is_empty() {
                let reason = "names no feature; a tower needs at least one".to_owned();
                return Err(Error::Setting { name, reason });
            }
        }
        let all = inputs.columns.iter().map(|c| &c.name).chain(&inputs.numeric);
        for feature in all {
            let uses = self.user.iter().chain(&self.item).filter(|f| *f == feature).count();
            let reason = match uses {
                1 => continue,
                0 => format!("feature {feature:?} is in no tower; name it in `user` or in `item`"),
                _ => format!("feature {feature:?} is named {uses} times in `user` and `item`"),
            };
            return Err(Error::Setting { name: "model", reason });
        }
        self.item_column(inputs).map(|_| ())
    }

    /// The column whose ids tell items apart.
    pub(super) fn item_column(&self, inputs: &ModelInputs) -> Result<usize> {
        let refuse = |reason| Err(Error::Setting { name: "model.item_id", reason });
        let name = self.item_feature();
        match inputs.columns.iter().position(|c| c.name == name) {
            _ if !self.item.iter().any(|f| f == name) => {
                refuse(format!("{name:?} is no feature of the item's tower"))
            }
            Some(column) if !inputs.columns[column].list => Ok(column),
            _ => refuse(format!("{name:?} is not of kind id: one id a row tells items apart")),
        }
    }
}

fn unknown(tower: &str, feature: &str) -> Error {
    let name = if tower == USER { "model.user" } else { "model.item" };
    Error::Setting { name, reason: format!("there is no feature {feature:?}") }
}
