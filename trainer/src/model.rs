//! From a job to its graphs: where in a row of which table each feature's numbers stand.

use zillion_feature::FeatureKind;
use zillion_nn::zoo::{self, LabelInput, ModelInputs, SparseInput, VectorSegment};
use zillion_nn::{Graph, Mode, TableInput};
use zillion_rows::TableLayout;

use crate::error::Result;
use crate::job::Job;

/// The job's model, built for training or for inference.
pub fn graph(job: &Job, mode: Mode) -> Result<Graph> {
    let layouts: Vec<TableLayout> = job.tables.iter().map(|t| t.layout()).collect();
    let mut inputs = inputs(job, &layouts);
    if let Some((label, keep)) = job.data.negatives(&job.schema)? {
        inputs.labels[label].logit_shift = keep.ln() as f32;
    }
    Ok(zoo::build(&job.model, &inputs, mode)?)
}

fn inputs(job: &Job, layouts: &[TableLayout]) -> ModelInputs {
    let schema = &job.schema;
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
    ModelInputs {
        tables: layouts
            .iter()
            .map(|l| TableInput { name: l.name.clone(), stride: l.stride })
            .collect(),
        columns: columns.collect(),
        numeric: schema.numeric().map(|f| f.name.clone()).collect(),
        labels: schema
            .labels
            .iter()
            .map(|l| LabelInput {
                name: l.name.clone(),
                weight: l.weight,
                loss: job.loss_of(&l.name),
                ..l.name.as_str().into()
            })
            .collect(),
    }
}
