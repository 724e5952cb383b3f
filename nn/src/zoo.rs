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
//! | `din` | MLP(vectors ‖ histories summed by attention) (Zhou et al. 2018) |
//! | `graph` | what the job file says, node by node: see [`GraphSpec`] |
//!
//! A numeric feature joins the deep part as its value, beside the vectors; the wide part has a weight
//! for it; in DLRM it goes through the bottom MLP.

mod activation;
mod cross;
mod din;
mod dlrm;
mod factorised;
mod graph;
mod inputs;
mod mlp;
mod spec;

pub use activation::Activation;
pub use graph::GraphSpec;
pub use inputs::{LabelInput, ModelInputs, SparseInput, VectorSegment};
pub use spec::{
    Attention, CrossSpec, CrossV2Spec, DeepSpec, DinSpec, DlrmSpec, Interaction, ModelSpec, Needs,
    ShallowSpec, Structure, WideDeepSpec,
};

use crate::builder::{GraphBuilder, Mode};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::op::Unary;

/// The output of every model: log odds, `[B, 1]`.
pub const LOGITS: &str = "logits";
/// The output of a model built for inference: `sigmoid(logits)`, `[B, 1]`.
pub const PROBABILITIES: &str = "probabilities";
/// The output of a model built for training: the mean binary cross-entropy, `[1, 1]`.
pub const LOSS: &str = "loss";

/// Which segments of a row a model reads; the others need not exist.
#[must_use]
pub fn needs(spec: &ModelSpec) -> Needs {
    spec.needs()
}

/// Builds a model over these inputs. The label of the loss is the first one.
///
/// For training the outputs are [`LOGITS`] and [`LOSS`], for inference [`LOGITS`] and
/// [`PROBABILITIES`], both shifted by the label's `logit_shift`.
///
/// # Errors
/// A setting out of range, an input that lacks a segment the model reads, vectors of unequal length
/// where the model pairs them, no features, or, for training, no label.
pub fn build(spec: &ModelSpec, inputs: &ModelInputs, mode: Mode) -> Result<Graph> {
    spec.check(inputs)?;
    let mut builder = GraphBuilder::new(inputs.to_graph_inputs(), mode);
    let b = &mut builder;
    let logits = match spec {
        ModelSpec::Lr(spec) => factorised::lr(b, spec, inputs)?,
        ModelSpec::Fm(spec) => factorised::fm(b, spec, inputs)?,
        ModelSpec::Dnn(spec) => factorised::dnn(b, spec, inputs)?,
        ModelSpec::WideDeep(spec) => factorised::wide_deep(b, spec, inputs)?,
        ModelSpec::DeepFm(spec) => factorised::deepfm(b, spec, inputs)?,
        ModelSpec::Dcn(spec) => cross::dcn(b, spec, inputs)?,
        ModelSpec::Dcnv2(spec) => cross::dcnv2(b, spec, inputs)?,
        ModelSpec::Dlrm(spec) => dlrm::dlrm(b, spec, inputs)?,
        ModelSpec::Din(spec) => din::din(b, spec, inputs)?,
        ModelSpec::Graph(spec) => graph::build(b, spec, inputs)?,
    };
    let shift = inputs.labels.first().map_or(0.0, |label| label.logit_shift);
    let logits = calibrated(&mut builder, "logits.calibrated", logits, shift)?;
    builder.output(LOGITS, logits)?;
    finish(&mut builder, logits)?;
    Ok(builder.finish())
}

/// Logits as the data has them, where training saw another share of zeros (see [`LabelInput`]): shifted
/// for inference alone, since the loss is over the rows that were trained.
fn calibrated(b: &mut GraphBuilder, name: &str, logits: NodeId, shift: f32) -> Result<NodeId> {
    match b.mode() {
        Mode::Infer if shift != 0.0 => b.unary(name, Unary::Offset { by: shift }, logits),
        _ => Ok(logits),
    }
}

fn finish(builder: &mut GraphBuilder, logits: NodeId) -> Result<()> {
    match builder.mode() {
        Mode::Train => {
            let loss = builder.bce_with_logits(LOSS, logits, 0)?;
            builder.output(LOSS, loss)
        }
        Mode::Infer => {
            let probabilities = builder.sigmoid(PROBABILITIES, logits)?;
            builder.output(PROBABILITIES, probabilities)
        }
    }
}

#[cfg(test)]
mod tests;
