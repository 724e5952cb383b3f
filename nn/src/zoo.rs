//! The models: from a job's `[model]` section to a [`Graph`].
//!
//! Architectures are those of FuxiCTR, whose published results ours are compared with, down to which
//! bias exists: a test counts parameters against the leaderboard. A model is defined once and built
//! twice, for training and for inference; both graphs declare the same parameters in the same order,
//! so one set of [`Params`](crate::Params) serves both.
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
//! | `din` | MLP(vectors ‖ histories summed by attention) (Zhou et al. 2018); on request + Σ linear, + FM |
//! | `graph` | what the job file says, node by node: see [`GraphSpec`] |
//!
//! Models that learn several labels have a logit each, and their losses are added up, each times its
//! label's weight and averaged over the rows that have the label:
//!
//! | kind | logit of a label |
//! |---|---|
//! | `shared_bottom` | tower(bottom(vectors)) (Caruana 1997) |
//! | `mmoe` | tower(Σ gateᵢ·expertᵢ(vectors)), gate = softmax(linear(vectors)) (Ma et al., KDD 2018) |
//! | `esmm` | `[click, conversion]`: of the click, tower(vectors); of the conversion, the log odds of pCTCVR = pCTR·pCVR (Ma et al., SIGIR 2018) |
//!
//! `two_tower` has a vector for who asks and one for what is asked for; its logit is their dot product
//! over the temperature, and its loss a softmax over the items of the batch (Yi et al., RecSys 2019).
//!
//! A numeric feature joins the deep part as its value, beside the vectors; the wide part has a weight
//! for it; in DLRM it goes through the bottom MLP.

mod activation;
mod cross;
mod custom;
mod din;
mod dlrm;
mod factorised;
mod inputs;
mod loss;
mod mlp;
mod spec;
mod task;
mod tasks;
mod two_tower;

pub use activation::Activation;
pub use custom::GraphSpec;
pub use inputs::{LabelInput, ModelInputs, SparseInput, VectorSegment};
pub use loss::LossSpec;
pub use spec::{
    Attention, CrossSpec, CrossV2Spec, DeepSpec, DinSpec, DlrmSpec, EsmmSpec, Interaction,
    MmoeSpec, ModelSpec, Needs, ShallowSpec, SharedBottomSpec, Structure, TwoTowerSpec,
    WideDeepSpec,
};
pub use task::{Task, TaskLabel, check_labels, tasks};
pub use two_tower::{ITEM, LOG_FREQUENCY, USER};

use crate::error::Result;
use crate::graph::Graph;
use crate::graph::builder::{GraphBuilder, Mode};
use crate::graph::op::Unary;
use crate::graph::shape::NodeId;

/// The output of every model: log odds of the first task, `[B, 1]`. Those of others are called
/// `logits/<task>`.
pub const LOGITS: &str = "logits";
/// The output of a model built for inference: `sigmoid(logits)`, `[B, 1]`; likewise `probabilities/<task>`.
pub const PROBABILITIES: &str = "probabilities";
/// The output of a model built for training: the mean binary cross-entropy, summed over labels, `[1, 1]`.
pub const LOSS: &str = "loss";

/// Which segments of a row a model reads; the others need not exist.
#[must_use]
pub fn needs(spec: &ModelSpec) -> Needs {
    spec.needs()
}

/// Builds a model over these inputs.
///
/// For training the outputs are [`LOGITS`] (one for each of the model's [`tasks`]) and [`LOSS`], for
/// inference [`LOGITS`] and [`PROBABILITIES`], both shifted by the label's `logit_shift`.
///
/// # Errors
/// A setting out of range, an input that lacks a segment the model reads, vectors of unequal length
/// where the model pairs them, no features, or labels that are too many, too few or, for training, none.
pub fn build(spec: &ModelSpec, inputs: &ModelInputs, mode: Mode) -> Result<Graph> {
    spec.check(inputs)?;
    let mut graph_inputs = inputs.to_graph_inputs();
    if reads_log_frequency(spec) && mode == Mode::Train {
        graph_inputs.numeric.push(LOG_FREQUENCY.to_owned());
    }
    let mut builder = GraphBuilder::new(graph_inputs, mode);
    let b = &mut builder;
    let mut towers = None;
    let logits = match spec {
        ModelSpec::Lr(spec) => vec![factorised::lr(b, spec, inputs)?],
        ModelSpec::Fm(spec) => vec![factorised::fm(b, spec, inputs)?],
        ModelSpec::Dnn(spec) => vec![factorised::dnn(b, spec, inputs)?],
        ModelSpec::WideDeep(spec) => vec![factorised::wide_deep(b, spec, inputs)?],
        ModelSpec::DeepFm(spec) => vec![factorised::deepfm(b, spec, inputs)?],
        ModelSpec::Dcn(spec) => vec![cross::dcn(b, spec, inputs)?],
        ModelSpec::Dcnv2(spec) => vec![cross::dcnv2(b, spec, inputs)?],
        ModelSpec::Dlrm(spec) => vec![dlrm::dlrm(b, spec, inputs)?],
        ModelSpec::Din(spec) => vec![din::din(b, spec, inputs)?],
        ModelSpec::SharedBottom(spec) => tasks::shared_bottom(b, spec, inputs)?,
        ModelSpec::Mmoe(spec) => tasks::mmoe(b, spec, inputs)?,
        ModelSpec::Esmm(spec) => tasks::esmm(b, spec, inputs)?.to_vec(),
        ModelSpec::Graph(spec) => custom::build(b, spec, inputs)?,
        ModelSpec::TwoTower(spec) => {
            let made = two_tower::towers(b, spec, inputs)?;
            vec![towers.insert(made).score]
        }
    };
    let names: Vec<&str> = inputs.labels.iter().map(|label| label.name.as_str()).collect();
    let mut heads: Vec<(Task, NodeId)> =
        task::tasks_or_nameless(spec, &names).into_iter().zip(logits).collect();
    for (index, (task, logits)) in heads.iter_mut().enumerate() {
        // The two of esmm are made of each other: it has shifted its own.
        if let (TaskLabel::Own { label }, false) = (task.label, matches!(spec, ModelSpec::Esmm(_)))
        {
            let shift = inputs.labels.get(label).map_or(0.0, |label| label.logit_shift);
            *logits = calibrated(b, &task.output("logits.calibrated", index), *logits, shift)?;
        }
        b.output(&task.output(LOGITS, index), *logits)?;
    }
    match mode {
        Mode::Train => {
            let loss = match (spec, &towers) {
                (ModelSpec::TwoTower(spec), Some(towers)) => {
                    two_tower::loss(b, LOSS, spec, inputs, towers)?
                }
                _ => loss(b, inputs, &heads)?,
            };
            b.output(LOSS, loss)?;
        }
        Mode::Infer => {
            if let Some(towers) = &towers {
                towers.outputs(b)?;
            }
            for (index, (task, logits)) in heads.iter().enumerate() {
                let name = task.output(PROBABILITIES, index);
                let probabilities = b.sigmoid(&name, *logits)?;
                b.output(&name, probabilities)?;
            }
        }
    }
    Ok(builder.finish())
}

/// Whether the model's training graph reads, as one more numeric column behind the features', the
/// logarithm of each row's item's share of all rows ([`LOG_FREQUENCY`]).
#[must_use]
pub fn reads_log_frequency(spec: &ModelSpec) -> bool {
    matches!(spec, ModelSpec::TwoTower(spec) if spec.sampling_correction)
}

/// Logits as the data has them, where training saw another share of zeros (see [`LabelInput`]): shifted
/// for inference alone, since the loss is over the rows that were trained.
fn calibrated(b: &mut GraphBuilder, name: &str, logits: NodeId, shift: f32) -> Result<NodeId> {
    match b.mode() {
        Mode::Infer if shift != 0.0 => b.unary(name, Unary::Offset { by: shift }, logits),
        _ => Ok(logits),
    }
}

/// The losses of the tasks that are learned, each averaged over its own rows, times their weights.
fn loss(b: &mut GraphBuilder, inputs: &ModelInputs, heads: &[(Task, NodeId)]) -> Result<NodeId> {
    if !inputs.labels.is_empty() && inputs.labels.iter().all(|label| label.weight == 0.0) {
        let reason = "every label has weight 0: there is nothing to learn".to_owned();
        return Err(crate::Error::Setting { name: "labels", reason });
    }
    let mut learned = heads.iter().filter(|(task, _)| task.is_learned()).peekable();
    let mut total = None;
    while let Some((task, logits)) = learned.next() {
        // A loss times 0 gives gradients of 0: its parameters stay what they are.
        let weight = inputs.labels.get(task.label.of()).map_or(1.0, |label| label.weight);
        let alone = heads.len() == 1;
        let name = if alone { LOSS.to_owned() } else { format!("{LOSS}.{}", task.name) };
        let plain = if weight == 1.0 { name.clone() } else { format!("{name}.unweighted") };
        let (labels, weights) = tasks::label_nodes(b, &plain, task.label)?;
        let spec = inputs.labels.get(task.label.of()).map(|label| label.loss).unwrap_or_default();
        let mut loss = loss::averaged(b, &plain, spec, *logits, labels, weights)?;
        if weight != 1.0 {
            loss = b.scale(&name, loss, weight)?;
        }
        let sum = if learned.peek().is_none() { LOSS.to_owned() } else { format!("{name}.total") };
        total = Some(match total {
            None => loss,
            Some(before) => b.add(&sum, before, loss)?,
        });
    }
    let none = || crate::Error::Setting { name: "labels", reason: "no label to learn".to_owned() };
    total.ok_or_else(none)
}

#[cfg(test)]
mod tests;
