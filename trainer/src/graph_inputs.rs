//! The inputs of a model's graph. They give the positions of each feature's numbers in the rows of
//! tables.
//!
//! This module does not depend on [`Job`](crate::Job). So the validation of a job can build the
//! graph before the job exists.

use zillion_feature::{Classes, FeatureKind, LabelSpec, Schema};
use zillion_nn::zoo::{LabelInput, LossSpec, ModelInputs, SparseInput, VectorSegment};
use zillion_nn::{Graph, NodeId, TableInput};
use zillion_rows::{TableLayout, TableSpec};

use crate::error::{Error, Result};

/// Returns the node of an output that training needs.
pub(crate) fn find_output(graph: &Graph, name: &str) -> Result<NodeId> {
    graph.output(name).ok_or_else(|| {
        Error::Unsupported(format!(
            "the model has no output `{name}`, which training needs; add this output to the model"
        ))
    })
}

/// Returns the number of linear weights of a row: one, or one for each class of the label.
pub(crate) fn linear_weights(schema: &Schema) -> usize {
    let classes = schema.labels.iter().find_map(|label| label.classes.as_ref());
    classes.map_or(1, Classes::count)
}

/// Returns the inputs of a model over rows of `schema` and tables of `specs`. `loss_of` names the
/// loss of a label.
pub(crate) fn model_inputs(
    schema: &Schema,
    specs: &[TableSpec],
    loss_of: impl Fn(&str) -> LossSpec,
) -> ModelInputs {
    let layouts: Vec<TableLayout> = specs.iter().map(TableSpec::layout).collect();
    let columns = schema.sparse().filter_map(|feature| {
        let table = feature.table()?.index();
        let segment = |name| layouts[table].segment(name);
        Some(SparseInput {
            name: feature.name.clone(),
            table,
            vector: segment("vector").map(|s| VectorSegment { offset: s.offset, dim: s.dim }),
            linear: segment("linear").map(|s| s.offset),
            pooling: feature.pooling().unwrap_or_default(),
            list: feature.pooling().is_some(),
            sequence: matches!(feature.kind, FeatureKind::Sequence { .. }),
        })
    });
    let label = |spec: &LabelSpec| LabelInput {
        weight: spec.weight,
        loss: loss_of(&spec.name),
        classes: spec.classes.as_ref().map(|_| spec.task_names()).unwrap_or_default(),
        ..spec.name.as_str().into()
    };
    ModelInputs {
        tables: layouts
            .iter()
            .map(|layout| TableInput { name: layout.name.clone(), stride: layout.stride })
            .collect(),
        columns: columns.collect(),
        numeric: schema.numeric_names(),
        labels: schema.labels.iter().map(label).collect(),
    }
}
