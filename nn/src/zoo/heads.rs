//! The heads of a model, which connect its log odds with the labels.

use super::loss::averaged;
use super::*;
use crate::graph::op::{Binary, Unary};

/// Adds the `logit_shift` of a label to its logits (see [`LabelInput`](super::LabelInput)), if
/// training kept only a share of the rows with label 0. This gives the odds of all data. Only
/// inference adds the shift, because the loss is computed over the rows of training.
pub(super) fn calibrate(
    b: &mut GraphBuilder,
    name: &str,
    logits: NodeId,
    shift: f32,
) -> Result<NodeId> {
    match b.mode() {
        Mode::Infer if shift != 0.0 => b.unary(name, Unary::Offset { by: shift }, logits),
        _ => Ok(logits),
    }
}

/// Builds the sum of the losses of all tasks that have a loss. Each loss is averaged over the rows
/// of its task, and multiplied by the weight of the task. `groups` are the numbers of the groups of
/// the rows, if a loss compares them.
pub(super) fn build_loss(
    b: &mut GraphBuilder,
    inputs: &ModelInputs,
    heads: &[(Task, NodeId)],
    groups: Option<NodeId>,
) -> Result<NodeId> {
    if !inputs.labels.is_empty() && inputs.labels.iter().all(|label| label.weight == 0.0) {
        let reason =
            "every label has weight 0; set the weight of at least one label above 0".to_owned();
        return Err(Error::Setting { name: "labels", reason });
    }
    let mut learned = heads.iter().filter(|(task, _)| task.is_learned()).peekable();
    let mut total = None;
    while let Some((task, logits)) = learned.next() {
        // If a loss is multiplied by 0, its gradients are 0, so its parameters do not change.
        let weight = inputs.labels.get(task.label.of()).map_or(1.0, |label| label.weight);
        let alone = heads.len() == 1;
        let name = if alone { LOSS.to_owned() } else { format!("{LOSS}.{}", task.name) };
        let plain = if weight == 1.0 { name.clone() } else { format!("{name}.unweighted") };
        let (labels, weights) = build_label_nodes(b, &plain, task.label)?;
        let spec = inputs.labels.get(task.label.of()).map(|label| label.loss).unwrap_or_default();
        let mut loss = averaged(b, &plain, spec, [*logits, labels, weights], groups)?;
        if weight != 1.0 {
            loss = b.scale(&name, loss, weight)?;
        }
        let sum = if learned.peek().is_none() { LOSS.to_owned() } else { format!("{name}.total") };
        total = Some(match total {
            None => loss,
            Some(before) => b.add(&sum, before, loss)?,
        });
    }
    let none = || Error::Setting {
        name: "labels",
        reason: "the job has no label to learn; add one".to_owned(),
    };
    total.ok_or_else(none)
}

/// Builds the value and the weight of each row for the label of a loss or a metric. Both are `[B,
/// 1]`.
pub(super) fn build_label_nodes(
    b: &mut GraphBuilder,
    name: &str,
    label: TaskLabel,
) -> Result<(NodeId, NodeId)> {
    match label {
        TaskLabel::Own { label } | TaskLabel::Class { label, .. } => {
            let value = b.label(&format!("{name}.label"), label)?;
            let weight = b.weight(&format!("{name}.weight"), Some(label))?;
            Ok((value, weight))
        }
        TaskLabel::Both { first, second } => {
            let (first, known_first) = known_label(b, &format!("{name}.first"), first)?;
            let other = b.label(&format!("{name}.second"), second)?;
            let value = b.mul(&format!("{name}.label"), first, other)?;
            // If the first label is 0, the product is 0, even if the second label is missing.
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

/// Builds a label and its weight. The label is 0 in rows where it is missing.
fn known_label(b: &mut GraphBuilder, name: &str, label: usize) -> Result<(NodeId, NodeId)> {
    let value = b.label(&format!("{name}.value"), label)?;
    let weight = b.weight(&format!("{name}.weight"), Some(label))?;
    let known = b.binary(&format!("{name}.known"), Binary::SafeDiv, weight, weight)?;
    Ok((b.mul(name, value, known)?, weight))
}
