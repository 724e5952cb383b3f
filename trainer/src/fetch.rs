//! The values of a model's nodes, copied while the model runs.
//!
//! A requested node becomes an additional output of the graph. The run copies its values and
//! computes everything else as before, so a request does not change the result.

use std::ops::Range;

use zillion_feature::Batch;
use zillion_nn::{Dim, Graph, NodeId, Shape};

use crate::error::{Error, Result};

/// A node whose values were requested.
#[derive(Clone, Debug)]
pub(crate) struct RequestedNode {
    name: String,
    pub(crate) id: NodeId,
    shape: Shape,
}

/// The values of a node over one batch.
#[derive(Clone, Copy, Debug)]
pub struct Fetched<'a> {
    /// The name of the node, as it was requested.
    pub name: &'a str,
    /// The shape of the node.
    pub shape: Shape,
    /// The values of the node, row after row.
    pub values: &'a [f32],
}

impl<'a> Fetched<'a> {
    /// Returns the values that belong to one row of the batch. For most nodes these values are one
    /// row of the node. For a list without pooling, they are one row for each value of the list.
    /// Returns `None` if the rows of the node do not belong to rows of a batch.
    pub fn of_row(&self, batch: &Batch, row: usize) -> Option<&'a [f32]> {
        let rows = match self.shape.rows {
            Dim::Batch => row..row + 1,
            Dim::Values(column) => list(batch, column, row)?,
            Dim::Unique(_) | Dim::Whole | Dim::Const(_) => return None,
        };
        self.values.get(rows.start * self.shape.cols..rows.end * self.shape.cols)
    }

    /// Returns whether each row of the batch has values of its own.
    pub fn is_by_row(&self) -> bool {
        matches!(self.shape.rows, Dim::Batch | Dim::Values(_))
    }
}

fn list(batch: &Batch, column: usize, row: usize) -> Option<Range<usize>> {
    match &batch.sparse.get(column)?.offsets {
        None => Some(row..row + 1),
        Some(offsets) => Some(*offsets.get(row)? as usize..*offsets.get(row + 1)? as usize),
    }
}

/// Finds nodes by their names. The name of an output of the graph (such as `logits`) is also
/// allowed.
pub(crate) fn find_nodes(graph: &Graph, names: &[String]) -> Result<Vec<RequestedNode>> {
    let find = |name: &String| {
        let id = graph.find(name).or_else(|| graph.output(name)).ok_or_else(|| {
            let known = graph.nodes.iter().map(|node| node.name.as_str());
            let more = graph.aliases.iter().map(|(name, _)| name.as_str());
            let near = zillion_config::nearest(name, known.chain(more));
            let hint = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
            Error::UnknownNode { name: name.clone(), hint }
        })?;
        let shape = graph.shape(id);
        if let Dim::Unique(_) | Dim::Whole = shape.rows {
            return Err(Error::NotByRow { name: name.clone(), shape: shape.to_string() });
        }
        Ok(RequestedNode { name: name.clone(), id, shape })
    };
    names.iter().map(find).collect()
}

/// Returns the values of the requested nodes in the last run of an executor. `output` returns the
/// values of a node.
pub(crate) fn fetch_values<'a>(
    nodes: &'a [RequestedNode],
    output: impl Fn(NodeId) -> Option<&'a [f32]>,
) -> Vec<Fetched<'a>> {
    let value = |w: &'a RequestedNode| {
        let values = output(w.id)?;
        Some(Fetched { name: &w.name, shape: w.shape, values })
    };
    nodes.iter().filter_map(value).collect()
}
