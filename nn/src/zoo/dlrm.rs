//! DLRM: numeric features become a vector like the others, all vectors interact, an MLP judges.

use super::inputs::ModelInputs;
use super::mlp::Mlp;
use super::spec::{DlrmSpec, Interaction};
use crate::error::{Error, Result};
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;

/// The bottom MLP's hidden layers where the job names none; the vectors' length follows.
const DEFAULT_BOTTOM: [usize; 3] = [64; 3];

pub(super) fn dlrm(b: &mut GraphBuilder, spec: &DlrmSpec, inputs: &ModelInputs) -> Result<NodeId> {
    let dim = inputs.common_dim("dlrm")?;
    let bottom = match inputs.numerics(b)? {
        Some(numeric) => Some(bottom(b, spec, numeric, dim)?),
        None if spec.bottom.is_some() => {
            let reason = "the bottom MLP reads numeric features, and there are none; leave it out";
            return Err(Error::Setting { name: "model.bottom", reason: reason.to_owned() });
        }
        None => None,
    };
    let mut fields: Vec<NodeId> = bottom.into_iter().collect();
    fields.extend(inputs.vectors(b)?);
    let x = b.concat("fields", &fields)?;
    let x = match spec.interaction {
        Interaction::Cat => x,
        Interaction::Dot if fields.len() < 2 => {
            let reason = "a dot interaction needs two vectors, and there is one; use \"cat\"";
            return Err(Error::Setting { name: "model.interaction", reason: reason.to_owned() });
        }
        Interaction::Dot => {
            let pairs = b.dot_interaction("interaction", x, dim)?;
            match bottom {
                Some(bottom) => b.concat("joined", &[bottom, pairs])?,
                None => pairs,
            }
        }
    };
    let top = Mlp {
        name: "mlp",
        hidden: &spec.hidden,
        activation: spec.activation,
        batch_norm: spec.batch_norm,
        dropout: spec.dropout,
    };
    let x = top.build(b, x)?;
    b.linear("output", x, 1)
}

/// The MLP over the numeric features. Its last layer has the activation but neither batch norm nor
/// dropout, as in FuxiCTR: it is one of the vectors that interact.
fn bottom(b: &mut GraphBuilder, spec: &DlrmSpec, numeric: NodeId, dim: usize) -> Result<NodeId> {
    let hidden = match spec.bottom.as_deref() {
        None => &DEFAULT_BOTTOM[..],
        Some([hidden @ .., last]) if *last == dim => hidden,
        Some(layers) => {
            let reason = format!("must end in the vectors' length, {dim}, found {layers:?}");
            return Err(Error::Setting { name: "model.bottom", reason });
        }
    };
    let mlp = Mlp {
        name: "bottom",
        hidden,
        activation: spec.activation,
        batch_norm: spec.batch_norm,
        dropout: spec.bottom_dropout,
    };
    let x = mlp.build(b, numeric)?;
    let layer = format!("bottom.{}", hidden.len());
    let x = b.linear(&layer, x, dim)?;
    spec.activation.apply(b, &layer, x)
}
