//! The scores of a label of classes, and their loss.
//!
//! A model has a score `z_c` for each class of the label. The probability of a class is the softmax
//! of the scores. The outputs of a graph are the logarithms of the probabilities, one column for
//! each class, so that everything that reads a score of a task reads a class the same way. The
//! logarithms have no overflow, and a class with a probability near 0 keeps its rank.
//!
//! A part of a model that adds one number to the scores of all classes would change no probability.
//! So the linear part has a weight for each id and class, and the factorisation machine sums the
//! products of all pairs of vectors for each float of the vectors (He & Chua 2017, "bi-interaction
//! pooling"), and multiplies the sums by a matrix.

use super::heads::build_label_nodes;
use super::model::wrong_labels;
use super::*;
use crate::graph::op::{Binary, Op};

/// The largest number of values that one sum adds.
const MOST_TERMS: usize = 8;

/// Checks that a label of classes is the only label, and that the model can learn it. `kind` is the
/// name of the model.
pub(super) fn check(model: &dyn ZooModel, kind: &str, inputs: &ModelInputs) -> Result<()> {
    let Some(label) = inputs.class_label() else { return Ok(()) };
    let name = &label.name;
    if !model.learns_classes() {
        return Err(wrong_labels(format!(
            "{kind} cannot learn label `{name}`, which has classes; choose a model with one label \
             and a softmax: lr, fm, dnn, wide_deep, deepfm, dcn, dcnv2, dlrm, din"
        )));
    }
    if inputs.labels.len() > 1 {
        return Err(wrong_labels(format!(
            "label `{name}` has classes, so it must be the only label of the job; remove the others"
        )));
    }
    Ok(())
}

/// Names the outputs of a model with a score for each class: the logarithms of the probabilities,
/// `[B, 1]` for each class, and for inference the probabilities of all classes, `[B, C]`.
pub(super) fn name_outputs(b: &mut GraphBuilder, scores: NodeId, tasks: &[Task]) -> Result<()> {
    let total = b.log_sum_exp_columns("classes.total", scores)?;
    let logarithms = b.sub("classes.logarithms", scores, total)?;
    for (index, task) in tasks.iter().enumerate() {
        let logarithm = b.slice(&format!("classes.logarithm.{index}"), logarithms, index, 1)?;
        b.output(&task.output(LOGITS, index), logarithm)?;
    }
    if b.mode() == Mode::Infer {
        let probabilities = b.unary(PROBABILITIES, Unary::Exp, logarithms)?;
        b.output(PROBABILITIES, probabilities)?;
    }
    Ok(())
}

/// Builds the weighted mean of the cross-entropies of the rows that have the label:
/// `ln Σ e^(z_c) − z_y`.
pub(super) fn build_loss(
    b: &mut GraphBuilder,
    scores: NodeId,
    label: &LabelInput,
) -> Result<NodeId> {
    if label.weight == 0.0 {
        let reason = "every label has weight 0; set the weight of at least one label above 0";
        return Err(wrong_labels(reason.to_owned()));
    }
    let (labels, weights) = build_label_nodes(b, LOSS, TaskLabel::Own { label: 0 })?;
    let chosen = one_hot(b, labels, label.classes.len())?;
    let total = b.log_sum_exp_columns("loss.total", scores)?;
    let score = b.row_dot("loss.score", scores, chosen)?;
    let rows = b.sub("loss.rows", total, score)?;
    let weighted = b.mul("loss.weighted", rows, weights)?;
    let sum = b.sum_rows("loss.sum", weighted)?;
    let weight = b.sum_rows("loss.weight.sum", weights)?;
    if label.weight == 1.0 {
        return b.binary(LOSS, Binary::SafeDiv, sum, weight);
    }
    let mean = b.binary("loss.unweighted", Binary::SafeDiv, sum, weight)?;
    b.scale(LOSS, mean, label.weight)
}

/// Builds a row with a 1 at the index of the class and 0 elsewhere: `[B, classes]`. Indices are
/// whole numbers, so `max(0, 1 − (y − c)²)` is exactly 1 or 0.
fn one_hot(b: &mut GraphBuilder, labels: NodeId, classes: usize) -> Result<NodeId> {
    let numbers: Vec<NodeId> = (0..classes)
        .map(|class| b.fill(&format!("loss.class.{class}"), 1, 1, class as f32))
        .collect::<Result<_>>()?;
    let numbers = b.concat("loss.classes", &numbers)?;
    let labels = b.push("loss.labels", Op::BroadcastColumns { cols: classes }, &[labels])?;
    let apart = b.sub("loss.apart", labels, numbers)?;
    let squared = b.unary("loss.apart.squared", Unary::Square, apart)?;
    let negative = b.scale("loss.apart.negative", squared, -1.0)?;
    let near = b.unary("loss.near", Unary::Offset { by: 1.0 }, negative)?;
    b.relu("loss.chosen", near)
}

/// Builds the factorisation machine: the dot products of all pairs of vectors of `dim` floats.
/// `fields` is the concatenation of the vectors. With several `scores`, a matrix multiplies the
/// sums of the products of each float.
pub(super) fn fm(
    b: &mut GraphBuilder,
    (vectors, fields): (&[NodeId], NodeId),
    dim: usize,
    scores: usize,
) -> Result<NodeId> {
    if scores == 1 {
        return b.fm("fm", fields, dim);
    }
    let total = sum(b, "fm.sum", vectors)?;
    let of_total = b.unary("fm.sum.squared", Unary::Square, total)?;
    let squares: Vec<NodeId> = vectors
        .iter()
        .enumerate()
        .map(|(index, &vector)| b.unary(&format!("fm.square.{index}"), Unary::Square, vector))
        .collect::<Result<_>>()?;
    let of_each = sum(b, "fm.squares", &squares)?;
    let twice = b.sub("fm.twice", of_total, of_each)?;
    let pairs = b.scale("fm.pairs", twice, 0.5)?;
    b.linear_no_bias("fm", pairs, scores)
}

/// Builds the sum of values of one shape.
pub(super) fn sum(b: &mut GraphBuilder, name: &str, terms: &[NodeId]) -> Result<NodeId> {
    let mut terms = terms.to_vec();
    let mut level = 0;
    while terms.len() > 1 {
        let add = |(index, terms): (usize, &[NodeId])| match terms {
            [only] => Ok(*only),
            terms => b.push(&format!("{name}.{level}.{index}"), Op::AddN, terms),
        };
        terms = terms.chunks(MOST_TERMS).enumerate().map(add).collect::<Result<_>>()?;
        level += 1;
    }
    let none = || refuse_no_features(format!("there is no feature for `{name}`; add one"));
    terms.first().copied().ok_or_else(none)
}
