//! The inputs of a model, with the segments of the rows of each feature.

use zillion_feature::Pooling;

use super::*;
use crate::graph::{ColumnInput, GraphInputs, TableInput};

/// The inputs of a model, in the order of a batch's columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelInputs {
    /// The tables, in the order of the lookup plan. Each has the number of floats in its rows.
    pub tables: Vec<TableInput>,
    /// The sparse features in schema order.
    pub columns: Vec<SparseInput>,
    /// The numeric features in schema order.
    pub numeric: Vec<String>,
    /// The labels in schema order.
    pub labels: Vec<LabelInput>,
}

/// A label of the training data.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelInput {
    /// The name of the label.
    pub name: String,
    /// The factor of the label's loss.
    pub weight: f32,
    /// The number that is added to the logit in a graph for inference; 0 for no change. If training
    /// kept only a share `keep` of the rows with label 0, the model learns the odds of the data
    /// divided by `keep`. Adding `ln(keep)` corrects this (King & Zeng 2001; He et al. 2014,
    /// section 6.3).
    pub logit_shift: f32,
    /// The loss of the label, for models that have a separate loss for each label.
    pub loss: LossSpec,
    /// The names of the tasks of the label's classes; empty for a label without classes.
    pub classes: Vec<String>,
}

impl From<&str> for LabelInput {
    fn from(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            weight: 1.0,
            logit_shift: 0.0,
            loss: LossSpec::default(),
            classes: Vec::new(),
        }
    }
}

/// A sparse feature and its segments.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseInput {
    /// The name of the feature.
    pub name: String,
    /// The index of the feature's table.
    pub table: usize,
    /// The place of the feature's vector in a row, or `None` if the rows contain no vector.
    pub vector: Option<VectorSegment>,
    /// The index of the feature's linear weight in a row, or `None` if the rows contain no linear
    /// weight. For a label of classes, it is the first of the weights of the classes.
    pub linear: Option<usize>,
    /// The rule by which the rows of a list are pooled into one.
    pub pooling: Pooling,
    /// Whether a row of the batch has a list of values.
    pub list: bool,
    /// Whether the lists are ordered, as histories are.
    pub sequence: bool,
}

/// The place of a vector in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorSegment {
    /// The index in the row of the first float of the vector.
    pub offset: usize,
    /// The number of floats of the vector.
    pub dim: usize,
}

/// Returns whether a numeric column is that of a feature, or that of a float of the feature's
/// vector: `name[i]`.
pub(super) fn is_column_of(column: &str, feature: &str) -> bool {
    column.strip_prefix(feature).is_some_and(|rest| {
        let inner = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let is_index = |i: &str| !i.is_empty() && i.bytes().all(|b| b.is_ascii_digit());
        rest.is_empty() || inner.is_some_and(is_index)
    })
}

impl ModelInputs {
    /// Returns the positions of the numeric columns of a feature: one for a number, several for a
    /// vector, none for a feature of ids.
    pub(super) fn numbers_of(&self, feature: &str) -> Vec<usize> {
        let columns = self.numeric.iter().enumerate();
        columns.filter(|(_, column)| is_column_of(column, feature)).map(|(at, _)| at).collect()
    }

    pub(super) fn to_graph_inputs(&self) -> GraphInputs {
        let column =
            |input: &SparseInput| ColumnInput { name: input.name.clone(), table: input.table };
        GraphInputs {
            tables: self.tables.clone(),
            columns: self.columns.iter().map(column).collect(),
            numeric: self.numeric.clone(),
            labels: self.labels.iter().map(|label| label.name.clone()).collect(),
        }
    }

    /// Returns the label of classes, if the model learns one.
    pub(super) fn class_label(&self) -> Option<&LabelInput> {
        self.labels.iter().find(|label| !label.classes.is_empty())
    }

    /// Returns whether the loss of a label compares the rows of groups.
    pub(super) fn compares_groups(&self) -> bool {
        self.labels.iter().any(|label| label.loss.compares_groups())
    }

    /// Returns the number of scores of a row: one, or one for each class.
    pub(super) fn scores(&self) -> usize {
        self.class_label().map_or(1, |label| label.classes.len())
    }

    /// Builds the vector of each sparse feature.
    pub(super) fn vectors(&self, b: &mut GraphBuilder) -> Result<Vec<NodeId>> {
        (0..self.columns.len()).map(|index| self.vector(b, index)).collect()
    }

    /// Builds the vector of one sparse feature: `[B, dim]`.
    pub(super) fn vector(&self, b: &mut GraphBuilder, index: usize) -> Result<NodeId> {
        let column = &self.columns[index];
        let segment = column.vector.ok_or_else(|| refuse_missing_segment(column, "vector"))?;
        let name = format!("vector.{}", column.name);
        b.gather(&name, index, segment.offset, segment.dim, column.pooling)
    }

    /// Builds the vector of each value of a list: `[V, dim]`.
    pub(super) fn values(&self, b: &mut GraphBuilder, index: usize) -> Result<NodeId> {
        let column = &self.columns[index];
        let segment = column.vector.ok_or_else(|| refuse_missing_segment(column, "vector"))?;
        b.gather_values(&format!("values.{}", column.name), index, segment.offset, segment.dim)
    }

    /// Builds the linear weight of each sparse feature, or its weights of all classes.
    pub(super) fn weights(&self, b: &mut GraphBuilder) -> Result<Vec<NodeId>> {
        let mut weights = Vec::with_capacity(self.columns.len());
        for (index, column) in self.columns.iter().enumerate() {
            let offset =
                column.linear.ok_or_else(|| refuse_missing_segment(column, "linear weight"))?;
            let name = format!("linear.{}", column.name);
            weights.push(b.gather(&name, index, offset, self.scores(), column.pooling)?);
        }
        Ok(weights)
    }

    /// Builds the linear part, which is a sum of these terms: the weight of each id, each number
    /// multiplied by a weight, and a bias if it is requested.
    pub(super) fn linear_part(
        &self,
        b: &mut GraphBuilder,
        numeric: Option<NodeId>,
        bias: bool,
    ) -> Result<NodeId> {
        let weights = self.weights(b)?;
        add_linear(b, "wide", ("linear", &weights), numeric, bias, self.scores())
    }

    /// Builds the concatenation of all numeric features, or returns `None` if there are none.
    pub(super) fn numerics(&self, b: &mut GraphBuilder) -> Result<Option<NodeId>> {
        if self.numeric.is_empty() {
            return Ok(None);
        }
        let columns: Vec<usize> = (0..self.numeric.len()).collect();
        b.numeric("numeric", &columns).map(Some)
    }

    /// Builds the input of the deep part: the concatenation of vectors and numeric values.
    pub(super) fn deep(&self, b: &mut GraphBuilder) -> Result<NodeId> {
        let mut parts = self.vectors(b)?;
        parts.extend(self.numerics(b)?);
        b.concat("deep", &parts)
    }

    /// Returns the common length of all vectors, for models that combine vectors in pairs.
    pub(super) fn common_dim(&self, kind: &str) -> Result<usize> {
        let mut dims = self.columns.iter().filter_map(|column| Some((column, column.vector?.dim)));
        let Some((first, dim)) = dims.next() else {
            return Err(refuse_no_features(format!(
                "{kind} needs at least one feature with a vector; add a feature of ids"
            )));
        };
        match dims.find(|&(_, other)| other != dim) {
            None => Ok(dim),
            Some((column, other)) => Err(Error::Input {
                input: format!("feature {:?}", column.name),
                reason: format!(
                    "its vector has {other} floats, and {:?} has {dim}; {kind} needs vectors of one length",
                    first.name
                ),
            }),
        }
    }
}

/// Builds a linear part with `scores` columns from numbers and from the weights of ids. The
/// concatenation of the weights has the name `name`. At least one number or weight must exist.
pub(super) fn add_linear(
    b: &mut GraphBuilder,
    name: &str,
    (ids, weights): (&str, &[NodeId]),
    numeric: Option<NodeId>,
    bias: bool,
    scores: usize,
) -> Result<NodeId> {
    let mut parts = Vec::new();
    match weights {
        [] => {}
        weights if scores > 1 => parts.push(classes::sum(b, &format!("{ids}.sum"), weights)?),
        weights => {
            let weights = b.concat(ids, weights)?;
            parts.push(b.sum_columns(&format!("{ids}.sum"), weights)?);
        }
    }
    if let Some(numeric) = numeric {
        parts.push(b.linear_from_zero(&format!("{name}.numeric"), numeric, scores)?);
    }
    let sum = match parts[..] {
        [ids, numbers] => b.add(&format!("{name}.sum"), ids, numbers)?,
        [only] => only,
        _ => return Err(refuse_no_features(format!("there is no feature for `{name}`; add one"))),
    };
    if bias { b.bias(name, sum) } else { Ok(sum) }
}

fn refuse_missing_segment(column: &SparseInput, segment: &str) -> Error {
    Error::Input {
        input: format!("feature {:?}", column.name),
        reason: format!(
            "the model reads its {segment}, but the rows of its table have none; add it to the \
             table, or choose another model"
        ),
    }
}

pub(super) fn refuse_no_features(reason: String) -> Error {
    Error::Setting { name: "features", reason }
}
