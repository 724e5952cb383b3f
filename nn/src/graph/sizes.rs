//! The number of rows for each symbolic dimension, for estimates of cost.

use super::shape::{Dim, Shape};

/// The size of a batch.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// The number of rows of the batch.
    pub rows: usize,
    /// The number of values in a list, for each sparse column. A column whose index is not in the
    /// vector has one value.
    pub list_len: Vec<usize>,
}

impl Sizes {
    /// Returns the sizes of a batch of `rows` rows, with one value per row in every column.
    pub fn of(rows: usize) -> Self {
        Self { rows, list_len: Vec::new() }
    }

    /// Returns the number of rows of a dimension.
    pub(crate) fn rows_of(&self, dim: Dim) -> u64 {
        let rows = self.rows as u64;
        match dim {
            Dim::Values(column) => rows * self.list_len.get(column).map_or(1, |&n| n as u64),
            Dim::Const(n) => n as u64,
            // Each row of the batch reads at most one row of the table.
            Dim::Batch | Dim::Whole | Dim::Unique(_) => rows,
        }
    }

    /// Returns the number of elements of a value.
    pub(crate) fn elements(&self, shape: Shape) -> u64 {
        self.rows_of(shape.rows) * shape.cols as u64
    }
}

/// The shapes of the inputs and of the result of one node, and the size of the batch. The number of
/// operations of the node is computed from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSizes<'a> {
    pub(crate) inputs: &'a [Shape],
    pub(crate) output: Shape,
    pub(crate) sizes: &'a Sizes,
}

impl NodeSizes<'_> {
    /// Returns the number of elements of the result.
    pub(crate) fn out(&self) -> u64 {
        self.sizes.elements(self.output)
    }

    /// Returns the number of elements of an input, or 0 if the node has no such input.
    pub(crate) fn input(&self, index: usize) -> u64 {
        self.inputs.get(index).map_or(0, |&shape| self.sizes.elements(shape))
    }

    /// Returns the number of columns of an input, or 0 if the node has no such input.
    pub(crate) fn cols(&self, index: usize) -> u64 {
        self.inputs.get(index).map_or(0, |shape| shape.cols as u64)
    }
}
