//! The models that a job chooses by name. A job's `[model]` section becomes a [`Graph`].
//!
//! The architectures, including their biases, are the ones of FuxiCTR, because our results are
//! compared with its published results. A test compares the number of parameters with the
//! leaderboard. A model is defined once and built twice, for training and for inference. Both
//! graphs declare the same parameters in the same order, so one set of [`Params`](crate::Params)
//! fits both.
//!
//! | kind | logit |
//! |---|---|
//! | `lr` | Σ linear + bias |
//! | `fm` | Σ linear + bias + Σ ⟨v, v'⟩ (Rendle 2010) |
//! | `dnn` | MLP(vectors) |
//! | `wide_deep` | Σ linear + MLP(vectors) (Cheng et al. 2016) |
//! | `deepfm` | Σ linear + Σ ⟨v, v'⟩ + MLP(vectors) (Guo et al. 2017) |
//! | `dcn` | output(cross(vectors) ‖ MLP(vectors)) (Wang et al. 2017) |
//! | `dcnv2` | the same with matrix crosses, parallel or stacked (Wang et al. 2021) |
//! | `dlrm` | MLP(interaction(bottom MLP(numeric), vectors)) (Naumov et al. 2019) |
//! | `din` | MLP(vectors ‖ attended histories), optionally + Σ linear + FM (Zhou et al. 2018) |
//! | `graph` | the nodes that the job file defines: see [`GraphSpec`] |
//!
//! Models that learn several labels have one logit for each label. Each loss is averaged over the
//! rows that have the label, and multiplied by the label's weight. Then the losses are added up:
//!
//! | kind | logit of a label |
//! |---|---|
//! | `shared_bottom` | tower(bottom(vectors)) (Caruana 1997) |
//! | `mmoe` | tower(Σ gateᵢ·expertᵢ(vectors)), gate = softmax(linear(vectors)) (Ma et al. 2018) |
//! | `esmm` | click: tower(vectors); conversion: log odds of pCTR·pCVR (Ma et al. 2018) |
//!
//! `two_tower` has one vector for the user and one for the item. Its logit is the dot product of
//! these two vectors, divided by the temperature. Its loss is a softmax over the items of the batch
//! (Yi et al., RecSys 2019).
//!
//! A label of classes ([`LabelKind::Class`]) has a score for each class: see
//! `classes.rs`.
//!
//! In the deep part, the value of a numeric feature is concatenated with the vectors. In the linear
//! part, it is multiplied by a weight. In DLRM, it is an input of the bottom MLP.

mod activation;
mod classes;
mod custom;
mod dcn;
mod dcnv2;
mod din;
mod dlrm;
mod dnn;
mod esmm;
mod heads;
mod inputs;
mod keys;
mod loss;
mod mlp;
mod mmoe;
mod model;
mod output_bias;
mod shallow;
mod shared_bottom;
mod spec;
mod task;
mod two_tower;
mod wide_deep;

pub use activation::Activation;
pub use custom::GraphSpec;
pub use dcn::{DcnSpec, Structure};
pub use dcnv2::Dcnv2Spec;
pub use din::{Attention, DinSpec};
pub use dlrm::{DlrmSpec, Interaction};
pub use dnn::DnnSpec;
pub use esmm::EsmmSpec;
pub use inputs::{LabelInput, ModelInputs, SparseInput, VectorSegment};
pub use loss::LossSpec;
pub use mlp::MlpKeys;
pub use mmoe::MmoeSpec;
pub use model::Needs;
pub use output_bias::find_output_bias;
pub use shallow::{FmSpec, LrSpec, ShallowKeys};
pub use shared_bottom::SharedBottomSpec;
pub use spec::ModelSpec;
pub use task::{Task, TaskLabel};
pub use two_tower::{ITEM, LOG_FREQUENCY, TwoTowerSpec, USER};
pub use wide_deep::{DeepFmSpec, WideDeepKeys, WideDeepSpec};

// The files of the models import these names with `use super::*`.
use serde::{Deserialize, Serialize};
use zillion_feature::LabelKind;

use inputs::refuse_no_features;
use keys::widths;
use mlp::DEFAULT_HIDDEN;
use model::ZooModel;

use crate::checks::not_negative;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::builder::{GraphBuilder, Mode};
use crate::graph::op::Unary;
use crate::graph::shape::NodeId;

/// The name of the output with the log odds of the first task, `[B, 1]`, which every model has. The
/// outputs of the other tasks have the name `logits/<task>`. For a label of classes, they are the
/// logarithms of the probabilities of the classes.
pub const LOGITS: &str = "logits";
/// The name of the output `sigmoid(logits)`, `[B, 1]`, of a model that was built for inference. The
/// outputs of the other tasks have the name `probabilities/<task>`. For a label of classes, the
/// output has the probabilities of all classes, `[B, C]`.
pub const PROBABILITIES: &str = "probabilities";
/// The name of the output with the predicted number, `[B, 1]`, of a first task whose label is not 0
/// or 1, in a model that was built for inference: the score, or `e^score` for a count. The outputs
/// of the other tasks have the name `predictions/<task>`.
pub const PREDICTIONS: &str = "predictions";
/// The name of the output with the loss, `[1, 1]`, of a model that was built for training. The loss
/// is the mean binary cross-entropy, summed over labels.
pub const LOSS: &str = "loss";
/// The name of the additional numeric column of a training graph whose loss compares the rows of
/// groups ([`LossSpec::compares_groups`]). It follows the columns of the features and contains the
/// number of the row's group. The rows of a group are neighbours.
pub const GROUP_NUMBER: &str = "group_number";

/// Returns the segments of a row that a model reads. A table needs only these segments.
#[must_use]
pub fn needs(spec: &ModelSpec) -> Needs {
    spec.needs()
}

/// Returns the tasks of a model. `labels` are the names of its labels, whose number
/// [`check_labels`] has accepted. A report with a single metric uses the first task.
#[must_use]
pub fn tasks(spec: &ModelSpec, labels: &[&str]) -> Vec<Task> {
    spec.model().tasks(labels)
}

/// Checks that the model can learn this number of labels.
///
/// # Errors
/// Returns an error if the model cannot learn this number of labels. The error contains the names
/// of the models that learn several labels, or the number of labels that this model needs.
pub fn check_labels(spec: &ModelSpec, labels: usize) -> Result<()> {
    spec.model().check_labels(spec.kind(), labels)
}

/// Returns whether the training graph of the model needs one additional numeric column
/// ([`LOG_FREQUENCY`]) after the columns of the features. For each row, this column contains the
/// logarithm of the item's share of all rows.
#[must_use]
pub fn reads_log_frequency(spec: &ModelSpec) -> bool {
    matches!(spec, ModelSpec::TwoTower(spec) if spec.sampling_correction)
}

/// Builds a model over these inputs.
///
/// For training, the outputs are [`LOGITS`] (one for each of the model's [`tasks`]) and [`LOSS`].
/// For inference, they are [`LOGITS`] and [`PROBABILITIES`] or [`PREDICTIONS`] for each task. The
/// `logit_shift` of the label is added to the logits, from which the probabilities are computed.
///
/// # Errors
/// Returns an error if a setting is out of range, if an input lacks a segment that the model reads,
/// or if there are no features. Also returns an error if the model combines vectors in pairs but
/// their lengths differ, or if the number of labels is wrong. For training, there must be at least
/// one label.
pub fn build(spec: &ModelSpec, inputs: &ModelInputs, mode: Mode) -> Result<Graph> {
    let model = spec.model();
    if inputs.columns.is_empty() && inputs.numeric.is_empty() {
        let reason = format!("{} needs at least one feature; add one to the job", spec.kind());
        return Err(Error::Setting { name: "features", reason });
    }
    model.check_labels(spec.kind(), inputs.labels.len())?;
    classes::check(model, spec.kind(), inputs)?;
    let mut graph_inputs = inputs.to_graph_inputs();
    if reads_log_frequency(spec) && mode == Mode::Train {
        graph_inputs.numeric.push(LOG_FREQUENCY.to_owned());
    }
    let reads_groups = mode == Mode::Train && inputs.compares_groups();
    if reads_groups {
        graph_inputs.numeric.push(GROUP_NUMBER.to_owned());
    }
    let mut builder = GraphBuilder::new(graph_inputs, mode);
    let b = &mut builder;
    let built = model.build(b, inputs)?;
    if let (Some(label), [scores]) = (inputs.class_label(), &built[..]) {
        classes::name_outputs(b, *scores, &Task::of_classes(0, &label.classes))?;
        if mode == Mode::Train {
            let loss = classes::build_loss(b, *scores, label)?;
            b.output(LOSS, loss)?;
        }
        return Ok(builder.finish());
    }
    let names: Vec<&str> = inputs.labels.iter().map(|label| label.name.as_str()).collect();
    // A model can also be built without labels, for scoring only.
    let tasks = if names.is_empty() { vec![Task::own("", 0)] } else { model.tasks(&names) };
    let mut heads: Vec<(Task, NodeId)> = tasks.into_iter().zip(built.iter().copied()).collect();
    for (index, (task, logits)) in heads.iter_mut().enumerate() {
        if let (TaskLabel::Own { label }, false) = (task.label, model.calibrates_itself()) {
            let shift = inputs.labels.get(label).map_or(0.0, |label| label.logit_shift);
            let name = task.output("logits.calibrated", index);
            *logits = heads::calibrate(b, &name, *logits, shift)?;
        }
        b.output(&task.output(LOGITS, index), *logits)?;
    }
    match mode {
        Mode::Train => {
            let loss = match model.build_loss(b, LOSS, inputs, &built)? {
                Some(loss) => loss,
                None => {
                    let column = inputs.numeric.len();
                    let groups = match reads_groups {
                        true => Some(b.numeric(GROUP_NUMBER, &[column])?),
                        false => None,
                    };
                    heads::build_loss(b, inputs, &heads, groups)?
                }
            };
            b.output(LOSS, loss)?;
        }
        Mode::Infer => {
            model.name_outputs(b, &built)?;
            for (index, (task, logits)) in heads.iter().enumerate() {
                let label = inputs.labels.get(task.label.of());
                let kind = label.map(|label| label.loss.label_kind()).unwrap_or_default();
                let (output, function) = match kind {
                    LabelKind::Binary => (PROBABILITIES, Unary::Sigmoid),
                    LabelKind::Number => (PREDICTIONS, Unary::Scale { by: 1.0 }),
                    LabelKind::Count | LabelKind::Class => (PREDICTIONS, Unary::Exp),
                };
                let name = task.output(output, index);
                let prediction = b.unary(&name, function, *logits)?;
                b.output(&name, prediction)?;
            }
        }
    }
    Ok(builder.finish())
}

#[cfg(test)]
mod tests;
