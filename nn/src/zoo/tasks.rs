//! Models that learn several labels at once.

use super::inputs::ModelInputs;
use super::mlp::Mlp;
use super::spec::{EsmmSpec, MmoeSpec, SharedBottomSpec};
use super::{TaskLabel, calibrated};
use crate::error::Result;
use crate::graph::builder::GraphBuilder;
use crate::graph::op::Binary;
use crate::graph::shape::NodeId;

/// One bottom, and a tower a label on top of it.
pub(super) fn shared_bottom(
    b: &mut GraphBuilder,
    spec: &SharedBottomSpec,
    inputs: &ModelInputs,
) -> Result<Vec<NodeId>> {
    let layers = Layers::of(spec.activation, spec.batch_norm, spec.dropout);
    let x = inputs.deep(b)?;
    let bottom = layers.mlp("bottom", &spec.bottom).build(b, x)?;
    let mut logits = Vec::with_capacity(inputs.labels.len());
    for label in &inputs.labels {
        logits.push(layers.tower(b, &label.name, &spec.tower, bottom)?);
    }
    Ok(logits)
}

/// Several bottoms (experts); each label mixes them by weights that its gate computes from the row.
pub(super) fn mmoe(
    b: &mut GraphBuilder,
    spec: &MmoeSpec,
    inputs: &ModelInputs,
) -> Result<Vec<NodeId>> {
    let layers = Layers::of(spec.activation, spec.batch_norm, spec.dropout);
    let x = inputs.deep(b)?;
    let mut experts = Vec::with_capacity(spec.experts);
    for index in 0..spec.experts {
        experts.push(layers.mlp(&format!("expert.{index}"), &spec.expert).build(b, x)?);
    }
    let mut logits = Vec::with_capacity(inputs.labels.len());
    for label in &inputs.labels {
        let gate = format!("gate.{}", label.name);
        let scores = b.linear(&format!("{gate}.scores"), x, spec.experts)?;
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
        // There is at least one expert, or the spec was refused.
        logits.push(layers.tower(b, &label.name, &spec.tower, mixed.unwrap_or(x))?);
    }
    Ok(logits)
}

/// Two towers on shared vectors. The first says how likely a click is, `a`; the second how likely a
/// conversion is after one, `b`. What is learned is the first, and the product of both over all
/// impressions.
///
/// The product has log odds `−ln(e^−a + e^−b + e^−(a+b))`, because
/// `1 / (σ(a)·σ(b)) − 1 = (1 + e^−a)(1 + e^−b) − 1`; it is computed in that form, which is exact
/// where the product itself would round to 0 or 1.
pub(super) fn esmm(
    b: &mut GraphBuilder,
    spec: &EsmmSpec,
    inputs: &ModelInputs,
) -> Result<[NodeId; 3]> {
    let layers = Layers::of(spec.activation, spec.batch_norm, spec.dropout);
    let x = inputs.deep(b)?;
    let click = layers.tower(b, &inputs.labels[0].name, &spec.hidden, x)?;
    // Zeros of the click that were left out change its odds, and the product through it alone.
    let click = calibrated(b, "click.calibrated", click, inputs.labels[0].logit_shift)?;
    let given = layers.tower(b, &inputs.labels[1].name, &spec.hidden, x)?;
    let both = b.add("both", click, given)?;
    let terms = b.concat("both.terms", &[click, given, both])?;
    let terms = b.scale("both.negative", terms, -1.0)?;
    let sum = b.log_sum_exp_columns("both.sum", terms)?;
    let product = b.scale("both.logit", sum, -1.0)?;
    let product = calibrated(b, "both.calibrated", product, inputs.labels[1].logit_shift)?;
    Ok([click, product, given])
}

/// The labels of a loss or a metric as nodes: value and weight, both `[B, 1]`.
pub(super) fn label_nodes(
    b: &mut GraphBuilder,
    name: &str,
    label: TaskLabel,
) -> Result<(NodeId, NodeId)> {
    match label {
        TaskLabel::Own { label } => {
            let value = b.label(&format!("{name}.label"), label)?;
            let weight = b.weight(&format!("{name}.weight"), Some(label))?;
            Ok((value, weight))
        }
        TaskLabel::Both { first, second } => {
            let (first, known_first) = known_label(b, &format!("{name}.first"), first)?;
            let other = b.label(&format!("{name}.second"), second)?;
            let value = b.mul(&format!("{name}.label"), first, other)?;
            // Where the first is 0 so is the product, whatever is known of the second.
            let known_second = b.weight(&format!("{name}.second.weight"), Some(second))?;
            let more = b.sub(&format!("{name}.weight.more"), known_second, known_first)?;
            let weight = b.mul_add(&format!("{name}.weight"), more, first, known_first)?;
            Ok((value, weight))
        }
        TaskLabel::Given { first, second } => {
            let (first, _) = known_label(b, &format!("{name}.first"), first)?;
            let value = b.label(&format!("{name}.label"), second)?;
            let known_second = b.weight(&format!("{name}.second.weight"), Some(second))?;
            let weight = b.mul(&format!("{name}.weight"), known_second, first)?;
            Ok((value, weight))
        }
    }
}

/// A label that is 0 where it is missing, and its weight.
fn known_label(b: &mut GraphBuilder, name: &str, label: usize) -> Result<(NodeId, NodeId)> {
    let value = b.label(&format!("{name}.value"), label)?;
    let weight = b.weight(&format!("{name}.weight"), Some(label))?;
    let known = b.binary(&format!("{name}.known"), Binary::SafeDiv, weight, weight)?;
    Ok((b.mul(name, value, known)?, weight))
}

/// What all layers of a model have in common.
#[derive(Clone, Copy)]
struct Layers {
    activation: super::Activation,
    batch_norm: bool,
    dropout: f32,
}

impl Layers {
    fn of(activation: super::Activation, batch_norm: bool, dropout: f32) -> Self {
        Self { activation, batch_norm, dropout }
    }

    fn mlp<'a>(&self, name: &'a str, hidden: &'a [usize]) -> Mlp<'a> {
        let Self { activation, batch_norm, dropout } = *self;
        Mlp { name, hidden, activation, batch_norm, dropout }
    }

    /// An MLP down to a label's log odds.
    fn tower(
        &self,
        b: &mut GraphBuilder,
        label: &str,
        hidden: &[usize],
        x: NodeId,
    ) -> Result<NodeId> {
        let name = format!("tower.{label}");
        let x = self.mlp(&name, hidden).build(b, x)?;
        b.linear(&format!("{name}.output"), x, 1)
    }
}
