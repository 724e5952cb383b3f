//! Deep interest network: a history is summed by how much each of its items matters to the item in
//! question (Zhou et al., KDD 2018).

use super::factorised::wide;
use super::inputs::{ModelInputs, SparseInput};
use super::mlp::Mlp;
use super::spec::{Attention, DinSpec};
use crate::error::{Error, Result};
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;

pub(super) fn din(b: &mut GraphBuilder, spec: &DinSpec, inputs: &ModelInputs) -> Result<NodeId> {
    let pairs = pairs(spec, inputs)?;
    let dim = if spec.fm { Some(inputs.common_dim("din with fm")?) } else { None };
    let numeric = inputs.numerics(b)?;
    // The vector of every feature; in a history's place what attention makes of it for each query.
    let mut vectors = vec![None; inputs.columns.len()];
    for (index, vector) in vectors.iter_mut().enumerate() {
        if pairs.iter().all(|pair| pair.history != index) {
            *vector = Some(inputs.vector(b, index)?);
        }
    }
    let mut histories = vec![None; inputs.columns.len()];
    let mut parts = Vec::new();
    for (index, column) in inputs.columns.iter().enumerate() {
        parts.extend(vectors[index]);
        for pair in pairs.iter().filter(|pair| pair.history == index) {
            let history = match histories[index] {
                Some(history) => history,
                None => inputs.values(b, index)?,
            };
            histories[index] = Some(history);
            let query = &inputs.columns[pair.query];
            // A query is itself no history: `pairs` has seen to it.
            let Some(vector) = vectors[pair.query] else { return Err(not_one(query)) };
            let name = format!("attention.{}.{}", query.name, column.name);
            parts.push(attend(b, spec, &name, vector, history, index)?);
        }
    }
    let fields = b.concat("fields", &parts)?;
    let x = match numeric {
        Some(numeric) => b.concat("deep", &[fields, numeric])?,
        None => fields,
    };
    let mlp = Mlp {
        name: "mlp",
        hidden: &spec.hidden,
        activation: spec.activation,
        batch_norm: spec.batch_norm,
        dropout: spec.dropout,
    };
    let x = mlp.build(b, x)?;
    let mut logit = b.linear("output", x, 1)?;
    if let Some(dim) = dim {
        let pairs = b.fm("fm", fields, dim)?;
        logit = b.add("logit.fm", pairs, logit)?;
    }
    if spec.wide {
        let wide = wide(b, inputs, numeric, false)?;
        logit = b.add("logit.wide", wide, logit)?;
    }
    Ok(logit)
}

/// The activation unit: an MLP over query, item, their difference and their product weighs each item of
/// the history `[V, d]`; the weighted items are summed. Without softmax the weights of a list need not
/// sum to 1, so that the sum's length says how strong the interest is (section 4.3 of the paper).
fn attend(
    b: &mut GraphBuilder,
    spec: &DinSpec,
    name: &str,
    query: NodeId,
    history: NodeId,
    column: usize,
) -> Result<NodeId> {
    let query = b.repeat(&format!("{name}.query"), query, column)?;
    let difference = b.sub(&format!("{name}.difference"), query, history)?;
    let product = b.mul(&format!("{name}.product"), query, history)?;
    let x = b.concat(&format!("{name}.input"), &[query, history, difference, product])?;
    let unit = Mlp {
        name,
        hidden: &spec.attention_hidden,
        activation: spec.attention_activation,
        batch_norm: false,
        dropout: 0.0,
    };
    let x = unit.build(b, x)?;
    let mut weight = b.linear(&format!("{name}.weight_of"), x, 1)?;
    if spec.softmax {
        weight = b.segment_softmax(&format!("{name}.softmax"), weight)?;
    }
    let weighted = b.mul(&format!("{name}.weighted"), history, weight)?;
    b.segment_sum(&format!("{name}.sum"), weighted)
}

/// Positions of a query and its history among the columns.
struct Pair {
    query: usize,
    history: usize,
}

fn pairs(spec: &DinSpec, inputs: &ModelInputs) -> Result<Vec<Pair>> {
    if spec.attention.is_empty() {
        let reason = "name at least one pair, as in [{ query = \"item\", history = \"watched\" }]";
        return Err(refused(reason.to_owned()));
    }
    let mut pairs: Vec<Pair> = Vec::with_capacity(spec.attention.len());
    for Attention { query, history } in &spec.attention {
        let find = |name: &str| {
            let at = inputs.columns.iter().position(|column| column.name == name);
            at.ok_or_else(|| refused(format!("there is no sparse feature {name:?}")))
        };
        let pair = Pair { query: find(query)?, history: find(history)? };
        let (q, h) = (&inputs.columns[pair.query], &inputs.columns[pair.history]);
        if !h.sequence {
            let reason = format!("{history:?} is no history: make it kind = \"sequence\"");
            return Err(refused(reason));
        }
        if q.list {
            return Err(not_one(q));
        }
        if q.table != h.table || q.vector != h.vector {
            let reason = format!(
                "{query:?} and {history:?} are compared, so they must share a table: set table = {:?} in both",
                inputs.tables.get(q.table).map_or("items", |table| &table.name)
            );
            return Err(refused(reason));
        }
        if pairs.iter().any(|p| (p.query, p.history) == (pair.query, pair.history)) {
            return Err(refused(format!("{query:?} and {history:?} are paired twice")));
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

fn not_one(query: &SparseInput) -> Error {
    refused(format!("a query has one id a row, and {:?} is a list", query.name))
}

fn refused(reason: String) -> Error {
    Error::Setting { name: "model.attention", reason }
}
