//! Deep & cross networks.

use super::inputs::ModelInputs;
use super::mlp::Mlp;
use super::spec::{CrossSpec, CrossV2Spec, Structure};
use crate::error::Result;
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;

pub(super) fn dcn(b: &mut GraphBuilder, spec: &CrossSpec, inputs: &ModelInputs) -> Result<NodeId> {
    let x0 = inputs.deep(b)?;
    let mut crossed = x0;
    for index in 0..spec.cross_layers {
        crossed = b.cross(&format!("cross.{index}"), x0, crossed)?;
    }
    let mlp = Mlp {
        name: "mlp",
        hidden: &spec.hidden,
        activation: spec.activation,
        batch_norm: spec.batch_norm,
        dropout: spec.dropout,
    };
    output(b, spec.structure, &mlp, x0, crossed)
}

pub(super) fn dcnv2(
    b: &mut GraphBuilder,
    spec: &CrossV2Spec,
    inputs: &ModelInputs,
) -> Result<NodeId> {
    let x0 = inputs.deep(b)?;
    let mut crossed = x0;
    for index in 0..spec.cross_layers {
        let name = format!("cross.{index}");
        crossed = match spec.low_rank {
            None => b.cross_v2(&name, x0, crossed)?,
            Some(rank) => b.cross_v2_low_rank(&name, x0, crossed, rank)?,
        };
    }
    let mlp = Mlp {
        name: "mlp",
        hidden: &spec.hidden,
        activation: spec.activation,
        batch_norm: spec.batch_norm,
        dropout: spec.dropout,
    };
    output(b, spec.structure, &mlp, x0, crossed)
}

/// The MLP beside the crosses or after them, and one linear layer to the logit. Without hidden layers
/// the crosses stand alone.
fn output(
    b: &mut GraphBuilder,
    structure: Structure,
    mlp: &Mlp<'_>,
    x0: NodeId,
    crossed: NodeId,
) -> Result<NodeId> {
    let x = match structure {
        Structure::Stacked => mlp.build(b, crossed)?,
        Structure::Parallel if mlp.hidden.is_empty() => crossed,
        Structure::Parallel => {
            let deep = mlp.build(b, x0)?;
            b.concat("joined", &[crossed, deep])?
        }
    };
    b.linear("output", x, 1)
}
