//! Linear models, factorisation machines, and the deep models beside them.

use super::inputs::ModelInputs;
use super::mlp::Mlp;
use super::spec::{DeepSpec, ShallowSpec, WideDeepSpec};
use crate::error::Result;
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;

pub(super) fn lr(b: &mut GraphBuilder, spec: &ShallowSpec, inputs: &ModelInputs) -> Result<NodeId> {
    let numeric = inputs.numerics(b)?;
    wide(b, inputs, numeric, spec.bias)
}

pub(super) fn fm(b: &mut GraphBuilder, spec: &ShallowSpec, inputs: &ModelInputs) -> Result<NodeId> {
    let dim = inputs.common_dim("fm")?;
    let numeric = inputs.numerics(b)?;
    let wide = wide(b, inputs, numeric, spec.bias)?;
    let vectors = inputs.vectors(b)?;
    let fields = b.concat("fields", &vectors)?;
    let pairs = b.fm("fm", fields, dim)?;
    b.add("logit", wide, pairs)
}

pub(super) fn dnn(b: &mut GraphBuilder, spec: &DeepSpec, inputs: &ModelInputs) -> Result<NodeId> {
    let x = inputs.deep(b)?;
    let mlp = Mlp {
        name: "mlp",
        hidden: &spec.hidden,
        activation: spec.activation,
        batch_norm: spec.batch_norm,
        dropout: spec.dropout,
    };
    deep(b, &mlp, x)
}

pub(super) fn wide_deep(
    b: &mut GraphBuilder,
    spec: &WideDeepSpec,
    inputs: &ModelInputs,
) -> Result<NodeId> {
    let numeric = inputs.numerics(b)?;
    let wide = wide(b, inputs, numeric, spec.bias)?;
    let mut parts = inputs.vectors(b)?;
    parts.extend(numeric);
    let x = b.concat("deep", &parts)?;
    let deep = deep(b, &mlp(spec), x)?;
    b.add("logit", wide, deep)
}

pub(super) fn deepfm(
    b: &mut GraphBuilder,
    spec: &WideDeepSpec,
    inputs: &ModelInputs,
) -> Result<NodeId> {
    let dim = inputs.common_dim("deepfm")?;
    let numeric = inputs.numerics(b)?;
    let wide = wide(b, inputs, numeric, spec.bias)?;
    let vectors = inputs.vectors(b)?;
    let fields = b.concat("fields", &vectors)?;
    let pairs = b.fm("fm", fields, dim)?;
    let x = match numeric {
        Some(numeric) => b.concat("deep", &[fields, numeric])?,
        None => fields,
    };
    let deep = deep(b, &mlp(spec), x)?;
    let shallow = b.add("shallow", wide, pairs)?;
    b.add("logit", shallow, deep)
}

fn mlp(spec: &WideDeepSpec) -> Mlp<'_> {
    Mlp {
        name: "mlp",
        hidden: &spec.hidden,
        activation: spec.activation,
        batch_norm: spec.batch_norm,
        dropout: spec.dropout,
    }
}

/// An MLP down to one number.
fn deep(b: &mut GraphBuilder, mlp: &Mlp<'_>, x: NodeId) -> Result<NodeId> {
    let x = mlp.build(b, x)?;
    b.linear("output", x, 1)
}

/// The linear part: each id's own weight, a weight for each number, and a bias where wanted.
pub(super) fn wide(
    b: &mut GraphBuilder,
    inputs: &ModelInputs,
    numeric: Option<NodeId>,
    bias: bool,
) -> Result<NodeId> {
    let weights = inputs.weights(b)?;
    let mut parts = Vec::new();
    if !weights.is_empty() {
        let weights = b.concat("linear", &weights)?;
        parts.push(b.sum_columns("linear.sum", weights)?);
    }
    if let Some(numeric) = numeric {
        parts.push(b.linear_no_bias("wide.numeric", numeric, 1)?);
    }
    let sum = match parts[..] {
        [ids, numbers] => b.add("wide.sum", ids, numbers)?,
        // There is at least one feature, or the model was refused before.
        _ => parts[0],
    };
    if bias { b.bias("wide", sum) } else { Ok(sum) }
}
