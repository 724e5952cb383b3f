//! Tests of every model, against published parameter counts, finite differences and a second
//! definition of the loss.

mod batch;
mod classes;
mod counts;
mod gpu;
mod groups;
mod learning;
mod passes;
mod reference;
mod shapes;
mod shared;
mod staging;
mod steps;
mod tasks;
mod toy_rows;
mod two_tower;
mod written;

use zillion_feature::Pooling;

use super::{ModelInputs, ModelSpec, SparseInput, VectorSegment};
use crate::graph::TableInput;

/// Reads the text of a `[model]` section.
fn spec(text: &str) -> ModelSpec {
    let value = toml::Value::Table(toml::from_str(text).unwrap());
    zillion_config::from_value(&value, "model").unwrap()
}

/// Returns inputs with `fields` features and `numeric` numbers. All features read one table. Its
/// rows are `[vector dim | linear 1]`, padded to a multiple of four floats. The second feature is a
/// history.
fn inputs(fields: usize, dim: usize, numeric: usize) -> ModelInputs {
    let column = |field: usize| SparseInput {
        name: format!("c{field}"),
        table: 0,
        vector: Some(VectorSegment { offset: 0, dim }),
        linear: Some(dim),
        pooling: Pooling::Sum,
        list: field == 1,
        sequence: field == 1,
    };
    ModelInputs {
        tables: vec![TableInput { name: "ids".into(), stride: (dim + 1).next_multiple_of(4) }],
        columns: (0..fields).map(column).collect(),
        numeric: (0..numeric).map(|index| format!("i{index}")).collect(),
        labels: vec!["click".into()],
    }
}
