//! What a model is built over: where in a row each feature's numbers stand.

use zillion_feature::Pooling;

use super::loss::LossSpec;
use super::spec::ModelSpec;
use super::task::check_labels;
use crate::error::{Error, Result};
use crate::graph::builder::GraphBuilder;
use crate::graph::shape::NodeId;
use crate::graph::{ColumnInput, GraphInputs, TableInput};

/// The inputs of a model, in the order in which a batch carries them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelInputs {
    /// Tables in the order of the lookup plan, with the floats of a row.
    pub tables: Vec<TableInput>,
    /// Sparse features in schema order.
    pub columns: Vec<SparseInput>,
    /// Numeric features in schema order.
    pub numeric: Vec<String>,
    /// Labels in schema order.
    pub labels: Vec<LabelInput>,
}

/// A label.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelInput {
    /// The label's name.
    pub name: String,
    /// Factor of its loss.
    pub weight: f32,
    /// Added to its logit in a graph built for inference, 0 for none. Where a share `keep` of the rows
    /// labelled 0 was trained, the odds that a model learns are those of the data over `keep`, and
    /// `ln(keep)` puts them right (King & Zeng 2001; He et al. 2014, section 6.3).
    pub logit_shift: f32,
    /// How it is learned, by models whose loss is a label's own.
    pub loss: LossSpec,
}

impl From<&str> for LabelInput {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), weight: 1.0, logit_shift: 0.0, loss: LossSpec::default() }
    }
}

/// A sparse feature.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseInput {
    /// The feature's name.
    pub name: String,
    /// Index of its table.
    pub table: usize,
    /// Where in a row its vector stands, if it has one.
    pub vector: Option<VectorSegment>,
    /// Where in a row its linear weight stands, if it has one.
    pub linear: Option<usize>,
    /// How the rows of a list become one.
    pub pooling: Pooling,
    /// Whether a row of the batch has a list of values.
    pub list: bool,
    /// Whether the list is in order: a history.
    pub sequence: bool,
}

/// A vector inside a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorSegment {
    /// Its first float.
    pub offset: usize,
    /// Its floats.
    pub dim: usize,
}

impl ModelInputs {
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

    /// The vector of each sparse feature.
    pub(super) fn vectors(&self, b: &mut GraphBuilder) -> Result<Vec<NodeId>> {
        let mut vectors = Vec::with_capacity(self.columns.len());
        for index in 0..self.columns.len() {
            vectors.push(self.vector(b, index)?);
        }
        Ok(vectors)
    }

    /// The vector of one sparse feature: `[B, dim]`.
    pub(super) fn vector(&self, b: &mut GraphBuilder, index: usize) -> Result<NodeId> {
        let column = &self.columns[index];
        let segment = column.vector.ok_or_else(|| lacks(column, "vector"))?;
        let name = format!("vector.{}", column.name);
        b.gather(&name, index, segment.offset, segment.dim, column.pooling)
    }

    /// The vector of each value of a list: `[V, dim]`.
    pub(super) fn values(&self, b: &mut GraphBuilder, index: usize) -> Result<NodeId> {
        let column = &self.columns[index];
        let segment = column.vector.ok_or_else(|| lacks(column, "vector"))?;
        b.gather_values(&format!("values.{}", column.name), index, segment.offset, segment.dim)
    }

    /// The linear weight of each sparse feature.
    pub(super) fn weights(&self, b: &mut GraphBuilder) -> Result<Vec<NodeId>> {
        let mut weights = Vec::with_capacity(self.columns.len());
        for (index, column) in self.columns.iter().enumerate() {
            let offset = column.linear.ok_or_else(|| lacks(column, "linear weight"))?;
            let name = format!("linear.{}", column.name);
            weights.push(b.gather(&name, index, offset, 1, column.pooling)?);
        }
        Ok(weights)
    }

    /// All numeric features side by side, `None` if there are none.
    pub(super) fn numerics(&self, b: &mut GraphBuilder) -> Result<Option<NodeId>> {
        if self.numeric.is_empty() {
            return Ok(None);
        }
        let columns: Vec<usize> = (0..self.numeric.len()).collect();
        b.numeric("numeric", &columns).map(Some)
    }

    /// What deep parts read: vectors and numeric values side by side.
    pub(super) fn deep(&self, b: &mut GraphBuilder) -> Result<NodeId> {
        let mut parts = self.vectors(b)?;
        parts.extend(self.numerics(b)?);
        b.concat("deep", &parts)
    }

    /// The one length of all vectors, for models that pair them.
    pub(super) fn common_dim(&self, kind: &str) -> Result<usize> {
        let mut dims = self.columns.iter().filter_map(|column| Some((column, column.vector?.dim)));
        let Some((first, dim)) = dims.next() else {
            return Err(no_features(format!("{kind} needs at least one feature with a vector")));
        };
        match dims.find(|&(_, other)| other != dim) {
            None => Ok(dim),
            Some((column, other)) => Err(Error::Input {
                input: format!("feature {:?}", column.name),
                reason: format!(
                    "{kind} pairs vectors, so all must be of one length: {other} floats here, {dim} of {:?}",
                    first.name
                ),
            }),
        }
    }
}

impl ModelSpec {
    /// Whether the inputs have what the model reads at all; lengths are checked where they matter.
    pub(super) fn check(&self, inputs: &ModelInputs) -> Result<()> {
        if inputs.columns.is_empty() && inputs.numeric.is_empty() {
            return Err(no_features(format!("{} needs at least one feature", self.kind())));
        }
        check_labels(self, inputs.labels.len())
    }
}

fn lacks(column: &SparseInput, segment: &str) -> Error {
    Error::Input {
        input: format!("feature {:?}", column.name),
        reason: format!("the model reads a {segment} of it, but the rows of its table have none"),
    }
}

fn no_features(reason: String) -> Error {
    Error::Setting { name: "features", reason }
}
