//! The ids of nodes and parameters, and the shapes of values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of rows of a value, symbolic or constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Dim {
    /// The rows of the batch, `B`.
    Batch,
    /// The unique rows that the batch reads of one table, `U(table)`.
    Unique(usize),
    /// The values of one sparse column, list after list, `V(column)`. The values of a tile are the
    /// values in the lists of its rows.
    Values(usize),
    /// The rows of the batch, `B`, of a value that is complete for the whole batch. Every tile may
    /// read all of its rows. Only operations that are made for such values read them.
    Whole,
    /// A number that is known when the model is built.
    Const(usize),
}

/// The shape of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The number of rows.
    pub rows: Dim,
    /// The number of columns.
    pub cols: usize,
}

/// The index of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// The index of a parameter in its graph, in order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ParamId(pub u32);

impl Shape {
    /// Returns the shape `[B, cols]`.
    pub const fn batch(cols: usize) -> Self {
        Self { rows: Dim::Batch, cols }
    }

    /// Returns the shape `[rows, cols]` with constant numbers of rows and columns.
    pub const fn constant(rows: usize, cols: usize) -> Self {
        Self { rows: Dim::Const(rows), cols }
    }

    /// Returns the number of elements of a constant shape. Returns `None` if the shape is symbolic,
    /// or if the number does not fit in a `usize`.
    pub fn const_len(self) -> Option<usize> {
        match self.rows {
            Dim::Const(rows) => rows.checked_mul(self.cols),
            _ => None,
        }
    }

    /// Returns whether each tile of the batch has its own part of the rows.
    pub(crate) fn is_tiled(self) -> bool {
        self.rows.is_tiled()
    }
}

impl Dim {
    /// Returns whether each tile of the batch has its own part of the rows. This is true for rows
    /// of the batch and for values of a column.
    pub(crate) fn is_tiled(self) -> bool {
        matches!(self, Self::Batch | Self::Values(_))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch => write!(f, "B"),
            Self::Unique(table) => write!(f, "U{table}"),
            Self::Values(column) => write!(f, "V{column}"),
            Self::Whole => write!(f, "whole B"),
            Self::Const(n) => write!(f, "{n}"),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.cols)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}
